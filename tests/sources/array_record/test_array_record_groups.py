"""Record groups that the native core reads while Python does other work."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.array_record_bytes import write
from windrow.core.native import native
from windrow.core.threads import InlineExecutor
from windrow.errors import ReadError
from windrow.sources import ArrayRecordDataSource

pytestmark = pytest.mark.skipif(native() is None, reason="without the native core")


def made(count: int, size: int = 40) -> list[bytes]:
    """Records of different lengths, some of them empty."""
    return [bytes([k % 251]) * (k * 7 % size) for k in range(count)]


def damaged(path: Path) -> Path:
    """The file with a byte of its first group changed."""
    with open(path, "r+b") as file:
        file.seek(64 + 40 + 20)
        byte = file.read(1)
        file.seek(64 + 40 + 20)
        file.write(bytes([byte[0] ^ 1]))
    return path


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """33 records in groups of 8: the last group has one."""
    return write(tmp_path_factory.mktemp("groups") / "a", made(33), "group_size:8")


@given(skip=st.integers(0, 32), take=st.integers(1, 33), data=st.data())
def test_any_records_of_any_range_are_picked(
    grouped: Path, skip: int, take: int, data: st.DataObject
) -> None:
    stop = min(33, skip + take)
    source = ArrayRecordDataSource(f"{grouped}[{skip}:{stop}]")
    (part,) = source.parts
    chunks = data.draw(st.permutations(range(part.chunk_count)))
    indices = np.array(data.draw(st.lists(st.integers(0, len(source) - 1))), np.int64)
    decoded = list(part.start(chunks, InlineExecutor()).result())
    assert sum(map(len, decoded)) == len(source)
    place = np.argsort(chunks)
    found = part.picked(decoded, place[part.needs(indices).chunks], part.places(indices))
    assert found == [made(33)[skip + k] for k in indices.tolist()]


@pytest.mark.parametrize("options", ["snappy", "brotli", "uncompressed", "zstd", "transpose:true"])
def test_groups_of_every_codec_over_block_headers(tmp_path: Path, options: str) -> None:
    records = [os.urandom(3_000) for _ in range(100)]
    path = write(tmp_path / "a", records, f"group_size:50,{options}")
    chain = windrow.MapDataset.source(ArrayRecordDataSource(path)).seed(3).block_shuffle(2)
    for epoch in (chain, chain.repeat(2)):
        found = list(epoch.to_iter_dataset())
        assert sorted(found) == sorted(records * (len(found) // 100))


def test_a_damaged_group_names_file_record_and_offset(tmp_path: Path) -> None:
    path = damaged(write(tmp_path / "a", made(33), "group_size:8"))
    (part,) = ArrayRecordDataSource(path).parts
    with ThreadPoolExecutor(1) as pool:
        read = part.start([1, 0], pool)
        with pytest.raises(ReadError, match=r"record 0 of .*/a .*records 0 to 7.*hash") as caught:
            read.result()
        assert (caught.value.offset, caught.value.records) == (64, (0, 8))
        assert read.exception() is caught.value
        assert list(part.start([1], pool).result()[0]) == made(33)[8:16]


def test_places_that_do_not_exist_are_refused(grouped: Path) -> None:
    core: Any = native()
    (part,) = ArrayRecordDataSource(grouped).parts
    groups = list(part.start([0, 4], InlineExecutor()).result())
    assert [len(group) for group in groups] == [8, 1]
    one = np.zeros(1, np.int64)
    for which, inside, kind in [
        (one, one + 8, IndexError),
        (one, one - 1, IndexError),
        (one + 1, one + 1, IndexError),
        (one + 2, one, IndexError),
        (one - 1, one, IndexError),
        (one, np.zeros(2, np.int64), ValueError),
        (one.astype(np.int32), one, ValueError),
    ]:
        with pytest.raises(kind):
            core.array_record_take(groups, which, inside)
    with pytest.raises(TypeError):
        core.array_record_take([()], one, one)
    with pytest.raises(IndexError):
        groups[1][1]


def test_a_read_that_is_given_up_ends(grouped: Path) -> None:
    (part,) = ArrayRecordDataSource(grouped).parts
    with ThreadPoolExecutor(1) as pool:
        for _ in range(100):
            part.start(range(part.chunk_count), pool)
        assert list(part.start([4], pool).result()[0]) == made(33)[32:]


def test_groups_are_read_in_a_forked_process(tmp_path: Path) -> None:
    for group in (1, 30):
        write(tmp_path / f"{group}.array_record", made(300, 2_000), f"group_size:{group}")
    ask = "[*windrow.MapDataset.source(source).to_iter_dataset()] + source.read(np.arange(600))"
    script = (
        "import os, sys, numpy as np, windrow\n"
        "from windrow.sources import ArrayRecordDataSource\n"
        f"source = ArrayRecordDataSource({str(tmp_path)!r})\n"
        f"records = {ask}\n"
        "child = os.fork()\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        f"os._exit({ask} != records)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
