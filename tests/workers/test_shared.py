"""Shared memory: it leaves nothing behind, and blocks of it never overlap."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import ClosedError, RecordIndexError
from windrow.workers.shared_memory import SharedMemory, SlotAllocator, unlinked

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def run(program: str, *, descriptors: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, pass_fds=descriptors, capture_output=True, text=True, timeout=600, check=False
    )


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


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


def test_a_closed_memory_has_no_bytes() -> None:
    memory = SharedMemory.create(PAGE)
    memory.close()
    with pytest.raises(ClosedError, match=r"bytes \[0, 8\) of a memory that is closed"):
        memory.view(0, 8)
    with pytest.raises(ClosedError, match=r"bytes \[0, 8\) of a memory that is closed"):
        memory.lend(0, 8, int)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 4), (0, PAGE + 1)])
def test_bytes_outside_the_memory_are_refused(start: int, stop: int) -> None:
    memory = SharedMemory.create(PAGE)
    with pytest.raises(RecordIndexError, match=rf"of a memory of {PAGE} bytes; choose"):
        memory.view(start, stop)
    with pytest.raises(RecordIndexError, match=rf"of a memory of {PAGE} bytes; choose"):
        memory.lend(start, stop, int)


# --- too little room -----------------------------------------------------------------------------


class Maker:
    """Makes memory of at most `most_bytes`, and counts what it was asked for."""

    def __init__(self, most_bytes: int, code: int = errno.ENOSPC) -> None:
        self.most_bytes = most_bytes
        self.code = code
        self.asked: list[int] = []

    def __call__(self, size_bytes: int) -> int:
        self.asked.append(size_bytes)
        if size_bytes > self.most_bytes:
            raise OSError(self.code, os.strerror(self.code))
        return unlinked(size_bytes, folder=None)


def test_less_room_is_a_smaller_memory_and_a_warning() -> None:
    maker = Maker(3 * MIB)
    text = (
        r"asked for 8,388,608 bytes, got 2,097,152 \(No space left on device\).*"
        r"MultiprocessingOptions\(shared_bytes=2097152\)"
    )
    with pytest.warns(RuntimeWarning, match=text) as caught:
        memory = SharedMemory.create(8 * MIB, makers=[maker])
    assert len(caught) == 1
    assert maker.asked == [8 * MIB, 4 * MIB, 2 * MIB]
    assert memory.size_bytes == memory.view(0, 2 * MIB).size == 2 * MIB


def test_a_kind_of_memory_that_is_refused_is_asked_once() -> None:
    refused, other = Maker(0, errno.EPERM), Maker(8 * MIB)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = SharedMemory.create(8 * MIB, makers=[refused, other])
    assert (refused.asked, other.asked) == ([8 * MIB], [8 * MIB])
    assert memory.size_bytes == 8 * MIB


def test_no_room_at_all_is_no_memory_and_a_warning() -> None:
    before = descriptors()
    maker = Maker(0)
    with pytest.warns(RuntimeWarning, match=r"got none \(No space left on device\); arrays go"):
        memory = SharedMemory.create(4 * MIB, makers=[maker])
    assert maker.asked == [4 * MIB, 2 * MIB, MIB]
    assert memory.size_bytes == 0
    memory.close()
    assert descriptors() == before


@pytest.mark.jobs
@linux_only
def test_a_limit_of_address_space_is_kept() -> None:
    program = """
import resource, warnings
from windrow.workers.shared_memory import SharedMemory
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), now + (64 << 20)))
warnings.simplefilter("ignore")
print(0 < SharedMemory.create(1 << 30).size_bytes <= 64 << 20)
"""
    done = run(program)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_an_unlinked_file_has_no_name_and_has_its_space(tmp_path: Path) -> None:
    descriptor = unlinked(3 * MIB, folder=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    found = os.fstat(descriptor)
    assert (found.st_nlink, found.st_size) == (0, 3 * MIB)
    if sys.platform == "linux":
        assert found.st_blocks * 512 >= 3 * MIB
    memory = SharedMemory.attach(descriptor, 3 * MIB)
    memory.view(0, 4)[:] = 9
    assert memory.view(2, 6).tolist() == [9, 9, 0, 0]


# --- nothing is left behind ----------------------------------------------------------------------


@pytest.mark.jobs
@linux_only
def test_a_process_killed_while_it_makes_memory_leaves_nothing(tmp_path: Path) -> None:
    program = f"""
import functools
from windrow.workers.shared_memory import SharedMemory, unlinked
make = functools.partial(unlinked, folder={str(tmp_path)!r})
while True:
    SharedMemory.create(1 << 16, makers=[make]).view(0, 1)[:] = 1
    print("x", flush=True)
"""
    for rounds in (1, 7, 50):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout:
            for _ in range(rounds):
                assert process.stdout.readline() == b"x\n"
            process.kill()
        assert process.wait(30) == -signal.SIGKILL
        assert list(tmp_path.iterdir()) == []


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
