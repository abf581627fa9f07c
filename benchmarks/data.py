"""What is measured over: the stores of one run, written once, and the orders they are read in.

Values of records are random of 6 bits in a byte, so that zstd takes off a quarter and has to work
for it; what is in arrays that are read in windows `grids` tells.

Invariant: the same sizes give the same bytes, and every layout of rows holds the same records; all
sides read the same files.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore as ts
from array_record.python import array_record_module

from benchmarks import grids
from benchmarks.far import FAR, Far
from benchmarks.functions import as_row
from benchmarks.grids import Grid

AnyArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

ORDERS = ("in order", "block shuffle", "global shuffle")

_DATA_SEED = 20
_ORDER_SEED = 7
_ZSTD = {"name": "zstd", "configuration": {"level": 1}}
_ARRAYS = {"fields": "field"}  # the array in a group, where the store is one
_DIMENSIONS = {"fields": ("time", "channel", "latitude", "longitude")}
_CONVERTED_FILES = 8
_FEW_RECORDS = ("far_records", "array_record_direct")
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


@dataclasses.dataclass(frozen=True, slots=True)
class InMemory:
    """Records that are in memory, read in order several times.

    Args:
        records: How many there are.
        record_bytes: Bytes of each.
        batch_size: Records of a batch; they divide into whole batches.
        epochs: How often they are read.
        warm_batches: With worker processes, the batches that come before the clock starts: until
            those are busy, and memory that is used again has been used once.
    """

    records: int
    record_bytes: int
    batch_size: int
    epochs: int
    warm_batches: int = 1

    @property
    def delivered(self) -> int:
        """Records that come in all."""
        return self.records * self.epochs

    def rows(self) -> AnyArray:
        """The records: uint8 `(records, record_bytes)`, each of another content."""
        # Written to, every byte: pages that never were are one and the same in memory.
        words = np.arange(self.records * self.record_bytes // 4, dtype=np.uint32)
        return words.view(np.uint8).reshape(self.records, self.record_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    """Where the stores are, and how much they hold.

    Args:
        folder: Folder of the stores, as text, since it travels as JSON.
        records: Records of each store of rows.
        record_bytes: Bytes of a record.
        chunk_rows: Records of a Zarr chunk, and of a group of ArrayRecord.
        shard_rows: Records of a Zarr shard, which has an inner chunk for each.
        batch_size: Records of a batch of rows.
        window_blocks: Blocks whose records a block shuffle mixes.
        elements: Length of the range that is read without a function.
        calls: Length of the range that a function is called on.
        restores: How often an iterator is restored in one measurement.
        slow: What a slow function is called on.
        large: Batches of tens of megabytes.
        compact: Batches of a hundred kilobytes.
        tokens: One axis of tokens, 2 bytes each; windows do not overlap.
        fields: Fields over time, a chunk for each step; a window begins at every step.
        patches: A volume in cubes, and windows anywhere in it.
        cached_epochs: How often tokens are read where they are in memory after the first time.
        far: What is read over HTTP.
    """

    folder: str
    records: int = 200_000
    record_bytes: int = 3_072
    chunk_rows: int = 256
    shard_rows: int = 4_096
    batch_size: int = 256
    window_blocks: int = 16
    elements: int = 10_000_000
    calls: int = 500_000
    restores: int = 5
    slow: InMemory = InMemory(6_400, 3_072, batch_size=64, epochs=4, warm_batches=8)
    large: InMemory = InMemory(8_000, 64_000, batch_size=1_000, epochs=50, warm_batches=16)
    compact: InMemory = InMemory(25_000, 4_000, batch_size=25, epochs=100, warm_batches=500)
    tokens: Grid = grids.TOKENS
    fields: Grid = grids.FIELDS
    patches: Grid = grids.PATCHES
    cached_epochs: int = 4
    far: Far = FAR

    def dumps(self) -> str:
        """The sizes as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loads(cls, text: str) -> Data:
        """The sizes that `dumps` wrote."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Data:
        """The sizes as `dataclasses.asdict` gave them."""
        kept = {name: InMemory(**fields[name]) for name in ("slow", "large", "compact")}
        windows = {name: Grid.of(fields[name]) for name in grids.LAYOUTS}
        far = Far(**fields["far"])
        return cls(**{**fields, **kept, **windows, "far": far})

    def grid(self, layout: str) -> Grid | None:
        """The array of that layout; None where records are rows."""
        found = {"tokens": self.tokens, "fields": self.fields, "patches": self.patches}
        return found.get(layout.partition("_")[0])

    def count(self, layout: str) -> int:
        """Records of an epoch of that layout."""
        grid = self.grid(layout)
        if grid is not None:
            return grid.records
        if layout == "far_files":
            return self.far.files * self.far.file_records
        return self.far.records if layout in _FEW_RECORDS else self.records

    def path(self, layout: str) -> str:
        """The file or folder of that layout's store."""
        return str(Path(self.folder) / layout)

    def array_path(self, layout: str) -> str:
        """The folder of the array; that of the store, unless it is a group."""
        return str(Path(self.path(layout), _ARRAYS.get(layout, "")))

    def stored_bytes(self, layout: str) -> int:
        """Bytes of that layout's store."""
        place = Path(self.path(layout))
        files = [place] if place.is_file() else [f for f in place.rglob("*") if f.is_file()]
        return sum(file.stat().st_size for file in files)

    def block_records(self, layout: str) -> int:
        """Records of a block of that layout: those of a chunk, or as many."""
        if layout == "far_zarr":
            return self.far.chunk_rows
        grid = self.grid(layout)
        return self.chunk_rows if grid is None else grid.block_records

    def order(self, layout: str, order: str) -> IntArray:
        """One epoch of `order`, one of `ORDERS`: for sides that cannot shuffle, ready-made."""
        if order == "in order":
            return np.arange(self.count(layout))
        random = np.random.default_rng(_ORDER_SEED)
        if order == "global shuffle":
            return random.permutation(self.count(layout))
        groups = (np.concatenate(group) for group in self.block_groups(layout))
        return np.concatenate([random.permutation(group) for group in groups])

    def block_groups(self, layout: str) -> list[list[IntArray]]:
        """The blocks of an epoch in random order, in groups of `window_blocks`."""
        rows = self.block_records(layout)
        records = self.count(layout)
        starts = range(0, records, rows)
        blocks = [np.arange(s, min(s + rows, records)) for s in starts]
        mixed = np.random.default_rng(_ORDER_SEED).permutation(len(blocks))
        return [
            [blocks[i] for i in mixed[first : first + self.window_blocks]]
            for first in range(0, len(blocks), self.window_blocks)
        ]

    def rows(self, layout: str) -> Iterator[AnyArray]:
        """The content of a store of rows, in blocks of whole records."""
        random = np.random.default_rng(_DATA_SEED)
        step, records = self.block_records(layout), self.count(layout)
        for start in range(0, records, step):
            count = min(step, records - start)
            yield random.integers(0, 64, (count, self.record_bytes), np.uint8)

    def all_rows(self, layout: str) -> AnyArray:
        """All records of that layout: rows uint8 `(records, width)`, or windows."""
        grid = self.grid(layout)
        if grid is None:
            return np.concatenate(list(self.rows(layout)))
        return grid.windows(self.values(layout))

    def values(self, layout: str) -> AnyArray:
        """The whole array of that layout, whose records are windows."""
        grid = self.grid(layout)
        if grid is None:
            raise ValueError(f"benchmark: {layout} has rows, not windows")
        return np.concatenate(list(grids.slabs(layout.partition("_")[0], grid)))


