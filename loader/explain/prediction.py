"""Predictions: the costs of a stream, from dry runs in a few settings.

Figures range from the lowest to the highest of all runs, and are numbers where the runs agree. The
run of a long stream is cut: the rest is assumed to be like the second half of the run. If that does
not show how often chunks come back, or how much is held, bounds follow from the budgets.

Invariant: as for dry runs, nothing is read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.engine.budgets import CacheRoom
from windrow.engine.read_batches import GOAL_S
from windrow.explain.dry_run import (
    MOST_RECORDS,
    MOST_S,
    DryRun,
    PartOfBatch,
    Setting,
    dry_run,
    may_end_early,
)
from windrow.explain.extrapolation import Progress, costs_of, progress_of
from windrow.sources.chunks import LaidOutSource
from windrow.stats.costs import Amount, SourceCosts, combined
from windrow.transforms.nodes import STREAM, Node, ToStreamNode, chains_of
from windrow.transforms.record_sizes import record_bytes

IntArray = npt.NDArray[np.int64]
T = TypeVar("T")

_KINDS: Final = ("chunks", "planned", "rounds", "queue")
# Seconds that planning may take in later runs of a stream, if the first run was cut and if it was
# not.
_MOST_AGAIN_S: Final = 0.12
_MOST_SLOW_S: Final = 0.4
# The share by which reads vary with their order, if chunks make room for others.
_CHANCE: Final = 0.04
_FEW_READS: Final = 8
# How many more reads other runs have, as a share of those that were started before chunks went
# straight to read batches. All of these may be spared.
_MORE: Final = 0.5
# The most runs of uneven read batches, and the seconds that planning them may take.
_UNEVEN_RUNS: Final = 16
_UNEVEN_S: Final = 0.4
# The least seeds of such runs. Both are odd, so all read batches are delayed. Buffers depend on them
# even where reads do not.
_OFTEN_STOPPED: Final = (1, 9)
# With this many slots a read serves its read batch and the next one, however long it takes.
_LEAST_SLOTS: Final = 2


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The costs of a stream, from dry runs in several settings.

    Args:
        epoch: The costs of reading each source in the first epoch.
        later_epoch: The same for each later epoch of an endless stream.
        peak: The most bytes of buffers at a time.
        peak_by: The same by kind.
        runs: The dry runs of an epoch.
        cut: Streams that were cut, with the number of elements that were computed.
        streams: The streams that it is made of, depth first; a stream in two places occurs twice.
    """

    epoch: tuple[SourceCosts, ...]
    later_epoch: tuple[SourceCosts, ...]
    peak: Amount
    peak_by: Mapping[str, Amount]
    runs: tuple[RunFigures, ...]
    cut: tuple[tuple[ToStreamNode, int], ...]
    streams: tuple[ToStreamNode, ...]

    def parts(self, stream: ToStreamNode) -> list[PartRun]:
        """The parts that a stream reads through a prefetcher, with the most of all runs."""
        numbers = [n for n, each in enumerate(self.streams) if each is stream]
        return _most_of(
            own for run in self.runs for number in numbers for own in run.parts.get(number, ())
        )


def predicted(node: Node) -> Prediction:
    """The costs of a stream."""
    endless = node.is_endless()
    once, share = _shrunk(node.first_epochs(1) if endless else node)
    tried = _runs(once, share, most_uneven=_UNEVEN_RUNS)
    runs = tuple(run for run in tried if any(run.reached.values()) or run.is_whole) or tried[:1]
    epoch = _over(_by_chance(run, node.sources()) for run in runs)
    later = _later(node, share, tried, epoch) if endless else epoch
    whole = _runs(_shrunk(node)[0], share) if endless else runs
    if not _takes_long(node):
        whole = tuple(run for run in whole if run.setting.pace != "slow functions")
    peak, by = _peaks(node, whole)
    held = [costs.held_bytes for costs in _over(run.costs for run in whole)]
    epoch, later = (
        tuple(dataclasses.replace(c, held_bytes=h) for c, h in zip(costs, held, strict=True))
        for costs in (epoch, later)
    )
    cut = () if runs[0].is_whole and share == 1 else tuple(_cut(once, runs))
    return Prediction(epoch, later, peak, by, runs, cut, tuple(chains_of(node)))


class QuickFigures(NamedTuple):
    """The costs of each source in the first epoch, and the most bytes of buffers at a time."""

    costs: tuple[SourceCosts, ...]
    peak: Amount


