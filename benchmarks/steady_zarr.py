"""Steady state over Zarr: rows of large chunks, windows of tokens, a record per inner chunk."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorstore as ts
import zarr
from zarr.codecs import ZstdCodec

import windrow
from benchmarks import stores
from benchmarks.steady_sides import (
    Batches,
    Case,
    Side,
    ahead,
    in_parts,
    large_frames,
    noise,
    ours,
    shuffled_forever,
    small_frames,
)
from windrow.sources import WindowDataSource, ZarrDataSource

MIB: Final = 2**20
ROW_BYTES: Final = 3_024
CHUNK_ROWS: Final = 240
TOKENS, CHUNK_TOKENS, WINDOW = 100_000_000, 1_000_000, 1_024
SHARD_ROWS: Final = 1_000
# The part of the shards that may be kept.
SHARD_MIB: Final = 16


# --- rows ----------------------------------------------------------------------------------------


def written_rows(path: Path, small: bool) -> Path:
    """An array of rows that compress to about half, in chunks of 240: 580 MB."""
    chunks = 48 if small else 800
    array = zarr.create_array(
        path,
        shape=(CHUNK_ROWS * chunks, ROW_BYTES // 2),
        chunks=(CHUNK_ROWS, ROW_BYTES // 2),
        dtype="uint16",
        compressors=[ZstdCodec(level=1)],
    )
    for chunk in range(chunks):
        first = chunk * CHUNK_ROWS
        array[first : first + CHUNK_ROWS] = noise(CHUNK_ROWS, ROW_BYTES // 2, chunk)
    return path


def frames(path: Path) -> list[bytes]:
    """The stored bytes of all chunks."""
    return [file.read_bytes() for file in sorted(path.glob("c/**/*")) if file.is_file()]


def rows_in_order(path: Path, batch: int, depth: int) -> Batches:
    """The loop that one would write over TensorStore."""
    store = stores.zarr(str(path))

    def starts() -> Iterator[Callable[[], Any]]:
        while True:
            for first in range(0, store.shape[0] - batch + 1, batch):
                yield store[first : first + batch].read().result

    return ahead(starts(), depth)


def windows_of_chunks(store: ts.TensorStore, chunk: int, window: int, depth: int) -> Iterator[Any]:
    """All that lies in some chunks at a time, chunks in random order, the next ones being read."""

    def starts() -> Iterator[Callable[[], Any]]:
        for part in in_parts(shuffled_forever(store.shape[0] // chunk), window):
            firsts = (part * chunk).tolist()
            reads = [store[first : first + chunk].read() for first in firsts]
            yield functools.partial(joined, reads)

    return ahead(starts(), depth)


def joined(reads: Sequence[Any]) -> Any:
    """What some reads of TensorStore gave, as one array."""
    return np.concatenate([read.result() for read in reads])


def shuffled_rows(found: Iterator[Any], batch: int) -> Batches:
    """Batches of the rows of each window, shuffled."""
    random = np.random.default_rng(3)
    for rows in found:
        order = random.permutation(len(rows))
        for first in range(0, len(rows) - batch + 1, batch):
            yield np.take(rows, order[first : first + batch], axis=0)


def rows_sides(
    path: Path, batch: int, window: int = 0, *, default_budget: bool = False
) -> dict[str, Side]:
    """Rows in order, or shuffled in windows of some chunks; with room for two windows, or 16 MiB."""
    resident = 2 * window * CHUNK_ROWS * ROW_BYTES if window else 16 * MIB
    options = windrow.ReadOptions(resident_bytes=None if default_budget else resident)

    def dataset() -> Any:
        chain = windrow.MapDataset.source(ZarrDataSource(str(path))).seed(1)
        chain = chain.block_shuffle(window_blocks=window) if window else chain
        return chain.repeat().to_iter_dataset(options).batch(batch)

    def expert(depth: int) -> Batches:
        if not window:
            return rows_in_order(path, batch, depth)
        store = stores.zarr(str(path))
        return shuffled_rows(windows_of_chunks(store, CHUNK_ROWS, window, depth), batch)

    found: dict[str, Side] = {"floor": lambda: large_frames(frames(path), CHUNK_ROWS * ROW_BYTES)}
    for depth in (1, 2) if window else (3, 6):
        found[f"expert, {depth} ahead"] = functools.partial(expert, depth)
    return found | ours(dataset)


def _rows(name: str, batch: int, window: int = 0, *, default_budget: bool = False) -> Case:
    sides = functools.partial(rows_sides, batch=batch, window=window, default_budget=default_budget)
    return Case(name, "rows", written_rows, sides)


# --- tokens --------------------------------------------------------------------------------------


def written_tokens(path: Path, small: bool) -> Path:
    """One axis of tokens, 2 bytes each, in chunks of a million: 200 MB."""
    chunks = (4 if small else TOKENS // CHUNK_TOKENS, CHUNK_TOKENS)
    array = zarr.create_array(
        path,
        shape=(chunks[0] * CHUNK_TOKENS,),
        chunks=(CHUNK_TOKENS,),
        dtype="uint16",
        compressors=[ZstdCodec(level=1)],
    )
    random = np.random.default_rng(0)
    for chunk in range(chunks[0]):
        first = chunk * CHUNK_TOKENS
        array[first : first + CHUNK_TOKENS] = random.zipf(1.2, CHUNK_TOKENS) % 50_000
    return path


def tokens_sides(path: Path, window: int, batch: int = 256) -> dict[str, Side]:
    """Windows of 1,024 tokens that do not overlap, shuffled in windows of some chunks."""
    options = windrow.ReadOptions(resident_bytes=2 * window * CHUNK_TOKENS * 2)

    def dataset() -> Any:
        source = WindowDataSource(str(path), {0: WINDOW}, {0: WINDOW})
        chain = windrow.MapDataset.source(source).seed(1).block_shuffle(window_blocks=window)
        return chain.repeat().to_iter_dataset(options).batch(batch)

    def expert(depth: int) -> Batches:
        store = stores.zarr(str(path))
        whole = CHUNK_TOKENS // WINDOW * WINDOW
        parts = windows_of_chunks(
            store, CHUNK_TOKENS, min(window, store.shape[0] // CHUNK_TOKENS), depth
        )
        rows = (part.reshape(-1, CHUNK_TOKENS)[:, :whole].reshape(-1, WINDOW) for part in parts)
        return shuffled_rows(rows, batch)

    found: dict[str, Side] = {"floor": lambda: large_frames(frames(path), CHUNK_TOKENS * 2)}
    for depth in (1, 2):
        found[f"expert, {depth} ahead"] = functools.partial(expert, depth)
    return found | ours(dataset)


def _tokens(name: str, window: int) -> Case:
    return Case(name, "tokens", written_tokens, functools.partial(tokens_sides, window=window))


# --- shards --------------------------------------------------------------------------------------


def written_shards(path: Path, small: bool) -> Path:
    """Rows in shards, a row per inner chunk: 180 MB."""
    shards = 4 if small else 60
    array = zarr.create_array(
        path,
        shape=(shards * SHARD_ROWS, ROW_BYTES // 2),
        chunks=(1, ROW_BYTES // 2),
        shards=(SHARD_ROWS, ROW_BYTES // 2),
        dtype="uint16",
        compressors=[ZstdCodec(level=1)],
    )
    for shard in range(shards):
        first = shard * SHARD_ROWS
        array[first : first + SHARD_ROWS] = noise(SHARD_ROWS, ROW_BYTES // 2, shard)
    return path


def shard_frames(path: Path) -> list[bytes]:
    """The stored bytes of all inner chunks; a shard's index is at its end, with a checksum."""
    found = []
    for shard in frames(path):
        index = np.frombuffer(shard[-4 - 16 * SHARD_ROWS : -4], "<u8").reshape(-1, 2)
        found += [shard[at : at + size] for at, size in index.tolist()]
    return found


