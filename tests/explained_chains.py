"""Chains over every kind of source, order and node, for predictions that are held to what happens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from array_record.python.array_record_module import ArrayRecordWriter

from tests.tfds_folders import write_folder
from windrow import IterDataset, MapDataset, ReadOptions
from windrow.sources import (
    ArrayRecordDataSource,
    Field,
    TFDSDataSource,
    WindowDataSource,
    ZarrDataSource,
)

Dataset = MapDataset[Any] | IterDataset[Any]
ROWS = 4_000
# So few that every chain here has more: what is ready waits for room.
QUEUE = 16
SHORT = ReadOptions(prefetch_buffer_size=QUEUE)
SMALL = dataclasses.replace(SHORT, resident_bytes=400_000, in_flight_bytes=40_000)


def write_stores(folder: Path) -> None:
    """Stores of every layout, of some 4,000 records each."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 50, (ROWS, 32)).astype("f4")

    def array(name: str, values: Any, chunks: tuple[int, ...], **more: Any) -> None:
        store = zarr.create_array(
            str(folder / name), shape=values.shape, dtype=values.dtype, chunks=chunks, **more
        )
        store[...] = values

    array("chunks", rows, (40, 32))
    array("sharded", rows[:2_000], (1, 32), shards=(500, 32))
    array("raw", rows, (100, 32), compressors=None)
    array("tokens", rng.integers(0, 9, 64_000).astype("u2"), (1_000,), dimension_names=["t"])
    field = rng.integers(0, 9, (60, 48, 48)).astype("i2")
    array("field", field, (4, 16, 16), dimension_names=["t", "y", "x"])
    group = zarr.create_group(str(folder / "group"))
    for name, values, size in (("x", rows[:, :8], 40), ("y", rows[:, 0], 300)):
        group.create_array(
            name, data=np.ascontiguousarray(values), chunks=(size, *values.shape[1:])
        )
    for size in (1, 256):
        writer = ArrayRecordWriter(str(folder / f"{size}.array_record"), f"group_size:{size}")
        for row in rows:
            writer.write(row.tobytes())
        writer.close()
    write_folder(folder / "counts" / "1.0.0", {"train": [1_500, 500], "test": [9]})


class Foreign:
    """Somebody else's source, which counts what it is asked for."""

    def __init__(self, records: int) -> None:
        self.records, self.calls = records, 0

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.calls += 1
        return {"x": np.full(6, index)}


class Pick:
    """A selection map."""

    def __len__(self) -> int:
        return 3_000

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index % 2, index // 2


def same(element: Any) -> Any:
    """What it is given."""
    return element


def with_index(index: int, element: Any) -> Any:
    """What it is given."""
    return element


def with_rng(element: Any, rng: np.random.Generator) -> Any:
    """What it is given."""
    return element


def is_even(element: Any) -> bool:
    """Whether its first value is."""
    return int(element["x"][0]) % 2 == 0


@dataclasses.dataclass(frozen=True)
class Case:
    """A chain, and how much of what is predicted of it is exact.

    Args:
        make: The chain over the stores in a folder.
        exact: Whether reads are told as numbers.
        knows_bytes: Whether the bytes of an element are known, and so what buffers hold.
    """

    make: Callable[[Path], Dataset]
    exact: bool = True
    knows_bytes: bool = True


def _zarr(folder: Path, name: str) -> MapDataset[Any]:
    return MapDataset.source(ZarrDataSource(folder / name))


