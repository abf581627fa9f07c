"""`python -m benchmarks.explaining`: how long `explain()` takes over a large store, and its memory.

The store has 100,000 chunks and 10 million records by its metadata; no chunk of it is written, for
none is read. Each explanation is the first one of a process of its own, which has opened the store
and made the chain: seconds are those from there to the text of the tables, and memory the most that
this adds. Seconds of cores tell what the clock does not on a machine that does something else too.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import tensorstore as ts

import windrow
from benchmarks import timing
from benchmarks.figures import Figure, Run, command
from windrow.sources import ZarrDataSource

_RECORDS: Final = 10_000_000
_CHUNK_RECORDS: Final = 100
_WIDTH: Final = 8
_BATCH: Final = 100
_BOUND_S: Final = 2

# The chain, from two sources over the store.
_Chain: TypeAlias = Callable[[windrow.MapDataset[Any], windrow.MapDataset[Any]], Any]


def _is_wanted(row: Any) -> bool:
    raise AssertionError("explaining calls no function")


def _permuted(one: windrow.MapDataset[Any]) -> windrow.MapDataset[Any]:
    return one.slice(np.random.default_rng(1).permutation(len(one)))


CHAINS: Final[Mapping[str, _Chain]] = {
    "in order": lambda one, _: one.batch(_BATCH),
    "block_shuffle": lambda one, _: one.block_shuffle(seed=1).batch(_BATCH),
    "shuffle": lambda one, _: one.shuffle(seed=1).batch(_BATCH),
    "window_shuffle(200)": lambda one, _: one.window_shuffle(200, seed=1).batch(_BATCH),
    "window_shuffle(1000)": lambda one, _: one.window_shuffle(1_000, seed=1).batch(_BATCH),
    "a permutation, by slice": lambda one, _: _permuted(one).batch(_BATCH),
    "batches of 1,000,000": lambda one, _: one.block_shuffle(seed=1).batch(1_000_000),
    "a mixture of two": lambda one, other: windrow.MapDataset.mix(
        [one.shuffle(seed=1), other.block_shuffle(seed=2)], [1, 2]
    ).batch(_BATCH),
    "a stream with a filter": lambda one, _: (
        one.block_shuffle(seed=1).to_iter_dataset().filter(_is_wanted).batch(_BATCH)
    ),
}

FIGURES: Final = tuple(
    figure
    for case in CHAINS
    for figure in (
        Figure(case, "seconds", "took_s", _BOUND_S, most=True),
        Figure(case, "seconds of cores", "cores_s", None),
        Figure(case, "MB of memory at most", "peak_mb", None),
    )
)


def write_store(place: Path, records: int) -> None:
    """The metadata of an array of so many records, without a chunk."""
    spec = {"driver": "zarr3", "kvstore": f"file://{place}/"}
    chunks = ts.ChunkLayout(chunk_shape=[_CHUNK_RECORDS, _WIDTH])
    ts.open(
        spec, create=True, dtype=ts.float32, shape=[records, _WIDTH], chunk_layout=chunks
    ).result()


def explained(case: str, place: Path) -> dict[str, float]:
    """Seconds and memory of one explanation, in this process."""
    one, other = (windrow.MapDataset.source(ZarrDataSource(place)) for _ in range(2))
    dataset = CHAINS[case](one, other)
    before_bytes = timing.now_bytes()
    start_s, before_s = time.perf_counter(), time.process_time()
    text = str(dataset.explain())
    took_s, cores_s = time.perf_counter() - start_s, time.process_time() - before_s
    if f"{len(one):,} records" not in text:
        raise RuntimeError(f"benchmark: the explanation of {case} does not tell of the store")
    peak_mb = (timing.peak_bytes() - before_bytes) / 1e6
    return {"took_s": took_s, "cores_s": cores_s, "peak_mb": peak_mb}


def _told(case: str, place: Path, end: Connection) -> None:
    end.send(explained(case, place))


def _run(case: str) -> Run:
    def run(folder: Path, share: float) -> Mapping[str, Any]:
        place = folder / "store"
        if not place.exists():
            write_store(place, max(_CHUNK_RECORDS, int(_RECORDS * share)))
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_told, args=(case, place, theirs))
        process.start()
        theirs.close()
        try:
            found: Mapping[str, Any] = ours.recv()
        except EOFError:
            raise RuntimeError(f"benchmark: {case}: failed, see above") from None
        finally:
            process.join()
        return found

    return run


CASES: Final[Mapping[str, Run]] = {case: _run(case) for case in CHAINS}


def main(argv: Sequence[str] | None = None) -> int:
    """Explain the chains and print the table."""
    return command("explaining", __doc__, cases=CASES, figures=FIGURES, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