def shards_sides(path: Path, batch: int = 256) -> dict[str, Side]:
    """Rows of shards in a global shuffle."""
    options = windrow.ReadOptions(resident_bytes=SHARD_MIB * MIB)

    def dataset() -> Any:
        chain = windrow.MapDataset.source(ZarrDataSource(str(path))).shuffle(seed=1)
        return chain.repeat().to_iter_dataset(options).batch(batch)

    def expert(depth: int) -> Batches:
        store = stores.zarr(str(path), SHARD_MIB * MIB)
        parts = in_parts(shuffled_forever(store.shape[0]), batch)
        starts = (store.oindex[np.sort(part)].read().result for part in parts)
        return ahead(starts, depth)

    found: dict[str, Side] = {"floor": lambda: small_frames(shard_frames(path), ROW_BYTES)}
    for depth in (2, 4):
        found[f"expert, {depth} ahead"] = functools.partial(expert, depth)
    return found | ours(dataset)


CASES: Final = (
    _rows("rows in order, batches of 240", 240),
    _rows("rows in order, batches of 256", 256),
    _rows("block shuffle, 16 chunks", 256, 16),
    _rows("block shuffle, 40 chunks", 256, 40),
    _rows("block shuffle, 16 chunks, default budget", 256, 16, default_budget=True),
    _tokens("tokens, block shuffle, 4 chunks", 4),
    _tokens("tokens, block shuffle, 16 chunks", 16),
    Case("shards, a row per inner chunk, global shuffle", "shards", written_shards, shards_sides),
)
