"""Stores that are read over HTTP, from a server on this machine that waits before each answer.

Ours has its defaults: 64 requests in flight. So have the peers that have several at a time.
"""

from __future__ import annotations

import functools
import http.client
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import windrow
from benchmarks import far, functions, loops, stores
from benchmarks.harness import OURS, Bound, Case, Place, Regime, Side
from benchmarks.loops import ahead, in_order, in_parts, mixed, shuffled
from benchmarks.rows import BATCH, BLOCK, GLOBAL, ORDER, WINDOW, Read
from benchmarks.stores import FAR_CHUNK_ROWS
from windrow.sources import ArrayRecordDataSource, RemoteOptions, ZarrDataSource
from windrow.sources.array_record.files import index_local_file

LATENCY_MS: Final = 20.0
LATENCIES_MS: Final = (0.0, 5.0, 20.0, 50.0, 100.0)
_CACHE_BYTES: Final = 64 * 2**20  # else the index of a shard would be read for every read of it

_part = functools.partial


def url(place: Place, store: str, latency_ms: float = LATENCY_MS) -> str:
    """Where a store is read over HTTP."""
    return f"{far.serving(str(place.folder), latency_ms).url}/{store}"


# --- records -------------------------------------------------------------------------------------


def our_records(place: Place, *, order: str, latency_ms: float = LATENCY_MS) -> Any:
    """Records in batches; neighbours of a block come in one request."""
    source = ArrayRecordDataSource(url(place, "records", latency_ms))
    chain = windrow.MapDataset.source(source)
    if order == BLOCK:
        chain = chain.block_shuffle(seed=1, block=BATCH, window_blocks=WINDOW)
    else:
        chain = chain.shuffle(seed=1)
    return chain.map(functions.decode_many, batched=True).batch(BATCH)


def one_by_one(place: Place, *, latency_ms: float = LATENCY_MS) -> Iterator[Any]:
    """A request for each record on one connection, as readers do that know no batches.

    Where records lie is known before, and what comes is not decoded. Each record is a batch of its own.
    """
    index = index_local_file(str(place.path("records"))).index
    starts, stops = index.spans(np.arange(index.chunks))
    server = far.serving(str(place.folder), latency_ms)

    def batches() -> Iterator[Any]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        for record in next(shuffled(len(starts), forever=False)).tolist():
            span = f"bytes={starts[record]}-{stops[record] - 1}"
            connection.request("GET", "/records", headers={"Range": span})
            connection.getresponse().read()
            yield loops.of_size(1, stores.ROW_BYTES)

    return batches()


# --- shards --------------------------------------------------------------------------------------


def our_shards(place: Place, *, order: str) -> Any:
    """Rows of shards in batches."""
    chain = windrow.MapDataset.source(ZarrDataSource(url(place, "far_shards")))
    return Read("far_shards", order).ordered(chain).batch(BATCH)


