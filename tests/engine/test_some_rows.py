"""Reads that fail for some of their records alone: the others are not read again."""

from __future__ import annotations

import collections
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import zarr

from tests import far_arrays
from tests.chain.test_on_bad import DAMAGED, RECORDS, array_record, number_in
from tests.far_arrays import PATIENT
from tests.range_server import RangeServer
from windrow import MapDataset, ReadOptions
from windrow.core.native import native
from windrow.engine.execute import Values
from windrow.errors import ReadError
from windrow.sources import (
    ArrayRecordDataSource,
    LaidOutSource,
    RaggedDataSource,
    RemoteOptions,
    Window,
    WindowDataSource,
    ZarrDataSource,
)

needs_core = pytest.mark.skipif(native() is None, reason="without the native core")


@pytest.fixture
def never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(self: Any, source: Any, records: Any) -> Any:
        raise AssertionError("records are read again")

    monkeypatch.setattr(Values, "read_alone", again)


@needs_core
@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.usefixtures("never_again")
def test_good_records_are_not_read_again(kind: str, tmp_path: Path) -> None:
    source, lost = DAMAGED[kind](tmp_path)
    for options in (ReadOptions(), ReadOptions(0, 0)):
        stream = MapDataset.source(source).on_bad("skip").to_iter_dataset(options)
        found = [number_in(record) for record in stream]
        assert found == [n for n in range(RECORDS) if n not in lost]


# --- boxes, rows that differ in length, and arrays that zarr-python reads ---------------------------

ROWS = 48


def rows(folder: Path, chunk: tuple[int, int], *, filtered: bool = False) -> Path:
    """An array whose row `i` has the values `i + 1`, in which two chunks are damaged."""
    data = np.broadcast_to(np.arange(1, ROWS + 1, dtype="f4")[:, None], (ROWS, 6)).copy()
    write = far_arrays.write_filtered if filtered else far_arrays.write
    path = write(folder / "rows", data, chunk)
    last = 6 // chunk[1] - 1
    for row, column in ((1, 0), (4, last)):
        name = f"{row}.{column}" if filtered else f"c/{row}/{column}"
        (path / name).write_bytes(b"not what was written" * 9)
    return path


def ragged(folder: Path) -> Path:
    lengths = np.arange(ROWS) % 5
    group = zarr.create_group(str(folder / "rows"))
    values = np.repeat(np.arange(1, ROWS + 1, dtype="u2"), lengths)
    group.create_array("values", data=values, chunks=(7,))
    group.create_array("offsets", data=np.concatenate([[0], np.cumsum(lengths)]))
    for chunk in (2, 5):
        (folder / f"rows/values/c/{chunk}").write_bytes(b"not what was written")
    return folder / "rows"


def windows(path: Any, pad: str | None = None, **more: Any) -> Any:
    return WindowDataSource(path, {0: Window(3, 2, pad=pad), 1: Window(2, 2, pad=pad)}, **more)


LOCAL: dict[str, Callable[[Path], Any]] = {
    "windows": lambda folder: windows(rows(folder, (4, 3))),
    "windows of time": lambda folder: WindowDataSource(rows(folder, (4, 6)), {0: 3}),
    "padded windows": lambda folder: windows(rows(folder, (4, 3)), pad="edge"),
    "windows by zarr-python": lambda folder: windows(rows(folder, (4, 3), filtered=True)),
    "rows by zarr-python": lambda folder: ZarrDataSource(rows(folder, (4, 6), filtered=True)),
    "ragged": lambda folder: RaggedDataSource(ragged(folder)),
    "boxes by TensorStore": lambda folder: windows(
        ts.open({"driver": "zarr3", "kvstore": f"file://{rows(folder, (4, 3))}/"}).result()
    ),
}


def good_of(source: LaidOutSource) -> list[Any]:
    """The records that can be read, each alone."""
    found = []
    for index in range(len(source)):
        try:
            found.append(np.asarray(source.read(np.array([index]))[0]).tolist())
        except ReadError:
            continue
    assert 0 < len(found) < len(source)
    return found


def streamed(source: Any, options: ReadOptions | None = None) -> list[Any]:
    dataset = MapDataset.source(source).on_bad("skip").to_iter_dataset(options)
    return [np.asarray(record).tolist() for record in dataset]


