"""`from_grain`: records per second, as multiples of the same object of Grain.

    python -m benchmarks.from_grain --settle 8 --seconds 8 --page docs/grain.md

Records are in ArrayRecord files as Grain advises to write them (one record per group). Both sides run the
object that Grain built, in turn in one process. The batches of the first `--settle` seconds are not
measured: workers of Grain fill buffers of hundreds of elements while others still start, and the loop
then takes these faster than any are made.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grain
import numpy as np
import numpy.typing as npt
from absl import flags
from array_record.python.array_record_module import ArrayRecordWriter
from grain import experimental

import windrow
from benchmarks import report

BATCH: Final = 128
ROW: Final = 2_048
SETS: Final = 8
SMALL_RECORDS: Final = 300
_BEGIN, _END = "<!-- from_grain, the last run -->", "<!-- end of from_grain -->"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A chain of Grain over `records` records, which is to be `bound` times as fast here.

    Two workers of one core each, with a map of a millisecond of computing, make 2,000 records/s on
    either side: there 1 is what can be reached.
    """

    name: str
    make: Callable[[Path, int], Any]
    records: int
    bound: float


def written(path: Path, records: int, *, most: int = 65) -> str:
    """A file of int32 records of at most `most` - 1 numbers."""
    if not path.exists():
        draw = np.random.default_rng(0)
        writer = ArrayRecordWriter(str(path), "group_size:1,zstd:3")
        for size in draw.integers(most // 2, most, records):
            writer.write(draw.integers(0, 1000, size).astype(np.int32).tobytes())
        writer.close()
    return str(path)


def source(folder: Path, records: int) -> Any:
    """Grain's source."""
    return grain.sources.ArrayRecordDataSource(written(folder / f"{records}.array_record", records))


def numbers(record: bytes) -> npt.NDArray[np.int32]:
    """The first numbers of a record."""
    return np.frombuffer(record, np.int32)[:32]


def slow_numbers(record: bytes) -> npt.NDArray[np.int32]:
    """The same after a millisecond of computing."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    return numbers(record)


def one_process(folder: Path, records: int) -> Any:
    """ArrayRecord, shuffle, map, batch, `mp_prefetch` without workers."""
    dataset = grain.MapDataset.source(source(folder, records)).shuffle(seed=1).map(numbers)
    batches = dataset.repeat().batch(BATCH).to_iter_dataset()
    return batches.mp_prefetch(grain.MultiprocessingOptions(0))


def two_workers(folder: Path, records: int) -> Any:
    """The same with two workers and a map of a millisecond."""
    dataset = grain.MapDataset.source(source(folder, records)).shuffle(seed=1).map(slow_numbers)
    batches = dataset.repeat().batch(BATCH).to_iter_dataset()
    return batches.mp_prefetch(grain.MultiprocessingOptions(2))


class Tokens(grain.transforms.Map):  # type: ignore[misc]
    """Inputs and targets of a record."""

    def map(self, record: bytes) -> dict[str, npt.NDArray[np.int32]]:
        """Return a dict of both."""
        tokens = np.frombuffer(record, np.int32)
        return {"inputs": tokens, "targets": tokens}


class Shifted(grain.transforms.Map):  # type: ignore[misc]
    """Inputs are the targets one token before."""

    def map(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with other inputs."""
        before = np.roll(rows["inputs"], 1, axis=1)
        before[:, 0] = 0
        return {**rows, "inputs": before}


def like_maxtext(folder: Path, records: int) -> Any:
    """Mix of 8 ArrayRecord sets, tokens, best-fit packing, batch, shift."""
    streams = []
    for number in range(SETS):
        path = written(folder / f"set{number}-{records}.array_record", records, most=1025)
        dataset = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(path))
        streams.append(dataset.shuffle(seed=number).repeat().to_iter_dataset())
    mixed = grain.IterDataset.mix(streams, [1 / (number + 1) for number in range(SETS)])
    lengths = {"inputs": ROW, "targets": ROW}
    packed = experimental.BestFitPackIterDataset(
        mixed.map(Tokens()), length_struct=lengths, num_packing_bins=64
    )
    pad = functools.partial(experimental.batch_and_pad, batch_size=16, pad_value=0)
    return packed.batch(16, batch_fn=pad).map(Shifted())