def small(folder: str) -> Data:
    """A run of seconds, for tests: its figures say nothing."""
    return Data(
        folder,
        records=600,
        record_bytes=64,
        chunk_rows=32,
        shard_rows=100,
        batch_size=32,
        window_blocks=4,
        elements=20_000,
        calls=500,
        restores=2,
        slow=InMemory(16, 64, batch_size=4, epochs=2),
        large=InMemory(12, 4_000, batch_size=4, epochs=2),
        compact=InMemory(12, 64, batch_size=4, epochs=2),
        tokens=Grid((9_600,), (512,), (16,), batch_size=32, strides=(16,), block=32),
        fields=Grid(
            (22, 2, 5, 6), (1, 2, 5, 6), (3, 2, 5, 6), batch_size=4, strides=(1, 2, 5, 6), block=5
        ),
        patches=Grid((20,) * 3, (8,) * 3, (7,) * 3, batch_size=4, located=50),
        cached_epochs=2,
        far=Far(latency_ms=1, records=300, chunk_rows=10, files=5, file_records=3),
    )


def write(data: Data, layout: str) -> None:
    """Write the store of that layout, unless it is there. It is in the page cache afterwards."""
    if not Path(data.path(layout)).exists():
        _WRITERS[layout](data, layout)


def _array_record(data: Data, layout: str) -> None:
    group = data.chunk_rows if layout == "array_record_groups" else 1
    writer = array_record_module.ArrayRecordWriter(data.path(layout), f"group_size:{group},zstd")
    for rows in data.rows(layout):
        for row in rows:
            writer.write(row.tobytes())
    writer.close()


