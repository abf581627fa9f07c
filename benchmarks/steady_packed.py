"""Steady state of packing: documents of ragged Zarr in full rows of 4,096 tokens, block-shuffled.

Grain packs the same documents, cut to at most a row, by best fit from ArrayRecord, with 64 open rows and several
settings of its reader. A figure counts the tokens of rows alone, without segment ids and positions. CPU
time leaves worker processes out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grain
import numpy as np
import zarr
from array_record.python import array_record_module
from grain.experimental import BestFitPackIterDataset
from zarr.codecs import ZstdCodec

import windrow
from benchmarks import grain_side
from benchmarks.steady_sides import Batches, Case, IntArray, Side, large_frames, ours
from benchmarks.steady_zarr import frames
from windrow.sources import RaggedDataSource

ROW: Final = 4_096
BATCH: Final = 64
CHUNK_TOKENS: Final = 2**19
CHUNKS: Final = 180
# A block is four chunks: see `RaggedDataSource.blocks`.
BLOCK_BYTES: Final = 4 * 2 * CHUNK_TOKENS
WINDOW_BLOCKS: Final = 4
# Half the documents of a window of the shuffle: chunks that two windows of `pack` share are read twice.
PACK_WINDOW: Final = 4_096
OPEN_ROWS: Final = 64
_MEDIAN_LOG, _SPREAD = 6.5, 1.0


def written(path: Path, small: bool) -> Path:
    """Documents of 1,096 tokens on average, 2 bytes each: ragged Zarr of 190 MB, and ArrayRecord."""
    chunks = 4 if small else CHUNKS
    total = chunks * CHUNK_TOKENS
    random = np.random.default_rng(0)
    tokens = (random.zipf(1.2, total) % 50_000).astype(np.uint16)
    offsets = _offsets(random, total)
    group = zarr.create_group(path)
    values = group.create_array(
        "values",
        shape=(total,),
        chunks=(CHUNK_TOKENS,),
        dtype="uint16",
        compressors=[ZstdCodec(level=1)],
    )
    values[:] = tokens
    group.create_array("offsets", data=offsets, chunks=(2**16,))
    writer = array_record_module.ArrayRecordWriter(str(records(path)), "group_size:1,zstd")
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        writer.write(tokens[start:stop].tobytes())
    writer.close()
    return path


def records(path: Path) -> Path:
    """The file of the same documents."""
    return path.with_suffix(".array_record")


def _offsets(random: np.random.Generator, total: int) -> IntArray:
    """Where documents begin, and where the last one ends: cut at `total`."""
    lengths = np.maximum(1, random.lognormal(_MEDIAN_LOG, _SPREAD, total // 500)).astype(np.int64)
    ends = np.cumsum(lengths)
    return np.concatenate([[0], ends[ends < total], [total]])


def as_document(record: bytes) -> dict[str, Any]:
    """The tokens of a record, at most a row."""
    return {"tokens": np.frombuffer(record, np.uint16)[:ROW]}


def sides(path: Path) -> dict[str, Side]:
    """Packed rows, with room for two windows of the shuffle."""
    options = windrow.ReadOptions(resident_bytes=2 * WINDOW_BLOCKS * BLOCK_BYTES)

    def dataset() -> Iterator[Any]:
        chain = windrow.MapDataset.source(RaggedDataSource(str(path))).seed(1)
        chain = chain.block_shuffle(window_blocks=WINDOW_BLOCKS).repeat()
        with iter(
            chain.pack(ROW, window=PACK_WINDOW, read_options=options).batch(BATCH)
        ) as batches:
            yield from (batch["tokens"] for batch in batches)

    def peer(setting: grain_side.Setting) -> Batches:
        source = grain.sources.ArrayRecordDataSource(str(records(path)))
        chain = grain.MapDataset.source(source).shuffle(seed=1).repeat().map(as_document)
        stream = grain_side.stream(chain, setting)
        packed: Any = BestFitPackIterDataset(
            stream, length_struct={"tokens": ROW}, num_packing_bins=OPEN_ROWS
        )
        return (batch["tokens"] for batch in packed.batch(BATCH))

    found: dict[str, Side] = {
        "floor": lambda: large_frames(frames(path / "values"), CHUNK_TOKENS * 2)
    }
    for name, setting in grain_side.SETTINGS.items():
        found[f"Grain, {name}"] = functools.partial(peer, setting)
    return found | ours(dataset)


CASES: Final = (Case("packed rows, block shuffle", "packed", written, sides),)
