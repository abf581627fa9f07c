"""Samples the order of a chain for a picture: which record stands at which position.

A stream is treated as the chain with random access that has its order, so that any of its positions can
be computed. What a filter drops is unknown, so dropped positions count.

Invariant: nothing is read, and no function of the user is called except a selection map; the same
chain gives the same sample.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.engine.record_trace import leaves_of, trace
from windrow.errors import PlanError
from windrow.quality.batch_sample import MOST_IN_BATCH, most_rows
from windrow.transforms.nodes import Node

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MOST_POINTS: Final = 20_000

# Where a position by itself costs as much as computing this many, chains are sampled in runs.
_DEAR: Final = 256
_RUNS: Final = 100


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Which record stands at which position.

    Args:
        positions: Float64 `(n,)`, in elements; row `r` of a batch of `b` stands `r / b` after it.
        records: Int64 `(n,)`, counted through all sources, one after the other.
        sources: Names and lengths of the sources, in the order of their first use.
        elements: How many elements, from the first on, the sample covers.
        is_whole: Whether it has all their records.
        rows: Most records of an element, if every parent yields one.
        notes: Remarks on the sample.
    """

    positions: FloatArray
    records: IntArray
    sources: tuple[tuple[str, int], ...]
    elements: int
    is_whole: bool
    rows: int = 1
    notes: tuple[str, ...] = ()


def order_of(node: Node, *, points: int = MOST_POINTS, beginning: bool = False) -> Order:
    """Sample the order of an epoch, or of its beginning.

    Args:
        node: Any chain.
        points: Most records in the sample.
        beginning: Whether to take all records of the beginning instead of a sample of the epoch.

    Raises:
        PlanError: If the order cannot be computed.
    """
    plain = node.with_random_access()
    leaves = leaves_of(plain)
    sources = tuple((leaf.text, leaf.length) for leaf in leaves.values())
    elements = plain.epoch_length()
    notes = []
    if any(each.drops for each in node.walk()):
        notes.append("positions count what the filter drops")
    if elements < plain.length:
        notes.append("the first epoch of several")
    # Batches at the end of the chain need not be traced as a whole: their rows have positions.
    rows_of, size = _unbatched(plain)
    # Python's integers: elements of endless datasets times rows may exceed 64 bits.
    whole = min(elements * size, rows_of.length)
    if not whole:
        nothing = np.zeros(0, np.int64)
        return Order(nothing.astype(np.float64), nothing, sources, 0, True)
    inner = most_rows(rows_of)
    if inner > MOST_IN_BATCH:
        raise PlanError(
            f"report: an element has {inner} records, and tracing it takes memory for all of them"
        )
    wanted = max(1, points // inner)
    is_whole = beginning or whole <= wanted
    at = range(min(whole, wanted)) if is_whole else _sampled(whole, wanted, _is_dear(plain))
    indices = np.array(at, np.int64)
    found = trace(rows_of, indices)
    first = np.repeat(np.cumsum(found.counts) - found.counts, found.counts)
    inside = (np.arange(len(first)) - first) / inner
    places = (np.repeat(indices, found.counts) + inside) / size
    kept = np.ones(len(places), np.bool_)
    if len(places) > points:  # one element has more rows than that
        kept[:] = False
        kept[np.arange(points) * (1 if beginning else len(places) // points)] = True
    shown = [(each, kept[each.rows]) for each in found.taken]
    ends = np.cumsum([leaf.length for leaf in leaves.values()]).tolist()
    starts = dict(zip(leaves, [0, *ends], strict=False))
    return Order(
        positions=np.concatenate([places[each.rows[some]] for each, some in shown]),
        records=np.concatenate(
            [starts[id(each.leaf)] + each.records[some] for each, some in shown]
        ),
        sources=sources,
        elements=int(indices[-1]) // size + 1 if beginning else elements,
        is_whole=is_whole and (beginning or bool(kept.all())),
        rows=size * inner,
        notes=tuple(notes),
    )


def _unbatched(node: Node) -> tuple[Node, int]:
    """Return the node whose elements the end of a chain batches, and how many make one element."""
    size = 1
    while node.group_size is not None or node.makes_values:
        size *= max(1, min(node.group_size or 1, node.parent.length))
        node = node.parent
    return node, size


def sources_of(order: Order, node: Node) -> dict[tuple[int, int | None], int]:
    """Return the number of the source, from 1, by the index and the row of an element.

    Row None stands for the whole element. Elements of several sources have no number, and neither
    have rows that a function of the user may have moved.
    """
    ends = np.cumsum([length for _, length in order.sources])
    numbers = (np.searchsorted(ends, order.records, side="right") + 1).tolist()
    elements = np.floor(order.positions)
    rows = np.rint((order.positions - elements) * order.rows).astype(np.int64).tolist()
    found: dict[tuple[int, int | None], set[int]] = {}
    keeps_rows = _keeps_rows(node)
    for element, row, number in zip(elements.astype(np.int64).tolist(), rows, numbers, strict=True):
        for place in (None, row) if keeps_rows else (None,):
            found.setdefault((element, place), set()).add(number)
    return {place: min(several) for place, several in found.items() if len(several) == 1}


def _keeps_rows(node: Node) -> bool:
    """Return whether row `r` of an element is the `r`-th record of its only batch."""
    while len(node.parents) == 1 and node.group_size is None and not node.makes_values:
        node = node.parent
    groups = [each for each in node.walk() if each.group_size is not None]
    return groups == [node]


# --- which positions -----------------------------------------------------------------------------


def _sampled(whole: int, points: int, in_runs: bool) -> list[int]:
    """Return increasing places in `[0, whole)`: one in each of `points` equal parts, or runs."""
    random = np.random.default_rng(0)
    parts = min(_RUNS, points) if in_runs else points
    run = points // parts
    edges = [whole * part // parts for part in range(parts + 1)]
    shares = random.random(parts).tolist()
    starts = [
        low + int(share * (high - low - run + 1))
        for low, high, share in zip(edges[:-1], edges[1:], shares, strict=True)
    ]
    return [start + at for start in starts for at in range(run)]


def _is_dear(node: Node) -> bool:
    """Return whether positions that lie apart cost much more to compute than neighbours."""
    return node.order_cost().scattered(node.length) > _DEAR
