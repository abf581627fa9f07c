"""`python -m benchmarks.measuring`: what it costs that iterators always measure, see docs/stats.md.

The same epoch is read with measuring, and with all of it replaced by functions that do nothing, in
turns within one process, so that a busy moment of the machine meets both. A round is one without
and two with it, in an order by chance: what these two differ by is noise. What counts are seconds
of cores, which other programs disturb less than the clock, and the median of the rounds' ratios.
The figures go to stdout as a table; with `--page` also to docs/measurements.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import windrow
from benchmarks import data
from benchmarks.figures import placed
from windrow.engine import execute, prefetch_thread, process_executor, stages
from windrow.engine import read_batches as rounds
from windrow.sources import ZarrDataSource
from windrow.stats import profiler, read_counters

_PAGE: Final = Path(__file__).parents[1] / "docs" / "measurements.md"
_BATCH: Final = 256
_FEW: Final = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A chain to read one epoch of.

    Args:
        what: The chain in words.
        epoch: Makes the dataset, from sizes.
    """

    what: str
    epoch: Callable[[data.Data], Any]


def _numbers(sizes: data.Data) -> Any:
    return windrow.MapDataset.range(sizes.elements).shuffle(seed=1)


def _rows(sizes: data.Data) -> Any:
    source = ZarrDataSource(sizes.path("zarr"))
    return windrow.MapDataset.source(source).block_shuffle(seed=1)


CASES: Final = (
    # The fastest chain there is: nothing is read and no function called.
    Case("a range, shuffled, in batches of 256", lambda s: _numbers(s).batch(_BATCH)),
    # The fastest that reads.
    Case("Zarr, `block_shuffle`, batches of 256", lambda s: _rows(s).batch(_BATCH)),
    # Blocks are of a fraction of a millisecond: there is no less to measure by.
    Case(
        "a range as a stream, then batches of 32",
        lambda s: _numbers(s)[: s.calls].to_iter_dataset().batch(_FEW),
    ),
)


def _nothing(*args: object, **kwargs: object) -> Any:
    return None


def _no_context(*args: object) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _next_in_turn(blocks: Any) -> prefetch_thread.ReadyBlock:
    return prefetch_thread.ReadyBlock(next(blocks._blocks), 0, None)


_REPLACED: Final[tuple[tuple[Any, str, Any], ...]] = (
    *(
        (module, "doing", _no_context)
        for module in (execute, rounds, process_executor, prefetch_thread)
    ),
    *((module, "calling", _no_context) for module in (execute, stages)),
    *(
        (profiler.ActivityClock, name, _nothing)
        for name in ("begin", "pause", "made_block", "begin_block", "weigh")
    ),
    *(
        (profiler.Profiler, name, _nothing)
        for name in ("asked", "got", "took", "stopped", "dropped")
    ),
    *(
        (read_counters.PartCounters, name, _nothing)
        for name in ("started", "wanted", "has_cache", "holds")
    ),
    (read_counters.ReadCounters, "arrived", _nothing),
    (prefetch_thread.Inline, "__next__", _next_in_turn),
)


@contextlib.contextmanager
def unmeasured() -> Iterator[None]:
    """Nothing is measured, of iterators that live within."""
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in _REPLACED]
    try:
        for owner, name, other in _REPLACED:
            setattr(owner, name, other)
        yield
    finally:
        for owner, name, own in kept:
            setattr(owner, name, own)


def _cores_s(dataset: Any) -> tuple[float, int]:
    """Seconds of all cores for one epoch, and its elements."""
    gc.collect()
    iterator, elements = iter(dataset), 0
    start_s = time.process_time()
    for _ in iterator:
        elements += 1
    took_s = time.process_time() - start_s
    iterator.close()
    return took_s, elements


def _elements_of_a_block(dataset: Any) -> float:
    """How many elements come at a time, on average over an epoch."""
    counts: list[int] = []
    name, own = "took", profiler.Profiler.took

    def noted(
        self: profiler.Profiler, elements: int, size_bytes: int, made: profiler.Made | None
    ) -> None:
        counts.append(elements)
        own(self, elements, size_bytes, made)

    setattr(profiler.Profiler, name, noted)
    try:
        _cores_s(dataset)
    finally:
        setattr(profiler.Profiler, name, own)
    return statistics.mean(counts)


def measured(case: Case, sizes: data.Data, repeats: int) -> dict[str, float]:
    """The figures of a case, after a round that counts for nothing."""
    dataset, elements = case.epoch(sizes), 0
    chance = random.Random(0)
    rounds: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        took_s: dict[str, float] = {}
        for side in chance.sample(("with", "again", "without"), 3):
            with unmeasured() if side == "without" else contextlib.nullcontext():
                took_s[side], elements = _cores_s(dataset)
        rounds.append(took_s)
    del rounds[0]
    without_s = statistics.median(took_s["without"] for took_s in rounds)
    share = statistics.median(took_s["with"] / took_s["without"] for took_s in rounds) - 1
    return {
        "elements_of_a_block": _elements_of_a_block(dataset),
        "element_us": without_s / elements * 1e6,
        "cost_us": share * without_s / elements * 1e6,
        "share": share,
        "noise": statistics.median(took_s["again"] / took_s["with"] for took_s in rounds) - 1,
    }


def table(found: Sequence[tuple[Case, dict[str, float]]]) -> str:
    """The figures as lines of Markdown."""
    lines = [
        "| chain | batches of a block | a batch | measuring it | that adds | noise |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {case.what} | {figures['elements_of_a_block']:,.1f} | {figures['element_us']:,.1f} us"
        f" | {figures['cost_us']:.2f} us | {figures['share']:+.1%} | {figures['noise']:+.1%} |"
        for case, figures in found
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write it to the page if that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measuring", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--repeats", type=int, default=101, help="rounds of each chain [101]")
    parser.add_argument("--page", action="store_true", help="write docs/measurements.md too")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="windrow-benchmarks-") as folder:
        sizes = data.Data(folder, records=40_000, elements=2_000_000, calls=100_000)
        sizes = data.small(folder) if args.small else sizes
        data.write(sizes, "zarr")
        repeats = 2 if args.small else args.repeats
        found = [(case, measured(case, sizes, repeats)) for case in CASES]
    text = table(found)
    print(text)
    if args.page:
        page = _PAGE.read_text(encoding="utf-8")
        _PAGE.write_text(placed(text, page, "measuring"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