def _converted(data: Data, layout: str) -> None:
    """What a conversion with default options makes of TFRecord files."""
    from windrow import converters  # the other stores are none of Windrow's

    rows = itertools.chain.from_iterable(data.rows(layout))
    each = -(-data.records // _CONVERTED_FILES)
    with tempfile.TemporaryDirectory(dir=data.folder) as folder:
        for number in range(_CONVERTED_FILES):
            path = Path(folder, f"rows.tfrecord-{number:05}-of-{_CONVERTED_FILES:05}")
            some = itertools.islice(rows, each)
            converters.write_records(path, (row.tobytes() for row in some))
        inputs = str(Path(folder, "rows.tfrecord-*"))
        if layout == "verify":
            converters.tfrecord_to_array_record(inputs, data.path(layout), progress=False)
        else:
            converters.tfrecord_to_zarr(inputs, data.path(layout), decode=as_row, progress=False)


def _far_files(data: Data, layout: str) -> None:
    folder = Path(data.path(layout))
    folder.mkdir()
    random = np.random.default_rng(_DATA_SEED)
    for number in range(data.far.files):
        path = folder / data.far.file_name(number)
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,zstd")
        for _ in range(data.far.file_records):
            writer.write(random.bytes(data.record_bytes))
        writer.close()


def _zarr(data: Data, layout: str) -> None:
    is_sharded = layout in ("zarr_shards", "far_zarr")
    rows = data.shard_rows if is_sharded else data.chunk_rows
    shape, chunk = (data.records, data.record_bytes), (rows, data.record_bytes)
    inner = {
        "chunk_shape": [data.far.chunk_rows if layout == "far_zarr" else 1, data.record_bytes],
        "codecs": [_BYTES, _ZSTD],
        "index_codecs": [_BYTES, {"name": "crc32c"}],
    }
    codecs: list[dict[str, Any]] = {
        "zarr": [_BYTES, _ZSTD],
        "zarr_raw": [_BYTES],
        "zarr_shards": [{"name": "sharding_indexed", "configuration": inner}],
    }["zarr_shards" if is_sharded else layout]
    metadata = {"data_type": "uint8", "codecs": codecs}
    values = data.all_rows(layout)
    # Whole shards at a time: to write a part of one would read and write it again.
    step = max(1, chunk[0] * 4)
    parts = (values[start : start + step] for start in range(0, len(values), step))
    _write_array(data.path(layout), metadata, shape, chunk, parts)


def _write_array(
    path: str,
    metadata: dict[str, Any],
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    parts: Iterable[AnyArray],
) -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": path},
        "metadata": {"shape": shape, "chunk_grid": grid, **metadata},
    }
    store = ts.open(spec, create=True).result()
    start = 0
    for part in parts:
        store[start : start + len(part)].write(part).result()
        start += len(part)


def _windows(data: Data, layout: str) -> None:
    grid = data.grid(layout)
    if grid is None:
        raise ValueError(f"benchmark: {layout} has rows, not windows")
    metadata: dict[str, Any] = {"data_type": grids.DTYPES[layout], "codecs": [_BYTES, _ZSTD]}
    if layout in _DIMENSIONS:
        metadata["dimension_names"] = _DIMENSIONS[layout]
    parts = grids.slabs(layout, grid)
    _write_array(data.array_path(layout), metadata, grid.shape, grid.chunk, parts)
    if layout in _ARRAYS:
        group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        Path(data.path(layout), "zarr.json").write_text(json.dumps(group))


def _raw_tokens(data: Data, layout: str) -> None:
    with Path(data.path(layout)).open("wb") as file:
        for part in grids.slabs("tokens", data.tokens):
            part.tofile(file)


def _arrow(data: Data, layout: str) -> None:
    import pyarrow  # comes with datasets, whose side alone reads this

    kind = pyarrow.list_(pyarrow.uint8(), data.record_bytes)
    schema = pyarrow.schema([("row", kind)])
    with (
        pyarrow.OSFile(data.path(layout), "wb") as file,
        pyarrow.ipc.new_stream(file, schema) as to,
    ):
        for rows in data.rows(layout):
            column = pyarrow.FixedSizeListArray.from_arrays(rows.reshape(-1), type=kind)
            to.write_batch(pyarrow.record_batch([column], schema=schema))


_WRITERS: dict[str, Callable[[Data, str], None]] = {
    "array_record": _array_record,
    "array_record_groups": _array_record,
    "arrow": _arrow,
    "far_files": _far_files,
    "far_records": _array_record,
    "far_zarr": _zarr,
    "fields": _windows,
    "patches": _windows,
    "tokens": _windows,
    "tokens_raw": _raw_tokens,
    "verify": _converted,
    "verify_zarr": _converted,
    "zarr": _zarr,
    "zarr_raw": _zarr,
    "zarr_shards": _zarr,
}
LAYOUTS = tuple(_WRITERS)
