"""Boxes of arrays of any rank: the cells NumPy has, each chunk decoded once, damage named."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts

from windrow import MapDataset, ReadOptions
from windrow.errors import ReadError, SourceError
from windrow.sources import BoxField, BoxPart, Columns, Cut, LaidOutSource, Padding
from windrow.sources.base import IntArray
from windrow.sources.chunks import Box
from windrow.sources.zarr.box_readers import StoreBoxReader
from windrow.sources.zarr.open_array import OpenArray
from windrow.sources.zarr.store_array import StoreArray
from windrow.sources.zarr.tree import ArrayTree

AnyArray = npt.NDArray[Any]


class BoxSource(LaidOutSource):
    """Records of box parts: a dict with a tuple of fields per part."""

    def __init__(self, parts: Sequence[BoxPart], records: int) -> None:
        self._parts, self._records = list(parts), records

    def __len__(self) -> int:
        return self._records

    @property
    def parts(self) -> Sequence[BoxPart]:
        return self._parts

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        return {
            f"{number}.{field}": array
            for number, column in enumerate(columns)
            for field, array in enumerate(column)
        }

    def read(self, indices: IntArray) -> Columns:
        return self.assembled([part.read(indices) for part in self._parts], indices)

    def blocks(self) -> IntArray:
        return np.array([0, self._records])

    @property
    def fingerprint(self) -> str:
        return f"boxes({self._records})"


class CountingBoxes:
    """Boxes of an array in memory, read as a store is; counts decodes, by corner of the chunk."""

    def __init__(self, array: AnyArray, chunk: tuple[int, ...], shift: tuple[int, ...]) -> None:
        self.array, self.chunk, self.shift = array, chunk, shift
        self.decoded: list[tuple[int, ...]] = []
        self.boxes: list[Box] = []
        self._lock = threading.Lock()

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        done: Future[None] = Future()
        with self._lock:
            self.boxes += boxes
            self.decoded += [coords for coords, _ in itertools.groupby(map(self.coords, boxes))]
        for box in boxes:
            assert self.coords(box) == self.coords(self.last(box))
            stop = (f + n for f, n in zip(box.first, box.out.shape, strict=True))
            box.out[...] = self.array[tuple(map(slice, box.first, stop))]
        done.set_result(None)
        return done

    def coords(self, box: Box) -> tuple[int, ...]:
        cells = zip(box.first, self.shift, self.chunk, strict=True)
        return tuple((f + s) // c for f, s, c in cells)

    def last(self, box: Box) -> Box:
        stop = tuple(f + n - 1 for f, n in zip(box.first, box.out.shape, strict=True))
        return Box(stop, box.out)

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        return np.full(len(chunks), 100)


def counting(
    array: AnyArray,
    chunk: tuple[int, ...],
    size: tuple[int, ...],
    origins: IntArray,
    *,
    shift: tuple[int, ...] = (),
    padding: Padding | None = None,
) -> tuple[BoxPart, CountingBoxes]:
    shift = shift or (0,) * array.ndim
    reader = CountingBoxes(array, chunk, shift)
    part = BoxPart(
        "", array.shape, array.dtype, chunk, reader, origins.__getitem__, (whole(size),), padding,
        shift,
    )  # fmt: skip
    return part, reader


def whole(size: tuple[int, ...], offset: tuple[int, ...] | None = None) -> BoxField:
    zeros = (0,) * len(size)
    return BoxField(size, (Cut(offset or zeros, zeros, size),))


# --- any array, any boxes ------------------------------------------------------------------------


def test_an_array_without_cells_is_all_padding() -> None:
    array, origins = np.zeros((0, 4)), np.array([[-1, 0], [2, 3]])
    part, reader = counting(array, (1, 2), (2, 2), origins, padding=Padding("constant", 5))
    np.testing.assert_array_equal(part.read(np.arange(2))[0], np.full((2, 2, 2), 5))
    dataset = MapDataset.source(BoxSource([part], 2)).batch(2)
    np.testing.assert_array_equal(next(iter(dataset))["0.0"], np.full((2, 2, 2), 5))
    assert part.chunk_count == 0
    assert part.home(np.arange(2)).tolist() == [0, 0]
    assert not reader.boxes


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 33])
@pytest.mark.parametrize("shift", [0, 1, 15])
def test_windows_at_every_cell(length: int, shift: int) -> None:
    array = np.arange(length * 3).reshape(length, 3)
    size = min(length, 5)
    origins = np.column_stack([np.arange(length - size + 1), np.zeros(length - size + 1, int)])
    part, reader = counting(array, (16, 2), (size, 3), origins, shift=(shift, 1))
    runs = np.lib.stride_tricks.sliding_window_view(array, (size, 3))[:, 0]
    np.testing.assert_array_equal(part.read(np.arange(len(origins)))[0], runs)
    assert sorted(reader.decoded) == sorted(set(reader.decoded))
    for resident in (1, 300, 1 << 20):
        dataset = MapDataset.source(BoxSource([part], len(origins))).shuffle(seed=2)
        options = ReadOptions(resident_bytes=resident, in_flight_bytes=1, block_bytes=1)
        batches = dataset.batch(3).to_iter_dataset(options)
        order = dataset.read(np.arange(len(dataset)))["0.0"]
        np.testing.assert_array_equal(np.concatenate([b["0.0"] for b in batches]), order)


# --- layout --------------------------------------------------------------------------------------


def test_chunks_are_exact_in_grids_of_any_size() -> None:
    shape, chunk = (10**7, 10**6, 2**20 + 1), (3, 7, 1)
    grid = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
    origins = np.array([[0, 0, 0], [10**7 - 2, 10**6 - 1, 2**20 - 1], [123_456, 654_321, 99]])
    part = BoxPart(
        "", shape, np.dtype("u1"), chunk, CountingBoxes(np.zeros(0), chunk, (0, 0, 0)),
        origins.__getitem__, (whole((2, 1, 2)),),
    )  # fmt: skip
    assert part.chunk_count == grid[0] * grid[1] * grid[2] > 10**12
    needs = part.needs(np.arange(3))
    wanted = [
        (record, ((a // 3) * grid[1] + b // 7) * grid[2] + c)
        for record, (x, y, z) in enumerate(origins.tolist())
        for a in sorted({x // 3 * 3, (x + 1) // 3 * 3})
        for b in [y]
        for c in (z, z + 1)
    ]
    found = list(zip(needs.records.tolist(), needs.chunks.tolist(), strict=True))
    assert sorted(found) == sorted(wanted)
    assert part.home(np.arange(3)).tolist() == [
        ((x // 3) * grid[1] + y // 7) * grid[2] + z for x, y, z in origins.tolist()
    ]


def test_more_chunks_than_can_be_numbered_are_refused() -> None:
    with pytest.raises(
        SourceError, match=r"array 'x' has 1,208,925,819,614,629,174,706,176 chunks"
    ):
        BoxPart(
            "x", (2**40, 2**40), np.dtype("u1"), (1, 1), CountingBoxes(np.zeros(0), (1, 1), (0, 0)),
            np.zeros((1, 2), np.int64).__getitem__, (whole((1, 1)),),
        )  # fmt: skip


def test_chunks_weigh_what_lies_in_the_array() -> None:
    origins = np.zeros((1, 2), np.int64)
    part, _ = counting(np.zeros((5, 7), np.int16), (4, 3), (1, 1), origins, shift=(3, 0))
    assert part.chunk_count == 2 * 3
    assert part.decoded_bytes(np.arange(6)).tolist() == [6, 6, 2, 24, 24, 8]
    assert [part.bounds(chunk) for chunk in (0, 5)] == [((0, 0), (1, 3)), ((1, 6), (5, 7))]
    assert part.stored_bytes(np.arange(6)).tolist() == [100] * 6


# --- each chunk once -----------------------------------------------------------------------------


def patches(seed: int, records: int = 60) -> tuple[BoxPart, CountingBoxes]:
    array = np.random.default_rng(0).integers(0, 99, (24, 24), np.int64)
    origins = np.random.default_rng(seed).integers(0, 24 - 7, (records, 2))
    return counting(array, (8, 8), (7, 7), origins)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_store_that_fits_is_decoded_once(epochs: int) -> None:
    part, reader = patches(2)
    dataset = MapDataset.source(BoxSource([part], 60)).shuffle(seed=1).repeat(epochs)
    assert len(list(dataset.batch(4).to_iter_dataset(ReadOptions(block_bytes=1)))) == 15 * epochs
    assert len(reader.decoded) == len(set(reader.decoded)) == 9


def test_chunks_that_records_share_within_the_horizon_are_decoded_once() -> None:
    # There is room for few of 900 chunks; the records come region by region.
    array = np.arange(240 * 240).reshape(240, 240)
    regions = np.random.default_rng(1).permutation(30) * 8
    rng = np.random.default_rng(2)
    origins = np.concatenate(
        [np.column_stack([rng.integers(0, 232, 16), np.full(16, r)]) for r in regions]
    )
    part, reader = counting(array, (240, 8), (8, 8), origins)
    options = ReadOptions(resident_bytes=6 * 240 * 64, in_flight_bytes=1, block_bytes=1)
    batches = list(
        MapDataset.source(BoxSource([part], len(origins))).batch(4).to_iter_dataset(options)
    )
    got = np.concatenate([batch["0.0"] for batch in batches])
    every = [array[y : y + 8, x : x + 8] for y, x in origins.tolist()]
    np.testing.assert_array_equal(got, every)
    assert len(reader.decoded) == 30


def test_a_field_that_all_records_share_is_decoded_once() -> None:
    part, reader = counting(
        np.arange(64).reshape(8, 8), (8, 8), (8, 8), np.zeros((100, 2), np.int64)
    )
    options = ReadOptions(resident_bytes=1, in_flight_bytes=1, block_bytes=1)
    for batch in MapDataset.source(BoxSource([part], 100)).batch(10).to_iter_dataset(options):
        np.testing.assert_array_equal(batch["0.0"], np.tile(reader.array, (10, 1, 1)))
    assert len(reader.decoded) == 1


# --- files ---------------------------------------------------------------------------------------


def written(folder: Path, *, codecs: bool = True) -> tuple[OpenArray, AnyArray]:
    """An array of 4 by 4 chunks of 8 by 8, opened to be decoded directly."""
    array = np.random.default_rng(0).integers(1, 99, (32, 32), np.int32)
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(folder)},
        "metadata": {"codecs": ["bytes", {"name": "zstd"}] if codecs else ["bytes"]},
    }
    layout = ts.ChunkLayout(chunk_shape=[8, 8])
    store = ts.open(spec, create=True, shape=[32, 32], dtype=ts.int32, chunk_layout=layout).result()
    store[...] = array
    return reopened(folder), array


def reopened(folder: Path, *, direct: bool | None = None) -> OpenArray:
    return ArrayTree("test", str(folder), direct=direct).open()[0]


def every_tile(opened: OpenArray, size: int = 8) -> BoxPart:
    count = 32 // size
    tiles = np.stack(np.unravel_index(np.arange(count * count), (count, count)), 1) * size
    return opened.box_part(tiles.__getitem__, (whole((size, size)),))


@pytest.mark.parametrize("direct", [None, False])
@pytest.mark.parametrize("resident", [1, 1 << 20])
def test_damage_is_of_the_batches_that_want_the_chunk(
    tmp_path: Path, direct: bool | None, resident: int
) -> None:
    _, array = written(tmp_path)
    (tmp_path / "c" / "1" / "2").write_bytes(b"no chunk")
    part = every_tile(reopened(tmp_path, direct=direct), 4)
    options = ReadOptions(resident_bytes=resident, in_flight_bytes=1, block_bytes=1)
    iterator = iter(MapDataset.source(BoxSource([part], 64)).batch(2).to_iter_dataset(options))
    for record in range(0, 20, 2):
        got = next(iterator)["0.0"]
        x, y = record // 8 * 4, record % 8 * 4
        np.testing.assert_array_equal(got[0], array[x : x + 4, y : y + 4])
    for _ in range(2):  # the same step is tried again
        with pytest.raises(ReadError, match=r"cells \[8:16, 16:24\] cannot be read.*c/1/2"):
            next(iterator)
    iterator.close()
    healthy = [k for k in range(64) if not (k // 16 == 1 and k % 8 // 2 == 2)]
    dataset = MapDataset.source(BoxSource([part], 64)).slice(healthy).shuffle(seed=1).batch(4)
    assert sum(len(batch["0.0"]) for batch in dataset.to_iter_dataset(options)) == 60


def test_where_no_chunks_are_known_chunks_have_about_a_mebibyte(tmp_path: Path) -> None:
    def function(
        domain: ts.IndexDomain, out: AnyArray, parameters: ts.VirtualChunkedReadParameters
    ) -> None:
        out[...] = np.arange(domain.inclusive_min[0], domain.exclusive_max[0])[:, None, None]

    view = ts.virtual_chunked(function, dtype=ts.int64, shape=[4_000, 300, 10])
    (opened,) = ArrayTree("test", view).open()
    opened = every_chunk_unknown(opened)
    origins = np.array([[3_990, 295, 0], [0, 0, 5], [25, 1, 1]])
    part = opened.box_part(origins.__getitem__, (whole((10, 5, 5)),))
    assert isinstance(part.reader, StoreBoxReader)
    assert 2**19 < part.chunk_bytes <= 2**20
    got = part.read(np.arange(3))[0]
    np.testing.assert_array_equal(got[:, :, 2, 3], origins[:, :1] + np.arange(10))


def every_chunk_unknown(opened: OpenArray) -> OpenArray:
    assert isinstance(opened.backend, StoreArray)
    return opened.__class__(
        opened.found, opened.part, (None, None, None), opened.backend, opened.why
    )


def test_a_damaged_index_of_a_shard_is_told_by_cells(tmp_path: Path) -> None:
    codecs = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [4, 4]}}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [8, 16]}}
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(tmp_path)},
        "metadata": {"codecs": codecs, "chunk_grid": grid, "shape": [32, 30], "data_type": "int32"},
    }
    ts.open(spec, create=True).result()[...] = 1
    shard = tmp_path / "c" / "1" / "1"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    part = every_tile(reopened(tmp_path, direct=True))
    with pytest.raises(ReadError, match=r"cells \[8:16, 16:30\] cannot be read.*c/1/1"):
        part.read(np.array([6]))
    assert part.read(np.array([5]))[0].min() == 1


def test_memory_stays_within_the_budget() -> None:
    array = np.random.default_rng(0).integers(0, 99, (256, 256), np.int64)
    origins = np.random.default_rng(1).integers(0, 256 - 40, (400, 2))
    part, _ = counting(array, (32, 32), (40, 40), origins)
    record, chunk = 40 * 40 * 8, 32 * 32 * 8
    resident, in_flight = 64 * chunk, 4 * chunk
    alive: list[weakref.ref[Any]] = []
    most = 0

    class Watching(CountingBoxes):
        def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
            nonlocal most
            alive.extend(weakref.ref(owner(box.out)) for box in boxes)
            here = {id(found): found.nbytes for ref in alive if (found := ref()) is not None}
            most = max(most, sum(here.values()))
            done = super().start(boxes, pool)
            self.boxes.clear()
            return done

    object.__setattr__(part, "reader", Watching(array, (32, 32), (0, 0)))
    options = ReadOptions(
        resident_bytes=resident, in_flight_bytes=in_flight, block_bytes=1, prefetch_bytes=1
    )
    for batch in MapDataset.source(BoxSource([part], 400)).batch(4).to_iter_dataset(options):
        del batch
    assert most > resident / 2
    # Two batches at a time are with the consumer, or being made.
    assert most <= resident + in_flight + 3 * 4 * record


def owner(array: AnyArray) -> AnyArray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
