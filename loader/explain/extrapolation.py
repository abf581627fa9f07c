"""Extrapolation: the costs of reading in a dry run, and in the whole stream if the run was cut.

What is left of a run that was cut is taken to be like the second half of what was run. Where that
was too short to see how often chunks come back, bounds follow from the room that there is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.engine.budgets import CacheRoom
from windrow.explain.dry_run import DryRun, rows_of
from windrow.explain.record_sizes import record_bytes
from windrow.explain.whole_sources import chunks_of_all, gone_through
from windrow.sources.chunks import LaidOutSource, Part
from windrow.sources.foreign import ForeignDataSource
from windrow.stats.costs import Amount, SourceCosts
from windrow.stats.read_counters import SourceCounters
from windrow.transforms.nodes import Node, ToStreamNode

IntArray = npt.NDArray[np.int64]

# The lower bound's share of the hits and of the reads of a shuffle: chance may bring fewer.
_LUCK: Final = 0.8
_FEW_READS: Final = 3
# By how much less or more a stream that ends early may have made: its last read batch is longer or
# shorter.
_LAST_LESS: Final = 1.25
_LAST_MORE: Final = 2.0
# A shuffle of everything that wants at least this share of the chunks wants them all over.
_SPREAD: Final = 0.8
# How far the reads of the part that was run may be from the reads of the rest, in standard deviations.
_DEVIATIONS: Final = 4


@dataclasses.dataclass(frozen=True, slots=True)
class PartProgress:
    """Records of a part that were planned, the reads that they want, and hits."""

    records: int
    reads: float
    hits: float


# By the source's `id` and the part's name.
Progress: TypeAlias = Mapping[tuple[int, str], PartProgress]


def progress_of(run: DryRun) -> Progress:
    """What was planned and read so far."""
    parts: dict[tuple[int, str], PartProgress] = {}
    for counters in run.meter.read_counters.all:
        source = counters.source
        for part in source.parts if isinstance(source, LaidOutSource) else ():
            costs = counters.part(part).costs()
            ahead = [own for _, each in run.aheads if (own := each.of(source, part))]
            records, reads = counters.records, costs.reads.low
            if ahead:
                records = sum(own.planned for own in ahead)
                reads = sum(own.entered for own in ahead)
            parts[id(source), part.name] = PartProgress(records, reads, costs.hits.low)
    return parts


def costs_of(run: DryRun, node: Node, share: float, half: Progress) -> Iterator[SourceCosts]:
    """What a run comes to, by source; where it was cut the rest is taken to be like its second half."""
    for counters in run.meter.read_counters.all:
        costs = _without_unknown(counters.costs(), counters.source)
        if not counters.records:
            yield costs
        elif run.is_whole and share == 1:
            if run.varies:
                least = max(0, math.floor(_LUCK * costs.hits.low) - _FEW_READS)
                costs = dataclasses.replace(costs, hits=Amount(least, costs.hits.high))
            yield _ended(run, counters.source, costs)
        else:
            yield _extrapolated(run, node, counters, costs, share, half)


def _ended(run: DryRun, source: Any, costs: SourceCosts) -> SourceCosts:
    """What a whole run comes to: where it ends before a stream does, what is read ahead is not known."""
    mine = [each for each in run.streams.values() if source in each[0].sources()]
    if all(run.made.get(id(node), 0) >= count for node, count in mine):
        return costs
    # The last read batch may have been longer, or shorter.
    left = sum(count for _, count in mine) / max(1, sum(run.made.get(id(n), 0) for n, _ in mine))
    more = min(_LAST_MORE, left)
    wider = {
        name: Amount(math.floor(amount.low / _LAST_LESS), math.ceil(amount.high * more))
        for name in ("records", "delivered_bytes", "reads", "stored_bytes", "decoded_bytes")
        if isinstance(amount := getattr(costs, name), Amount)
    }
    if not isinstance(source, LaidOutSource):
        return dataclasses.replace(costs, **wider)  # type: ignore[arg-type]
    least = most = 0
    for part in source.parts:
        ahead = [own for _, each in run.aheads if (own := each.of(source, part)) is not None]
        if ahead:
            least += run.used[id(part)].count if id(part) in run.used else 0
            most += sum(own.entered for own in ahead)
    seen = costs.reads.high
    others = seen - sum(
        own.entered - own.waiting
        for _, each in run.aheads
        for own in each.parts
        if own.room.source is source
    )
    reads = Amount(math.floor((others + least) / _LAST_LESS), math.ceil((others + most) * more))
    factor = Amount(reads.low / max(1, seen), reads.high / max(1, seen))
    stored, decoded = (
        size and Amount(size.low * factor.low, size.high * factor.high)
        for size in (costs.stored_bytes, costs.decoded_bytes)
    )
    chunks = Amount(min(reads.low, costs.chunks.low), max(costs.chunks.high, reads.high))
    return dataclasses.replace(
        costs,
        records=wider["records"],
        delivered_bytes=wider.get("delivered_bytes"),
        chunks=chunks,
        reads=reads,
        stored_bytes=stored,
        decoded_bytes=decoded,
        # Read batches are up to four times as long as the last one: so much more may be planned.
        hits=Amount(0, 4 * costs.hits.high),
    )


def _without_unknown(costs: SourceCosts, source: Any) -> SourceCosts:
    """Costs without the figures that are not known before a record is read."""
    if record_bytes(source) is not None:
        return costs
    decoded = None if isinstance(source, ForeignDataSource) else costs.decoded_bytes
    return dataclasses.replace(costs, delivered_bytes=None, decoded_bytes=decoded)


def _extrapolated(
    run: DryRun,
    node: Node,
    counters: SourceCounters,
    costs: SourceCosts,
    share: float,
    half: Progress,
) -> SourceCosts:
    source = counters.source
    ratio = node.elements().high / run.delivered if run.delivered else math.inf
    whole, made = 0.0, 0
    mine = [own for own in run.streams.values() if source in own[0].sources()]
    for each, count in mine:
        done = run.made.get(id(each), 0)
        made += done
        whole += min(count, done * ratio) if done else 0
    factor = max(1.0, whole / max(1, made)) / share
    records = _all_records(source, mine, counters.records * factor)
    delivered_bytes = costs.delivered_bytes
    found = dataclasses.replace(
        costs,
        records=records,
        delivered_bytes=delivered_bytes and delivered_bytes.times(records.high / counters.records),
    )
    if delivered_bytes is not None:
        each_bytes = delivered_bytes.low / counters.records
        found = dataclasses.replace(found, delivered_bytes=records.times(each_bytes))
    if not isinstance(source, LaidOutSource):
        is_foreign = isinstance(source, ForeignDataSource)
        decoded = found.delivered_bytes if is_foreign else costs.decoded_bytes
        return dataclasses.replace(
            found, reads=records if is_foreign else costs.reads, decoded_bytes=decoded
        )
    end, empty = progress_of(run), PartProgress(0, 0, 0)
    is_gone_through = all(id(source) in gone_through(each.parent) for each, _ in mine)
    passes = max(1, round(records.high / len(source))) if is_gone_through else 1
    parts = []
    for part in source.parts:
        key = id(source), part.name
        own = counters.part(part).costs()
        known = chunks_of_all(source, part) if is_gone_through else None
        if part.alone:
            parts.append(_alone(own, records, counters.records, known, part.chunk_count))
            continue
        aheads = [(a, each) for _, each in run.aheads if (a := each.of(source, part)) is not None]
        stretch = _Stretch(source, part, half.get(key, empty), end[key], records.high, passes)
        horizon = sum(a.outstanding / max(each.fill, 1e-6) for a, each in aheads[-1:])
        rooms = [a.room for a, _ in aheads]
        wanted = run.wanted[id(part)].count if id(part) in run.wanted else 0
        own = stretch.costs(own, known, wanted, rooms, horizon)
        if any(each.fill < 1 for _, each in aheads):
            slots = sum(room.slots * room.chunk_bytes for room in rooms[-1:])
            held = Amount(own.held_bytes.low, max(own.held_bytes.high, slots))
            own = dataclasses.replace(own, held_bytes=held)
        parts.append(own)
    return _summed(found, parts)


@dataclasses.dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of a source, of whose records some were planned, for the first half and in all.

    Args:
        source: The source.
        part: The part.
        half: What it had come to when half of the run was done.
        end: What it has come to.
        records: Records of the whole run.
        passes: How often all of the source is gone through in it.
    """

    source: Any
    part: Part
    half: PartProgress
    end: PartProgress
    records: float
    passes: int

    def costs(
        self,
        seen: SourceCosts,
        known: IntArray | None,
        wanted: int,
        rooms: Sequence[CacheRoom],
        horizon: float,
    ) -> SourceCosts:
        """What the whole run comes to.

        Args:
            seen: What the run came to.
            known: The chunks that all records lie in, where that is known.
            wanted: Chunks that were wanted in the run.
            rooms: What prefetchers had room for; empty without prefetchers.
            horizon: Records that these have room to plan.
        """
        half, end, left = self.half, self.end, max(0.0, self.records - self.end.records)
        between = max(1, end.records - half.records)
        reads = end.reads + left * (end.reads - half.reads) / between
        hits = end.hits + left * (end.hits - half.hits) / between
        wanted = wanted or int(seen.chunks.high)
        if known is None:
            most = min(self.part.chunk_count, round(wanted * self.records / end.records * 1.02))
            chunks = Amount(wanted, max(wanted, most))
        else:
            chunks = Amount.exactly(len(known))
        once = chunks.times(self.passes)
        again = end.reads > wanted
        noise = 1 + _DEVIATIONS / math.sqrt(max(1.0, end.reads - half.reads))
        if not again and reads <= 1.05 * once.high + 2 * self.records / between:
            told = once  # in order, or in blocks: other records lie in other chunks
        elif rooms and all(room.fits for room in rooms):
            # Those that are given up before the first one comes back are read twice.
            told = (
                chunks if all(room.keeps for room in rooms) else Amount(chunks.low, 2 * chunks.high)
            )
        elif rooms and not again:  # it was too short to see how often chunks come back
            least = self._least(chunks, wanted, rooms[-1].slots, horizon)
            told = Amount(max(chunks.low, least), max(chunks.high, least, reads * noise))
        else:
            told = Amount(max(chunks.low, reads / noise), max(chunks.high, reads * noise))
        hits_told = Amount(0, hits * noise + max(0.0, reads * noise - told.low))
        found = dataclasses.replace(seen, chunks=chunks, hits=hits_told)
        return _sized(found, self.part, told, known, int(seen.reads.low))

    def _least(self, chunks: Amount, wanted: int, slots: int, horizon: float) -> float:
        """Reads at least where chunks are wanted all over: each serves what is planned or kept."""
        count = self.part.chunk_count
        if wanted < _SPREAD * count * -math.expm1(-self.end.records / count):
            return 0.0
        served = max(1.0, horizon) * (1 + 2 * slots / count)
        return _LUCK * chunks.low * self.records / served


