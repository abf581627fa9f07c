"""Rows of Zarr and ArrayRecord: one epoch in a new process, and epoch after epoch.

In a steady state epochs repeat, and chunks are decoded in each: in order and in a block shuffle they are
not kept. Ours has its default options, but where the memory is what a case is about. The expert's loops are what one would write by hand for one
store and one order: bulk reads, with several under way. They know the order beforehand and have no
state, no errors by record and no budgets.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import windrow
from benchmarks import functions, loops, stores
from benchmarks.harness import FLOOR, OURS, Bound, Case, Place, Regime, Side
from benchmarks.loops import IntArray, ahead, in_order, in_parts, mixed, shuffled
from benchmarks.stores import CHUNK_ROWS, GROUP, ROW_BYTES
from windrow.sources import ArrayRecordDataSource, ZarrDataSource

BATCH: Final = 256
WINDOW: Final = 16
MIB: Final = 2**20
BATCHES_BYTES: Final = 32 * MIB
"""Bytes of batches, which the memory of ours includes and the cache of a peer does not."""
ORDER, BLOCK, GLOBAL = "in order", "block shuffle", "global shuffle"


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """What is read in which order.

    Args:
        store: The name of the store.
        order: The order.
        window: Chunks or groups of a window of a block shuffle.
        memory: Bytes that may be held; None for the default, and a cache of 256 MiB for peers.
        function: What is called for each record; None for one call that makes rows of many.
        forever: Whether epochs repeat.
    """

    store: str
    order: str
    window: int = WINDOW
    memory: int | None = None
    function: Callable[[Any], Any] | None = None
    forever: bool = False

    def path(self, place: Place) -> Path:
        """Where the store is."""
        return place.path(self.store)

    @property
    def cache_bytes(self) -> int:
        """Of a peer's cache."""
        return self.memory or 256 * MIB

    def ordered(self, chain: Any) -> Any:
        """A chain of ours in this order."""
        if self.order == BLOCK:
            chain = chain.block_shuffle(seed=1, window_blocks=self.window)
        elif self.order == GLOBAL:
            chain = chain.shuffle(seed=1)
        return chain.repeat() if self.forever else chain

    def stream(self, batches: Any) -> Any:
        """Batches of ours in this memory."""
        return batches if self.memory is None else batches.to_iter_dataset(self.options)

    @property
    def options(self) -> windrow.ReadOptions:
        """How ours reads."""
        return windrow.ReadOptions(memory_bytes=self.memory)

    def numbers(self, count: int) -> Iterator[IntArray]:
        """The order of records or chunks, for loops by hand."""
        orders = in_order if self.order == ORDER else shuffled
        return orders(count, forever=self.forever)


# --- ours ----------------------------------------------------------------------------------------


def ours(read: Read, place: Place) -> Any:
    """Rows in batches, or records that a function makes rows of."""
    path = read.path(place)
    if path.is_dir():
        return read.stream(read.ordered(_source(ZarrDataSource, path)).batch(BATCH))
    chain = read.ordered(_source(ArrayRecordDataSource, path))
    if read.function is None:
        rows = chain.map(functions.decode_many, batched=True)
    else:
        rows = chain.map(read.function)
    return read.stream(rows.batch(BATCH))


def _source(opened: Any, path: Path) -> Any:
    return windrow.MapDataset.source(opened(str(path)))


# --- loops over TensorStore ----------------------------------------------------------------------


def slices(read: Read, place: Place, depth: int) -> Iterator[Any]:
    """A slice for each batch, in order."""
    array = stores.open_zarr(read.path(place))
    parts = in_parts(read.numbers(array.shape[0]), BATCH)
    reads = (array[int(part[0]) : int(part[-1]) + 1].read().result for part in parts)
    return ahead(reads, depth)


def whole_chunks(read: Read, place: Place, depth: int, chunk: int = CHUNK_ROWS) -> Iterator[Any]:
    """All that lies in the chunks of a window at a time, in random order, the next being read."""
    array = stores.open_zarr(read.path(place))
    chunks = array.shape[0] // chunk

    def starts() -> Iterator[Callable[[], Any]]:
        for part in in_parts(read.numbers(chunks), min(read.window, chunks)):
            reads = [array[first : first + chunk].read() for first in (part * chunk).tolist()]
            yield functools.partial(_joined, reads)

    return ahead(starts(), depth)


def _joined(reads: Sequence[Any]) -> Any:
    return np.concatenate([read.result() for read in reads])