@pytest.mark.parametrize("kind", LOCAL)
def test_every_format_names_its_bad_records(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = LOCAL[kind](tmp_path)
    wanted = good_of(source)
    request.getfixturevalue("never_again")
    assert streamed(source) == wanted


@needs_core
@pytest.mark.parametrize("kind", ["windows", "padded windows", "ragged", "windows of time"])
def test_reads_without_a_plan_name_them_too(kind: str, tmp_path: Path) -> None:
    source = LOCAL[kind](tmp_path)
    with pytest.raises(ReadError, match="cannot be read") as caught:
        source.read(np.arange(len(source)))
    lost = set(caught.value.rest.errors)
    assert len(good_of(source)) == len(source) - len(lost)
    for index in lost:
        with pytest.raises(ReadError, match="cannot be read"):
            source.read(np.array([index]))


def test_a_reason_names_records_where_values_are_stored(tmp_path: Path) -> None:
    log = tmp_path / "bad.jsonl"
    assert list(MapDataset.source(RaggedDataSource(ragged(tmp_path))).on_bad("skip", log=log))
    assert "holds values 14 to 20, of records 8 to 11, cannot be read" in log.read_text()


# --- stores on a network ----------------------------------------------------------------------------

# How each is written and opened, and the most requests for its records: each object or range once, and
# again what was read together with damage.
FAR: dict[str, tuple[Callable[[Path], Any], Callable[[str, RemoteOptions], Any], int]] = {
    "rows": (
        lambda folder: rows(folder, (4, 6)),
        lambda url, remote: ZarrDataSource(url, remote=remote),
        24,
    ),
    "rows alone": (
        lambda folder: rows(folder, (1, 6)),
        lambda url, remote: ZarrDataSource(url, remote=remote),
        58,
    ),
    "rows by zarr-python": (
        lambda folder: rows(folder, (4, 6), filtered=True),
        lambda url, remote: ZarrDataSource(url, remote=remote),
        14,
    ),
    "windows": (
        lambda folder: rows(folder, (4, 3)),
        lambda url, remote: windows(url, remote=remote),
        28,
    ),
    "ragged": (ragged, lambda url, remote: RaggedDataSource(url, remote=remote), 30),
    "records": (
        lambda folder: array_record(folder / "rows", 1),
        lambda url, remote: ArrayRecordDataSource(url, remote=remote),
        16,
    ),
    "groups": (
        lambda folder: array_record(folder / "rows", 4),
        lambda url, remote: ArrayRecordDataSource(url, remote=remote),
        10,
    ),
}
# The native core reads ArrayRecord files at URLs.
FAR_KINDS = [
    pytest.param(kind, marks=needs_core) if kind in ("records", "groups") else kind for kind in FAR
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(tmp_path) as running:
        yield running


@pytest.mark.parametrize("kind", FAR_KINDS)
def test_of_a_remote_store_only_what_is_damaged_is_asked_for_again(
    kind: str, tmp_path: Path, server: RangeServer, request: pytest.FixtureRequest
) -> None:
    write, opened, most = FAR[kind]
    write(tmp_path)
    wanted = good_of(opened(server.url("rows"), PATIENT))
    request.getfixturevalue("never_again")
    source = opened(server.url("rows"), PATIENT)
    server.reset_counts()
    assert streamed(source) == wanted
    asked = collections.Counter((path, span) for _, path, span in server.counts().asked)
    counts = [n for (path, _), n in asked.items() if not path.endswith((".json", ".zarray"))]
    assert max(counts) <= 2
    assert sum(counts) <= most


# Windows that overlap, windows side by side, and windows of one row.
SIZES = [(3, 1), (3, 3), (1, 1)]


@pytest.mark.parametrize(("size", "stride"), SIZES)
@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.usefixtures("never_again")
def test_windows_of_rows_by_tensorstore(
    size: int, stride: int, is_remote: bool, tmp_path: Path, server: RangeServer
) -> None:
    path = rows(tmp_path, (4, 6))
    place: str | Path = server.url("rows") if is_remote else path
    more: dict[str, Any] = {"remote": PATIENT} if is_remote else {"direct": False}
    source = WindowDataSource(place, {0: Window(size, stride)}, **more)
    dataset = MapDataset.source(source).on_bad("skip")
    damaged = {*range(4, 8), *range(16, 20)}

    def expected(window: int) -> Any:
        own = range(window * stride, window * stride + size)
        return [[row + 1.0] * 6 for row in own] if damaged.isdisjoint(own) else None

    for asked in (range(len(source)), [4, 1, 14, 0], [0], [5], [5, 5, 0, 9, 0], [5, 6, 6, 5]):
        found = [
            each if each is None else np.asarray(each).tolist() for each in dataset.read(asked)
        ]
        assert found == [expected(window) for window in asked]


@needs_core
@pytest.mark.parametrize("kind", ["rows", "rows alone", "windows", "ragged"])
def test_of_chunks_in_the_cache_on_disk_the_damaged_ones_fail_alone(
    kind: str, tmp_path: Path, server: RangeServer, request: pytest.FixtureRequest
) -> None:
    write, opened, _ = FAR[kind]
    write(tmp_path)
    filled, new = (dataclasses.replace(PATIENT, cache_dir=tmp_path / name) for name in "ab")
    source = opened(server.url("rows"), filled)
    assert "decoded directly" in repr(source)
    wanted = good_of(source)
    request.getfixturevalue("never_again")
    for options in (filled, new):
        source = opened(server.url("rows"), options)
        assert streamed(source) == wanted
        with pytest.raises(ReadError, match="cannot be read") as caught:
            source.read(np.arange(len(source)))
        rest = caught.value.rest
        assert len(source) - len(rest.errors) == len(wanted)
        if kind.startswith("rows"):
            good = np.delete(np.arange(len(source)), list(rest.errors))
            assert rest.found[good].tolist() == wanted


@needs_core
def test_the_rest_of_a_read_never_leaves_the_process(tmp_path: Path) -> None:
    source, lost = DAMAGED["records"](tmp_path)
    with pytest.raises(ReadError, match="cannot be read") as caught:
        source.read(np.arange(RECORDS))
    rest = caught.value.rest
    assert set(rest.errors) == lost
    assert [n for n, record in enumerate(rest.found) if record is None] == sorted(lost)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.rest is None
    assert (str(again), again.records) == (str(caught.value), caught.value.records)
