"""Verification of stores that are sound, and of stores that are damaged in every way."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import pickle
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
import zarr
import zarr.codecs
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.array_record_bytes import write
from tests.hypothesis_profiles import examples
from tests.laid_out import pieced
from windrow import MapDataset, Report, sources, verify
from windrow.core.progress import Progress
from windrow.errors import ArgumentError, ReadError
from windrow.sources import (
    ArrayRecordDataSource,
    Window,
    WindowDataSource,
    ZarrDataSource,
)

AnyArray = npt.NDArray[Any]

SHAPE, CHUNK, SHARD = (23, 7, 5), (4, 4, 5), (8, 8, 5)
ROWS = SHAPE[0]
LITTLE: Any = {"name": "bytes", "configuration": {"endian": "little"}}
CRC: Any = {"name": "crc32c"}
ZSTD: Any = {"name": "zstd", "configuration": {"level": 1}}
GZIP: Any = {"name": "gzip", "configuration": {"level": 1}}
BLOSC_SETTINGS = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
BLOSC: Any = {"name": "blosc", "configuration": BLOSC_SETTINGS}
V2_BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}


def v2(compressor: Any) -> dict[str, Any]:
    chunks = list(CHUNK)
    more = {"zarr_format": 2, "shape": list(SHAPE), "chunks": chunks, "compressor": compressor}
    return {**more, "dtype": "<i4", "fill_value": 0, "order": "C", "filters": None}


def v3(*codecs: Any, shard: bool = False) -> dict[str, Any]:
    chain, outer = [LITTLE, *codecs], CHUNK
    if shard:
        inner = {"chunk_shape": list(CHUNK), "codecs": chain, "index_codecs": [LITTLE, CRC]}
        chain, outer = [{"name": "sharding_indexed", "configuration": inner}], SHARD
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(SHAPE),
        "data_type": "int32",
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(outer)}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": chain,
    }


def n5(compression: Any) -> dict[str, Any]:
    more = {"dimensions": list(SHAPE), "blockSize": list(CHUNK), "dataType": "int32"}
    return {**more, "compression": compression}


@dataclasses.dataclass(frozen=True)
class Format:
    """A store to make; `checked` where every chunk has a checksum of its values."""

    driver: str
    metadata: Any
    checked: bool

    @property
    def direct(self) -> tuple[bool, ...]:
        """The ways in which it can be read."""
        return (False,) if self.driver == "n5" else (True, False)


FORMATS = {
    "v2 raw": Format("zarr", v2(None), False),
    "v2 zstd": Format("zarr", v2({"id": "zstd", "level": 1}), False),
    "v2 blosc": Format("zarr", v2(V2_BLOSC), False),
    "v2 zlib": Format("zarr", v2({"id": "zlib", "level": 1}), True),
    "v2 gzip": Format("zarr", v2({"id": "gzip", "level": 1}), True),
    "v3 raw": Format("zarr3", v3(), False),
    "v3 zstd": Format("zarr3", v3(ZSTD), False),
    "v3 blosc": Format("zarr3", v3(BLOSC), False),
    "v3 gzip": Format("zarr3", v3(GZIP), True),
    "v3 crc32c": Format("zarr3", v3(CRC), True),
    "v3 zstd crc32c": Format("zarr3", v3(ZSTD, CRC), True),
    "v3 blosc crc32c": Format("zarr3", v3(BLOSC, CRC), True),
    "sharded raw": Format("zarr3", v3(shard=True), False),
    "sharded zstd": Format("zarr3", v3(ZSTD, shard=True), False),
    "sharded zstd crc32c": Format("zarr3", v3(ZSTD, CRC, shard=True), True),
    "n5 raw": Format("n5", n5({"type": "raw"}), False),
    "n5 gzip": Format("n5", n5({"type": "gzip", "level": 1}), True),
}
of_all_formats = pytest.mark.parametrize("name", FORMATS)
both_ways = pytest.mark.parametrize("direct", [True, False])
VALUES = np.random.default_rng(5).integers(1, 40, SHAPE, dtype=np.int32)


@functools.cache
def stored(name: str) -> dict[str, bytes]:
    """The files of a store of a format, made once."""
    found = FORMATS[name]
    with tempfile.TemporaryDirectory() as folder:
        spec = {"driver": found.driver, "kvstore": f"file://{folder}/", "metadata": found.metadata}
        ts.open(spec, create=True).result().write(VALUES).result()
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def written(folder: Path, name: str) -> AnyArray:
    """Make a store; its values."""
    for file, data in stored(name).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(data)
    return VALUES


def source_of(folder: Path, name: str, direct: bool) -> ZarrDataSource:
    # Opened anew each time: what TensorStore keeps of a file would hide what was done to it.
    if FORMATS[name].driver == "n5":
        return ZarrDataSource({"driver": "n5", "kvstore": f"file://{folder}/"})
    return ZarrDataSource(folder, direct=direct)


def chunk_files(folder: Path) -> list[Path]:
    names = ("zarr.json", ".zarray", "attributes.json")
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in names)


def checked_report(source: Any, **more: Any) -> Report:
    report = verify(source, progress=False, **more)
    assert json.loads(json.dumps([dataclasses.asdict(bad) for bad in report.bad])) is not None
    assert list(report.bad) == sorted(report.bad, key=lambda bad: (bad.array, bad.chunk))
    for bad in report.bad:
        assert bad.error
        assert "\n" not in str(bad)
    return report


def check_the_rest(source: Any, report: Report, values: AnyArray, *, lost: set[int]) -> None:
    """Records in no bad chunk are what was written, but for `lost`; those in one are an error."""
    spans = [range(bad.first_record, bad.stop_record) for bad in report.bad]
    bad = set(itertools.chain.from_iterable(spans))
    for span in spans:
        with pytest.raises(ReadError):
            source.read(np.array([span[-1]]))
    rest = np.array(sorted(set(range(len(source))) - bad - lost), np.int64)
    assert np.array_equal(source.read(rest), values[rest])


# --- sound ---------------------------------------------------------------------------------------


@of_all_formats
def test_a_sound_store_and_a_file_that_is_missing(tmp_path: Path, name: str) -> None:
    values = written(tmp_path, name)
    ways = FORMATS[name].direct
    for direct in ways:
        told: list[Progress] = []
        report = verify(source_of(tmp_path, name, direct), progress=told.append)
        assert report.ok
        assert (report.records, report.chunks, report.missing, report.untold) == (ROWS, 12, 0, 0)
        assert report.decoded_bytes == values.nbytes
        assert told[-1] == Progress("verify", 0, values.nbytes, values.nbytes)
        report.raise_if_bad()
    file = chunk_files(tmp_path)[0]
    file.unlink()
    for direct in ways:
        check_missing(source_of(tmp_path, name, direct), file if direct else None, values, name)


def check_missing(source: Any, file: Path | None, values: AnyArray, name: str) -> None:
    lost = 4 if name.startswith("sharded") else 1  # chunks
    report = checked_report(source)
    assert report.ok
    assert (report.missing, report.untold) == (lost, 0)
    rows = set(np.flatnonzero((source.read(np.arange(ROWS)) != values).any(axis=(1, 2))).tolist())
    report = checked_report(source, missing="error")
    assert len(report.bad) == lost
    assert {r for bad in report.bad for r in range(bad.first_record, bad.stop_record)} == rows
    if file:
        assert {bad.file for bad in report.bad} == {str(file)}
    with pytest.raises(ReadError, match=r"(?s)verify: \d bad of 12 chunks.*it is not stored"):
        report.raise_if_bad()


@pytest.mark.parametrize("shape", [(0,), (1,), (5, 0), (1, 1), (33,)])
@both_ways
def test_small_and_empty_arrays(tmp_path: Path, shape: tuple[int, ...], direct: bool) -> None:
    chunks = (2, *(1 for _ in shape[1:]))
    values = np.arange(1, 1 + int(np.prod(shape)), dtype="u2").reshape(shape)
    store = zarr.create_array(str(tmp_path / "a"), shape=shape, dtype="u2", chunks=chunks)
    store[...] = values
    report = checked_report(ZarrDataSource(tmp_path / "a", direct=direct), missing="error")
    assert report.ok
    assert report.decoded_bytes == values.nbytes


def test_sources_of_other_kinds() -> None:
    for value in ([1, 2, 3], np.arange(5.0), {"x": np.arange(4)}, range(7), ()):
        report = checked_report(value)
        assert report.ok
        assert report.chunks == report.records == len(sources.as_source(value))


# --- flipped, cut off, removed -------------------------------------------------------------------


@of_all_formats
@settings(max_examples=examples(20))
@given(data=st.data())
def test_flipped_bits(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        values = written(folder, name)
        file = data.draw(st.sampled_from(chunk_files(folder)))
        stored = bytearray(file.read_bytes())
        place = data.draw(st.integers(0, len(stored) - 1))
        stored[place] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(stored)
        for direct in FORMATS[name].direct:
            source = source_of(folder, name, direct)
            report = checked_report(source)
            assert {bad.file for bad in report.bad} <= {str(file)}
            if direct:
                assert all(bad.offset is None or bad.offset <= place for bad in report.bad)
            lost: set[int] = set()
            if not FORMATS[name].checked and report.ok:
                # Without a checksum a flip can give other values: in its own chunk.
                whole = source.read(np.arange(ROWS))
                lost = set(np.flatnonzero((whole != values).any(axis=(1, 2))).tolist())
                assert len(lost) <= CHUNK[0]
            check_the_rest(source, report, values, lost=lost)


@of_all_formats
@settings(max_examples=examples(16))
@given(data=st.data())
def test_files_cut_off(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        values = written(folder, name)
        file = data.draw(st.sampled_from(chunk_files(folder)))
        size = file.stat().st_size
        with file.open("r+b") as opened:
            opened.truncate(data.draw(st.integers(0, size - 1)))
        for direct in FORMATS[name].direct:
            source = source_of(folder, name, direct)
            report = checked_report(source)
            # TensorStore does not miss the end of a stream that has given all values.
            if report.ok and name in ("v2 zlib", "v2 gzip") and not direct:
                assert size - file.stat().st_size <= 18
            else:
                assert {bad.file for bad in report.bad} == {str(file)}
            check_the_rest(source, report, values, lost=set())


def test_offset_of_an_inner_chunk(tmp_path: Path) -> None:
    written(tmp_path, "sharded zstd crc32c")
    file = chunk_files(tmp_path)[0]
    stored = bytearray(file.read_bytes())
    index = np.frombuffer(bytes(stored[-68:-4]), "<u8").reshape(-1, 2)
    offset = int(index[3, 0])
    stored[offset + 5] ^= 1
    file.write_bytes(stored)
    (bad,) = checked_report(source_of(tmp_path, "sharded zstd crc32c", True)).bad
    assert (bad.offset, bad.chunk, bad.first_record, bad.stop_record) == (offset, 3, 4, 8)


def test_an_index_that_points_anywhere(tmp_path: Path) -> None:
    import google_crc32c

    values = written(tmp_path, "sharded zstd")
    file = chunk_files(tmp_path)[0]
    stored = bytearray(file.read_bytes())
    index = np.frombuffer(bytes(stored[-68:-4]), "<u8").reshape(-1, 2).copy()
    index[1] = 2**63, 2**62
    index[2] = 0, 2**64 - 2
    stored[-68:-4] = index.tobytes()
    stored[-4:] = google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    file.write_bytes(stored)
    for direct in (True, False):
        source = source_of(tmp_path, "sharded zstd", direct)
        report = checked_report(source)
        assert {1, 2} <= {bad.chunk for bad in report.bad}
        check_the_rest(source, report, values, lost=set())


# --- wrong metadata ------------------------------------------------------------------------------


def rewritten(folder: Path, name: str, **changes: Any) -> None:
    file = folder / ("zarr.json" if FORMATS[name].driver == "zarr3" else ".zarray")
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("name", ["v2 raw", "v2 zstd", "v2 blosc", "v2 gzip"])
def test_sizes_that_do_not_fit(tmp_path: Path, name: str) -> None:
    wrong: list[dict[str, Any]] = [{"dtype": "<i8"}, {"dtype": "<u2"}, {"chunks": [4, 4, 2]}]
    for changes in wrong:
        written(tmp_path, name)
        rewritten(tmp_path, name, **changes)
        for direct in (True, False):
            assert not checked_report(source_of(tmp_path, name, direct)).ok


@both_ways
def test_a_shape_that_is_too_large(tmp_path: Path, direct: bool) -> None:
    written(tmp_path, "v3 zstd")
    rewritten(tmp_path, "v3 zstd", shape=[47, 7, 5])
    source = source_of(tmp_path, "v3 zstd", direct)
    assert checked_report(source).missing == 12
    bad = checked_report(source, missing="error").bad
    assert min(each.first_record for each in bad) == 24


def test_a_shape_that_is_too_small(tmp_path: Path) -> None:
    written(tmp_path, "v3 zstd")
    rewritten(tmp_path, "v3 zstd", shape=[16, 7, 5])
    report = checked_report(source_of(tmp_path, "v3 zstd", True))
    orphans = [str(file) for file in chunk_files(tmp_path)[8:]]
    assert [bad.file for bad in report.bad] == orphans
    assert all("is not a chunk of the array" in bad.error for bad in report.bad)


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("chunk", [(7, 5), (0, 7)])
def test_files_that_an_array_has_no_place_for(
    tmp_path: Path, separator: str, version: Literal[2, 3], chunk: tuple[int, int]
) -> None:
    encoding: Any = {"name": "v2" if version == 2 else "default", "separator": separator}
    store = zarr.create_array(
        str(tmp_path),
        shape=(20, 18),
        chunks=(3, 3),
        dtype="u1",
        zarr_format=version,
        chunk_key_encoding=encoding,
    )
    store[...] = 7
    name = ("" if version == 2 else f"c{separator}") + separator.join(map(str, chunk))
    (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / name).write_bytes(b"x")
    for other in ("notes", "0.x", "1.2.3", "01.0", "c.1"):
        (tmp_path / other).write_bytes(b"x")
    source = ZarrDataSource(tmp_path, direct=True)
    outside = chunk[0] >= 7 or chunk[1] >= 6
    report = checked_report(source)
    found = [(bad.chunk, bad.file) for bad in report.bad]
    assert found == ([(-1, str(tmp_path / name))] if outside else [])
    assert str(tmp_path / name) in str(report) or not outside
    windows = WindowDataSource(tmp_path, {0: Window(2, 1), 1: Window(2, 1)})
    assert len(checked_report(windows).bad) == len(report.bad)
    if chunk == (7, 5):
        # An array may grow while it is read.
        zarr.open_array(str(tmp_path)).resize((30, 18))
        assert checked_report(source).ok


@both_ways
def test_an_array_that_is_gone(tmp_path: Path, direct: bool) -> None:
    written(tmp_path / "a", "v3 zstd")
    source = source_of(tmp_path / "a", "v3 zstd", direct)
    shutil.rmtree(tmp_path / "a")
    report = checked_report(source)
    assert len(report.bad) == report.chunks == 12
    assert "was removed or replaced" in report.bad[0].error


# --- windows -------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("sizes", [{0: 6}, {0: 6, 1: 3}], ids=str)
def test_windows_read_each_chunk_once(tmp_path: Path, direct: bool, sizes: dict[int, int]) -> None:
    values = written(tmp_path, "v3 zstd crc32c")
    file = chunk_files(tmp_path)[5]
    assert file.relative_to(tmp_path).as_posix() == "c/2/1/0"  # rows 8 to 11
    file.write_bytes(b"no")
    windows = WindowDataSource(
        tmp_path, {dim: Window(size, 1) for dim, size in sizes.items()}, direct=direct
    )
    report = checked_report(windows)
    assert report.chunks == 12
    assert report.decoded_bytes == values.nbytes - values[8:12, 4:].nbytes
    (bad,) = report.bad
    needs = [
        record
        for record in range(len(windows))
        if 5 in windows.parts[0].needs(np.array([record])).chunks or len(sizes) == 1
    ]
    if len(sizes) == 2:
        assert (bad.first_record, bad.stop_record) == (min(needs), max(needs) + 1)
    else:
        assert (bad.first_record, bad.stop_record) == (3, 12)


def test_windows_within_bounds_are_read_as_a_whole(tmp_path: Path) -> None:
    written(tmp_path, "v3 zstd crc32c")
    chunk_files(tmp_path)[5].write_bytes(b"no")  # rows 8 to 11, columns from 4 on
    windows = WindowDataSource(tmp_path, {0: Window(4, cells=slice(20), pad="edge"), 1: 7})
    report = checked_report(windows)
    assert (report.chunks, report.untold) == (10, 0)
    assert [(bad.first_record, bad.stop_record) for bad in report.bad] == [(2, 3)]
    assert windows[1].shape == (4, 7, 5)


def test_a_view_of_a_store(tmp_path: Path) -> None:
    written(tmp_path, "v3 zstd crc32c")
    chunk_files(tmp_path)[5].write_bytes(b"no")  # rows 8 to 11, columns from 4 on
    chunk_files(tmp_path)[0].unlink()
    store = ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/"}).result()
    report = checked_report(ZarrDataSource(store.transpose([1, 0, 2])[:, 1:]))
    assert [(bad.first_record, bad.stop_record) for bad in report.bad] == [(4, 7)]
    assert (report.records, report.chunks, report.missing, report.untold) == (7, 12, 1, 0)


def test_records_of_a_view_whose_chunks_are_unknown(tmp_path: Path) -> None:
    values = written(tmp_path, "v3 zstd crc32c")
    for file in chunk_files(tmp_path)[5:8:2]:  # rows 8 to 15
        file.write_bytes(b"no")
    store = ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/"}).result()
    source = ZarrDataSource(ts.stack([store, store], axis=1))
    report = checked_report(source)
    assert [(bad.first_record, bad.stop_record) for bad in report.bad] == [(8, 16)]
    check_the_rest(source, report, np.stack([values, values], axis=1), lost=set())


# --- ArrayRecord ---------------------------------------------------------------------------------


def record_file(path: Path, group: int, count: int = 40) -> list[bytes]:
    rng = np.random.default_rng(group)
    records = [rng.integers(0, 9, int(rng.integers(1, 90)), "u1").tobytes() for _ in range(count)]
    write(path, records, f"group_size:{group}")
    return records


def check_records(source: Any, report: Report, records: list[bytes]) -> None:
    bad = {r for each in report.bad for r in range(each.first_record, each.stop_record)}
    for record in range(len(source)):
        if record in bad:
            with pytest.raises(ReadError):
                source[record]
        else:
            assert source[record] == records[record]


def test_bad_groups_are_told_with_their_place(tmp_path: Path) -> None:
    records = record_file(tmp_path / "a", 16)
    part = ArrayRecordDataSource(tmp_path / "a").parts[0]
    offsets = part.places_of_chunks()(np.arange(3)).offsets.tolist()
    stored = bytearray((tmp_path / "a").read_bytes())
    for at in offsets[1:]:
        stored[at + 45] ^= 1
    (tmp_path / "a").write_bytes(stored)
    source = ArrayRecordDataSource([tmp_path / "a", tmp_path / "a"])
    report = checked_report(source)
    assert [bad.chunk for bad in report.bad] == [1, 2, 4, 5]
    assert [bad.offset for bad in report.bad] == offsets[1:] * 2
    assert [(bad.first_record, bad.stop_record) for bad in report.bad] == [
        (16, 32),
        (32, 40),
        (56, 72),
        (72, 80),
    ]
    check_records(source, report, records * 2)


# --- sources of others ---------------------------------------------------------------------------


class Records:
    """Records by number; some raise what they are."""

    def __init__(self, *records: Any) -> None:
        self.records, self.calls = records, 0

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        found = self.records[index]
        if isinstance(found, BaseException):
            raise found
        return found


class Batches(Records):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Records, Batches])
@given(bad=st.sets(st.integers(0, 49), max_size=5))
@settings(max_examples=examples(20))
def test_bad_records_of_a_source_of_ones_own(kind: type[Records], bad: set[int]) -> None:
    source = kind(*(ValueError(f"no {k}") if k in bad else np.zeros(4) for k in range(50)))
    report = checked_report(source)
    assert [each.chunk for each in report.bad] == sorted(bad)
    assert [each.error for each in report.bad] == [f"no {k}" for k in sorted(bad)]
    assert report.chunks == 50
    assert report.decoded_bytes == (50 - len(bad)) * 32
    if kind is Records or not bad:
        assert source.calls == 50


@pytest.mark.parametrize("error", [MemoryError("full"), TypeError("a bug"), AttributeError("x")])
def test_what_is_no_fault_of_data_is_raised(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        verify(Records(1, error, 2), progress=False)


def test_an_interrupt_waits_for_no_read() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Records):
        def __getitem__(self, index: int) -> Any:
            if not begun.is_set():
                begun.set()
                # A signal, which ends what the main thread waits for.
                signal.pthread_kill(int(threading.main_thread().ident or 0), signal.SIGINT)
            go_on.wait(60)
            return super().__getitem__(index)

    source = Slow(*range(100_000))
    with pytest.raises(KeyboardInterrupt):
        verify(source, threads=2, progress=False)
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("windrow-verify"):
            thread.join(60)
    assert source.calls <= 2 * 8


def test_a_source_of_ones_own_without_checks_is_read_by_record() -> None:
    report = checked_report(pieced(21, 4, shift=2, broken=6))
    assert report.chunks == 21
    assert [(bad.chunk, bad.first_record, bad.stop_record) for bad in report.bad] == [(6, 6, 7)]


# --- the report ----------------------------------------------------------------------------------


def test_what_a_report_says() -> None:
    source = Records(*(ValueError("bad") for _ in range(25)))
    report = checked_report(source)
    lines = str(report).splitlines()
    assert lines[0].startswith("25 bad of 25 chunks, 25 records, 0 bytes decoded in ")
    assert lines[1] == "  chunk 0, record 0: bad"
    assert len(lines) == 22
    assert lines[-1] == "  and 5 more, see `bad` of the report"
    assert not report.ok
    assert pickle.loads(pickle.dumps(report)) == report
    error = ReadError("no", file="a", offset=0, records=(3, 4), why="torn")
    found = pickle.loads(pickle.dumps(error))
    assert (str(found), found.file, found.offset) == ("no", "a", 0)
    assert (found.records, found.why) == ((3, 4), "torn")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"source": "a/path"}, "ArrayRecordDataSource"),
        ({"source": MapDataset.range(3)}, "give the source"),
        ({"missing": "skip"}, "missing must be 'fill' or 'error', got 'skip'"),
        ({"threads": 0}, "threads must be an integer of at least 1, got 0"),
        ({"threads": True}, "threads must be"),
        ({"progress": "yes"}, "progress must be a bool or a function"),
    ],
    ids=str,
)
def test_wrong_arguments(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        windrow.verify(**{"source": [1], **arguments})