def _sized(
    seen: SourceCosts, part: Part, reads: Amount, known: IntArray | None, seen_reads: int
) -> SourceCosts:
    """The bytes of `reads` reads of chunks, estimated from the reads that were seen."""
    if known is not None and len(known) and reads.low % len(known) == 0 == reads.high - reads.low:
        times = reads.low / len(known)
        return dataclasses.replace(
            seen,
            reads=reads,
            stored_bytes=Amount.exactly(times * int(part.stored_bytes(known).sum())),
            decoded_bytes=Amount.exactly(times * int(part.decoded_bytes(known).sum())),
        )
    factor = 1 / max(1, seen_reads)
    low, high = reads.low * factor, reads.high * factor
    sizes = [
        size and Amount(math.floor(size.low * low * 0.99), math.ceil(size.high * high * 1.01))
        for size in (seen.stored_bytes, seen.decoded_bytes)
    ]
    return dataclasses.replace(seen, reads=reads, stored_bytes=sizes[0], decoded_bytes=sizes[1])


def _alone(
    seen: SourceCosts, records: Amount, made: int, known: IntArray | None, most: int
) -> SourceCosts:
    """Records of a part that are read one by one, each with its share of its chunk."""
    times = records.times(1 / max(1, made))
    chunks = seen.chunks
    if known is not None:
        chunks = Amount.exactly(len(known))
    elif made < records.high:
        chunks = Amount(chunks.low, min(most, chunks.high * times.high))
    stored, decoded = (
        size and Amount(size.low * times.low, size.high * times.high)
        for size in (seen.stored_bytes, seen.decoded_bytes)
    )
    if decoded is not None:
        decoded = Amount(round(decoded.low), round(decoded.high))
    if stored is not None:
        rounding = 1 + stored.high / 1000
        stored = Amount(math.floor(stored.low - rounding), math.ceil(stored.high + rounding))
    return dataclasses.replace(
        seen, chunks=chunks, reads=records, stored_bytes=stored, decoded_bytes=decoded
    )


def _all_records(
    source: Any, streams: Sequence[tuple[ToStreamNode, int]], counted: float
) -> Amount:
    """Records of a source that all elements ask for; `counted` of them were worked out."""
    times = round(counted / len(source))
    rounding = counted / 1000 + max((rows_of(each.parent) for each, _ in streams), default=1)
    whole = all(id(source) in gone_through(each.parent) for each, _ in streams)
    if whole and times and abs(counted - times * len(source)) <= 2 * rounding:
        return Amount.exactly(times * len(source))
    return Amount(max(0, math.floor(counted - rounding)), math.ceil(counted + rounding))


def _summed(found: SourceCosts, parts: Sequence[SourceCosts]) -> SourceCosts:
    """The costs of a source with the costs of its parts."""
    sums: dict[str, Amount | None] = {}
    for name in ("chunks", "reads", "stored_bytes", "decoded_bytes", "hits", "held_bytes"):
        own: list[Amount | None] = [getattr(part, name) for part in parts]
        known = [amount for amount in own if amount is not None]
        sums[name] = None if len(known) < len(own) else sum(known, start=Amount.exactly(0))
    return dataclasses.replace(found, **sums)  # type: ignore[arg-type]
