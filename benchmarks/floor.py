"""What the machine can do: the decompression alone, and loops that an expert writes by hand.

`floor_` functions give the physical floor, `expert_` functions the loop that one would write for
this file and this order only, without a chain and without a state.
"""

from __future__ import annotations

import collections
import functools
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
import zstandard
from array_record.python import array_record_module
from numcodecs import Zstd

from benchmarks import functions, timing
from benchmarks.setting import Setting
from benchmarks.timing import Round

_THREADS = 2
_RECORDS_PER_CALL = 1_024
_READS_IN_FLIGHT = 3
_ARRAY_RECORD_LEVEL = 3


def floor_array_record(setting: Setting) -> Round:
    """The records as zstd frames in memory, decompressed on two threads, the values thrown away."""
    compressor = zstandard.ZstdCompressor(_ARRAY_RECORD_LEVEL)
    frames = [compressor.compress(record) for record in _reader(setting).read_all()]

    def decompressed(part: list[bytes]) -> range:
        decompress = zstandard.ZstdDecompressor().decompress
        for frame in part:
            decompress(frame)
        return range(len(part))

    def rows() -> Iterator[range]:
        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(decompressed, [frames[i::_THREADS] for i in range(_THREADS)])

    return timing.of_iteration(rows, setting.records)


def expert_array_record(setting: Setting) -> Round:
    """Bulk reads of many shuffled records, joined and cut into batches."""

    def batches() -> Iterator[Any]:
        reader = _reader(setting)
        order = np.random.default_rng(42).permutation(setting.records)
        step = -(-_RECORDS_PER_CALL // setting.batch_size) * setting.batch_size
        for start in range(0, len(order), step):
            records = reader.read(order[start : start + step].tolist())
            rows = functions.decode(b"".join(records)).reshape(len(records), -1)
            for first in range(0, len(rows), setting.batch_size):
                yield rows[first : first + setting.batch_size]

    return timing.of_iteration(batches, setting.records)


def _reader(setting: Setting) -> Any:
    options = "readahead_buffer_size:0,max_parallelism:0"
    return array_record_module.ArrayRecordReader(setting.array_record, options)


def floor_zarr(setting: Setting) -> Round:
    """The chunk files, read and decompressed on two threads, the values thrown away."""
    folder = Path(setting.zarr) / "c"
    chunks = -(-setting.records // setting.chunk_rows)
    paths = [folder / str(number) / "0" for number in range(chunks)]

    chunk_bytes = setting.chunk_rows * setting.record_bytes
    own = threading.local()

    def decompressed(path: Path) -> range:
        # Memory of its own for each thread, used again: fresh pages cost as much as the reading.
        if getattr(own, "stored", None) is None:
            own.stored = bytearray(2 * chunk_bytes + 1024)
            own.decoded = bytearray(chunk_bytes)
        with path.open("rb", buffering=0) as file:
            size = file.readinto(own.stored) or 0
        Zstd().decode(memoryview(own.stored)[:size], own.decoded)
        return range(setting.chunk_rows)

    def rows() -> Iterator[range]:
        # The last chunk is stored whole; what lies past the end is no record.
        left = setting.records
        with ThreadPoolExecutor(_THREADS) as pool:
            for chunk in pool.map(decompressed, paths):
                yield chunk[:left]
                left -= len(chunk)

    return timing.of_iteration(rows, setting.records)


def expert_zarr(setting: Setting) -> Round:
    """A slice per batch, three of them in flight."""

    def batches() -> Iterator[Any]:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": setting.zarr}}
        store = ts.open(spec).result()
        waiting: collections.deque[Any] = collections.deque()
        for start in range(0, setting.records, setting.batch_size):
            stop = min(setting.records, start + setting.batch_size)
            waiting.append(store[start:stop].read())
            if len(waiting) > _READS_IN_FLIGHT:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()

    return timing.of_iteration(batches, setting.records)


def floor_chain(setting: Setting) -> Round:
    """The function called in a plain loop over a ready order, each batch one array."""

    def batches() -> Iterator[Any]:
        numbers = iter(_order(setting))
        while part := list(itertools.islice(numbers, setting.batch_size)):
            yield np.array([functions.add_one(number) for number in part])

    return timing.of_iteration(batches, setting.elements)


def floor_elements(setting: Setting) -> Round:
    """The function called in a plain loop over a ready order."""
    return timing.of_iteration(
        lambda: map(functions.add_one, _order(setting)), setting.elements, batched=False
    )


def _order(setting: Setting) -> list[int]:
    order: list[int] = np.random.default_rng(42).permutation(setting.elements).tolist()
    return order


def floor_checkpoint(setting: Setting) -> Round:
    """Opening nothing, restoring nothing: one bulk read of a batch of random records."""
    reader = _reader(setting)
    order = np.random.default_rng(42).permutation(setting.records)

    def one_round() -> timing.Metrics:
        seconds = 0.0
        for i in range(setting.restores):
            start = i * setting.batch_size % max(1, setting.records - setting.batch_size)
            wanted = order[start : start + setting.batch_size].tolist()
            seconds += timing.seconds(functools.partial(_batch, reader, wanted))
        return {"first_batch_ms": seconds / setting.restores * 1e3}

    return one_round


def _batch(reader: Any, wanted: list[int]) -> None:
    functions.decode(b"".join(reader.read(wanted)))
