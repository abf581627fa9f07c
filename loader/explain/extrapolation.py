"""Extrapolation: the costs of reading in a dry run, and in the whole stream if the run was cut.

The rest of a run that was cut is assumed to be like the second half of the run. If the run was too
short to see how often chunks come back, bounds follow from the budgets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.engine.chunk_prefetch import ChunkPrefetcher
from windrow.engine.prefetch import Prefetcher
from windrow.explain.dry_run import DryRun
from windrow.sources.chunks import ArrayPart, LaidOutSource, ListPart, Part
from windrow.sources.foreign import ForeignDataSource
from windrow.stats.costs import Amount, SourceCosts
from windrow.stats.read_counters import SourceCounters
from windrow.transforms.nodes import Node, ToStreamNode
from windrow.transforms.record_sizes import record_bytes

IntArray = npt.NDArray[np.int64]

# The lower bound's share of the hits and of the reads of a shuffle: chance may bring fewer.
_LUCK: Final = 0.8
_FEW_READS: Final = 3
# The factors by which a stream that ends early may have made fewer or more elements, since its last
# read batch may be longer or shorter.
_LAST_LESS: Final = 1.25
_LAST_MORE: Final = 2.0
# A shuffle of everything that wants at least this share of the chunks wants all of them again and
# again.
_SPREAD: Final = 0.8
# The most records of windows or patches whose chunks are found, in all and at a time.
_MOST_COUNTED: Final = 1 << 22
_AT_ONCE: Final = 1 << 18
# How far the reads of the part that was run may be from the reads of the rest, in standard deviations.
_DEVIATIONS: Final = 4
# How far the mean bytes of a chunk that was read may be from the mean of all.
_MEAN: Final = 0.01


class PartProgress(NamedTuple):
    """Planned records of a part, the reads that they need, and hits."""

    records: float = 0
    reads: float = 0
    hits: float = 0


# By the source's `id` and the part's name.
Progress: TypeAlias = Mapping[tuple[int, str], PartProgress]
# The streams that read a source, with the elements of each in all passes over it.
_Streams: TypeAlias = Sequence[tuple[ToStreamNode, int]]


def progress_of(run: DryRun) -> Progress:
    """The records planned and read so far."""
    parts: dict[tuple[int, str], PartProgress] = {}
    for counters in run.meter.read_counters.all:
        source = counters.source
        for part in source.parts if isinstance(source, LaidOutSource) else ():
            costs, ahead = counters.part(part).costs(), run.prefetched(source, part)
            records, reads = counters.records, costs.reads.low
            if ahead:
                records = sum(own.planned for own, _ in ahead)
                reads = sum(own.entered for own, _ in ahead)
            parts[id(source), part.name] = PartProgress(records, reads, costs.hits.low)
    return parts


def costs_of(run: DryRun, node: Node, share: float, half: Progress) -> Iterator[SourceCosts]:
    """Yield the costs of reading each source in the whole stream.

    Args:
        run: A dry run of the stream.
        node: The stream.
        share: The part of each element that the run made.
        half: What had been done when half of the run was over.
    """
    for counters in run.meter.read_counters.all:
        source = counters.source
        costs = _without_unknown(counters.costs(), source)
        streams = [own for own in run.streams.values() if source in own[0].sources()]
        if not counters.records:
            yield costs
        elif run.is_whole and share == 1:
            yield _ended(run, source, costs, streams)
        else:
            yield _extrapolated(run, node, counters, costs, share, half, streams)


def _without_unknown(costs: SourceCosts, source: Any) -> SourceCosts:
    """Costs without the figures that are not known before a record is read."""
    if record_bytes(source) is not None:
        return costs
    decoded = None if isinstance(source, ForeignDataSource) else costs.decoded_bytes
    return dataclasses.replace(costs, delivered_bytes=None, decoded_bytes=decoded)


# --- of a run that came to its end ---------------------------------------------------------------


def _ended(run: DryRun, source: Any, costs: SourceCosts, streams: _Streams) -> SourceCosts:
    """The costs of a whole run; a stream that it did not finish may have read ahead."""
    if run.varies:
        hits = max(0, math.floor(_LUCK * costs.hits.low) - _FEW_READS)
        costs = dataclasses.replace(costs, hits=Amount(hits, costs.hits.high))
    made = [run.made.get(id(node), 0) for node, _ in streams]
    counts = [count for _, count in streams]
    if all(done >= count for done, count in zip(made, counts, strict=True)):
        return costs
    # The last read batch may have been longer, or shorter.
    more = min(_LAST_MORE, sum(counts) / max(1, sum(made)))
    least: float = costs.reads.low
    most: float = costs.reads.high
    if isinstance(source, LaidOutSource):
        planned = [part for part in source.parts if run.prefetched(source, part)]
        ahead = [own for part in planned for own, _ in run.prefetched(source, part)]
        others = most - sum(own.entered - own.waiting for own in ahead)
        least = others + sum(len(run.used[id(part)]) for part in planned)
        most = others + sum(own.entered for own in ahead)
    found = costs.with_reads(_between(Amount(least, most), more))
    chunks = costs.chunks
    if isinstance(source, LaidOutSource):
        chunks = Amount(min(found.reads.low, chunks.low), max(chunks.high, found.reads.high))
    delivered = costs.delivered_bytes
    return dataclasses.replace(
        found,
        records=_between(costs.records, more),
        delivered_bytes=delivered and _between(delivered, more),
        chunks=chunks,
        # Read batches are up to four times as long as the last one, so four times as much may be
        # planned.
        hits=Amount(0, 4 * costs.hits.high),
    )


def _between(amount: Amount, more: float) -> Amount:
    return Amount(math.floor(amount.low / _LAST_LESS), math.ceil(amount.high * more))


# --- of a run that was cut -----------------------------------------------------------------------


def _extrapolated(
    run: DryRun,
    node: Node,
    counters: SourceCounters,
    costs: SourceCosts,
    share: float,
    half: Progress,
    streams: _Streams,
) -> SourceCosts:
    source = counters.source
    is_whole = all(id(source) in read_whole(each.parent) for each, _ in streams)
    is_whole = is_whole and not runs_some_lanes(node)
    counted = counters.records * _missing(run, node, streams) / share
    records = _all_records(source, streams, counted, is_whole)
    found = dataclasses.replace(costs, records=records)
    if costs.delivered_bytes is not None:
        each_bytes = costs.delivered_bytes.low / counters.records
        found = dataclasses.replace(found, delivered_bytes=records.times(each_bytes))
    if isinstance(source, ForeignDataSource):
        return dataclasses.replace(found, reads=records, decoded_bytes=found.delivered_bytes)
    if not isinstance(source, LaidOutSource):
        return found
    end = progress_of(run)
    passes = max(1, round(records.high / len(source))) if is_whole else 1
    parts = []
    for part in source.parts:
        key, own = (id(source), part.name), counters.part(part).costs()
        known = chunks_of_all(source, part) if is_whole else None
        if part.alone:
            parts.append(_alone(own, records, counters.records, known, part.chunk_count))
        else:
            cut = _CutPart(
                part=part,
                ahead=run.prefetched(source, part),
                seen=own,
                wanted=len(run.wanted[id(part)]) or int(own.chunks.high),
                half=half.get(key, PartProgress()),
                end=end[key],
                records=records.high,
                known=known,
                passes=passes,
            )
            parts.append(cut.costs())
    return _summed(found, parts)


def _missing(run: DryRun, node: Node, streams: _Streams) -> float:
    """The elements of the streams divided by the elements that the run made."""
    ratio = node.elements().high / run.delivered if run.delivered else math.inf
    made = [run.made.get(id(each), 0) for each, _ in streams]
    whole = sum(
        min(count, done * ratio) for done, (_, count) in zip(made, streams, strict=True) if done
    )
    return max(1.0, whole / max(1, sum(made)))


def _all_records(source: Any, streams: _Streams, counted: float, is_whole: bool) -> Amount:
    """Records of a source that all elements need; `counted` were extrapolated."""
    times = round(counted / len(source))
    rounding = counted / 1000 + max((each.parent.most_records() for each, _ in streams), default=1)
    if is_whole and times and abs(counted - times * len(source)) <= 2 * rounding:
        return Amount.exactly(times * len(source))
    return Amount(max(0, math.floor(counted - rounding)), math.ceil(counted + rounding))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _CutPart:
    """A part of a source in a run that was cut.

    Args:
        part: The part.
        ahead: Its prefetchers, each with the prefetcher of its stream.
        seen: The costs of the run.
        wanted: Chunks that the run needed.
        half: What had been done when half of the run was over.
        end: What was done.
        records: Records of the whole stream.
        known: The chunks that all records lie in, if that is known.
        passes: How often the whole source is read.
    """

    part: Part
    ahead: Sequence[tuple[ChunkPrefetcher, Prefetcher]]
    seen: SourceCosts
    wanted: int
    half: PartProgress
    end: PartProgress
    records: float
    known: IntArray | None
    passes: int

    def costs(self) -> SourceCosts:
        """The costs of the whole stream."""
        half, end = self.half, self.end
        between = max(1, end.records - half.records)
        rest = max(0.0, self.records - end.records) / between
        reads = end.reads + rest * (end.reads - half.reads)
        hits = end.hits + rest * (end.hits - half.hits)
        noise = 1 + _DEVIATIONS / math.sqrt(max(1.0, end.reads - half.reads))
        chunks = self._chunks()
        predicted = self._reads(chunks, reads, noise, 2 * self.records / between)
        found = dataclasses.replace(
            self.seen,
            chunks=chunks,
            hits=Amount(0, hits * noise + max(0.0, reads * noise - predicted.low)),
            held_bytes=self._held_bytes(),
        )
        return self._with_reads(found, predicted)

    def _chunks(self) -> Amount:
        if self.known is not None:
            return Amount.exactly(len(self.known))
        likely = round(self.wanted * self.records / self.end.records * 1.02)
        return Amount(self.wanted, max(self.wanted, min(self.part.chunk_count, likely)))

    def _reads(self, chunks: Amount, reads: float, noise: float, slack: float) -> Amount:
        rooms = [own.room for own, _ in self.ahead]
        once, again = chunks.times(self.passes), self.end.reads > self.wanted
        if not again and reads <= 1.05 * once.high + slack:
            return once  # in order, or in blocks: other records lie in other chunks
        if rooms and all(room.fits for room in rooms):
            # Chunks that are given up before the first one comes back are read twice.
            keeps = all(room.keeps for room in rooms)
            return chunks if keeps else Amount(chunks.low, 2 * chunks.high)
        if rooms and not again:  # it was too short to see how often chunks come back
            least = self._least(chunks)
            return Amount(max(chunks.low, least), max(chunks.high, least, reads * noise))
        return Amount(max(chunks.low, reads / noise), max(chunks.high, reads * noise))

    def _least(self, chunks: Amount) -> float:
        """The fewest reads of scattered records: each serves all planned and kept ones."""
        count = self.part.chunk_count
        if self.wanted < _SPREAD * count * -math.expm1(-self.end.records / count):
            return 0.0
        own, prefetcher = self.ahead[-1]
        horizon = max(1.0, own.outstanding / max(prefetcher.fill, 1e-6))
        return _LUCK * chunks.low * self.records / (horizon * (1 + 2 * own.room.slots / count))

    def _held_bytes(self) -> Amount:
        """Costs with all slots, unless the run filled its room for plans."""
        held = self.seen.held_bytes
        if all(prefetcher.fill >= 1 for _, prefetcher in self.ahead):
            return held
        room = self.ahead[-1][0].room
        return Amount(held.low, max(held.high, room.slots * room.chunk_bytes))

    def _with_reads(self, found: SourceCosts, reads: Amount) -> SourceCosts:
        """Costs with the bytes of `reads` reads, exact if every chunk is read equally often."""
        known = self.known
        if known is not None and len(known) and reads.is_exact and reads.low % len(known) == 0:
            times = reads.low / len(known)
            return dataclasses.replace(
                found,
                reads=reads,
                stored_bytes=Amount.exactly(times * int(self.part.stored_bytes(known).sum())),
                decoded_bytes=Amount.exactly(times * int(self.part.decoded_bytes(known).sum())),
            )
        wide = Amount(reads.low * (1 - _MEAN), reads.high * (1 + _MEAN))
        return dataclasses.replace(found.with_reads(wide), reads=reads)


def _alone(
    seen: SourceCosts, records: Amount, made: int, known: IntArray | None, most: int
) -> SourceCosts:
    """Records of a part that are read one by one, each with its share of its chunk."""
    found = dataclasses.replace(seen, reads=Amount.exactly(made)).with_reads(records)
    chunks, stored = seen.chunks, found.stored_bytes
    if known is not None:
        chunks = Amount.exactly(len(known))
    elif made < records.high:
        chunks = Amount(chunks.low, min(most, chunks.high * records.high / made))
    if stored is not None:
        rounding = 1 + stored.high / 1000
        stored = Amount(math.floor(stored.low - rounding), math.ceil(stored.high + rounding))
    return dataclasses.replace(found, chunks=chunks, stored_bytes=stored)


def _summed(found: SourceCosts, parts: Sequence[SourceCosts]) -> SourceCosts:
    """The costs of a source with the costs of its parts."""
    sums: dict[str, Amount | None] = {}
    for name in ("chunks", "reads", "stored_bytes", "decoded_bytes", "hits", "held_bytes"):
        own: list[Amount | None] = [getattr(part, name) for part in parts]
        known = [amount for amount in own if amount is not None]
        sums[name] = None if len(known) < len(own) else sum(known, start=Amount.exactly(0))
    return dataclasses.replace(found, **sums)  # type: ignore[arg-type]


# --- what is read as a whole ---------------------------------------------------------------------

# Shuffles do not change the set of records, so the chunks of a source that is read as a whole are
# known without computing an order.


def runs_some_lanes(node: Node) -> bool:
    """Whether a shard of a stream runs some of its lanes, and others run in other processes."""
    found = (each.run_lanes for each in node.walk())
    return any(lanes is not None and len(lanes[0]) < lanes[1] for lanes in found)


def read_whole(node: Node) -> set[int]:
    """The `id` of each source whose every record a pass over a chain asks for."""
    if not node.takes_all:
        return set()
    own = set() if node.data_source is None else {id(node.data_source)}
    return own.union(*map(read_whole, node.parents))


def chunks_of_all(source: LaidOutSource, part: Part) -> IntArray | None:
    """The chunks that all records of a source lie in; None where finding them takes too long."""
    length = len(source)
    rows = isinstance(part, ArrayPart) and part.is_by_row
    if rows or isinstance(part, ListPart):
        return np.arange(part.chunk_count)
    if length > _MOST_COUNTED:
        return None
    chunks = np.empty(0, np.int64)
    for first in range(0, length, _AT_ONCE):
        records = np.arange(first, min(length, first + _AT_ONCE))
        chunks = np.union1d(chunks, part.needs(records).chunks)
    return chunks
