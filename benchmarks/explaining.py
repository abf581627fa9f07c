"""`explain()`: how long it takes over a large store, and what following its advice gains.

The large store has 100,000 chunks and 10 million records by its metadata; no chunk of it is written,
for none is read. An explanation is the first one of its process, which has opened the store and made
the chain; it ends with the text.

A pair of chains is one to which `explain()` gives a piece of advice, and the one that follows it, which
does not get the same advice. Budgets and stores are small, and bytes are decoded in one epoch.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from benchmarks import measure
from benchmarks.harness import Bound, Case, Metrics, Place, Regime, Side
from windrow import IterDataset, MapDataset, ReadOptions
from windrow.sources import ArraySpec, ZarrDataSource
from windrow.stats.costs import known

_part = functools.partial


# --- how long it takes ---------------------------------------------------------------------------

_CHUNK_RECORDS, _WIDTH, _BATCH = 100, 8, 100


def metadata(place: Place, path: Path) -> None:
    """The metadata of an array of 10 million records, without a chunk."""
    import tensorstore as ts

    chunks = ts.ChunkLayout(chunk_shape=[_CHUNK_RECORDS, _WIDTH])
    shape = [place.size(10_000_000, 2_000), _WIDTH]
    spec = {"driver": "zarr3", "kvstore": f"file://{path}/"}
    ts.open(spec, create=True, dtype=ts.float32, shape=shape, chunk_layout=chunks).result()


def _is_wanted(row: Any) -> bool:
    raise AssertionError("explaining calls no function")


def _permuted(one: MapDataset[Any]) -> MapDataset[Any]:
    return one.slice(np.random.default_rng(1).permutation(len(one)))


# From two sources over the store.
CHAINS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "in order": lambda one, _: one.batch(_BATCH),
    "block_shuffle": lambda one, _: one.block_shuffle(seed=1).batch(_BATCH),
    "shuffle": lambda one, _: one.shuffle(seed=1).batch(_BATCH),
    "window_shuffle(1000)": lambda one, _: one.window_shuffle(1_000, seed=1).batch(_BATCH),
    "a permutation, by slice": lambda one, _: _permuted(one).batch(_BATCH),
    "batches of 1,000,000": lambda one, _: one.block_shuffle(seed=1).batch(1_000_000),
    "a mixture of two": lambda one, other: MapDataset.mix(
        [one.shuffle(seed=1), other.block_shuffle(seed=2)], [1, 2]
    ).batch(_BATCH),
    "a stream with a filter": lambda one, _: (
        one.block_shuffle(seed=1).to_iter_dataset().filter(_is_wanted).batch(_BATCH)
    ),
}


def explained(place: Place, *, chain: str) -> Metrics:
    """Seconds and memory of one explanation."""
    sources = (ZarrDataSource(place.path("metadata")) for _ in range(2))
    one, other = (MapDataset.source(source) for source in sources)
    dataset = CHAINS[chain](one, other)
    before_bytes, clock = measure.now_bytes(), measure.Clock()
    text = str(dataset.explain())
    wall_s, cpu_s = clock.stop()
    if not text:
        raise RuntimeError(f"benchmarks: the explanation of {chain} is empty")
    return {
        "seconds": wall_s,
        "cpu_s": cpu_s,
        "memory_mb": (measure.peak_bytes() - before_bytes) / 1e6,
    }


def _explaining(chain: str) -> Case:
    return Case(
        f"explaining.{chain}",
        chain,
        (Side("ours", _part(explained, chain=chain)),),
        Regime.FIGURES,
        {"metadata": metadata},
        (Bound("seconds", "seconds", at_most=2),),
    )


# --- what advice gains ---------------------------------------------------------------------------

_VALUES: Final = 512


def records_of(place: Place) -> int:
    """The records of the small store."""
    return place.size(20_000, 2_000)


def little(place: Place) -> ReadOptions:
    """A quarter of the store may be held, as of one that is larger than memory."""
    store_bytes = records_of(place) * _VALUES * 4
    return ReadOptions(memory_bytes=store_bytes // 4)


class Rows:
    """Somebody's source: rows of an array that zarr-python reads, one call each."""

    def __init__(self, path: Path) -> None:
        import zarr

        self.rows = zarr.open_array(str(path), mode="r")

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def spec(self) -> ArraySpec:
        """A row."""
        return ArraySpec(self.rows.shape[1:], self.rows.dtype)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class ManyRows(Rows):
    """The same, which reads many at once."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return list(np.asarray(self.rows.oindex[np.asarray(indices)]))


def write(place: Place, path: Path) -> None:
    """Rows in chunks."""
    import zarr

    rows = np.random.default_rng(0).integers(0, 1_000, (records_of(place), _VALUES)).astype("f4")
    zarr.create_array(path, data=rows, chunks=(place.size(128, 20), _VALUES))


Both: TypeAlias = tuple[IterDataset[Any], IterDataset[Any]]
"""A chain, and the one that follows the advice that it gets."""


def _stored(place: Place) -> MapDataset[Any]:
    return MapDataset.source(ZarrDataSource(place.path("advice")))


def _read(chain: MapDataset[Any], options: ReadOptions | None = None) -> IterDataset[Any]:
    return chain.batch(64).to_iter_dataset(options)


def in_blocks(place: Place) -> Both:
    """A global shuffle, and a block shuffle."""
    chunks, options = _stored(place), little(place)
    blocks = chunks.block_shuffle(seed=1, window_blocks=2)
    return _read(chunks.shuffle(seed=1), options), _read(blocks, options)


def with_room(place: Place) -> Both:
    """A global shuffle, and the same with the room that is advised."""
    chain = _stored(place).shuffle(seed=1)
    before = _read(chain, little(place))
    told = next(advice for advice in before.explain().advice if advice.kind == "memory-bytes")
    number = re.search(r"memory_bytes=([\d_]+)", told.do)
    if number is None:
        raise RuntimeError(f"benchmarks: no room is advised: {told}")
    roomy = dataclasses.replace(little(place), memory_bytes=int(number[1]))
    return before, _read(chain, roomy)


def smaller_windows(place: Place) -> Both:
    """Windows of 64 blocks, and of 2."""
    chunks, options = _stored(place), little(place)
    many, few = (chunks.block_shuffle(seed=1, window_blocks=window) for window in (64, 2))
    return _read(many, options), _read(few, options)


def consecutive(place: Place) -> Both:
    """Every eighth record, and as many that lie together."""
    chunks = _stored(place)
    return _read(chunks[::8]), _read(chunks[: records_of(place) // 8])


def with_threads(place: Place) -> Both:
    """Without threads, and with them."""
    chain = _stored(place).shuffle(seed=1)
    return _read(chain, ReadOptions(num_threads=0)), _read(chain)


def many_at_once(place: Place) -> Both:
    """Somebody's source that reads record by record, and one that reads many in one call."""
    some, path = slice(records_of(place) // 10), place.path("advice")
    one, many = (MapDataset.source(source(path))[some] for source in (Rows, ManyRows))
    return _read(one), _read(many)


# By the kind of advice: what follows it, and the chains.
PAIRS: Final[Mapping[str, tuple[str, Callable[[Place], Both]]]] = {
    "global-shuffle": ("block_shuffle", in_blocks),
    "memory-bytes": ("room for the store", with_room),
    "window-room": ("a window of 2 blocks, not 64", smaller_windows),
    "strides": ("consecutive records", consecutive),
    "no-threads": ("without num_threads=0", with_threads),
    "record-by-record": ("many records in one call", many_at_once),
}


def epoch(dataset: IterDataset[Any]) -> Metrics:
    """Records per second of an epoch, and the megabytes decoded and predicted."""
    predicted = [known(costs.decoded_bytes) for costs in dataset.explain().epoch]
    begun_s = time.perf_counter()
    with iter(dataset) as iterator:
        for batch in iterator:
            for array in batch.values() if isinstance(batch, dict) else (batch,):
                if not isinstance(array, list):  # used a little, as a loop would
                    float(array[:, 0].sum())
        took_s = time.perf_counter() - begun_s
        sources = iterator.stats().sources
    return {
        "records_per_s": sum(costs.records.low for costs in sources) / took_s,
        "decoded_mb": sum(known(costs.decoded_bytes).low for costs in sources) / 1e6,
        "least_predicted_mb": sum(amount.low for amount in predicted) / 1e6,
        "most_predicted_mb": sum(amount.high for amount in predicted) / 1e6,
    }


def followed(place: Place, *, kind: str, after: bool) -> Metrics:
    """One chain of a pair; the first one gets the advice, and the second one does not.

    Raises:
        RuntimeError: If it is not so.
    """
    chain = PAIRS[kind][1](place)[after]
    kinds = [advice.kind for advice in chain.explain().advice]
    if (kind in kinds) == after:
        raise RuntimeError(f"benchmarks: the advice for {kind} is not as expected: {kinds}")
    return epoch(chain)


def _advice(kind: str) -> Case:
    return Case(
        f"advice.{kind}",
        f"the advice is followed by {PAIRS[kind][0]}",
        (
            Side("followed", _part(followed, kind=kind, after=True)),
            Side("before", _part(followed, kind=kind, after=False)),
        ),
        Regime.FIGURES,
        {"advice": write},
    )


CASES: Final = (*map(_explaining, CHAINS), *map(_advice, PAIRS))
