"""What the rows of a stream are made of, from positions alone: rows with marks and without values.

The nodes make blocks as in a run (`streams.blocks`), of elements that have only a number of rows. No
record is read and no function is called, so the nodes must decide by positions alone: see
`transforms.nodes.undecided`.

Invariant: the rows from a position on are made of what an iterator at this position gives.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from windrow.engine import skipping
from windrow.sources.base import IntArray
from windrow.transforms.columns import SizedColumn
from windrow.transforms.made_of import MadeOf
from windrow.transforms.moves import Moved
from windrow.transforms.nodes import (
    Node,
    Step,
    ToStreamNode,
    as_batch,
    as_chain,
    lane_share,
    origin,
    random_access_parts,
)
from windrow.transforms.nodes.dealing import dealing_of, numbers_of
from windrow.transforms.nodes.following import group_size, rows_at
from windrow.transforms.row_blocks import (
    Block,
    Blocks,
    Inputs,
    JointRows,
    KeptBlocks,
    OwnStates,
    Turns,
)
from windrow.transforms.tables import Columnar, Listed, Table

# Rows that are made at once: few at first.
_FIRST: Final = 1 << 6
_MOST: Final = 1 << 12


def row_at(node: Node, number: int) -> tuple[MadeOf | None, int]:
    """What row `number` of a stream is made of.

    Args:
        node: A stream that is not `undecided`.
        number: At least 0.

    Returns:
        What it is made of, and how many rows are before it. If the stream has no such row, these are
        None and the number of its rows.
    """
    chains = _numbered_chains(node)

    def run(node: Node, position: Sequence[int], count: int, unit: int | None) -> Moved:
        return skipping.passed_in(_rows(node, position, chains, None), position, count)

    before = skipping.after(node, origin(node), number, run)
    row = next_row(node, before.position) if before.passed == number else None
    return row, before.passed


def next_row(node: Node, position: Sequence[int]) -> MadeOf | None:
    """What the row after a position is made of; None if the stream ends there.

    Args:
        node: A stream that is not `undecided`.
        position: `node.width` integers.
    """
    for block in _rows(node, position, _numbered_chains(node), None):
        if len(block):
            return None if block.made_of is None else block.made_of.sliced(0, 1)
    return None


def _numbered_chains(node: Node) -> dict[int, int]:
    return {id(chain): k for k, chain in enumerate(random_access_parts(node))}


def _rows(
    node: Node, position: Sequence[int], chains: Mapping[int, int], lane: tuple[int, int] | None
) -> Blocks:
    chain = as_chain(node)
    if chain is not None:
        return _elements(chain, position[0], chains[id(chain.parent)], lane)
    match node.stream_step:
        case Step.NOTHING | Step.ROWS:
            return _rows(node.parent, position, chains, lane)
        case Step.NUMBERED:
            return _numbered(_rows(node.parent, position[:-1], chains, lane), position[-1])
        case Step.GROUPS if group_size(node) is None:
            return _grouped(_rows(node.parent, position[:-1], chains, lane), position[-1])
        case _:
            batch = as_batch(node)
            unapplied = node if batch is None else batch.unapplied
            return unapplied.blocks(position, _UnreadInputs(node, chains, lane), None)


def _elements(chain: ToStreamNode, start: int, number: int, lane: tuple[int, int] | None) -> Blocks:
    parent, wanted = chain.parent, _FIRST
    while True:
        if lane is None:
            found = numbers_of(parent).indices_from(start, wanted)
        else:
            own, lanes = np.array([lane[0]]), lane[1]
            found, _ = dealing_of(parent).lane_indices(
                np.array([start]), np.array([wanted]), own, lanes
            )
        if len(found):
            made_of = MadeOf.of_elements(number, found)
            yield Block(_elements_at(parent, found), found[:, None] + 1, made_of)
            start = int(found[-1]) + 1
        if len(found) < wanted:
            return
        wanted = min(_MOST, 4 * wanted)


def _elements_at(node: Node, indices: IntArray) -> Table:
    counts = rows_at(node, indices)
    if counts is None:
        return Columnar(SizedColumn(len(indices), 0), len(indices))
    return Listed([SizedColumn(count, 0) for count in counts.tolist()])


def _numbered(rows: Blocks, seen: int) -> Blocks:
    for block in rows:
        yield block.with_marks(seen + 1 + np.arange(len(block)))
        seen += len(block)


def _grouped(rows: Blocks, given: int) -> Blocks:
    """The rows after `given` rows: each may begin a group, since no function is called."""
    for block in rows:
        skipped = min(given, len(block))
        given -= skipped
        if count := len(block) - skipped:
            yield block.sliced(skipped, len(block)).with_marks(np.zeros(count, np.int64))


@dataclasses.dataclass(frozen=True, slots=True)
class _UnreadInputs:
    """The inputs of a node that makes its own blocks: see `transforms.row_blocks.Inputs`."""

    node: Node
    chains: Mapping[int, int]
    lane: tuple[int, int] | None

    def blocks(self, number: int, position: Sequence[int], unit: int | None = None) -> Blocks:
        return _rows(self.node.parents[number], position, self.chains, self.lane)

    def in_lanes(self, lanes: int, starts: Mapping[int, Sequence[int]]) -> list[Inputs]:
        if lanes == 1:
            return [self]
        return [dataclasses.replace(self, lane=(lane, lanes)) for lane in starts]

    def joint(self, lanes: int, starts: Mapping[int, Sequence[int]]) -> JointRows | None:
        return None

    def turns(
        self, lanes: int, starts: Mapping[int, Sequence[int]], rows: int, slots: IntArray
    ) -> Turns | None:
        return None

    def number(self, count: int) -> int:
        return count if self.lane is None else count * self.lane[1] + self.lane[0]

    def share(self, count: int) -> int:
        return count if self.lane is None else lane_share(count, *self.lane)

    def chain_number(self, number: int) -> int:
        parent = self.node.parents[number]
        chain = as_chain(parent)
        return self.chains[id(parent if chain is None else chain.parent)]

    def own_states(self) -> OwnStates:
        return OwnStates()

    def kept(self) -> KeptBlocks:
        return KeptBlocks()

    def row_count(self) -> _Growing:
        return _Growing()

    def now_s(self) -> float:
        return 0.0

    def calling(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _Growing:
    """Few rows at first, then ever more: see `transforms.row_blocks.RowCount`."""

    def __init__(self) -> None:
        self._rows = _FIRST

    def next_rows(self) -> int:
        return self._rows

    def saw(self, rows: int, size_bytes: int, took_s: float) -> None:
        self._rows = min(_MOST, 4 * rows)
