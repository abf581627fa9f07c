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
import zarr

from windrow import MapDataset, ReadOptions
from windrow.errors import ReadError, SourceError
from windrow.sources import BoxField, BoxPart, Cut, LaidOutSource, WindowDataSource
from windrow.sources.base import IntArray
from windrow.sources.chunks import Box

AnyArray = npt.NDArray[Any]


class BoxSource(LaidOutSource):
    """Records of a part of boxes with one field."""

    parts: Any = None

    def __init__(self, part: BoxPart, records: int) -> None:
        self.parts, self._records = [part], records

    def __len__(self) -> int:
        return self._records

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> AnyArray:
        (field,) = columns[0]
        return np.asarray(field)

    def read(self, indices: IntArray) -> AnyArray:
        return self.assembled([self.parts[0].read(indices)], indices)

    def blocks(self) -> IntArray:
        return np.array([0, self._records])

    @property
    def fingerprint(self) -> str:
        return f"boxes({self._records})"


class CountingBoxes:
    """Boxes of an array in memory, read as a store is; counts decodes, by corner of the chunk."""

    def __init__(self, array: AnyArray, chunk: tuple[int, ...]) -> None:
        self.array, self.chunk = array, chunk
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
        return tuple(f // c for f, c in zip(box.first, self.chunk, strict=True))

    def last(self, box: Box) -> Box:
        stop = tuple(f + n - 1 for f, n in zip(box.first, box.out.shape, strict=True))
        return Box(stop, box.out)

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        return np.full(len(chunks), 100)


def counting(
    array: AnyArray, chunk: tuple[int, ...], size: tuple[int, ...], origins: IntArray
) -> tuple[BoxPart, CountingBoxes]:
    reader = CountingBoxes(array, chunk)
    part = BoxPart("", array.shape, array.dtype, chunk, reader, origins.__getitem__, (whole(size),))
    return part, reader


def whole(size: tuple[int, ...]) -> BoxField:
    zeros = (0,) * len(size)
    return BoxField(size, (Cut(zeros, zeros, size),))


# --- layout --------------------------------------------------------------------------------------


def test_more_chunks_than_can_be_numbered_are_refused() -> None:
    with pytest.raises(
        SourceError, match=r"array 'x' has 1,208,925,819,614,629,174,706,176 chunks"
    ):
        BoxPart(
            "x", (2**40, 2**40), np.dtype("u1"), (1, 1), CountingBoxes(np.zeros(0), (1, 1)),
            np.zeros((1, 2), np.int64).__getitem__, (whole((1, 1)),),
        )  # fmt: skip


# --- each chunk once -----------------------------------------------------------------------------


def test_chunks_that_records_share_within_the_horizon_are_decoded_once() -> None:
    # There is room for few of 900 chunks; the records come region by region.
    array = np.arange(240 * 240).reshape(240, 240)
    regions = np.random.default_rng(1).permutation(30) * 8
    rng = np.random.default_rng(2)
    origins = np.concatenate(
        [np.column_stack([rng.integers(0, 232, 16), np.full(16, r)]) for r in regions]
    )
    part, reader = counting(array, (240, 8), (8, 8), origins)
    options = ReadOptions(memory_bytes=6 * 240 * 64)
    batches = list(
        MapDataset.source(BoxSource(part, len(origins))).batch(4).to_iter_dataset(options)
    )
    got = np.concatenate(batches)
    every = [array[y : y + 8, x : x + 8] for y, x in origins.tolist()]
    np.testing.assert_array_equal(got, every)
    assert len(reader.decoded) == 30


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [None, False])
@pytest.mark.parametrize("resident", [1, 1 << 20])
def test_damage_is_of_the_batches_that_want_the_chunk(
    tmp_path: Path, direct: bool | None, resident: int
) -> None:
    array = np.random.default_rng(0).integers(1, 99, (32, 32), np.int32)
    zarr.create_array(str(tmp_path), data=array, chunks=(8, 8))
    (tmp_path / "c" / "1" / "2").write_bytes(b"no chunk")
    source = WindowDataSource(tmp_path, {0: 4, 1: 4}, direct=direct)
    options = ReadOptions(memory_bytes=resident)
    iterator = iter(MapDataset.source(source).batch(2).to_iter_dataset(options))
    for record in range(0, 20, 2):
        got = next(iterator)
        x, y = record // 8 * 4, record % 8 * 4
        np.testing.assert_array_equal(got[0], array[x : x + 4, y : y + 4])
    for _ in range(2):  # the same step is tried again
        with pytest.raises(ReadError, match=r"cells \[8:16, 16:24\] cannot be read.*c/1/2"):
            next(iterator)
    iterator.close()
    healthy = [k for k in range(64) if not (k // 16 == 1 and k % 8 // 2 == 2)]
    dataset = MapDataset.source(source).slice(healthy).shuffle(seed=1).batch(4)
    assert sum(map(len, dataset.to_iter_dataset(options))) == 60


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
    source = WindowDataSource(tmp_path, {0: 8, 1: 8}, direct=True)
    # Without the core TensorStore names the cells of the shard.
    with pytest.raises(ReadError, match=r"cells \[8:1[26], 16:[23]0\] cannot be read.*c/1/1"):
        source.read(np.array([5]))
    assert source[4].min() == 1


def test_memory_stays_within_the_budget() -> None:
    array = np.random.default_rng(0).integers(0, 99, (256, 256), np.int64)
    origins = np.random.default_rng(1).integers(0, 256 - 40, (400, 2))
    part, _ = counting(array, (32, 32), (40, 40), origins)
    chunk = 32 * 32 * 8
    memory = 64 * chunk
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

    object.__setattr__(part, "reader", Watching(array, (32, 32)))
    options = ReadOptions(memory_bytes=memory)
    for batch in MapDataset.source(BoxSource(part, 400)).batch(4).to_iter_dataset(options):
        del batch
    assert memory / 8 < most <= memory / 4  # of chunks


def owner(array: AnyArray) -> AnyArray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
