"""Files written many records at a time, against the files of the array_record package."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.array_record_bytes import chunks_of, written
from tests.hypothesis_profiles import examples
from windrow.converters.records import record_writing
from windrow.converters.records.record_writing import core_writer, options_of
from windrow.core.native import native
from windrow.sources import ArrayRecordDataSource
from windrow.sources.array_record.decode import decode

# With a chunk's header, and what is before its record, these end around the end of a block.
AROUND_A_BLOCK = [65_512 - less for less in range(20, 140)]


@pytest.fixture(autouse=True, scope="module")
def _any_group() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_writing, "_MOST_GROUP", 1 << 20)
        yield


def written_here(path: Path, records: Sequence[bytes], options: str, *, at_once: int = 7) -> bytes:
    """The bytes of a file of `records`, which come `at_once` at a time."""
    if native() is None:
        pytest.skip("the native core is not built here")
    found = options_of(options)
    assert found is not None
    writer = core_writer(str(path), found)
    for at in range(0, len(records), at_once):
        writer.write(records[at : at + at_once])
    writer.close()
    return path.read_bytes()


def read_back(path: Path) -> list[bytes]:
    """All records, by the package, which verifies every hash."""
    reader = ArrayRecordReader(str(path), "readahead_buffer_size:0,max_parallelism:0")
    assert reader.ok()
    records: list[bytes] = reader.read_all() if reader.num_records() else []
    reader.close()
    return records


RECORDS = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(bytes, st.sampled_from((0, 1, 127, 128, 5_000, 16_384, 70_000))),
        st.builds(
            lambda size: random.Random(size).randbytes(size), st.sampled_from(AROUND_A_BLOCK)
        ),
    ),
    max_size=40,
)


@settings(max_examples=examples(60))
@given(RECORDS, st.integers(1, 9), st.integers(1, 50), st.sampled_from((1, 2_000, 1 << 21)))
def test_plain_files_are_those_of_the_package_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[bytes],
    group: int,
    at_once: int,
    held: int,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    options = f"group_size:{group},uncompressed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_writing, "HELD_BYTES", held)
        found = written_here(folder / "here", records, options, at_once=at_once)
    assert found == written(folder / "package", records, options)


@settings(max_examples=examples(24))
@given(
    RECORDS,
    st.integers(1, 9),
    st.sampled_from(("zstd", "zstd:1", "zstd:19,window_log:12", "snappy", "")),
)
def test_the_package_reads_zstd_files(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], group: int, packing: str
) -> None:
    folder = tmp_path_factory.mktemp("files")
    options = f"{packing},group_size:{group}".strip(",")
    raw = written_here(folder / "here", records, options)
    assert read_back(folder / "here") == records
    # What the package wrote has as many chunks, of as many records each.
    theirs = [chunk.records for chunk in chunks_of(written(folder / "package", records, options))]
    chunks = chunks_of(raw)
    assert [chunk.records for chunk in chunks] == theirs
    assert [one for chunk in decode(chunks) for one in chunk] == records


def test_an_index_of_many_chunks(tmp_path: Path) -> None:
    records = [bytes([number % 251]) * (number % 300) for number in range(2_049)]
    found = written_here(tmp_path / "here", records, "group_size:1,uncompressed", at_once=100)
    assert found == written(tmp_path / "package", records, "group_size:1,uncompressed")


@pytest.mark.parametrize(
    "text",
    ["brotli:3", "snappy,zstd", "snappy,window_log:20", "zstd:3,zstd:4", "zstd:3 ", "nonsense"],
)
def test_options_that_only_the_package_knows(text: str) -> None:
    assert options_of(text) is None


@pytest.mark.parametrize(
    "text", ["", "zstd:7", "group_size:5,uncompressed", "window_log:14", "snappy"]
)
def test_a_file_tells_its_options_as_the_package_does(tmp_path: Path, text: str) -> None:
    written_here(tmp_path / "here", [b"x"], text)
    written(tmp_path / "package", [b"x"], text)
    here, package = (
        ArrayRecordReader(str(tmp_path / name), "").writer_options_string()
        for name in ("here", "package")
    )
    assert here == package


def test_the_package_writes_where_the_core_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windrow.converters import tfrecord_to_array_record, write_records

    records = [random.Random(at).randbytes(at) for at in range(300)]
    write_records(tmp_path / "a.tfrecord", records)
    monkeypatch.setattr(record_writing, "native", lambda: None)
    monkeypatch.setattr(record_writing, "core_writer", None)
    tfrecord_to_array_record(tmp_path / "a.tfrecord", tmp_path / "out", progress=False)
    assert ArrayRecordDataSource(tmp_path / "out").read(range(300)) == records  # type: ignore[arg-type]
