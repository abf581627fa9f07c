"""Steady state over ArrayRecord: single records in a global shuffle, groups in windows.

Single records are made arrays by a batched function, or by a plain function per record as most users
write it, beside Grain with its default settings and with others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grain
import numpy as np
import zstandard
from array_record.python import array_record_module

import windrow
from benchmarks import functions, grain_side, stores
from benchmarks.steady_sides import (
    Batches,
    Case,
    IntArray,
    Side,
    ahead,
    in_parts,
    large_frames,
    noise,
    ours,
    shuffled_forever,
    small_frames,
)
from windrow.sources import ArrayRecordDataSource

RECORD_BYTES: Final = 3_024
GROUP: Final = 256
BATCH: Final = 256
WINDOW: Final = 16


def written(path: Path, small: bool, group: int, records: int = 60 * 1_024) -> Path:
    """Records that compress to about half, as the reference writer writes them: 180 MB."""
    left = 2 * 1_024 if small else records
    writer = array_record_module.ArrayRecordWriter(str(path), f"group_size:{group},zstd")
    for part in range(-(-left // 1_024)):
        for record in noise(min(1_024, left - part * 1_024), RECORD_BYTES // 2, part):
            writer.write(record.tobytes())
    writer.close()
    return path


def frames(path: Path, group: int) -> list[bytes]:
    """Records, or groups of them, compressed as in the file, without their sizes and hashes."""
    codec = zstandard.ZstdCompressor(level=3)
    reader = stores.array_record(str(path))
    count = reader.num_records()
    groups = (reader.read(first, first + group) for first in range(0, count, group))
    return [codec.compress(b"".join(records)) for records in groups]


def together(records: list[bytes]) -> Any:
    """Records as the rows of an array."""
    return np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)


def lists_sides(path: Path) -> dict[str, Side]:
    """Single records in a global shuffle."""

    def dataset() -> Any:
        chain = windrow.MapDataset.source(ArrayRecordDataSource(str(path))).shuffle(seed=1)
        return chain.repeat().map(functions.decode_many, batched=True).batch(BATCH)

    def expert(size: int, threads: int) -> Batches:
        reader = stores.array_record(str(path))
        parts = in_parts(shuffled_forever(reader.num_records()), size)

        def read(part: IntArray) -> Any:
            return together(reader.read(part.tolist()))

        if not threads:
            return map(read, parts)
        pool = ThreadPoolExecutor(threads)
        return ahead((pool.submit(read, part).result for part in parts), 2 * threads)

    found: dict[str, Side] = {"floor": lambda: small_frames(frames(path, 1), RECORD_BYTES)}
    for size, threads in ((BATCH, 0), (4 * BATCH, 0), (BATCH, 2)):
        name = f"read({size:,}), {threads} threads"
        found[name] = functools.partial(expert, size, threads)
    return found | ours(dataset)


def functions_sides(path: Path) -> dict[str, Side]:
    """Single records in a global shuffle, each an image by a function of the user."""

    def dataset() -> Any:
        chain = windrow.MapDataset.source(ArrayRecordDataSource(str(path))).shuffle(seed=1)
        return chain.repeat().map(functions.as_image).batch(BATCH)

    def peer(setting: grain_side.Setting) -> Batches:
        source = grain.sources.ArrayRecordDataSource(str(path))
        chain = grain.MapDataset.source(source).shuffle(seed=1).repeat()
        rows = chain.map(functions.as_image).batch(BATCH)
        return iter(grain_side.stream(rows, setting))

    found: dict[str, Side] = {"floor": lambda: small_frames(frames(path, 1), RECORD_BYTES)}
    for name, setting in grain_side.SETTINGS.items():
        found[f"Grain, {name}"] = functools.partial(peer, setting)
    return found | ours(dataset)


def groups_sides(path: Path) -> dict[str, Side]:
    """Groups of 256 records, shuffled in windows of some groups."""
    options = windrow.ReadOptions(resident_bytes=2 * WINDOW * GROUP * RECORD_BYTES)

    def dataset() -> Any:
        chain = windrow.MapDataset.source(ArrayRecordDataSource(str(path))).seed(1)
        chain = chain.block_shuffle(window_blocks=WINDOW).repeat()
        rows = chain.map(functions.decode_many, batched=True)
        return rows.batch(BATCH).to_iter_dataset(options)

    def expert(threads: int) -> Batches:
        reader = stores.array_record(str(path))
        pool = ThreadPoolExecutor(threads)
        groups = reader.num_records() // GROUP

        def read(group: int) -> list[bytes]:
            return list(reader.read(group * GROUP, (group + 1) * GROUP))

        def starts() -> Iterator[Callable[[], list[list[bytes]]]]:
            for part in in_parts(shuffled_forever(groups), min(WINDOW, groups)):
                reads = [pool.submit(read, group) for group in part.tolist()]
                yield lambda reads=reads: [each.result() for each in reads]  # type: ignore[misc]

        random = np.random.default_rng(3)
        for window in ahead(starts(), 1):
            records = [record for group in window for record in group]
            order = random.permutation(len(records)).tolist()
            for first in range(0, len(order) - BATCH + 1, BATCH):
                yield together([records[at] for at in order[first : first + BATCH]])

    found: dict[str, Side] = {
        "floor": lambda: large_frames(frames(path, GROUP), GROUP * RECORD_BYTES)
    }
    for threads in (1, 2):
        found[f"read(from, to), {threads} thr."] = functools.partial(expert, threads)
    return found | ours(dataset)


CASES: Final = (
    Case(
        "ArrayRecord, single records, global shuffle",
        "records",
        functools.partial(written, group=1),
        lists_sides,
    ),
    *(
        Case(
            f"ArrayRecord, a function per record, {records:,} records",
            f"records_{records}",
            functools.partial(written, group=1, records=records),
            functions_sides,
        )
        for records in (30_000, 200_000)
    ),
    Case(
        "ArrayRecord, groups of 256, block shuffle",
        "groups",
        functools.partial(written, group=GROUP),
        groups_sides,
    ),
)
