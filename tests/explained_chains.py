"""Chains over every kind of source, order and node, for predictions that are held to what happens.

Invariant: chains over the same stores are the same each time, and all of it is small and local.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from array_record.python.array_record_module import ArrayRecordWriter
from numcodecs import Delta

from tests.range_server import RangeServer
from tests.tfds_folders import write_folder
from windrow import IterDataset, MapDataset, ReadOptions
from windrow.experimental import DatasetOptions, WithOptionsIterDataset
from windrow.sources import (
    ArrayRecordDataSource,
    Field,
    RaggedDataSource,
    RangeDataSource,
    RemoteOptions,
    TFDSDataSource,
    Window,
    WindowDataSource,
    ZarrDataSource,
)

Dataset = MapDataset[Any] | IterDataset[Any]
ROWS = 4_000
# So few that every chain here has more: what is ready waits for room.
QUEUE = 16
SHORT = ReadOptions(prefetch_buffer_size=QUEUE)
SMALL = dataclasses.replace(SHORT, memory_bytes=400_000)


@dataclasses.dataclass(frozen=True)
class Stores:
    """Stores in a folder, and a server that serves them from there."""

    folder: Path
    server: RangeServer

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def url(self, name: str) -> str:
        """Where the server has a store."""
        return self.server.url(name)


@contextlib.contextmanager
def served_stores(folder: Path) -> Iterator[Stores]:
    """The stores, written into a folder and served from there."""
    write_stores(folder)
    with RangeServer(folder) as server:
        yield Stores(folder, server)


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
    array("inner", rows[:2_000], (20, 32), shards=(500, 32))
    array("raw", rows, (100, 32), compressors=None)
    array("second version", rows, (40, 16), zarr_format=2)
    array("delta", rows[:1_000], (40, 32), zarr_format=2, filters=[Delta("f4")])
    array("tokens", rng.integers(0, 9, 64_000).astype("u2"), (1_000,), dimension_names=["t"])
    field = rng.integers(0, 9, (60, 48, 48)).astype("i2")
    array("field", field, (4, 16, 16), dimension_names=["t", "y", "x"])
    lengths = rng.integers(0, 60, ROWS)
    lengths[7] = 3_000  # three chunks and more
    documents = zarr.create_group(str(folder / "documents"))
    values = rng.integers(0, 9, lengths.sum()).astype("u2")
    documents.create_array("values", data=values, chunks=(1_000,))
    documents.create_array("offsets", data=np.cumsum([0, *lengths]), chunks=(ROWS + 1,))
    group = zarr.create_group(str(folder / "group"))
    for name, values, size in (("x", rows[:, :8], 40), ("y", rows[:, 0], 300)):
        group.create_array(
            name, data=np.ascontiguousarray(values), chunks=(size, *values.shape[1:])
        )
    for name, count, size in (
        ("1", ROWS, 1),
        ("256", ROWS, 256),
        *((f"part-{number}", 500 + 100 * number, 16) for number in range(3)),
    ):
        writer = ArrayRecordWriter(str(folder / f"{name}.array_record"), f"group_size:{size}")
        for row in rows[:count]:
            writer.write(row.tobytes())
        writer.close()
    write_folder(folder / "counts" / "1.0.0", {"train": [1_500, 500], "test": [9]})


def _cached(stores: Stores) -> RemoteOptions:
    """Options with a cache on disk, beside the stores."""
    return RemoteOptions(cache_dir=str(stores / "cache"), cache_bytes=1 << 26)


class Foreign:
    """Somebody else's source, which counts what it is asked for."""

    def __init__(self, records: int) -> None:
        self.records, self.calls = records, 0

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.calls += 1
        return {"x": np.full(6, index)}