def windows(read: Read, place: Place, depth: int) -> Iterator[Any]:
    """Chunks of a window, then its rows in random order."""
    return mixed(whole_chunks(read, place, depth), BATCH)


def picked(read: Read, place: Place, depth: int) -> Iterator[Any]:
    """The rows of a batch in one request, sorted: the order within a batch is free."""
    array = stores.open_zarr(read.path(place), read.cache_bytes)
    parts = in_parts(read.numbers(array.shape[0]), BATCH)
    return ahead((array.oindex[np.sort(part)].read().result for part in parts), depth)


# --- loops over the ArrayRecord reader -----------------------------------------------------------


def lists(read: Read, place: Place, setting: tuple[int, int, str]) -> Iterator[Any]:
    """Lists of records, each joined to an array that is cut to batches."""
    size, threads, options = setting
    reader = stores.open_array_record(read.path(place), options)
    parts = in_parts(read.numbers(reader.num_records()), size)
    joined = loops.on_threads(
        lambda part: functions.decode_many(reader.read(part.tolist())), parts, threads
    )
    for rows in joined:
        yield from (rows[first : first + BATCH] for first in range(0, len(rows), BATCH))


def groups(read: Read, place: Place, threads: int) -> Iterator[Any]:
    """Groups of a window read whole, then its records in random order."""
    reader = stores.open_array_record(read.path(place))
    count = reader.num_records() // GROUP

    def records_of(part: IntArray) -> list[bytes]:
        firsts = (part * GROUP).tolist()
        return [record for first in firsts for record in reader.read(first, first + GROUP)]

    parts = in_parts(read.numbers(count), min(read.window, count))
    random = np.random.default_rng(3)
    for records in loops.on_threads(records_of, parts, threads):
        order = random.permutation(len(records)).tolist()
        for first in range(0, len(order), BATCH):
            yield functions.decode_many([records[at] for at in order[first : first + BATCH]])


# --- frameworks ----------------------------------------------------------------------------------


class ZarrRows:
    """A source of rows over TensorStore, as a user writes it for Grain or torch.

    Args:
        path: The array.
        cache_bytes: TensorStore's cache.
    """

    def __init__(self, path: Path, cache_bytes: int) -> None:
        self._arguments = path, cache_bytes
        self._array: Any = None  # opened on first use: in a worker, that is in the worker

    def _opened(self) -> Any:
        if self._array is None:
            self._array = stores.open_zarr(*self._arguments)
        return self._array

    def __len__(self) -> int:
        return int(self._opened().shape[0])

    def __getitem__(self, index: int) -> Any:
        return self._opened()[index].read().result()

    def __getitems__(self, indices: Sequence[int]) -> Any:
        array = self._opened()
        if list(indices) == list(range(indices[0], indices[-1] + 1)):
            return array[indices[0] : indices[-1] + 1].read().result()
        return array.oindex[np.sort(indices)].read().result()

    def __getstate__(self) -> Any:
        return self._arguments

    def __setstate__(self, state: Any) -> None:
        self._arguments, self._array = state, None


class Records:
    """Records of an ArrayRecord file for torch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: Any = None

    def __len__(self) -> int:
        return int(stores.open_array_record(self._path).num_records())

    def __getitems__(self, indices: Sequence[int]) -> Any:
        if self._reader is None:
            self._reader = stores.open_array_record(self._path)
        return functions.decode_many(self._reader.read(list(indices)))


class _Ordered:
    """A source in another order: Grain has no block shuffle."""

    def __init__(self, source: Any, order: IntArray) -> None:
        self._source, self._order = source, order.tolist()

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Any:
        return self._source[self._order[index]]


def _ready_made(read: Read, count: int, block: int) -> IntArray:
    """An epoch, for sides that cannot shuffle in blocks."""
    if read.order != BLOCK:
        return next(read.numbers(count))
    mixer, found = np.random.default_rng(7), []
    for part in in_parts([mixer.permutation(-(-count // block))], read.window):
        records = np.concatenate([np.arange(b * block, min((b + 1) * block, count)) for b in part])
        found.append(mixer.permutation(records))
    return np.concatenate(found)


def _grain_over(source: Any, read: Read, way: loops.Grain, block: int) -> Any:
    """Grain over a source."""
    import grain

    if read.order == BLOCK:
        source = _Ordered(source, _ready_made(read, len(source), block))
    chain = grain.MapDataset.source(source)
    chain = chain.shuffle(seed=1) if read.order == GLOBAL else chain
    chain = chain.repeat() if read.forever else chain
    return way.stream((chain.map(read.function) if read.function else chain).batch(BATCH))


def grain_rows(read: Read, place: Place, way: loops.Grain) -> Any:
    """Grain over Zarr or ArrayRecord."""
    import grain

    path = read.path(place)
    if path.is_dir():
        return _grain_over(ZarrRows(path, read.cache_bytes), read, way, CHUNK_ROWS)
    decoded = dataclasses.replace(read, function=read.function or functions.decode)
    return _grain_over(grain.sources.ArrayRecordDataSource(str(path)), decoded, way, GROUP)


def torch_rows(read: Read, place: Place, workers: int) -> Any:
    """Torch over Zarr or ArrayRecord."""
    path = read.path(place)
    rows: Any = ZarrRows(path, read.cache_bytes) if path.is_dir() else Records(path)
    order = _ready_made(read, len(rows), CHUNK_ROWS if path.is_dir() else GROUP)
    return loops.torch_batches(rows, order, BATCH, workers)


def arrow(read: Read, place: Place, form: str) -> Iterator[Any]:
    """Hugging Face's datasets: a memory-mapped Arrow file, a fetch of a batch of rows at a time."""
    import datasets

    # Without a dtype every integer would become one of 64 bits.
    dtype = {"dtype": np.uint16} if form == "numpy" else {}
    dataset = datasets.Dataset.from_file(str(place.path("arrow"))).with_format(form, **dtype)
    for part in in_parts(read.numbers(len(dataset)), BATCH):
        column = dataset[part.tolist()]["row"]
        if form == "arrow":
            column = column.combine_chunks().flatten().to_numpy().reshape(len(part), -1)
        yield column