class Numbers(grain.transforms.Map):  # type: ignore[misc]
    """`numbers`, for a loader."""

    def map(self, record: bytes) -> npt.NDArray[np.int32]:
        """Return the first numbers of a record."""
        return numbers(record)


def loader(folder: Path, records: int) -> Any:
    """A `DataLoader` with an `IndexSampler`."""
    sampler = grain.samplers.IndexSampler(
        records, grain.sharding.NoSharding(), shuffle=True, seed=3
    )
    return grain.DataLoader(
        data_source=source(folder, records),
        sampler=sampler,
        operations=[Numbers(), grain.transforms.Batch(BATCH, drop_remainder=True)],
    )


CASES: Final = (
    Case("one process", one_process, 100_000, 10),
    Case("two workers, map of 1 ms", two_workers, 100_000, 2),
    Case("like MaxText", like_maxtext, 4_000, 5),
    Case("DataLoader, IndexSampler", loader, 100_000, 10),
)


def per_second(dataset: Any, settle: float, seconds: float) -> float:
    """Batches per second, after the first batch and `settle` seconds more."""
    iterator: Iterator[Any] = iter(dataset)
    next(iterator)
    _taken(iterator, settle)
    count, took = _taken(iterator, seconds)
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
    return count / took


def _taken(iterator: Iterator[Any], seconds: float) -> tuple[int, float]:
    """Take batches for this time, at least one, and return how many and how long it took."""
    count, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds or not count:
        next(iterator)
        count += 1
    return count, took


def run(case: Case, folder: Path, *, settle: float, seconds: float, rounds: int) -> dict[str, Any]:
    """The batches per second of both sides, and the median of their ratios."""
    made = case.make(folder, case.records)
    sides = [
        (
            per_second(made, settle, seconds),
            per_second(windrow.from_grain(made), settle, seconds),
        )
        for _ in range(rounds)
    ]
    theirs, ours = (statistics.median(side) for side in zip(*sides, strict=True))
    times = statistics.median(mine / other for other, mine in sides)
    return {
        "case": case.name,
        "grain_batches_per_s": round(theirs, 1),
        "windrow_batches_per_s": round(ours, 1),
        "times": round(times, 2),
        "wanted": case.bound,
    }


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The cases as a table in Markdown."""
    rows = [
        (
            each["case"],
            f"{each['grain_batches_per_s']:,}",
            f"{each['windrow_batches_per_s']:,}",
            f"{each['times']:.1f}",
            f"{each['wanted']}",
        )
        for each in found
    ]
    head = ("case", "Grain, batches/s", "Windrow, batches/s", "times", "wanted")
    return report.table(head, rows, left=1)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="from_grain", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--settle", type=float, default=3, help="seconds that come first")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, help="fewer records than the case has")
    parser.add_argument("--case", help="one case, by the begin of its name")
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the table into a page")
    given = parser.parse_args(argv)
    if given.small:
        given.seconds, given.rounds, given.records = 0, 1, SMALL_RECORDS
    flags.FLAGS(["from_grain"])  # Grain's workers ask for them
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for case in CASES:
            if given.case is None or case.name.startswith(given.case):
                smaller = dataclasses.replace(case, records=given.records or case.records)
                found.append(
                    run(
                        smaller,
                        Path(folder),
                        settle=given.settle,
                        seconds=given.seconds,
                        rounds=given.rounds,
                    )
                )
                print(found[-1], flush=True)
    if given.page:
        report.put_into_page(given.page, table(found), begin=_BEGIN, end=_END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