def tensorstore(place: Place, setting: tuple[int, bool], *, order: str) -> Iterator[Any]:
    """TensorStore alone: slices of batches, or inner chunks in random order and their rows mixed."""
    import tensorstore as ts

    reads, merged = setting
    array = stores.open_far_zarr(url(place, "far_shards"), _CACHE_BYTES, far.REQUESTS)

    def started(places: list[slice]) -> Callable[[], Any]:
        if merged:
            with ts.Batch() as together:
                found = [array[place].read(batch=together) for place in places]
        else:
            found = [array[place].read() for place in places]
        return lambda: np.concatenate([read.result() for read in found])

    count = array.shape[0]
    if order == ORDER:
        parts = in_parts(in_order(count, forever=False), BATCH)
        starts = (started([slice(int(part[0]), int(part[-1]) + 1)]) for part in parts)
        return ahead(starts, max(1, reads * FAR_CHUNK_ROWS // BATCH))
    blocks = in_parts(shuffled(-(-count // FAR_CHUNK_ROWS), forever=False), WINDOW)
    starts = (
        started(
            [slice(at, min(at + FAR_CHUNK_ROWS, count)) for at in (b * FAR_CHUNK_ROWS).tolist()]
        )
        for b in blocks
    )
    return mixed(ahead(starts, max(1, reads // WINDOW)), BATCH)


# --- the cache on disk ------------------------------------------------------


def few_records(place: Place, path: Path) -> None:
    """Records that are not compressed: each of their requests has about as many bytes."""
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for record in stores.noise(place.size(20_000, 400), stores.ROW_BYTES // 2, 0):
        writer.write(record.tobytes())
    writer.close()


def few_chunks(place: Place, path: Path) -> None:
    """An array in chunks of 32 rows, each an object of its own."""
    stores.write_rows(path, 32 * place.size(512, 4), 32)


def second_epoch(place: Place, *, store: str, cached: bool) -> Callable[[], int]:
    """A second epoch in a global shuffle: from the cache that the first one filled, or of local files."""
    opened: Any = ZarrDataSource if store == "few_chunks" else ArrayRecordDataSource
    if cached:
        folder = tempfile.mkdtemp(prefix="cache-", dir=place.folder)
        source = opened(url(place, store), remote=RemoteOptions(cache_dir=folder))
    else:
        source = opened(str(place.path(store)))

    def epoch(seed: int) -> int:
        chain = windrow.MapDataset.source(source).shuffle(seed=seed).batch(32)
        return sum(len(batch) for batch in chain.to_iter_dataset())

    epoch(1)
    return lambda: epoch(2)


# --- cases ---------------------------------------------------------------------------------------

_RECORDS: Final = {"records": stores.array_record}
_ONE_BY_ONE: Final = _part(Bound, "times one request per record", over="one by one")


def _case(name: str, shows: str, sides: tuple[Side, ...], stored: Any, *bounds: Bound) -> Case:
    return Case(
        f"remote.{name}",
        shows,
        sides,
        stores=stored,
        bounds=bounds,
        seconds=4,
        latency_ms=LATENCY_MS,
    )


def _of_shards(name: str, shows: str, order: str) -> Case:
    settings = {
        f"{reads} reads ahead{', merged' if merged else ''}": (reads, merged)
        for reads in (64, 256, 512)
        for merged in (False, True)
    }
    sides = (
        Side(OURS, _part(our_shards, order=order)),
        Side("TensorStore", _part(tensorstore, order=order), settings),
    )
    bound = Bound("of TensorStore alone", over="TensorStore", at_least=0.9)
    return _case(name, shows, sides, {"far_shards": stores.far_shards}, bound)


def _second_epochs(name: str, shows: str, store: str, writer: Any) -> Case:
    sides = (
        Side(OURS, _part(second_epoch, store=store, cached=True)),
        Side("local files", _part(second_epoch, store=store, cached=False)),
    )
    return Case(f"cached.{name}", shows, sides, Regime.WHOLE, {store: writer})


def _latency(ms: float) -> Case:
    return Case(
        f"latency.{ms:g}",
        f"single records at {ms:g} ms for each request",
        (
            Side("block_shuffle", _part(our_records, order=BLOCK, latency_ms=ms)),
            Side("global shuffle", _part(our_records, order=GLOBAL, latency_ms=ms)),
            Side("a request per record", _part(one_by_one, latency_ms=ms)),
        ),
        stores=_RECORDS,
        seconds=20,
        latency_ms=ms,
        rounds=3,
    )


CASES: Final = (
    _case(
        "global",
        "random single records",
        (
            Side(OURS, _part(our_records, order=GLOBAL)),
            Side("one by one", one_by_one),
        ),
        _RECORDS,
        _ONE_BY_ONE(at_least=20),
    ),
    _case(
        "block",
        "blocks of 256 single records: a request for many of them",
        (
            Side(OURS, _part(our_records, order=BLOCK)),
            Side("ours, global shuffle", _part(our_records, order=GLOBAL)),
            Side("one by one", one_by_one),
        ),
        _RECORDS,
        _ONE_BY_ONE(at_least=100),
        Bound("times our global shuffle", over="ours, global shuffle", at_least=5),
    ),
    _of_shards("zarr_order", "shards in order", ORDER),
    _of_shards("zarr_block", "the same in a block shuffle, a request for each inner chunk", BLOCK),
    _second_epochs(
        "records", "second epochs of ArrayRecord from the cache on disk", "few_records", few_records
    ),
    _second_epochs("zarr", "the same of Zarr in many objects", "few_chunks", few_chunks),
    *map(_latency, LATENCIES_MS),
)