# --- floors --------------------------------------------------------------------------------------


def floor(read: Read, place: Place) -> Iterator[Any]:
    """What the machine can do: two threads that only decompress the same bytes from memory."""
    path, forever = read.path(place), read.forever
    if read.store == "raw":
        return _gathered(read, place)
    if read.store == "shards":
        return loops.small_frames(stores.shard_frames(path), ROW_BYTES, forever=forever)
    if read.store == "rows":
        size = CHUNK_ROWS * ROW_BYTES
        return loops.large_frames(stores.chunk_frames(path), CHUNK_ROWS, size, forever=forever)
    if read.store == "groups":
        frames = stores.record_frames(path, GROUP)
        return loops.large_frames(frames, GROUP, GROUP * ROW_BYTES, forever=forever)
    return loops.small_frames(stores.record_frames(path), ROW_BYTES, forever=forever)


def _gathered(read: Read, place: Place) -> Iterator[Any]:
    """Rows of batches gathered from an array in memory, into memory that is used again."""
    rows = stores.open_zarr(read.path(place)).read().result()
    out = np.empty((BATCH, rows.shape[1]), rows.dtype)
    parts = list(in_parts(read.numbers(len(rows)), BATCH))
    # The default mode would check every index and gather by way of a buffer.
    return (np.take(rows, part, 0, out=out[: len(part)], mode="clip") for part in parts)


# --- cases ---------------------------------------------------------------------------------------

_STORES: Final[Mapping[str, Callable[[Place, Path], None]]] = {
    "rows": stores.rows,
    "raw": stores.raw,
    "shards": stores.shards,
    "records": stores.array_record,
    "records_30k": functools.partial(stores.array_record, records=30_000),
    "records_200k": functools.partial(stores.array_record, records=200_000),
    "groups": stores.groups,
    "arrow": stores.arrow,
}
_DEPTHS: Final = {f"{depth} ahead": depth for depth in (1, 2, 4, 8)}
_LISTS: Final = {
    f"read({size:,}), {threads} threads": (size, threads, options)
    for size, threads, options in (
        (BATCH, 0, stores.NO_READ_AHEAD),
        (4 * BATCH, 0, stores.NO_READ_AHEAD),
        (BATCH, 2, stores.NO_READ_AHEAD),
        (4 * BATCH, 0, ""),
    )
}
_THREADS: Final = {"1 thread": 1, "2 threads": 2}


def _expert(read: Read) -> Side:
    """The loop that one would write for this store and this order."""
    way, settings = {
        ("rows", ORDER): (slices, _DEPTHS),
        ("rows", BLOCK): (windows, _DEPTHS),
        ("groups", BLOCK): (groups, _THREADS),
        ("rows", GLOBAL): (picked, _DEPTHS),
        ("raw", GLOBAL): (picked, _DEPTHS),
        ("shards", GLOBAL): (picked, _DEPTHS),
    }.get((read.store, read.order), (lists, _LISTS))
    return Side("expert", functools.partial(way, read), settings)


