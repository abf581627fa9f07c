"""A stream asks for the elements that a node has, also where its indices have gaps."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow import IterDataset, MapDataset, ReadOptions
from windrow.sources.base import IntArray
from windrow.transforms.nodes import IndexNode, ToStreamNode
from windrow.transforms.nodes.dealing import Numbers
from windrow.transforms.positions import Positions

SYNCHRONOUS = ReadOptions(num_threads=0, prefetch_buffer_size=0)


@dataclasses.dataclass(frozen=True, eq=False)
class GappedNode(Numbers, IndexNode):
    """Element `k` of the parent at the index `kept[k]`; no other index has an element."""

    kept: tuple[int, ...]

    def count(self) -> int:
        return self.kept[-1] + 3 if self.kept else 3

    @property
    def label(self) -> str:
        return f"gapped({self.kept})"

    def indices_from(self, start: int, count: int) -> IntArray:
        kept = np.array(self.kept, np.int64)
        return kept[kept >= start][:count]

    def index_after(self, start: int, count: int) -> tuple[int, int]:
        found = self.indices_from(start, count)
        return (int(found[-1]) + 1 if len(found) else start), len(found)

    def to_parent(self, at: Positions) -> Positions:
        found = np.searchsorted(self.kept, at.offsets)
        assert np.array_equal(np.array(self.kept)[found], at.offsets), "asked for a gap"
        return Positions(at.epochs, found)


def gapped(kept: list[int], options: ReadOptions, *, batched: bool = False) -> IterDataset[Any]:
    chain = MapDataset.source(np.arange(max(1, len(kept))) * 10)
    node = MapDataset[Any](GappedNode((chain._node,), tuple(kept)))
    if batched:
        node = node.map(lambda column: column + len(column), batched=True)
    else:
        node = node.map(lambda value: value + 1)
    return IterDataset(ToStreamNode((node._node,), options))


kept_indices = st.lists(st.integers(0, 900), unique=True, max_size=40).map(sorted)


@given(kept_indices, st.sampled_from([SYNCHRONOUS, ReadOptions()]), st.data())
def test_gaps_are_never_asked_for_and_states_resume(
    kept: list[int], options: ReadOptions, data: st.DataObject
) -> None:
    expected = [10 * k + 1 for k in range(len(kept))]
    iterator = iter(gapped(kept, options))
    at = data.draw(st.integers(0, len(kept)))
    assert [int(next(iterator)) for _ in range(at)] == expected[:at]
    state = json.loads(json.dumps(iterator.get_state()))
    again = iter(gapped(kept, options))
    again.set_state(state)
    assert [int(n) for n in again] == expected[at:]
    assert [int(n) for n in iterator] == expected[at:]


@given(kept_indices, st.data())
def test_a_batched_function_gets_the_same_rows_from_any_position(
    kept: list[int], data: st.DataObject
) -> None:
    blocks = np.array(kept, np.int64) // 256
    sizes = [int(np.sum(blocks == block)) for block in blocks]
    expected = [10 * k + size for k, size in enumerate(sizes)]
    iterator = iter(gapped(kept, SYNCHRONOUS, batched=True))
    at = data.draw(st.integers(0, len(kept)))
    assert [int(next(iterator)) for _ in range(at)] == expected[:at]
    again = iter(gapped(kept, SYNCHRONOUS, batched=True))
    again.set_state(iterator.get_state())
    assert [int(n) for n in again] == expected[at:]
