"""Windows of arrays: tokens, fields over time and patches of a volume; and rows packed from documents.

In a steady state memory holds the whole array of fields or patches, or a quarter of it. Where it holds
all, a side reads as many windows as there are before it is measured, so that its memory is filled.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import windrow
from benchmarks import grids, loops, stores
from benchmarks.harness import FLOOR, OURS, Bound, Case, Place, Regime, Side
from benchmarks.loops import IntArray, ahead, in_parts, mixed, shuffled
from benchmarks.rows import (
    BATCHES_BYTES,
    BLOCK,
    GLOBAL,
    Read,
    of_cpu,
    of_floor,
    times,
    whole_chunks,
)
from benchmarks.stores import CHUNK_TOKENS, TOKENS_OF_A_WINDOW
from windrow.sources import RaggedDataSource, Window, WindowDataSource

_part = functools.partial


# --- tokens --------------------------------------------------------------------------------------

_BATCH: Final = 64
_OF_A_CHUNK: Final = CHUNK_TOKENS // TOKENS_OF_A_WINDOW


def our_tokens(read: Read, place: Place) -> Any:
    """Windows of 1,024 tokens that do not overlap."""
    source = WindowDataSource(str(read.path(place)), {0: TOKENS_OF_A_WINDOW})
    return read.stream(read.ordered(windrow.MapDataset.source(source)).batch(_BATCH))


def token_chunks(read: Read, place: Place, depth: int) -> Iterator[Any]:
    """Chunks of a window by TensorStore, then their windows of tokens in random order."""
    whole = _OF_A_CHUNK * TOKENS_OF_A_WINDOW
    rows = (
        part.reshape(-1, CHUNK_TOKENS)[:, :whole].reshape(-1, TOKENS_OF_A_WINDOW)
        for part in whole_chunks(read, place, depth, CHUNK_TOKENS)
    )
    return mixed(rows, _BATCH)


def tokens_floor(read: Read, place: Place) -> Iterator[Any]:
    """Two threads that only decompress the chunks."""
    frames = stores.chunk_frames(read.path(place))
    return loops.large_frames(frames, _OF_A_CHUNK, 2 * CHUNK_TOKENS, forever=True)


def memmap(place: Place) -> Iterator[Any]:
    """A raw file of the tokens, mapped, and a loop over batches of slices."""
    mapped = np.memmap(place.path("raw_tokens"), "uint16", "r")
    width = TOKENS_OF_A_WINDOW
    for part in in_parts(shuffled(len(mapped) // width, forever=True), _BATCH):
        yield np.stack([mapped[at : at + width] for at in (part * width).tolist()])


def gathered_tokens(place: Place) -> Iterator[Any]:
    """The windows of each batch gathered from an array in memory, into new memory."""
    rows = np.fromfile(place.path("raw_tokens"), "uint16")
    rows = rows[: len(rows) // TOKENS_OF_A_WINDOW * TOKENS_OF_A_WINDOW]
    rows = rows.reshape(-1, TOKENS_OF_A_WINDOW)
    for part in in_parts(shuffled(len(rows), forever=True), _BATCH):
        yield np.take(rows, part, 0)


# --- fields and patches --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """Windows of a layout in a global shuffle, where memory holds a share of the array."""

    layout: str
    share: float

    def grid(self, place: Place) -> grids.Grid:
        """The array and its windows."""
        return stores.grid_of(place, self.layout)

    def array(self, place: Place) -> Path:
        """Where the array is."""
        path = place.path(self.layout)
        return path / "field" if self.layout == "fields" else path

    def bytes(self, place: Place) -> int:
        """Bytes that may be held."""
        itemsize = np.dtype(grids.DTYPES[self.layout]).itemsize
        return int(math.prod(self.grid(place).shape) * itemsize * self.share)

    def filled(self, place: Place, batches: Any) -> Iterator[Any]:
        """The batches, after as many windows as there are where memory holds all of them."""
        grid = self.grid(place)
        iterator: Iterator[Any] = iter(batches)
        for _ in range(-(-grid.records // grid.batch_size) if self.share >= 1 else 0):
            next(iterator)
        return iterator

    def ours(self, place: Place) -> Iterator[Any]:
        """Ours."""
        grid, path = self.grid(place), str(self.array(place))
        axes = [axis for axis, cells in enumerate(grid.shape) if grid.size[axis] != cells]
        if grid.located:
            size = {axis: grid.size[axis] for axis in axes}
            source = WindowDataSource(path, size, centers=grid.centers)
        else:
            moving = {axis: Window(grid.size[axis], grid.strides[axis]) for axis in axes}
            source = WindowDataSource(path, moving)
        memory = None if self.share >= 1 else self.bytes(place) + BATCHES_BYTES
        read = Read(self.layout, GLOBAL, memory=memory, forever=True)
        batches = read.ordered(windrow.MapDataset.source(source)).batch(grid.batch_size)
        return self.filled(place, read.stream(batches))

    def cached(self, place: Place, depth: int) -> Iterator[Any]:
        """A read for each window by TensorStore, whose cache has as much memory as ours."""
        import tensorstore as ts

        grid, size = self.grid(place), self.bytes(place)
        # The cache counts what it needs for itself too.
        array = stores.open_zarr(self.array(place), size + size // 8 if self.share >= 1 else size)
        first_cells = grid.first_cells

        def start(numbers: IntArray) -> Callable[[], Any]:
            with ts.Batch() as together:
                places = first_cells[numbers].tolist()
                reads = [array[grids.box(at, grid.size)].read(batch=together) for at in places]
            return lambda: np.stack([read.result() for read in reads])

        parts = in_parts(shuffled(grid.records, forever=True), grid.batch_size)
        return self.filled(place, ahead(map(start, parts), depth))

    def floor(self, place: Place) -> Iterator[Any]:
        """Two threads that only decompress the chunks."""
        size = math.prod(self.grid(place).chunk) * np.dtype(grids.DTYPES[self.layout]).itemsize
        return loops.large_frames(stores.chunk_frames(self.array(place)), 1, size, forever=True)


def xbatcher_windows(place: Place, workers: int) -> Iterator[Any]:
    """Xbatcher's generator over xarray's view of the fields, as a torch dataset, shuffled."""
    import torch
    import xarray
    import xbatcher
    from xbatcher.loaders.torch import MapDataset

    grid = stores.grid_of(place, "fields")
    store = xarray.open_zarr(place.path("fields"), chunks=None, consolidated=False)
    # Dimensions that are not named would become one, of samples.
    windows = xbatcher.BatchGenerator(
        store["field"],
        input_dims={**dict(store["field"].sizes), "time": grid.size[0]},
        input_overlap={"time": grid.size[0] - 1},
    )
    loader = torch.utils.data.DataLoader(
        MapDataset(windows),
        grid.batch_size,
        shuffle=True,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        multiprocessing_context="forkserver" if workers else None,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


# --- packed rows ---------------------------------------------------------------------------------

_ROW, _DOCUMENT_CHUNK, _OPEN_ROWS = 4_096, 2**19, 64
# Half the documents of a window of the shuffle: chunks that two windows of `pack` share are read twice.
_PACK_WINDOW: Final = 4_096
# A block is four chunks: see `RaggedDataSource.blocks`.
_DOCUMENTS: Final = Read("documents", BLOCK, 4, forever=True)
_MEDIAN_LOG, _SPREAD = 6.5, 1.0


def documents(place: Place, path: Path) -> None:
    """Documents of 1,096 tokens on average, 2 bytes each: ragged Zarr of 190 MB, and ArrayRecord."""
    import zarr
    from array_record.python import array_record_module
    from zarr.codecs import ZstdCodec

    total = place.size(180, 4) * _DOCUMENT_CHUNK
    random = np.random.default_rng(0)
    tokens = (random.zipf(1.2, total) % 50_000).astype(np.uint16)
    lengths = np.maximum(1, random.lognormal(_MEDIAN_LOG, _SPREAD, total // 500)).astype(np.int64)
    ends = np.cumsum(lengths)
    offsets = np.concatenate([[0], ends[ends < total], [total]])
    group = zarr.create_group(path)
    values = group.create_array(
        "values",
        shape=(total,),
        chunks=(_DOCUMENT_CHUNK,),
        dtype="uint16",
        compressors=[ZstdCodec(level=1)],
    )
    values[:] = tokens
    group.create_array("offsets", data=offsets, chunks=(2**16,))
    file = path.with_suffix(".array_record")
    writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1,zstd")
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        writer.write(tokens[start:stop].tobytes())
    writer.close()


def our_packed(place: Place) -> Iterator[Any]:
    """Packed rows; their tokens alone count."""
    source = RaggedDataSource(str(place.path("documents")))
    chain = _DOCUMENTS.ordered(windrow.MapDataset.source(source))
    packed = chain.pack(_ROW, window=_PACK_WINDOW, read_options=_DOCUMENTS.options).batch(64)
    with iter(packed) as batches:
        yield from (batch["tokens"] for batch in batches)


def as_document(record: bytes) -> dict[str, Any]:
    """The tokens of a record, at most a row."""
    return {"tokens": np.frombuffer(record, np.uint16)[:_ROW]}


def grain_packed(place: Place, way: loops.Grain) -> Iterator[Any]:
    """Grain packs the same documents, cut to at most a row, by best fit."""
    import grain
    from grain.experimental import BestFitPackIterDataset

    file = place.path("documents").with_suffix(".array_record")
    source = grain.sources.ArrayRecordDataSource(str(file))
    chain = grain.MapDataset.source(source).shuffle(seed=1).repeat().map(as_document)
    packed: Any = BestFitPackIterDataset(
        way.stream(chain), length_struct={"tokens": _ROW}, num_packing_bins=_OPEN_ROWS
    )
    return (batch["tokens"] for batch in packed.batch(64))


def documents_floor(place: Place) -> Iterator[Any]:
    """Two threads that only decompress the chunks of tokens."""
    frames = stores.chunk_frames(place.path("documents") / "values")
    return loops.large_frames(frames, 1, 2 * _DOCUMENT_CHUNK, forever=True)


# --- cases ---------------------------------------------------------------------------------------

_TOKENS: Final = {"tokens": stores.tokens}
_AHEAD: Final = {"1 ahead": 1, "2 ahead": 2}


def _steady_tokens(window: int, at_least: float) -> Case:
    read = Read("tokens", BLOCK, window, forever=True)
    return Case(
        f"steady.tokens_{window}",
        f"windows of tokens in a block shuffle, windows of {window} chunks",
        (
            Side(OURS, _part(our_tokens, read)),
            Side("expert", _part(token_chunks, read), _AHEAD),
            Side(FLOOR, _part(tokens_floor, read)),
        ),
        Regime.STEADY,
        _TOKENS,
        (of_floor(at_least), times("expert", 1.4), of_cpu(1.4)),
    )


def _steady_windows(layout: str, share: float, at_least: float) -> Case:
    what = "all of them" if share >= 1 else "a quarter of the array"
    held = Held(layout, share)
    needs = ("xbatcher", "xarray", "zarr", "torch")
    xbatcher = Side("xbatcher", xbatcher_windows, loops.TORCH, needs)
    return Case(
        f"steady.{layout}" if share >= 1 else f"steady.{layout}_quarter",
        f"windows of {layout} in a global shuffle; memory holds {what}",
        (
            Side(OURS, held.ours),
            Side("expert, cache", held.cached, {f"{depth} ahead": depth for depth in (1, 3, 6)}),
            *([xbatcher] if layout == "fields" and share >= 1 else []),
            Side(FLOOR, held.floor),
        ),
        Regime.STEADY,
        {layout: _part(stores.grid, layout=layout)},
        (times("expert, cache", at_least),),
    )


CASES: Final = (
    Case(
        "steady.tokens_cached",
        "random windows once the array is in memory",
        (
            Side(OURS, _part(our_tokens, Read("tokens", GLOBAL, forever=True))),
            Side("memmap", memmap),
            Side(FLOOR, gathered_tokens),
        ),
        Regime.STEADY,
        {"tokens": stores.tokens, "raw_tokens": stores.raw_tokens},
        (
            Bound("of a gather from memory", "mb_per_s", FLOOR, at_least=0.4),
            times("memmap", 3),
        ),
        warm=100 * _OF_A_CHUNK // _BATCH,
    ),
    _steady_tokens(4, 0.7),
    _steady_tokens(16, 0.65),
    _steady_windows("fields", 1, 1.1),
    _steady_windows("fields", 0.25, 1.0),
    _steady_windows("patches", 1, 1.1),
    _steady_windows("patches", 0.25, 1.0),
    Case(
        "steady.packed",
        "packed rows of tokens in a block shuffle",
        (
            Side(OURS, our_packed),
            Side("Grain", grain_packed, loops.GRAIN, ("grain",)),
            Side(FLOOR, documents_floor),
        ),
        Regime.STEADY,
        {"documents": documents},
        (of_floor(0.6), times("Grain", 15), of_cpu(1.67)),
    ),
)
