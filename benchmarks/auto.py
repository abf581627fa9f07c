"""`mp_prefetch("auto")` beside every fixed number of workers, over five kinds of chains.

    python -m benchmarks.auto                          three rounds, some ten minutes on two cores
    python -m benchmarks.auto --page docs/workers.md   puts the table into the page
    python -m benchmarks.auto --small                  tiny data, to see that it runs

In each round the settings of a chain take turns, forwards and backwards, each with an iterator of its own
that never ends. What it gives in the first seconds does not count: ten of "auto", three of the others, from
the first element on. The best setting has the highest median over the rounds; a round's figure is what
"auto" gave, as a multiple of what the best setting gave in the same round.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

import windrow
from benchmarks import report
from benchmarks.functions import one_ms, same
from benchmarks.steady_sides import noise
from windrow.core.machine import usable_cores
from windrow.sources import ZarrDataSource

_BEGIN, _END = "<!-- auto -->", "<!-- end of auto -->"
WANTED: Final = 0.9
NUMBERS: Final = 1 << 10
CHUNK_ROWS: Final = 64

Workers: TypeAlias = int | Literal["auto"]


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """Rows that are stored, and seconds of a setting: before it counts, with "auto", and then."""

    rows: int = 1 << 15
    fixed_s: float = 3.0
    auto_s: float = 10.0
    counts_s: float = 6.0


SMALL: Final = Size(rows=1 << 10, fixed_s=0.1, auto_s=0.1, counts_s=0.2)


def sorted_numbers(number: Any) -> Any:
    """Some 3 ms of NumPy, most of it without the interpreter's lock."""
    return np.sort(np.random.default_rng(int(number)).random(1 << 15, np.float32))[:16]


def augmented(row: Any) -> Any:
    """Some 0.3 ms, half of it Python and half NumPy."""
    number = 0
    for _ in range(8_000):
        number = number + 1
    return np.sort(row.astype(np.float32)) + number


def chains(store: Path) -> Mapping[str, windrow.IterDataset[Any]]:
    """The chains, by what they do."""
    # Less memory than the store takes: chunks are decoded in every epoch.
    options = windrow.ReadOptions(resident_bytes=16 << 20)
    rows = windrow.MapDataset.source(ZarrDataSource(store)).seed(1).block_shuffle(window_blocks=16)
    numbers = windrow.MapDataset.range(1 << 20)
    found = {
        "reading: rows of Zarr, a function that returns its batch": rows.batch(256).map(same),
        "Python: 1 ms for an element": numbers.map(one_ms).batch(16),
        "NumPy: 3 ms without the interpreter's lock": numbers.map(sorted_numbers).batch(16),
        "nothing: a function that returns its element": numbers.map(same).batch(64),
        "mixed: rows of Zarr, 0.3 ms of Python and NumPy": rows.map(augmented).batch(32),
    }
    return {name: chain.repeat().to_iter_dataset(options) for name, chain in found.items()}


def written(path: Path, size: Size) -> Path:
    """Rows of 2 KB that compress to about half."""
    array = zarr.create_array(
        path,
        shape=(size.rows, NUMBERS),
        chunks=(CHUNK_ROWS, NUMBERS),
        dtype="uint16",
        compressors=[ZstdCodec(level=1)],
    )
    for start in range(0, size.rows, CHUNK_ROWS):
        array[start : start + CHUNK_ROWS] = noise(CHUNK_ROWS, NUMBERS, start)
    return path


def timed(chain: windrow.IterDataset[Any], workers: Workers, size: Size) -> tuple[float, str]:
    """Elements per second of a setting, and what "auto" chose."""
    before_s = size.auto_s if workers == "auto" else size.fixed_s
    with iter(chain.mp_prefetch(workers)) as iterator:
        next(iterator)
        until(iterator, before_s)
        count, passed_s = until(iterator, size.counts_s)
        chosen = iterator.stats().chosen
    return count / passed_s, str(chosen[0]) if chosen else ""


def until(elements: Iterator[Any], limit_s: float) -> tuple[int, float]:
    """Elements that come until some seconds have passed, at least one, and the seconds."""
    began_s, count = time.perf_counter(), 0
    for _ in elements:
        count += 1
        passed_s = time.perf_counter() - began_s
        if passed_s >= limit_s:
            break
    return count, passed_s


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A chain in a round.

    Args:
        chain: Its name.
        rates: Elements per second by setting.
        chose: What "auto" chose, and why.
    """

    chain: str
    rates: Mapping[str, float]
    chose: str


def measured(size: Size, rounds: int, say: Callable[[Line], None]) -> list[Line]:
    """Every chain in every round."""
    settings: list[Workers] = [*range(usable_cores() + 1), "auto"]
    found: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="windrow-auto-") as folder:
        store = written(Path(folder) / "rows.zarr", size)
        for number in range(rounds):
            for name, chain in chains(store).items():
                order = settings if number % 2 == 0 else settings[::-1]
                taken = {str(workers): timed(chain, workers, size) for workers in order}
                rates = {setting: rate for setting, (rate, _) in taken.items()}
                found.append(Line(name, rates, taken["auto"][1]))
                say(found[-1])
    return found


def table(lines: Sequence[Line]) -> str:
    """The chains, with the best fixed setting of each and what "auto" gave."""
    rows = []
    for name in dict.fromkeys(line.chain for line in lines):
        rounds = [line for line in lines if line.chain == name]
        fixed = [setting for setting in rounds[0].rates if setting != "auto"]
        medians = {
            setting: statistics.median(line.rates[setting] for line in rounds) for setting in fixed
        }
        best = max(fixed, key=medians.__getitem__)
        times = [line.rates["auto"] / line.rates[best] for line in rounds]
        median = statistics.median(times)
        none = medians[best] / medians["0"]
        rows.append(
            (
                name,
                rounds[-1].chose.partition(":")[0],
                best,
                f"{none:.2f}",
                f"{median:.2f} ({min(times):.2f} to {max(times):.2f})",
                "yes" if median >= WANTED else "**no**",
            )
        )
    head = (
        "chain",
        "chosen",
        "best number",
        "times none",
        "auto, of the best",
        f"≥ {WANTED:g}",
    )
    return report.table(head, rows, left=2)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.auto", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the table into a page")
    given = parser.parse_args(argv)
    size, rounds = (SMALL, 1) if given.small else (Size(), given.rounds)
    lines = measured(
        size, rounds, lambda line: print(json.dumps(dataclasses.asdict(line)), flush=True)
    )
    text = table(lines)
    print(text)
    if given.page:
        report.put_into_page(given.page, text, begin=_BEGIN, end=_END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