def quick_figures(node: Node, most_s: float) -> QuickFigures:
    """The figures of one dry run of the first epoch of a stream; its buffers by a few.

    Args:
        node: The stream.
        most_s: The seconds that planning all may take on a usual machine.
    """
    most_s /= 1 + len(_OFTEN_STOPPED)
    once, share = _shrunk(node.first_epochs(1) if node.is_endless() else node)
    run = _figures(once, Setting(), share, most_s)
    peaks = [run.peak_bytes]
    for seed in _OFTEN_STOPPED if run.varies else ():
        uneven = Setting("uneven", waits=True, seed=seed)
        peaks.append(_figures(once, uneven, share, most_s).peak_bytes)
    return QuickFigures(run.costs, _span(peaks))


def _cut(node: Node, runs: Sequence[RunFigures]) -> Iterator[tuple[ToStreamNode, int]]:
    for number, each in enumerate(chains_of(node)):
        reached = max(run.reached.get(number, 0) for run in runs)
        if reached < each.parent.index_count:
            yield each, reached


def _peaks(node: Node, runs: Sequence[RunFigures]) -> tuple[Amount, dict[str, Amount]]:
    """The most bytes of buffers, in all and by kind, with bytes that no run has seen.

    Runs have not seen elements of unknown size, nor what comes after a run was cut: before it had
    planned as much as there is room for, or before the queue was full.
    """
    kinds = dict.fromkeys([*_KINDS, *(kind for run in runs for kind in run.peak_by)])
    by = {kind: _span(run.peak_by.get(kind, 0) for run in runs) for kind in kinds}
    peak = _span(run.peak_bytes for run in runs)
    most: dict[str, float] = {}
    fill = min(run.fill for run in runs)
    if fill < 1:
        # The most bytes planned before their read batch is made.
        most["planned"] = by["planned"].high / max(fill, 0.01)
        most["chunks"] = max(sum(costs.held_bytes.high for costs in run.costs) for run in runs)
    options = [each.read_options for each in chains_of(node)]
    own = next((each for each in options if each.ahead), options[0])
    size = node.element_bytes()
    if size is None:
        most |= {"queue": own.prefetch_bytes, "rounds": 3 * own.block_bytes}
    elif not all(run.is_whole or run.was_full for run in runs):
        ready = min(own.prefetch_buffer_size, node.elements().high) * size.high
        most["queue"] = max(min(ready, own.prefetch_bytes), size.high)
        most["rounds"] = max(3 * min(ready, own.block_bytes), 3 * size.high)
    for kind, size_bytes in most.items():
        if kind == "queue" and not own.ahead:
            continue
        known, low = by[kind], 0 if size is None and kind != "planned" else by[kind].low
        by[kind] = Amount(low, max(known.high, size_bytes))
        peak = Amount(peak.low, peak.high + by[kind].high - known.high)
    return peak, by


def _by_chance(run: RunFigures, sources: Sequence[Any]) -> tuple[SourceCosts, ...]:
    """Widen the costs of a run where chunks make room for others, which depends on chance."""
    early: dict[int, int] = {}
    for own in (own for parts in run.parts.values() for own in parts):
        if own.crowded_out and (run.varies or own.room.slots > _LEAST_SLOTS):
            key = id(own.room.source)
            started = own.started_early if own.room.scatters and run.varies else 0
            early[key] = max(early.get(key, 0), started)
    return tuple(
        _of_chance(costs, early[id(source)]) if id(source) in early else costs
        for costs, source in zip(run.costs, sources, strict=True)
    )


def _of_chance(costs: SourceCosts, early: int) -> SourceCosts:
    """Widen costs; `early` chunks were read before chunks went straight to read batches.

    How many of these are read once more depends on the lengths of the first read batches.
    """
    reads = costs.reads
    chance = max(_FEW_READS, _CHANCE * reads.high)
    less, more = max(chance, early), max(chance, _MORE * early)
    least = max(min(costs.chunks.low, reads.low), reads.low - less)
    return _with_hits(costs.with_reads(Amount(least, reads.high + more)), max(less, more))


def _with_hits(costs: SourceCosts, more: float) -> SourceCosts:
    hits = Amount(max(0, costs.hits.low - more), costs.hits.high + more)
    return dataclasses.replace(costs, hits=hits)


