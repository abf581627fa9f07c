"""Shared memory: it leaves nothing behind, and blocks of it never overlap."""

from __future__ import annotations

import gc
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.workers.shared_memory import SharedMemory, SlotAllocator, unnamed_file

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


# --- views and loans -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["slice", "frombuffer", "pickle", "memoryview"])
def test_the_last_view_gives_a_loan_back_once(how: str) -> None:
    memory, calls = SharedMemory.create(4 * PAGE), [0]
    lent = memory.lend(PAGE, 2 * PAGE, lambda: calls.append(1))
    lent[:4] = (1, 2, 3, 4)
    view: object
    if how == "slice":
        view = lent[2:].reshape(2, -1)[1:, ::2]
    elif how == "frombuffer":
        view = np.frombuffer(lent, np.int32)
    elif how == "memoryview":
        view = lent.data[3:]
    else:
        out_of_band: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(np.arange(9), 5, buffer_callback=out_of_band.append)
        view = pickle.loads(pickled, buffers=[lent[:72]])
    del lent
    gc.collect()
    assert calls == [0]
    del view
    assert calls == [0, 1]
    assert memory.view(PAGE, PAGE + 4).tolist() == [1, 2, 3, 4]


def test_the_memory_has_no_name_and_ends_with_its_views() -> None:
    memory = SharedMemory.attach(unnamed_file(3 * MIB), 3 * MIB)
    found = os.fstat(memory.descriptor)
    assert (found.st_nlink, found.st_size) == (0, 3 * MIB)
    view = memory.view(0, 6)
    memory.close()
    view[:] = 9
    assert view.tolist() == [9] * 6


# --- blocks --------------------------------------------------------------------------------------


@given(
    pages=st.integers(0, 40),
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "give", "shrink"]), st.integers(0, 10 * PAGE)),
        max_size=60,
    ),
)
def test_blocks_never_overlap_and_join_again(pages: int, steps: list[tuple[str, int]]) -> None:
    blocks = SlotAllocator(pages * PAGE + 17)
    held: dict[int, int] = {}
    for step, number in steps:
        if step == "take" or not held:
            offset = blocks.take(number)
            if offset is None:
                continue
            stop = offset + max(number, 1)
            assert offset % PAGE == 0
            assert 0 <= offset < stop <= pages * PAGE
            assert all(stop <= start or end <= offset for start, end in held.items())
            held[offset] = stop
            continue
        offset = sorted(held)[number % len(held)]
        if step == "give":
            del held[offset]
            blocks.give(offset)
        else:
            blocks.shrink(offset, number)
            held[offset] = min(held[offset], offset + max(number, 1))
        used = sum(-(-(stop - start) // PAGE) * PAGE for start, stop in held.items())
        assert blocks.used_bytes == used
    for offset in held:
        blocks.give(offset)
    assert blocks.used_bytes == 0
    assert blocks.take(pages * PAGE) == (0 if pages else None)
    assert blocks.take(1) is None