def _grain(read: Read) -> Side:
    return Side("Grain", functools.partial(grain_rows, read), loops.GRAIN, ("grain",))


def _epoch(name: str, shows: str, read: Read, *bounds: Bound) -> Case:
    forms = {"numpy": "numpy", "arrow": "arrow"}
    peers = [Side("HF datasets", functools.partial(arrow, read), forms, ("datasets",))]
    is_raw = read.store == "raw"
    return Case(
        name,
        shows,
        (
            Side(OURS, functools.partial(ours, read)),
            _expert(read),
            *(peers if is_raw else []),
            Side("torch", functools.partial(torch_rows, read), loops.TORCH, ("torch",)),
            _grain(read),
            Side(FLOOR, functools.partial(floor, read)),
        ),
        stores={store: _STORES[store] for store in (read.store, *(["arrow"] if is_raw else []))},
        bounds=bounds,
    )


def _steady(name: str, shows: str, read: Read, *bounds: Bound) -> Case:
    read = dataclasses.replace(read, forever=True)
    return Case(
        f"steady.{name}",
        shows,
        (
            Side(OURS, functools.partial(ours, read)),
            _grain(read) if read.function else _expert(read),
            Side(FLOOR, functools.partial(floor, read)),
        ),
        Regime.STEADY,
        {read.store: _STORES[read.store]},
        bounds,
    )


def of_floor(at_least: float) -> Bound:
    """How near ours comes to the floor."""
    return Bound("of the floor", "of_floor", at_least=at_least)


def of_cpu(at_most: float) -> Bound:
    """What ours takes of the cores' time, as a multiple of the floor's."""
    return Bound("of the floor's CPU", "cpu_of_floor", at_most=at_most)


def times(side: str, at_least: float) -> Bound:
    """How many times as fast as a peer ours is."""
    return Bound(f"times {side}", "mb_per_s", side, at_least=at_least)


CASES: Final = (
    _epoch(
        "array_record.global",
        "random single records",
        Read("records", GLOBAL),
        times("expert", 0.9),
        times("Grain", 12),
    ),
    _epoch(
        "array_record.block",
        "groups of 256 records: each group is decoded once",
        Read("groups", BLOCK),
    ),
    _epoch(
        "zarr.block",
        "each chunk is decoded once, its rows go to many batches",
        Read("rows", BLOCK),
        of_floor(0.8),
        times("expert", 1.2),
        times("Grain", 12),
    ),
    _epoch(
        "zarr.global", "every batch needs every chunk: it pays to keep them", Read("rows", GLOBAL)
    ),
    _epoch(
        "zarr.quarter",
        "the same where memory holds a quarter of the chunks",
        Read("rows", GLOBAL, memory=200 * CHUNK_ROWS * ROW_BYTES + BATCHES_BYTES),
    ),
    _epoch(
        "shards.global",
        "random single records of a few large files",
        Read("shards", GLOBAL),
        of_floor(0.7),
        times("expert", 2),
        times("Grain", 12),
    ),
    _epoch(
        "raw.global",
        "nothing to decode, random rows",
        Read("raw", GLOBAL),
        of_floor(0.5),
        times("HF datasets", 1.2),
    ),
    _steady(
        "order",
        "rows in order",
        Read("rows", ORDER),
        of_floor(0.85),
        times("expert", 1.4),
        of_cpu(1.2),
    ),
    _steady(
        "block",
        "rows in a block shuffle, windows of 16 chunks",
        Read("rows", BLOCK),
        of_floor(0.8),
        times("expert", 1.4),
        of_cpu(1.25),
    ),
    _steady(
        "shards",
        "shards, a row per inner chunk, global shuffle",
        Read("shards", GLOBAL),
        of_floor(0.9),
        of_cpu(1.2),
    ),
    _steady(
        "records",
        "ArrayRecord, single records, global shuffle",
        Read("records", GLOBAL),
        of_floor(0.9),
        times("expert", 2.5),
        of_cpu(1.2),
    ),
    _steady(
        "function_30k",
        "ArrayRecord, a function per record, 30,000 records",
        Read("records_30k", GLOBAL, function=functions.as_image),
        times("Grain", 5),
    ),
    _steady(
        "function_200k",
        "the same, 200,000 records",
        Read("records_200k", GLOBAL, function=functions.as_image),
        times("Grain", 5),
    ),
    _steady(
        "groups",
        "ArrayRecord, groups of 256, block shuffle",
        Read("groups", BLOCK),
        of_floor(0.75),
        of_cpu(1.35),
    ),
)
