"""What the figures have to be, and whether they are.

Ratios are taken within each round, where both sides ran one after the other, and the median of them
counts: what slows the whole machine falls out.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from benchmarks.cases import CASES, OURS, Measured
from benchmarks.job import Metrics


@dataclasses.dataclass(frozen=True, slots=True)
class Criterion:
    """A figure of ours, or its ratio to another side's, and its bound; one bound is given.

    Args:
        case: Name of the case; empty for the worst of all without worker processes.
        what: The figure in words.
        metric: Its name.
        over: The side it is divided by; empty for the figure itself.
        side: The side that is judged.
        minus: A figure of the same measurement that is taken off.
        at_least: The bound below.
        at_most: The bound above.
    """

    case: str
    what: str
    metric: str = "records_per_s"
    over: str = ""
    side: str = OURS
    minus: str = ""
    at_least: float | None = None
    at_most: float | None = None


_MEMORY = "MB of memory over an idle import and the budget"
CRITERIA = (
    Criterion("zarr.block", "of two threads that only decompress", over="floor", at_least=0.8),
    Criterion("zarr.block", "times the expert's loop", over="expert", at_least=1.2),
    Criterion("zarr.block", "times Grain's default, cache on", over="Grain", at_least=30),
    Criterion("zarr.budget", _MEMORY, "memory_mb", minus="budget_mb", at_most=150),
    Criterion("zarr.block", "bytes decoded per byte delivered", "decoded", at_most=1.02),
    Criterion("shards.global", "times the expert's loop", over="expert", at_least=2),
    Criterion("shards.global", "of a native loop on two threads", over="floor", at_least=0.7),
    Criterion("shards.global", "times Grain's default", over="Grain", at_least=25),
    Criterion("raw.global", "of a gather from memory", over="floor", at_least=0.5),
    Criterion("raw.global", "times HF datasets over Arrow", over="HF datasets", at_least=1.2),
    Criterion("array_record.global", "of the reader's `read(list)`", over="reader", at_least=0.9),
    Criterion("array_record.global", "times Grain's default", over="Grain", at_least=12),
    Criterion(
        "array_record.block",
        "times the reader alone under a global shuffle",
        over="reader",
        at_least=2,
    ),
    Criterion(
        "array_record.direct",
        "times `read(list)` per CPU-second, a batch a call",
        "records_per_cpu_s",
        over="reader, a batch a call",
        at_least=1,
    ),
    Criterion(
        "array_record.direct",
        "times `read(list)` per CPU-second, 4 batches a call",
        "records_per_cpu_s",
        over="reader, 4 batches a call",
        side="ours, 4 batches a call",
        at_least=1,
    ),
    Criterion("tokens.block", "times the expert's loop", over="expert", at_least=1),
    Criterion("tokens.cached", "of a gather from memory", over="floor", at_least=0.4),
    Criterion("tokens.cached", "times np.memmap in a loop", over="memmap", at_least=3),
    Criterion("fields.global", "times the expert's loop", over="expert", at_least=1),
    Criterion("fields.global", "times the loop with a cache", over="expert, cache", at_least=1),
    Criterion("fields.global", "times xbatcher in torch", over="xbatcher", at_least=5),
    Criterion("fields.quarter", "times the expert's loop", over="expert", at_least=1),
    Criterion("fields.quarter", "times the loop with a cache", over="expert, cache", at_least=1),
    Criterion("fields.block", "times the expert's global loop", over="expert", at_least=2.5),
    Criterion("fields.budget", "times the expert's global loop", over="expert", at_least=1.5),
    # Blocks of 16 windows lie in 18 steps.
    Criterion("fields.block", "times each chunk is read per epoch", "reads", at_most=1.14),
    Criterion("fields.budget", "times each chunk is read per epoch", "reads", at_most=1.14),
    Criterion("patches.global", "times the expert's loop", over="expert", at_least=1),
    Criterion("patches.global", "times the loop with a cache", over="expert, cache", at_least=1),
    Criterion("patches.quarter", "times the expert's loop", over="expert", at_least=1),
    Criterion("patches.quarter", "times the loop with a cache", over="expert, cache", at_least=1),
    Criterion("patches.block", "times the expert's global loop", over="expert", at_least=3),
    *(
        Criterion(case, _MEMORY, "memory_mb", minus="budget_mb", at_most=150)
        for case in (
            "tokens.block",
            "tokens.cached",
            "fields.global",
            "fields.quarter",
            "fields.block",
            "fields.budget",
            "patches.global",
            "patches.quarter",
            "patches.block",
        )
    ),
    Criterion("remote.global", "times one request per record", over="one by one", at_least=20),
    Criterion("remote.block", "times one request per record", over="one by one", at_least=100),
    Criterion("remote.block", "times our global shuffle", over="ours, global shuffle", at_least=5),
    Criterion("remote.zarr_order", "of TensorStore alone", over="TensorStore", at_least=0.9),
    Criterion("remote.zarr_block", "of TensorStore alone", over="TensorStore", at_least=0.9),
    Criterion("remote.open", "ms to open 1,000 files", "open_ms", at_most=2_000),
    Criterion("", "ms to the first batch, the worst case", "first_batch_ms", at_most=1_000),
    Criterion(
        "convert.verify",
        "of decompression and hashing alone, by the package and google-crc32c",
        over="reader",
        at_least=0.85,
    ),
    Criterion(
        "convert.verify_zarr", "of decompression and hashing alone", over="floor", at_least=0.85
    ),
    Criterion("chain.range", "elements/s, 10 million of a range", at_least=10**7),
    Criterion("chain.range", "MB of memory; its indices are 80", "memory_mb", at_most=40),
    Criterion("chain.function", "of a bare loop over the function", over="floor", at_least=0.5),
    Criterion("workers.slow_map", "times none", over="ours, no workers", at_least=1.8),
    Criterion("workers.slow_map", "times Grain's two workers", over="Grain", at_least=1.2),
    Criterion("workers.large", "MB/s to the consumer", "mb_per_s", at_least=3_000),
    Criterion("workers.large", "times torch's two workers at best", over="torch", at_least=3),
    Criterion("workers.small", "batches/s", "batches_per_s", at_least=8_000),
    Criterion("workers.small", "times Grain's two workers at best", over="Grain, best", at_least=3),
    Criterion(
        "workers.start",
        "of the time that Grain's two workers take to the first batch",
        "first_batch_ms",
        over="Grain",
        at_most=0.5,
    ),
    Criterion("workers.start", "ms to the first batch", "first_batch_ms", at_most=1_500),
    Criterion(
        "workers.memory",
        "MB of all processes over an idle import and the shared memory, two workers",
        "memory_mb",
        minus="budget_mb",
        at_most=160,
    ),
    Criterion(
        "workers.zarr",
        "MB of all processes over an idle import and the budgets, two workers",
        "memory_mb",
        minus="budget_mb",
        at_most=160,
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What came out for a criterion: its values by round, none where it was not measured."""

    criterion: Criterion
    case: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value that counts."""
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool:
        """Whether the median keeps the bound."""
        least, most = self.criterion.at_least, self.criterion.at_most
        return (least is None or self.median >= least) and (most is None or self.median <= most)


def judged(results: Sequence[Measured]) -> list[Verdict]:
    """A verdict for each criterion whose sides were all measured."""
    found = []
    apart = {case.name for case in CASES if case.has_workers}
    alone = [r.case for r in results if r.side == OURS and r.case not in apart]
    for criterion in CRITERIA:
        names = [criterion.case] if criterion.case else alone
        verdicts = [Verdict(criterion, name, _values(criterion, name, results)) for name in names]
        verdicts = [verdict for verdict in verdicts if verdict.values]
        found += sorted(verdicts, key=lambda verdict: verdict.median)[-1:]
    return found


def _values(criterion: Criterion, case: str, results: Sequence[Measured]) -> tuple[float, ...]:
    rounds = {result.side: result.rounds for result in results if result.case == case}
    ours = rounds.get(criterion.side, ())
    if not criterion.over:
        values = (_value(criterion, figures) for figures in ours)
        return tuple(value for value in values if value is not None)
    metric, others = criterion.metric, rounds.get(criterion.over, ())
    return tuple(
        mine[metric] / theirs[metric]
        for mine, theirs in zip(ours, others, strict=False)
        if metric in mine and metric in theirs
    )


def _value(criterion: Criterion, figures: Metrics) -> float | None:
    if criterion.metric == "decoded":
        # What is read whole is decoded whole, once: where nobody counts it, what was read says it.
        return figures.get("decoded", figures.get("reads"))
    if criterion.metric not in figures:
        return None
    return figures[criterion.metric] - figures.get(criterion.minus, 0.0)