def _later(
    node: Node, share: float, first: Sequence[RunFigures], epoch: tuple[SourceCosts, ...]
) -> tuple[SourceCosts, ...]:
    """The costs of each later epoch of an endless stream, from the runs of its first epoch."""
    before = {run.setting: run.costs for run in first if run.is_whole}
    found, fits = [], False
    for more in (1, 2):
        runs = _runs(_shrunk(node.first_epochs(1 + more))[0], share)
        for run in runs:
            if run.is_whole and run.setting in before:
                pairs = zip(before[run.setting], run.costs, strict=True)
                found.append(tuple(_difference(one, other, more) for one, other in pairs))
        fits = any(own.room.fits for run in runs for parts in run.parts.values() for own in parts)
    if found:
        return tuple(map(_of_any_epoch, _over(found)))
    # The run was too short to see this: if there is room for everything, all of it may be kept.
    return tuple(map(_maybe_kept, epoch)) if fits else epoch


def _maybe_kept(costs: SourceCosts) -> SourceCosts:
    found = costs.with_reads(Amount(0, costs.reads.high))
    return dataclasses.replace(found, hits=Amount(0, costs.hits.high))


def _of_any_epoch(costs: SourceCosts) -> SourceCosts:
    """The costs of any later epoch, from two epochs: how much is still held depends on chance."""
    reads, left = costs.reads, costs.chunks.low - costs.reads.high
    if not reads.low or left <= 0:
        return costs
    chance = 3 * math.sqrt(left)
    least = max(0, math.floor(reads.low - chance))
    most = min(math.ceil(reads.high + chance), costs.chunks.high)
    return _with_hits(costs.with_reads(Amount(least, most)), chance)


def _difference(before: SourceCosts, after: SourceCosts, epochs: int) -> SourceCosts:
    found = combined(
        lambda one, other: Amount.exactly(max(0, other.high - one.high) / epochs), [before, after]
    )
    return dataclasses.replace(found, chunks=before.chunks, held_bytes=before.held_bytes)


def _over(found: Iterable[tuple[SourceCosts, ...]]) -> tuple[SourceCosts, ...]:
    """Costs from the least to the most of all runs."""
    return tuple(combined(_widest, own) for own in zip(*found, strict=True))


def _widest(*amounts: Amount) -> Amount:
    return Amount(min(each.low for each in amounts), max(each.high for each in amounts))


def _span(numbers: Iterable[float]) -> Amount:
    return _widest(*map(Amount.exactly, numbers))


def _runs(node: Node, share: float, *, most_uneven: int = 0) -> tuple[RunFigures, ...]:
    """Dry runs in all settings that make a difference.

    Where reads depend on the lengths of read batches, up to `most_uneven` runs vary these.
    """
    nodes = list(node.walk())
    sizes = [node.element_bytes(), *map(record_bytes, node.sources())]
    is_large = any(size is None or not size.is_exact for size in sizes)
    first = _figures(node, Setting(), share, MOST_S)
    has_workers = any(each.workers is not None for each in nodes)
    settings = []
    if first.parts or has_workers or is_large:
        settings.append(Setting(waits=True, is_large=is_large))
    takes_long = _takes_long(node)
    if first.varies:
        count = min(most_uneven, int(_UNEVEN_S / first.spent_s)) if first.is_crowded else 0
        settings += [
            Setting("uneven", waits=True, is_large=is_large, seed=seed)
            for seed in sorted({*_OFTEN_STOPPED, *range(count)})
        ]
    if first.varies or is_large:
        if takes_long or first.parts or may_end_early(node):
            settings.append(Setting("slow functions", waits=True, is_large=is_large))
        if not takes_long and (first.longest_s > GOAL_S or not first.parts):
            settings.append(Setting("slow storage", waits=True, is_large=is_large))
    if any(each.drops for each in nodes):
        settings.append(Setting(keeps=False))
        if takes_long:
            settings.append(Setting("slow functions", waits=True, keeps=False, is_large=is_large))
    most_s = _MOST_SLOW_S if first.is_whole else _MOST_AGAIN_S
    return (first, *(_figures(node, setting, share, most_s) for setting in settings))


def _takes_long(node: Node) -> bool:
    """Whether functions, or chunks of a source however small they are, may take long."""
    parts = [
        p for source in node.sources() if isinstance(source, LaidOutSource) for p in source.parts
    ]
    slow = any(getattr(getattr(part, "reader", None), "is_slow", False) for part in parts)
    return slow or any(each.functions for each in node.walk())


# --- what is run: an epoch, and a part of what is huge


