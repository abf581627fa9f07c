"""The elements that lanes take: each once, in order, however they are asked for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow import MapDataset
from windrow.transforms.nodes.dealing import dealing_of, dealt


@given(data=st.data())
def test_lanes_take_each_element_once_in_order(data: st.DataObject) -> None:
    length, lanes = data.draw(st.integers(1, 60), "length"), data.draw(st.integers(1, 5), "lanes")
    chain: MapDataset[int] = MapDataset.range(length)
    block = data.draw(st.sampled_from([None, 1, 4]), "block")
    if block is not None and lanes <= -(-length // block):
        chain = chain.block_shuffle(seed=1, block=block)
    if data.draw(st.booleans(), "repeats"):
        reseed = data.draw(st.booleans(), "reseed")
        chain = chain.repeat(data.draw(st.integers(1, 3), "epochs"), reseed_each_epoch=reseed)
    node = dealt(chain.map(abs)._node, lanes)
    dealing = dealing_of(node)
    lane_of = dealing.lane_of(np.arange(node.length), lanes)
    numbers = np.array(data.draw(st.permutations(range(lanes)), "order")[: lanes // 2 + 1])
    some = st.lists(st.integers(0, node.length), min_size=len(numbers), max_size=len(numbers))
    starts, counts = np.array(data.draw(some, "starts")), np.array(data.draw(some, "counts"))
    found, each = dealing.lane_indices(starts, counts, numbers, lanes)
    parts = np.split(found, np.cumsum(each)[:-1])
    for lane, start, count, part in zip(numbers, starts, counts, parts, strict=True):
        own = np.flatnonzero(lane_of == lane)
        assert part.tolist() == own[own >= start][:count].tolist()
        assert dealing.lane_elements(int(lane), lanes) == len(own)
