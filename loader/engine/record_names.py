"""Names of the records that elements are made of, for users: `RecordOf(source, record)`.

Rows of a stream carry the elements of chains that they are made of (`transforms.made_of`), and
`record_trace` finds the records of these. Nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from windrow.engine.record_trace import Taken, Trace, at_rows, leaves_of, trace
from windrow.engine.rows_made_of import next_row, row_at
from windrow.errors import PlanError, RecordIndexError
from windrow.sources.base import IntArray
from windrow.transforms.made_of import MadeOf
from windrow.transforms.nodes import Node, random_access_parts, tail_of, undecided, walk
from windrow.transforms.positions import run_numbers, starts_of


class RecordOf(NamedTuple):
    """A record of one of the sources of a chain.

    Args:
        source: The number of the source: they count from 0 in the order in which they first occur
            in the chain, parents first. A `range` is a source too.
        record: The index of the record in that source. The records of a `range` are the indices of
            its numbers.
    """

    source: int
    record: int


Records: TypeAlias = "list[RecordOf] | list[list[RecordOf]]"
"""The records of an element in row order; for packed rows, a list for each row."""


def records_of_element(node: Node, index: int) -> list[RecordOf]:
    """The records of an element of a chain with random access; `index` is in any epoch.

    Raises:
        RecordIndexError: If there is no such element.
    """
    if not -(2**63) <= index < 2**63:
        raise RecordIndexError(f"index {index} is too large; choose one below 2**63")
    if node.length == 0:
        raise RecordIndexError(f"the dataset is empty, so it has no element {index}")
    row = MadeOf.of_elements(0, np.array([index], np.int64))
    return [name for _, name in _named(node, [node], row)]


def records_of_stream(node: Node, index: int) -> Records:
    """The records of element number `index` of a stream.

    Raises:
        RecordIndexError: If there is no such element.
        PlanError: If only the values of elements decide which elements the stream has, or an
            iterator could not run it either.
    """
    deciding = undecided(node)
    if deciding is not None:
        raise PlanError(
            f"records_of: {deciding.label} decides by values which elements the stream has; give a state"
            " before the element, or iterate, and ask the iterator with records_of_last()"
        )
    if not 0 <= index < 2**63:
        raise RecordIndexError(
            f"records_of: element {index} is out of range; choose 0 <= index < 2**63"
        )
    running = tail_of(node).run()
    row, number = row_at(running, index)
    if number < index or row is None:
        raise RecordIndexError(
            f"records_of: element {index} is out of range; the stream has {number} elements:"
            f" choose 0 <= index < {number}"
        )
    return _by_row(node, row, _named(node, random_access_parts(running), row))


def records_after(node: Node, position: Sequence[int]) -> Records:
    """The records of the element after a position of a stream.

    Args:
        node: The chain that an iterator runs. It is not `undecided`.
        position: `node.width` integers.

    Raises:
        RecordIndexError: If the stream ends there.
    """
    row = next_row(node, position)
    if row is None:
        raise end_at_state()
    return records_of_row(node, row)


def end_at_state() -> RecordIndexError:
    """The error where no element follows a state."""
    return RecordIndexError("records_of: the stream ends at this state; give an earlier one")


def records_of_row(node: Node, row: MadeOf | None) -> Records:
    """The records of one row that a stream gave.

    Raises:
        PlanError: If a node of the stream does not say what its rows are made of.
    """
    if row is None:
        raise PlanError(
            "the records are unknown: a node of this chain does not say what its rows are made of"
        )
    return _by_row(node, row, _named(node, random_access_parts(node), row))


def _named(node: Node, chains: list[Node], row: MadeOf) -> list[tuple[int, RecordOf]]:
    """The records of one row in row order, each with the part of the row that it is in.

    Args:
        node: The chain, which numbers the sources.
        chains: The chains of `row`: see `random_access_parts`.
        row: What the row is made of.
    """
    numbers = {key: number for number, key in enumerate(leaves_of(node))}
    part, chain, element, own_row, own_rows, place, _ = row.items.T
    first = part if _packs(node) else place
    # Rows of (part or place, row of the element, item, source, record).
    found = [np.zeros((0, 5), np.int64)]
    for number in np.unique(chain).tolist():
        items = np.flatnonzero(chain == number)
        elements, which = np.unique(element[items], return_inverse=True)
        traced = trace(chains[number], elements, uneven=True)
        for leaf, of, inner, records in _taken(traced, which, own_row[items], own_rows[items]):
            source = np.full(len(of), numbers[id(leaf)])
            found.append(np.column_stack([first[items][of], inner, items[of], source, records]))
    names = np.concatenate(found)
    keys = (1, 2, 0) if _packs(node) else (2, 1, 0)
    names = names[np.lexsort([names[:, key] for key in keys])]
    return [(part, RecordOf(source, record)) for part, _, _, source, record in names.tolist()]


def _taken(
    traced: Trace, which: IntArray, own_row: IntArray, own_rows: IntArray
) -> Iterator[tuple[Any, IntArray, IntArray, IntArray]]:
    """Leaves, and for each record the place in `which`, its row in what is taken there, and itself.

    Args:
        traced: The trace of some elements.
        which: The elements that are taken.
        own_row: The row that is taken of each.
        own_rows: How many rows each has; 0 where all are taken.
    """
    whole = traced.counts[which], starts_of(traced.counts)[which]
    counts, starts = whole[0].copy(), whole[1].copy()
    # A row has its own records, unless a function changed the number of rows.
    is_row = (own_rows > 0) & (own_rows == traced.joined[which])
    rows = (starts_of(traced.joined)[which] + own_row)[is_row]
    starts[is_row], counts[is_row] = starts_of(traced.sizes)[rows], traced.sizes[rows]
    for taken in traced.taken:
        for chosen, (many, begin) in ((~taken.shared, (counts, starts)), (taken.shared, whole)):
            of, inner = np.repeat(np.arange(len(which)), many), run_numbers(many)
            part = Taken(
                taken.leaf, taken.rows[chosen], taken.records[chosen], taken.shared[chosen]
            )
            part = at_rows(part, begin[of] + inner)
            yield part.leaf, of[part.rows], inner[part.rows], part.records


def _packs(node: Node) -> bool:
    return any(each.packs for each in walk(node))


def _by_row(node: Node, row: MadeOf, names: list[tuple[int, RecordOf]]) -> Records:
    if not _packs(node):
        return [name for _, name in names]
    found: list[list[RecordOf]] = [[] for _ in range(1 if row.parts is None else row.parts[0])]
    for part, name in names:
        found[part].append(name)
    return found
