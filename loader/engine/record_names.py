"""Names of the records that elements are made of, for users: `RecordOf(source, record)`.

Rows of a stream carry the elements of chains that they are made of (`transforms.made_of`), and
`record_trace` finds the records of these. Nothing is read.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.engine.record_trace import leaves_of, trace
from windrow.errors import PlanError, RecordIndexError
from windrow.transforms.made_of import MadeOf
from windrow.transforms.nodes import Node, chains_of, ordered, random_access_parts, undecided

IntArray = npt.NDArray[np.int64]


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
    return [name for _, name in _named(node, [node], _row_of(node, index))]


def records_of_stream(node: Node, index: int) -> Records:
    """The records of element number `index` of a stream.

    Raises:
        RecordIndexError: If there is no such element.
        PlanError: If only the values of elements decide which elements the stream has.
    """
    if any(chain.lanes > 1 or chain.parent.has_gaps for chain in chains_of(node)):
        raise PlanError(
            "records_of: the numbers of elements in lanes, and of rows that are planned from lengths,"
            " are not known; iterate, and ask the iterator with records_of_last()"
        )
    deciding = undecided(node)
    if deciding is not None:
        how = "decides by values" if deciding.has_order else "decides as it runs"
        raise PlanError(
            f"records_of: {deciding.label} {how} which elements the stream has; iterate"
            " it, and ask the iterator with records_of_last()"
        )
    chain = ordered(node)
    row = _row_of(chain, index)
    if not 0 <= index < chain.length:
        raise RecordIndexError(
            f"records_of: element {index} is out of range; the stream has {chain.length} elements:"
            f" choose 0 <= index < {chain.length}"
        )
    return _by_row(node, row, _named(node, [chain], row))


def records_of_row(node: Node, row: MadeOf | None) -> Records:
    """The records of one row that a stream gave.

    Raises:
        PlanError: If a node of the stream does not say what its rows are made of.
    """
    if row is None:
        raise PlanError(
            "records_of_last: a node of this chain does not say what its rows are made of"
        )
    return _by_row(node, row, _named(node, random_access_parts(node), row))


def _row_of(chain: Node, index: int) -> MadeOf:
    if not -(2**63) <= index < 2**63:
        raise RecordIndexError(f"index {index} is too large; choose one below 2**63")
    if chain.length == 0:
        raise RecordIndexError(f"the dataset is empty, so it has no element {index}")
    return MadeOf.of_elements(0, np.array([index], np.int64))


def _named(node: Node, chains: list[Node], row: MadeOf) -> list[tuple[int, RecordOf]]:
    """The records in row order, each with the part of the row that it is in."""
    numbers = {key: number for number, key in enumerate(leaves_of(node))}
    part, chain, element = row.items.T
    # Rows of (part, row of the element, item, source, record).
    found = [np.zeros((0, 5), np.int64)]
    for number in np.unique(chain).tolist():
        items = np.flatnonzero(chain == number)
        traced = trace(chains[number], element[items], uneven=True)
        starts = np.cumsum(traced.counts) - traced.counts
        of_row = np.repeat(np.arange(len(items)), traced.counts)
        for taken in traced.taken:
            of = of_row[taken.rows]
            source = np.full(len(of), numbers[id(taken.leaf)])
            inner = taken.rows - starts[of]
            found.append(
                np.column_stack([part[items][of], inner, items[of], source, taken.records])
            )
    rows = np.concatenate(found)
    keys = (1, 2, 0) if _packs(node) else (2, 1, 0)
    rows = rows[np.lexsort([rows[:, key] for key in keys])]
    return [(part, RecordOf(source, record)) for part, _, _, source, record in rows.tolist()]


def _packs(node: Node) -> bool:
    return any(each.packs for each in node.walk())


def _by_row(node: Node, row: MadeOf, names: list[tuple[int, RecordOf]]) -> Records:
    if not _packs(node):
        return [name for _, name in names]
    found: list[list[RecordOf]] = [[] for _ in range(1 if row.parts is None else row.parts[0])]
    for part, name in names:
        found[part].append(name)
    return found