CASES = {
    "ArrayRecord of single records, shuffled": Case(
        lambda f: (
            MapDataset.source(ArrayRecordDataSource(f / "1.array_record")).shuffle(seed=1).batch(32)
        )
    ),
    "ArrayRecord in groups, by blocks": Case(
        lambda f: (
            MapDataset.source(ArrayRecordDataSource(f / "256.array_record"))
            .block_shuffle(seed=1, window_blocks=4)
            .batch(32)
        )
    ),
    "ArrayRecord in groups, shuffled, little room": Case(
        lambda f: (
            MapDataset.source(ArrayRecordDataSource(f / "256.array_record"))
            .shuffle(seed=1)
            .batch(32)
            .to_iter_dataset(SMALL)
        ),
        exact=False,
    ),
    "chunks in order, batched as a stream": Case(
        lambda f: _zarr(f, "chunks").to_iter_dataset(SHORT).batch(64)
    ),
    "chunks by blocks, little room": Case(
        lambda f: (
            _zarr(f, "chunks")
            .block_shuffle(seed=1, window_blocks=2)
            .batch(16)
            .to_iter_dataset(SMALL)
        )
    ),
    "chunks shuffled, little room": Case(
        lambda f: _zarr(f, "chunks").shuffle(seed=1).batch(16).to_iter_dataset(SMALL), exact=False
    ),
    "chunks shuffled in windows": Case(
        lambda f: _zarr(f, "chunks").window_shuffle(500, seed=1).batch(16)
    ),
    "shards of single records, shuffled": Case(
        lambda f: _zarr(f, "sharded").shuffle(seed=1).batch(32)
    ),
    "raw chunks, every third record": Case(lambda f: _zarr(f, "raw")[::3].batch(32)),
    "a group of arrays, strides, repeated": Case(
        lambda f: _zarr(f, "group")[5::7].repeat(3).batch(20)
    ),
    "windows of tokens, shuffled": Case(
        lambda f: (
            MapDataset.source(WindowDataSource(f / "tokens", {"t": 128}, {"t": 100}))
            .shuffle(seed=1)
            .batch(8)
        )
    ),
    "patches with a target, by blocks": Case(
        lambda f: (
            MapDataset.source(
                WindowDataSource(
                    f / "field",
                    {"y": 12, "x": 12},
                    {"y": 6, "x": 6},
                    fields={"x": Field(offsets={"t": [-1, 0]}), "y": Field(offsets={"t": 1})},
                )
            )
            .block_shuffle(seed=1)
            .batch(16)
        )
    ),
    "a dataset of tfds, shuffled": Case(
        lambda f: (
            MapDataset.source(TFDSDataSource(f / "counts" / "1.0.0", split="train"))
            .shuffle(seed=1)
            .batch(32)
        ),
        knows_bytes=False,
    ),
    "arrays in memory, random maps": Case(
        lambda f: (
            MapDataset.source({"x": np.zeros((ROWS, 8)), "y": np.arange(ROWS)})
            .shuffle(seed=1)
            .random_map(with_rng, seed=2)
            .batch(32)
        ),
        knows_bytes=False,
    ),
    "a source of somebody else's, in workers": Case(
        lambda f: MapDataset.source(Foreign(300)).shuffle(seed=1).map(same).batch(8).mp_prefetch(2),
        knows_bytes=False,
    ),
    "a mixture, mapped in batches": Case(
        lambda f: (
            MapDataset.mix([_zarr(f, "raw"), _zarr(f, "chunks").block_shuffle(seed=1)], [1, 2])
            .map(same, batched=True)
            .batch(32)
        ),
        knows_bytes=False,
    ),
    "zip, concatenate and a selection": Case(
        lambda f: (
            MapDataset.zip(
                [
                    MapDataset.select_from_datasets([_zarr(f, "chunks"), _zarr(f, "raw")], Pick()),
                    MapDataset.concatenate([_zarr(f, "raw")[:1_000], _zarr(f, "sharded")[:2_000]]),
                ]
            )
            .map_with_index(with_index)
            .batch(25)
        ),
        knows_bytes=False,
    ),
    "a filter, batched as a stream": Case(
        lambda f: _zarr(f, "group").filter(is_even).to_iter_dataset(SHORT).batch(32),
        knows_bytes=False,
    ),
    "without threads": Case(
        lambda f: (
            _zarr(f, "chunks").batch(40).to_iter_dataset(ReadOptions(num_threads=0, block_bytes=1))
        )
    ),
    "the first elements of a stream": Case(
        lambda f: _zarr(f, "chunks").shuffle(seed=1).to_iter_dataset().batch(10).limit(20),
        exact=False,
        knows_bytes=False,
    ),
}
