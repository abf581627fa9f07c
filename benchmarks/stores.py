"""The stores that cases read, and how their peers open these.

Invariant: the same sizes give the same bytes, and all sides of a case read the same files.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks import grids
from benchmarks.grids import Grid
from benchmarks.harness import Place

AnyArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

ROW_BYTES: Final = 3_024
CHUNK_ROWS: Final = 240
SHARD_ROWS: Final = 1_000
FAR_SHARD_ROWS, FAR_CHUNK_ROWS = 4_000, 40
GROUP: Final = 256
CHUNK_TOKENS, TOKENS_OF_A_WINDOW = 1_000_000, 1_024
NO_READ_AHEAD: Final = "readahead_buffer_size:0,max_parallelism:0"
"""Options of the ArrayRecord reader that suit records picked one by one."""

_AT_ONCE: Final = 1_024
_SMALL_GRIDS: Final = {
    "fields": Grid((22, 2, 5, 6), (1, 2, 5, 6), (3, 2, 5, 6), batch_size=4, strides=(1, 2, 5, 6)),
    "patches": Grid((16,) * 3, (8,) * 3, (7,) * 3, batch_size=4, located=50),
}
_GRIDS: Final = {"fields": grids.FIELDS, "patches": grids.PATCHES}


def noise(rows: int, numbers: int, seed: int) -> npt.NDArray[np.uint16]:
    """Rows of numbers that compress to about half."""
    random = np.random.default_rng(seed)
    return random.normal(1000, 30, (rows, numbers)).astype(np.uint16)


# --- rows ----------------------------------------------------------------------------------------


def rows(place: Place, path: Path) -> None:
    """Zarr in chunks of 240 rows, zstd: 580 MB."""
    chunks = place.size(800, 66)
    write_rows(path, chunks * CHUNK_ROWS, CHUNK_ROWS)


def raw(place: Place, path: Path) -> None:
    """The same, not compressed: 180 MB."""
    write_rows(path, CHUNK_ROWS * place.size(250, 8), CHUNK_ROWS, level=None)


def shards(place: Place, path: Path) -> None:
    """Shards of 1,000 rows, an inner chunk for each: 180 MB."""
    write_rows(path, SHARD_ROWS * place.size(60, 4), 1, shard=SHARD_ROWS)


def far_shards(place: Place, path: Path) -> None:
    """Shards of 4,000 rows in inner chunks of 40: 600 MB."""
    shard = place.size(FAR_SHARD_ROWS, 80)
    write_rows(path, shard * place.size(50, 3), FAR_CHUNK_ROWS, shard=shard)


def write_rows(
    path: Path, count: int, chunk: int, *, shard: int | None = None, level: int | None = 1
) -> None:
    """An array of rows that compress to about half."""
    import zarr
    from zarr.codecs import ZstdCodec

    numbers = ROW_BYTES // 2
    array = zarr.create_array(
        path,
        shape=(count, numbers),
        chunks=(chunk, numbers),
        shards=None if shard is None else (shard, numbers),
        dtype="uint16",
        compressors=None if level is None else [ZstdCodec(level=level)],
    )
    step = shard or chunk
    for number, first in enumerate(range(0, count, step)):
        array[first : first + step] = noise(min(step, count - first), numbers, number)


def arrow(place: Place, path: Path) -> None:
    """The rows of `raw` in an Arrow file."""
    import pyarrow  # comes with datasets, whose side alone reads this

    kind = pyarrow.list_(pyarrow.uint16(), ROW_BYTES // 2)
    schema = pyarrow.schema([("row", kind)])
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, schema) as to:
        for number in range(place.size(250, 8)):
            some = noise(CHUNK_ROWS, ROW_BYTES // 2, number)
            column = pyarrow.FixedSizeListArray.from_arrays(some.reshape(-1), type=kind)
            to.write_batch(pyarrow.record_batch([column], schema=schema))


def array_record(place: Place, path: Path, *, group: int = 1, records: int = 60 * _AT_ONCE) -> None:
    """Records that compress to about half, as the reference writer writes them: 180 MB."""
    from array_record.python import array_record_module

    left = place.size(records, 2 * _AT_ONCE)
    writer = array_record_module.ArrayRecordWriter(str(path), f"group_size:{group},zstd")
    for part in range(-(-left // _AT_ONCE)):
        for record in noise(min(_AT_ONCE, left - part * _AT_ONCE), ROW_BYTES // 2, part):
            writer.write(record.tobytes())
    writer.close()


groups = functools.partial(array_record, group=GROUP)


# --- windows -------------------------------------------------------------------------------------


def tokens(place: Place, path: Path) -> None:
    """One axis of tokens, 2 bytes each, in chunks of a million: 200 MB."""
    import zarr
    from zarr.codecs import ZstdCodec

    chunks = place.size(100, 4)
    array = zarr.create_array(
        path,
        shape=(chunks * CHUNK_TOKENS,),
        chunks=(CHUNK_TOKENS,),
        dtype="uint16",
        compressors=[ZstdCodec(level=1)],
    )
    for number, some in enumerate(_tokens(chunks)):
        array[number * CHUNK_TOKENS : (number + 1) * CHUNK_TOKENS] = some


def raw_tokens(place: Place, path: Path) -> None:
    """The same tokens in a raw file."""
    with path.open("wb") as file:
        for some in _tokens(place.size(100, 4)):
            some.tofile(file)


def _tokens(chunks: int) -> Iterator[npt.NDArray[np.uint16]]:
    random = np.random.default_rng(0)
    for _ in range(chunks):
        yield (random.zipf(1.2, CHUNK_TOKENS) % 50_000).astype(np.uint16)


def grid_of(place: Place, layout: str) -> Grid:
    """The array of that layout, "fields" or "patches"."""
    return (_SMALL_GRIDS if place.small else _GRIDS)[layout]


def grid(place: Place, path: Path, *, layout: str) -> None:
    """An array of whole chunks: 400 MB of fields, 134 MB of a volume."""
    import zarr
    from zarr.codecs import ZstdCodec

    found = grid_of(place, layout)
    names = ("time", "channel", "latitude", "longitude") if layout == "fields" else None
    group = zarr.create_group(path) if layout == "fields" else None
    array = zarr.create_array(
        path / "field" if group is not None else path,
        shape=found.shape,
        chunks=found.chunk,
        dtype=grids.DTYPES[layout],
        compressors=[ZstdCodec(level=1)],
        dimension_names=names,
    )
    start = 0
    for slab in grids.slabs(layout, found):
        array[start : start + len(slab)] = slab
        start += len(slab)


# --- how peers open them -------------------------------------------------------------------------


def open_zarr(path: Path, cache_bytes: int = 0) -> Any:
    """A Zarr array by TensorStore with a cache of its own, which is not asked whether it is true."""
    import tensorstore as ts

    return ts.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}},
        context=ts.Context({"cache_pool": {"total_bytes_limit": cache_bytes}}),
        recheck_cached_data=False,
        recheck_cached_metadata=False,
    ).result()


def open_far_zarr(url: str, cache_bytes: int, requests: int) -> Any:
    """The same over HTTP, with a limit of requests in flight."""
    import tensorstore as ts

    context = {
        "cache_pool": {"total_bytes_limit": cache_bytes},
        "http_request_concurrency": {"limit": requests},
    }
    return ts.open(
        {"driver": "zarr3", "kvstore": f"{url}/"},
        context=ts.Context(context),
        recheck_cached_data=False,
        recheck_cached_metadata=False,
    ).result()


def open_array_record(path: Path, options: str = NO_READ_AHEAD) -> Any:
    """The reader of an ArrayRecord file."""
    from array_record.python import array_record_module

    return array_record_module.ArrayRecordReader(str(path), options)


# --- what a floor decompresses -------------------------------------------------------------------


def chunk_frames(path: Path) -> list[bytes]:
    """The stored bytes of all chunks."""
    return [file.read_bytes() for file in sorted(path.glob("c/**/*")) if file.is_file()]


def shard_frames(path: Path) -> list[bytes]:
    """The stored bytes of all inner chunks; a shard's index is at its end, with a checksum."""
    found = []
    for shard in chunk_frames(path):
        index = np.frombuffer(shard[-4 - 16 * SHARD_ROWS : -4], "<u8").reshape(-1, 2)
        found += [shard[at : at + size] for at, size in index.tolist()]
    return found


def record_frames(path: Path, group: int = 1) -> list[bytes]:
    """Records, or groups of them, compressed as in the file, without their sizes and hashes."""
    import zstandard

    codec = zstandard.ZstdCompressor(level=3)
    reader = open_array_record(path)
    count = reader.num_records()
    some = (reader.read(first, min(first + group, count)) for first in range(0, count, group))
    return [codec.compress(b"".join(records)) for records in some]