class ForeignOfMany(Foreign):
    """The same, asked for many in one call."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


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


def with_rngs(columns: Any, rngs: list[np.random.Generator]) -> Any:
    """What it is given."""
    return columns


def is_even_row(row: Any) -> bool:
    """Whether its first value is."""
    return int(row[0]) % 2 == 0


def first_of_many(row: Any) -> Any:
    """Its first value."""
    return row[:1].sum()


def first_of(elements: Sequence[Any]) -> Any:
    """A batch of its own making."""
    return elements[0]


@dataclasses.dataclass(frozen=True)
class Case:
    """A chain, and how much of what is predicted of it is exact.

    Args:
        make: The chain over the stores in a folder.
        exact: Whether reads are told as numbers.
        is_slow: Whether to run it takes seconds.
    """

    make: Callable[[Stores], Dataset]
    exact: bool = True
    is_slow: bool = False


def _zarr(stores: Stores, name: str, **more: Any) -> MapDataset[Any]:
    return MapDataset.source(ZarrDataSource(stores / name, **more))


def _documents(stores: Stores) -> MapDataset[Any]:
    """Rows whose offsets, which are metadata, have been read."""
    source = RaggedDataSource(stores / "documents")
    source.lengths()
    return MapDataset.source(source)


FIRST = {
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
    "shards of single records, shuffled": Case(
        lambda f: _zarr(f, "sharded").shuffle(seed=1).batch(32)
    ),
    "raw chunks, every third record": Case(lambda f: _zarr(f, "raw")[::3].batch(32)),
    "a group of arrays, strides, repeated": Case(
        lambda f: _zarr(f, "group")[5::7].repeat(3).batch(20)
    ),
    "windows of tokens, shuffled": Case(
        lambda f: (
            MapDataset.source(WindowDataSource(f / "tokens", {"t": Window(128, 100)}))
            .shuffle(seed=1)
            .batch(8)
        )
    ),
    "documents, shuffled": Case(
        lambda f: _documents(f).shuffle(seed=1).map(first_of_many, keeps_length=True).batch(8),
    ),
    "documents, padded in a stream": Case(
        lambda f: _documents(f).shuffle(seed=1).to_iter_dataset().batch(8, pad_to=3_000)
    ),
    "patches with a target, by blocks": Case(
        lambda f: (
            MapDataset.source(
                WindowDataSource(
                    f / "field",
                    {"y": Window(12, 6), "x": Window(12, 6)},
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
    ),
    "arrays in memory, random maps": Case(
        lambda f: (
            MapDataset.source({"x": np.zeros((ROWS, 8)), "y": np.arange(ROWS)})
            .shuffle(seed=1)
            .random_map(with_rng, seed=2)
            .random_map(with_rngs, seed=3, batched=True)
            .batch(32)
        ),
    ),
    "a source of somebody else's, in workers": Case(
        lambda f: MapDataset.source(Foreign(300)).shuffle(seed=1).map(same).batch(8).mp_prefetch(2),
    ),
    "a stream with options": Case(
        lambda f: WithOptionsIterDataset(
            _zarr(f, "chunks").block_shuffle(seed=1).to_iter_dataset().batch(32),
            DatasetOptions(min_shm_size=1),
        ),
    ),
    "a mixture, mapped in batches": Case(
        lambda f: (
            MapDataset.mix([_zarr(f, "raw"), _zarr(f, "chunks").block_shuffle(seed=1)], [1, 2])
            .map(same, batched=True)
            .batch(32)
        ),
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
    ),
}

# --- sources -------------------------------------------------------------------------------------

SOURCES = {
    "a range beside chunks, seeded": Case(
        lambda f: (
            MapDataset.zip([MapDataset.range(ROWS), _zarr(f, "chunks")]).seed(3).shuffle().batch(32)
        )
    ),
    "integers, in windows": Case(
        lambda f: MapDataset.source(RangeDataSource(3, 3_003)).window_shuffle(100, seed=1).batch(32)
    ),
    "a list of records, shuffled": Case(
        lambda f: (
            MapDataset.source([{"x": np.full(6, i)} for i in range(500)]).shuffle(seed=1).batch(32)
        ),
    ),
    "a source of somebody else's, many in one call": Case(
        lambda f: MapDataset.source(ForeignOfMany(500)).to_iter_dataset(SHORT).batch(7),
    ),
    "ArrayRecord remote, by blocks": Case(
        lambda f: (
            MapDataset.source(ArrayRecordDataSource(f.url("256.array_record")))
            .block_shuffle(seed=1)
            .batch(32)
        ),
    ),
    "single remote records, shuffled": Case(
        lambda f: (
            MapDataset.source(ArrayRecordDataSource(f.url("1.array_record")))[:500]
            .shuffle(seed=1)
            .batch(32)
        ),
    ),
    "remote chunks, by blocks": Case(
        lambda f: (
            MapDataset.source(ZarrDataSource(f.url("chunks"))).block_shuffle(seed=1).batch(32)
        ),
    ),
    "remote chunks with a cache on disk, by blocks": Case(
        lambda f: (
            MapDataset.source(ZarrDataSource(f.url("chunks"), remote=_cached(f)))
            .block_shuffle(seed=1)
            .batch(32)
        ),
    ),
    "remote patches with a cache on disk, by blocks": Case(
        lambda f: (
            MapDataset.source(
                WindowDataSource(f.url("field"), {"t": 2, "y": 12, "x": 12}, remote=_cached(f))
            )
            .block_shuffle(seed=1)
            .batch(32)
        ),
    ),
    "files of ArrayRecord, by blocks": Case(
        lambda f: (
            MapDataset.source(ArrayRecordDataSource(f / "part-*.array_record"))
            .block_shuffle(seed=1)
            .batch(32)
        ),
    ),
    "files of ArrayRecord in ranges of bytes, shuffled": Case(
        lambda f: (
            MapDataset.source(ArrayRecordDataSource(f / "part-*.array_record", direct=True))
            .shuffle(seed=1)
            .batch(32)
        ),
    ),
    "files of ArrayRecord through the package, shuffled": Case(
        lambda f: (
            MapDataset.source(ArrayRecordDataSource(f / "part-*.array_record", direct=False))
            .shuffle(seed=1)
            .batch(32)
        ),
    ),
    "chunks that TensorStore reads, by blocks": Case(
        lambda f: _zarr(f, "chunks", direct=False).block_shuffle(seed=1).batch(32),
    ),
    "inner chunks that TensorStore reads, shuffled": Case(
        lambda f: _zarr(f, "inner", direct=False).shuffle(seed=1).batch(32)
    ),
    "inner chunks, by blocks": Case(
        lambda f: _zarr(f, "inner").block_shuffle(seed=1).batch(32),
    ),
    "chunks of Zarr v2 that part the rows": Case(
        lambda f: _zarr(f, "second version").block_shuffle(seed=1).batch(32),
    ),
    "chunks that zarr-python reads, by blocks": Case(
        lambda f: _zarr(f, "delta").block_shuffle(seed=1).batch(32),
    ),
    "patches that zarr-python reads, by blocks": Case(
        lambda f: (
            MapDataset.source(
                WindowDataSource(
                    f / "delta", {"t": Window(30, 20), "x": Window(12, 10)}, dims=("t", "x")
                )
            )
            .block_shuffle(seed=1)
            .batch(8)
        ),
    ),
    "windows that TensorStore reads, by blocks": Case(
        lambda f: (
            MapDataset.source(WindowDataSource(f / "tokens", {"t": Window(128, 100)}, direct=False))
            .block_shuffle(seed=1)
            .batch(8)
        ),
    ),
    "patches that TensorStore reads, shuffled": Case(
        lambda f: (
            MapDataset.source(
                WindowDataSource(f / "field", {"t": 2, "y": 12, "x": 12}, direct=False)
            )
            .shuffle(seed=1)
            .batch(8)
        )
    ),
}

# --- orders --------------------------------------------------------------------------------------

ORDERS = {
    "listed records": Case(
        lambda f: _zarr(f, "chunks").slice([*range(0, 2_000, 3), 3_999, 0, 7]).batch(16),
    ),
    "the same blocks in each pass": Case(
        lambda f: (
            _zarr(f, "chunks").block_shuffle(seed=1).repeat(2, reseed_each_epoch=False).batch(40)
        ),
    ),
    "a stream in several passes": Case(
        lambda f: _zarr(f, "chunks").batch(40).to_iter_dataset(SMALL).repeat(3)
    ),
}

# --- nodes ---------------------------------------------------------------------------------------

NODES = {
    "maps and a filter on a stream": Case(
        lambda f: (
            _zarr(f, "chunks")
            .to_iter_dataset(SHORT)
            .map(same)
            .map_with_index(with_index)
            .filter(is_even_row)
            .random_map(with_rng, seed=3)
            .map(same, batched=True)
            .batch(16)
        ),
    ),
    "a mixture of streams": Case(
        lambda f: IterDataset.mix(
            [_zarr(f, name).to_iter_dataset(SHORT) for name in ("chunks", "raw")], [1, 2]
        ).batch(16),
        exact=False,
    ),
    "streams side by side": Case(
        lambda f: IterDataset.zip(
            [
                _zarr(f, "chunks").to_iter_dataset(SHORT),
                _zarr(f, "raw").block_shuffle(seed=1).to_iter_dataset(SHORT),
            ]
        ).batch(16)
    ),
    "batches of a user's own making, without the last": Case(
        lambda f: _zarr(f, "chunks").batch(30, batch_fn=first_of, drop_remainder=True),
    ),
    "a filter whose gaps are kept": Case(
        lambda f: _zarr(f, "chunks").filter(is_even_row).to_iter_dataset(SHORT, allow_nones=True),
    ),
    "chunks by blocks, mapped in workers": Case(
        lambda f: _zarr(f, "chunks").block_shuffle(seed=1).map(same).batch(32).mp_prefetch(2),
        is_slow=True,
    ),
}

# --- lanes ---------------------------------------------------------------------------------------


def _lanes(stores: Stores) -> IterDataset[Any]:
    return _zarr(stores, "chunks").block_shuffle(seed=1).to_iter_dataset(SHORT, lanes=8)


LANES = {
    "lanes": Case(lambda f: _lanes(f).batch(16)),
    "a shard of lanes, shuffled in windows": Case(
        lambda f: _lanes(f).window_shuffle(9, seed=1).batch(16, drop_remainder=True).shard(3, 4)
    ),
    "lanes, filtered": Case(
        lambda f: _lanes(f).filter(is_even_row).batch(16),
    ),
    "shards that share a lane": Case(lambda f: _lanes(f).batch(16).shard(3, 16)),
    "a shard of a stream of one lane": Case(
        lambda f: (
            _zarr(f, "chunks")
            .to_iter_dataset(SHORT)
            .window_shuffle(200, seed=1)
            .batch(16)
            .shard(0, 2)
        )
    ),
}

CASES = {**FIRST, **SOURCES, **ORDERS, **NODES, **LANES}


def nodes_of(dataset: Dataset) -> Iterator[Any]:
    """The nodes of a chain, one that has several children once for each."""
    waiting: list[Any] = [dataset._node]
    while waiting:
        node = waiting.pop()
        waiting += node.parents
        yield node
