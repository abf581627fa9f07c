"""`from_grain`: both sides run an object that Grain built.

Records are in ArrayRecord files as Grain advises to write them, one record per group. The first seconds
do not count: workers of Grain fill buffers of hundreds of elements while others still start, and the
loop then takes these faster than any are made.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import windrow
from benchmarks.harness import OURS, Bound, Case, Place, Regime, Side

BATCH: Final = 128
ROW: Final = 2_048
SETS: Final = 8


def written(place: Place, path: Path, *, records: int, most: int = 65) -> None:
    """A file of int32 records of at most `most` - 1 numbers."""
    from array_record.python.array_record_module import ArrayRecordWriter

    draw = np.random.default_rng(0)
    writer = ArrayRecordWriter(str(path), "group_size:1,zstd:3")
    for size in draw.integers(most // 2, most, place.size(records, 300)):
        writer.write(draw.integers(0, 1000, size).astype(np.int32).tobytes())
    writer.close()


def numbers(record: bytes) -> npt.NDArray[np.int32]:
    """The first numbers of a record."""
    return np.frombuffer(record, np.int32)[:32]


def slow_numbers(record: bytes) -> npt.NDArray[np.int32]:
    """The same after a millisecond of computing."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    return numbers(record)


def tokens(record: bytes) -> dict[str, npt.NDArray[np.int32]]:
    """Inputs and targets of a record."""
    found = np.frombuffer(record, np.int32)
    return {"inputs": found, "targets": found}


def shifted(rows: dict[str, Any]) -> dict[str, Any]:
    """Inputs are the targets one token before."""
    before = np.roll(rows["inputs"], 1, axis=1)
    before[:, 0] = 0
    return {**rows, "inputs": before}


def _source(place: Place, name: str) -> Any:
    import grain

    return grain.sources.ArrayRecordDataSource(str(place.path(name)))


def batches(place: Place, *, function: Callable[[bytes], Any], workers: int) -> Any:
    """Shuffle, map, batch, `mp_prefetch`."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    dataset = grain.MapDataset.source(_source(place, "numbers")).shuffle(seed=1).map(function)
    stream = dataset.repeat().batch(BATCH).to_iter_dataset()
    return stream.mp_prefetch(grain.MultiprocessingOptions(workers))


def like_maxtext(place: Place) -> Any:
    """Mix of 8 ArrayRecord sets, tokens, best-fit packing, batch, shift."""
    import grain
    from grain import experimental

    streams = [
        grain.MapDataset.source(_source(place, f"set{n}"))
        .shuffle(seed=n)
        .repeat()
        .to_iter_dataset()
        for n in range(SETS)
    ]
    mixed = grain.IterDataset.mix(streams, [1 / (number + 1) for number in range(SETS)])
    packed = experimental.BestFitPackIterDataset(
        mixed.map(tokens), length_struct={"inputs": ROW, "targets": ROW}, num_packing_bins=64
    )
    pad = functools.partial(experimental.batch_and_pad, batch_size=16, pad_value=0)
    return packed.batch(16, batch_fn=pad).map(shifted)


def loader(place: Place) -> Any:
    """A `DataLoader` with an `IndexSampler`."""
    import grain

    class Numbers(grain.transforms.Map):  # type: ignore[misc]
        def map(self, record: bytes) -> npt.NDArray[np.int32]:
            return numbers(record)

    source = _source(place, "numbers")
    sampler = grain.samplers.IndexSampler(
        len(source), grain.sharding.NoSharding(), shuffle=True, seed=3
    )
    operations = [Numbers(), grain.transforms.Batch(BATCH, drop_remainder=True)]
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations)


CHAINS: Final[Mapping[str, Callable[[Place], Any]]] = {
    "one process": functools.partial(batches, function=numbers, workers=0),
    "two workers, map of 1 ms": functools.partial(batches, function=slow_numbers, workers=2),
    "like MaxText": like_maxtext,
    "DataLoader, IndexSampler": loader,
}
# Two workers of one core each make 2,000 records/s on either side: there 1 is what can be reached.
_WANTED: Final = {
    "one process": 10,
    "two workers, map of 1 ms": 1,
    "like MaxText": 5,
    "DataLoader, IndexSampler": 10,
}


def _ours(make: Callable[[Place], Any], place: Place) -> Any:
    return windrow.from_grain(make(place))


def _case(name: str) -> Case:
    stored = {"numbers": functools.partial(written, records=100_000)}
    if name == "like MaxText":
        one = functools.partial(written, records=4_000, most=1_025)
        stored = {f"set{number}": one for number in range(SETS)}
    make = CHAINS[name]
    return Case(
        f"from_grain.{name}",
        f"{name}, as Grain's object",
        (
            Side(OURS, functools.partial(_ours, make), needs=("grain",)),
            Side("Grain", make, needs=("grain",)),
        ),
        Regime.STEADY,
        stored,
        (Bound("times Grain", over="Grain", at_least=_WANTED[name]),),
        seconds=6,
        settle=1,
    )


CASES: Final = tuple(map(_case, CHAINS))