def _shrunk(node: Node) -> tuple[Node, float]:
    """A stream with a part of each of its huge elements, and how large a part that is."""
    rows = max(each.parent.most_records() for each in chains_of(node))
    share = MOST_RECORDS / rows if rows > 1.5 * MOST_RECORDS else 1.0
    return (_with_parts(node, share) if share < 1 else node), share


def _with_parts(node: Node, share: float) -> Node:
    """The chain with a part of each batch that is made before it is a stream."""
    if node.length == STREAM or node.group_size is None:
        return node.over(tuple(_with_parts(parent, share) for parent in node.parents))
    drops = node.length * node.group_size <= node.parent.length
    own = node.functions[0] if node.functions else None
    return PartOfBatch(node.parents, node.group_size, drops, own, share=share)


# --- one run


class PartRun(NamedTuple):
    """The state of a part that a prefetcher has read, in one stream.

    Args:
        room: The room of its prefetcher.
        held: The most slots in use.
        crowded_out: Chunks that made room for others while read batches wanted them, or were read
            again since some read batches that wanted them were not planned.
        started_early: Reads that were started before chunks went straight to read batches.
    """

    room: CacheRoom
    held: int
    crowded_out: int
    started_early: int


def _most_of(found: Iterable[PartRun]) -> list[PartRun]:
    """Each part once, with the most of all runs."""
    parts: dict[int, PartRun] = {}
    for own in found:
        other = parts.get(id(own.room.part), own)
        most = map(max, own[1:], other[1:])
        parts[id(own.room.part)] = PartRun(own.room, *most)
    return list(parts.values())


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RunFigures:
    """The results of a dry run.

    Args:
        setting: The speeds and assumptions of the run.
        costs: The costs of reading each source; if the run was cut, of the whole stream.
        peak_by: The most bytes of buffers, by kind.
        peak_bytes: The most of all of them at a time.
        is_whole: Whether the run came to its end.
        reached: The elements of each stream that were made, by its number among them.
        parts: The parts that were read through a prefetcher, by the same.
        fill: The share of the room for plans that was filled when the run was cut; otherwise 1.
        was_full: Whether the queue was full once.
        varies: Whether some read batches were longer than they can be.
        longest_s: The most seconds that a read batch takes from slow storage.
        spent_s: The seconds that planning takes on a usual machine.
    """

    setting: Setting
    costs: tuple[SourceCosts, ...]
    peak_by: Mapping[str, int]
    peak_bytes: int
    is_whole: bool
    reached: Mapping[int, int]
    parts: Mapping[int, Sequence[PartRun]]
    fill: float
    was_full: bool
    varies: bool
    longest_s: float
    spent_s: float

    @property
    def is_crowded(self) -> bool:
        """Whether chunks made room for others, where they go straight to read batches."""
        found = (own for parts in self.parts.values() for own in parts)
        return any(own.crowded_out and own.room.scatters for own in found)


def _figures(node: Node, setting: Setting, share: float, most_s: float) -> RunFigures:
    """Return the results of a dry run; `share` is the part of each element that it made."""
    half: list[Progress] = []
    run = dry_run(node, setting, most_s, lambda own: half.append(progress_of(own)))
    return RunFigures(
        setting=setting,
        costs=tuple(costs_of(run, node, share, half[0] if half else progress_of(run))),
        peak_by=run.maker.peak_by,
        peak_bytes=run.maker.peak_bytes,
        is_whole=run.is_whole,
        reached=_by_number(node, run.made),
        parts=_by_number(node, _parts(run)),
        fill=1.0 if run.is_whole or not run.aheads else min(1.0, run.aheads[-1][1].fill),
        was_full=run.was_full,
        varies=run.varies,
        longest_s=run.longest_s,
        spent_s=run.spent_s,
    )


def _by_number(node: Node, found: Mapping[int, T]) -> dict[int, T]:
    """Values by the `id` of a stream, as values by its number among the streams of a chain."""
    numbers = {id(each): number for number, each in reversed([*enumerate(chains_of(node))])}
    return {numbers[key]: value for key, value in found.items()}


def _parts(run: DryRun) -> dict[int, list[PartRun]]:
    found: dict[int, list[PartRun]] = {}
    for node, prefetcher in run.aheads:
        found.setdefault(id(node), []).extend(
            PartRun(
                ahead.room,
                ahead.cache_bytes // ahead.room.chunk_bytes,
                ahead.crowded_out,
                ahead.started_early,
            )
            for ahead in prefetcher.parts
        )
    return found
