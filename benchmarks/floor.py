"""What the machine can do: the least work that delivers the same bytes, with nothing around it.

Compressed data is in memory before the clock starts, and values are thrown away.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import zstandard
from numcodecs import Zstd

from benchmarks import functions, stores, timing
from benchmarks.job import Job, Metrics, Options, Work

_THREADS = 2
_ARRAY_RECORD_LEVEL = 3
_INDEX_ENTRY_BYTES = 16
_CHECKSUM_BYTES = 4
_NO_CHUNK = 2**64 - 1
_BLOCK_BYTES = 2**20
_FRAMES_A_CALL = 1_024


_Decompress: TypeAlias = Callable[[bytes, Any], None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Chunk:
    stored: bytes
    decoded_bytes: int
    records: int


def options(job: Job) -> Options:
    """Libraries that decompress a chunk, or frames per call of the one that takes many; or none."""
    if job.layout in ("zarr", "tokens", "fields", "patches", "array_record_groups"):
        has_cramjam = importlib.util.find_spec("cramjam") is not None
        return {"numcodecs": _numcodecs, **({"cramjam": _cramjam} if has_cramjam else {})}
    if job.layout in ("array_record", "zarr_shards"):
        return {f"{count:,} frames a call": count for count in (64, 256, 1_024)}
    return {}


def array_record(job: Job, frames_per_call: int) -> Work:
    """The records as zstd frames, decompressed by a native loop on two threads."""
    reader = stores.array_record(job.path, "")
    compress = zstandard.ZstdCompressor(_ARRAY_RECORD_LEVEL).compress
    frames = [compress(record) for record in reader.read_all()]
    return _native_loop(job, frames, frames_per_call)


def array_record_groups(job: Job, decompress: _Decompress) -> Work:
    """Groups as zstd frames, decompressed on two threads."""
    compress = zstandard.ZstdCompressor(_ARRAY_RECORD_LEVEL).compress
    groups = job.data.rows(job.layout)
    chunks = [_Chunk(compress(rows.tobytes()), rows.nbytes, len(rows)) for rows in groups]
    return _chunks(job, chunks, decompress)


def zarr(job: Job, decompress: _Decompress) -> Work:
    """The chunks as they are stored, decompressed on two threads."""
    rows = job.data.block_records(job.layout)
    starts = range(0, job.records, rows)
    paths = [Path(job.path, "c", str(number), "0") for number in range(len(starts))]
    # The last chunk is stored whole; what lies past the end is no record.
    chunks = [
        _Chunk(path.read_bytes(), rows * job.record_bytes, min(rows, job.records - start))
        for path, start in zip(paths, starts, strict=True)
    ]
    return _chunks(job, chunks, decompress)


def tokens(job: Job, decompress: _Decompress) -> Work:
    """The chunks that windows lie in, as they are stored, decompressed on two threads, each once."""
    grid = job.windows
    chunk_bytes = math.prod(grid.chunk) * job.record_bytes // grid.cells
    counts = [-(-cells // size) for cells, size in zip(grid.shape, grid.chunk, strict=True)]
    # Of the windows that begin in a chunk, all are counted with it.
    begun = np.bincount(grid.homes, minlength=math.prod(counts)).tolist()
    places = itertools.product(*(map(str, range(count)) for count in counts))
    paths = [Path(job.path, "c", *place) for place in places]
    chunks = [
        _Chunk(path.read_bytes(), chunk_bytes, count)
        for path, count in zip(paths, begun, strict=True)
    ]
    return _chunks(job, chunks * job.epochs, decompress)


fields = patches = tokens


def tokens_cached(job: Job) -> Work:
    """The windows of each batch gathered from an array in memory, into new memory."""
    rows = job.data.values("tokens").reshape(-1, job.windows.size[0])
    batches = job.batches
    return Work(lambda: (np.take(rows, ids, 0) for ids in batches), warm=True, mapped=True)


def zarr_shards(job: Job, frames_per_call: int) -> Work:
    """The inner chunks as they are stored, decompressed by a native loop on two threads."""
    stored = _inner_chunks(job)
    return _native_loop(job, [stored[i] for i in job.epoch.tolist()], frames_per_call)


def verify(job: Job) -> Metrics:
    """Files read and summed, and the records' zstd frames decompressed, both on two threads.

    The frames are in memory. The hash that each record has in the file is left out: nothing but the
    array_record package has it in native code.
    """
    reader = stores.folder_reader(job.path)
    compress = zstandard.ZstdCompressor(_ARRAY_RECORD_LEVEL).compress
    frames = [compress(record) for record in reader]
    return _summed_and_decompressed(job, frames, job.record_bytes, job.records)


def verify_zarr(job: Job) -> Metrics:
    """The same with the inner chunks as they are stored."""
    meta = json.loads(Path(job.path, functions.ROW, "zarr.json").read_text())
    shard_rows = meta["chunk_grid"]["configuration"]["chunk_shape"][0]
    rows = meta["codecs"][0]["configuration"]["chunk_shape"][0]
    shards = -(-job.records // shard_rows)
    paths = [Path(job.path, functions.ROW, "c", str(n), "0") for n in range(shards)]
    chunks = -(-job.records // rows)
    frames = _frames_of_shards(paths, shard_rows // rows)[:chunks]
    if len(frames) != chunks:
        raise RuntimeError(f"benchmark: {len(frames):,} of {chunks:,} chunks are stored")
    return _summed_and_decompressed(job, frames, rows * job.record_bytes, job.records)


def summed(folder: str) -> None:
    """Read all files of a folder once for their checksums, on two threads."""

    def one(path: Path) -> int:
        found, memory = 0, np.empty(_BLOCK_BYTES, np.uint8)
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(memory.data):
                found = google_crc32c.extend(found, memory[:count])
        return found

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(one, (path for path in Path(folder).rglob("*") if path.is_file())):
            pass


def _summed_and_decompressed(
    job: Job, frames: list[Any], decoded_bytes: int, records: int
) -> Metrics:
    parts = [frames[at : at + _FRAMES_A_CALL] for at in range(0, len(frames), _FRAMES_A_CALL)]
    lengths = np.full(_FRAMES_A_CALL, decoded_bytes, np.uint64)

    def whole() -> int:
        summed(job.path)
        for part in parts:
            zstandard.ZstdDecompressor().multi_decompress_to_buffer(
                part, decompressed_sizes=lengths[: len(part)].tobytes(), threads=_THREADS
            )
        return records

    return timing.of_whole(whole, job)


def zarr_raw(job: Job) -> Work:
    """The rows of each batch gathered from an array in memory, into memory that is used again."""
    rows = job.data.all_rows(job.layout)
    batches = job.batches

    def opened() -> Iterator[Any]:
        out = np.empty((job.batch_size, rows.shape[1]), rows.dtype)
        # The default mode would check every index and gather by way of a buffer.
        return (np.take(rows, ids, 0, out=out[: len(ids)], mode="clip") for ids in batches)

    return Work(opened, mapped=True)


def numbers(job: Job) -> Work:
    """A ready order cut into batches, each copied."""
    order = np.random.default_rng(42).permutation(job.records)
    size = job.batch_size
    return Work(lambda: (order[i : i + size].copy() for i in range(0, len(order), size)))


def calls(job: Job) -> Work:
    """The function in a bare loop over a ready order."""
    order = np.random.default_rng(42).permutation(job.records).tolist()
    return Work(lambda: map(functions.one_us, order), batched=False)


def elements(job: Job) -> Work:
    """The least of functions in a bare loop over a ready order."""
    order = np.random.default_rng(42).permutation(job.records).tolist()
    return Work(lambda: map(functions.add_one, order), batched=False)


def large(job: Job) -> Work:
    """The rows of each batch copied once, into memory that is used again."""
    kept = job.kept
    rows = kept.rows()

    def opened() -> Iterator[Any]:
        out = np.empty((kept.batch_size, kept.record_bytes), np.uint8)
        for start in range(0, kept.delivered, kept.batch_size):
            at = start % kept.records
            np.copyto(out, rows[at : at + kept.batch_size])
            yield out

    return Work(opened, mapped=True)


compact = large


def checkpoint(job: Job) -> Metrics:
    """Opening nothing, restoring nothing: bulk reads of a batch of random records each."""
    reader = stores.array_record(job.data.path("array_record"))
    order, size = np.random.default_rng(42).permutation(job.data.records), job.batch_size
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    start_s = time.perf_counter()
    for part in parts[: job.data.restores]:
        functions.decode_many(reader.read(part.tolist()))
    count = len(parts[: job.data.restores])
    return {"first_batch_ms": (time.perf_counter() - start_s) / count * 1e3}


def _numcodecs(stored: bytes, out: Any) -> None:
    Zstd().decode(stored, out)


def _cramjam(stored: bytes, out: Any) -> None:
    import cramjam  # not everybody has it

    cramjam.zstd.decompress_into(stored, out)


def _chunks(job: Job, chunks: Sequence[_Chunk], decompress: _Decompress) -> Work:
    largest = max(chunk.decoded_bytes for chunk in chunks)
    own = threading.local()

    def decompressed(chunk: _Chunk) -> range:
        # Memory of its own for each thread, used again: fresh pages cost as much as the reading.
        if getattr(own, "decoded", None) is None:
            own.decoded = memoryview(bytearray(largest))
        decompress(chunk.stored, own.decoded[: chunk.decoded_bytes])
        return range(chunk.records)

    def opened() -> Iterator[range]:
        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(decompressed, chunks)

    return Work(opened, mapped=True)


def _native_loop(job: Job, frames: list[Any], frames_per_call: int) -> Work:
    parts = [frames[at : at + frames_per_call] for at in range(0, len(frames), frames_per_call)]
    lengths = np.full(frames_per_call, job.record_bytes, np.uint64)

    def opened() -> Iterator[Any]:
        decompress = zstandard.ZstdDecompressor().multi_decompress_to_buffer
        return (
            decompress(part, decompressed_sizes=lengths[: len(part)].tobytes(), threads=_THREADS)
            for part in parts
        )

    return Work(opened, mapped=True)


def _inner_chunks(job: Job) -> list[bytes]:
    """The stored inner chunks of all shards, one for each record, by their index at the end."""
    shards = range(-(-job.records // job.data.shard_rows))
    paths = [Path(job.path, "c", str(number), "0") for number in shards]
    return _frames_of_shards(paths, job.data.shard_rows)


def _frames_of_shards(paths: Sequence[Path], chunks: int) -> list[bytes]:
    """The inner chunks that are stored in shards of so many, by the index at the end of each."""
    found: list[bytes] = []
    for path in paths:
        shard = path.read_bytes()
        first = len(shard) - chunks * _INDEX_ENTRY_BYTES - _CHECKSUM_BYTES
        places = np.frombuffer(shard, "<u8", 2 * chunks, first).reshape(-1, 2)
        there = places[places[:, 0] != _NO_CHUNK]
        found += [shard[offset : offset + size] for offset, size in there.tolist()]
    return found
