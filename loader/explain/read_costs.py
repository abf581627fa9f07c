"""Read costs: what a stream reads of each source, from one dry run.

A figure is exact, or an estimate: from half of a number to twice the number, or wider where a stream ends
early. Figures are exact if the run came to its end and every run would read the same. The
figures of a run that was cut are exact if the chain is of one source, takes every record of it, and
reads each chunk once; all others are scaled.

Invariant: an exact figure is what `DatasetIterator.stats` counts of a run to the end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.explain.advice import is_global
from windrow.explain.dry_run import (
    MOST_S,
    DryRun,
    PlannedPart,
    dry_run,
    in_small_batches,
    may_end_early,
)
from windrow.explain.memory import bound_of
from windrow.sources.base import IntArray
from windrow.sources.chunks import ArrayPart, LaidOutSource, ListPart, Part
from windrow.sources.foreign import ForeignDataSource
from windrow.stats.costs import Amount, SourceCosts, combined
from windrow.stats.read_counters import PartCounters, SourceCounters
from windrow.transforms.nodes import STREAM, Node, ToStreamNode, source_of, sources_of, walk
from windrow.transforms.nodes.following import JoinsLanes
from windrow.transforms.record_sizes import record_bytes, spec_bytes

# An estimate is at most this many times too small or too large.
_FACTOR: Final = 2
# The most records of windows or patches whose chunks are found, in all and at a time.
_MOST_COUNTED: Final = 1 << 22
_AT_ONCE: Final = 1 << 18

# A stream that reads a source, with its elements in all passes over it.
_Stream: TypeAlias = tuple[ToStreamNode, int]


def about(number: float) -> Amount:
    """An estimate."""
    return Amount(math.floor(number / _FACTOR), math.ceil(number * _FACTOR))


def estimated(costs: SourceCosts) -> SourceCosts:
    """The same costs, as estimates."""
    return combined(lambda own: about(own.high) if own.is_exact else own, [costs])


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """The costs of the first epoch of a stream, and a bound of its memory.

    Args:
        costs: The costs of reading each source.
        buffers: The bound.
        buffers_by: The bound of each kind of buffer.
        later: The costs of reading each source in a later epoch, if the stream is endless.
        cut: Streams that were cut, with the number of elements that were worked out.
    """

    costs: tuple[SourceCosts, ...]
    buffers: Amount
    buffers_by: Mapping[str, Amount]
    later: tuple[SourceCosts, ...]
    cut: tuple[tuple[ToStreamNode, int], ...]


def figures_of(node: Node, most_s: float = MOST_S) -> Figures:
    """The figures of one dry run of the first epoch of a stream.

    Args:
        node: The stream.
        most_s: The seconds that planning may take on a usual machine.
    """
    once = node.first_epochs(1) if node.is_endless() else node
    parted, is_parted = in_small_batches(once)
    run = dry_run(parted, most_s)
    bound = bound_of(node, run, parted)
    costs = [
        dataclasses.replace(own, held_bytes=Amount.exactly(bound.held.get(id(source), 0)))
        for own, source in zip(
            costs_of(run, parted, is_parted=is_parted), sources_of(node), strict=True
        )
    ]
    by = {kind: Amount.exactly(size) for kind, size in bound.by.items()}
    cut = ((each, run.made.get(id(each), 0)) for each, _ in run.streams.values())
    begins_anew = any(each.length == STREAM and each.passes is None for each in walk(node))
    return Figures(
        costs=tuple(costs),
        buffers=Amount.exactly(sum(bound.by.values())),
        buffers_by=by,
        later=tuple(
            own if begins_anew else _later(run, source, own)
            for source, own in zip(sources_of(node), costs, strict=True)
        ),
        cut=() if run.is_whole else tuple(cut),
    )


def _later(run: DryRun, source: Any, costs: SourceCosts) -> SourceCosts:
    """The costs of a later epoch, which does not read the chunks that are still in memory."""
    parts = [own for own in run.parts if own.ahead.room.source is source]
    if not parts:
        return costs
    found, least = estimated(costs), 1
    if all(own.ahead.room.fits for own in parts):
        most = 0 if all(own.is_kept for own in parts) else 1
        found, least = costs.times(most), 0
    return dataclasses.replace(
        costs,
        reads=_from(least, found.reads),
        stored_bytes=found.stored_bytes and _from(least, found.stored_bytes),
        decoded_bytes=found.decoded_bytes and _from(least, found.decoded_bytes),
        hits=estimated(costs).hits,
    )


def _from(least: int, amount: Amount) -> Amount:
    return Amount(amount.low * least, amount.high)


def costs_of(run: DryRun, node: Node, *, is_parted: bool) -> Iterator[SourceCosts]:
    """Yield the costs of reading each source in the whole stream.

    Args:
        run: A dry run of the stream.
        node: The stream.
        is_parted: Whether the run had other batches than the stream.
    """
    ends_early = may_end_early(node)
    every = run.meter.read_counters.all
    for counters in every:
        source = counters.source
        streams = [own for own in run.streams.values() if source in sources_of(own[0])]
        if not run.is_whole:
            known = None if ends_early else _records_of_all(run, node, every, counters, streams)
            costs = _scaled(run, node, counters, streams, known)
        else:
            costs = _of_whole(run, counters, streams)
            if ends_early and any(run.open[id(stream)] for stream, _ in streams):
                # How much is read ahead of the end depends on time, and all lanes are read ahead.
                few = estimated(costs)
                many = few.times(max(stream.lanes for stream, _ in streams))
                costs = combined(lambda low, high: Amount(low.low // 4, high.high), [few, many])
        if is_parted:
            costs = dataclasses.replace(
                estimated(costs), records=costs.records, delivered_bytes=costs.delivered_bytes
            )
        yield _without_unknown(costs, source)


def _without_unknown(costs: SourceCosts, source: Any) -> SourceCosts:
    """Costs without the figures that are not known before a record is read."""
    size = record_bytes(source)
    if size is None:
        decoded = None if isinstance(source, ForeignDataSource) else costs.decoded_bytes
        return dataclasses.replace(costs, delivered_bytes=None, decoded_bytes=decoded)
    delivered = costs.delivered_bytes
    if delivered is not None and delivered.is_exact and not size.is_exact:
        return dataclasses.replace(
            costs,
            delivered_bytes=Amount(costs.records.low * size.low, costs.records.high * size.high),
        )
    return costs


# --- of a run that came to its end ---------------------------------------------------------------


def _of_whole(run: DryRun, counters: SourceCounters, streams: Sequence[_Stream]) -> SourceCosts:
    source, costs = counters.source, counters.costs()
    if not isinstance(source, LaidOutSource):
        return costs
    is_steady = _is_steady(run, streams)
    parts = [
        _part_of_whole(run, source, part, counters.part(part), is_steady=is_steady)
        for part in source.parts
    ]
    return _summed(costs, parts)


def _is_steady(run: DryRun, streams: Sequence[_Stream]) -> bool:
    """Whether read batches that are not planned have the same rows in every run."""
    calls = any(node.functions for each, _ in streams for node in walk(each))
    lanes = any(each.lanes > 1 for each, _ in streams)
    return not run.varies and not lanes and not (calls and not run.options.num_threads)


def _part_of_whole(
    run: DryRun, source: LaidOutSource, part: Part, counters: PartCounters, *, is_steady: bool
) -> SourceCosts:
    costs, ahead = counters.costs(), run.parts_of(source, part)
    if part.alone or not costs.reads.high:
        return costs
    hits = costs.hits if not run.varies else about(costs.hits.high)
    costs = dataclasses.replace(costs, hits=hits)
    if all(own.is_once for own in ahead) if ahead else is_steady:
        return costs
    return dataclasses.replace(estimated(costs), chunks=costs.chunks)


def _summed(costs: SourceCosts, parts: Sequence[SourceCosts]) -> SourceCosts:
    """The costs of a source with the costs of its parts."""
    sums: dict[str, Amount | None] = {}
    for name in ("chunks", "reads", "stored_bytes", "decoded_bytes", "hits"):
        own: list[Amount | None] = [getattr(part, name) for part in parts]
        known = [amount for amount in own if amount is not None]
        sums[name] = None if len(known) < len(own) else sum(known, start=Amount.exactly(0))
    return dataclasses.replace(costs, **sums)  # type: ignore[arg-type]


# --- of a run that was cut -----------------------------------------------------------------------


def _records_of_all(
    run: DryRun,
    node: Node,
    every: Sequence[SourceCounters],
    counters: SourceCounters,
    streams: Sequence[_Stream],
) -> Amount | None:
    """The records of a source whose every record each pass of the streams takes; else None."""
    source = counters.source
    if runs_some_lanes(node) or not all(id(source) in read_whole(s.parent) for s, _ in streams):
        return None
    # All sources of a chain are passed over equally often, also those that the start did not meet.
    inside = {id(own) for each, _ in streams for own in sources_of(each)}
    others = [own for own in every if id(own.source) in inside]
    if not all(id(own.source) in read_whole(s.parent) for own in others for s, _ in streams):
        return None
    seen = sum(own.records for own in others) * _missing(run, node, streams)
    passes = max(1, round(seen / max(1, sum(len(own.source) for own in others))))
    found = Amount.exactly(passes * len(source))
    return found if _is_one_path(streams) else about(found.high)


def _scaled(
    run: DryRun,
    node: Node,
    counters: SourceCounters,
    streams: Sequence[_Stream],
    of_all: Amount | None,
) -> SourceCosts:
    """The costs of a source in the whole stream, as if the rest were like the start."""
    source, seen = counters.source, counters.costs()
    times = _missing(run, node, streams)
    if of_all is not None and counters.records:
        times = of_all.middle / counters.records
    records = about(counters.records * times) if of_all is None else of_all
    if not counters.records:
        records = records if of_all is not None else Amount(0, len(source))
        return _of_unmet(source, seen, records)
    found = dataclasses.replace(estimated(seen.times(times)), records=records)
    if spec_bytes(getattr(source, "spec", None)) is not None:
        each_bytes = counters.delivered_bytes / counters.records
        found = dataclasses.replace(found, delivered_bytes=records.times(each_bytes))
    if not isinstance(source, LaidOutSource):
        return found
    parts = []
    for part in source.parts:
        own, ahead = counters.part(part).costs().times(times), run.parts_of(source, part)
        known = chunks_of_all(source, part) if of_all is not None else None
        is_pass = records.is_exact and records.high == len(source) and _is_local(streams)
        if known is not None and is_pass and _is_once(part, ahead):
            parts.append(_each_once(own, part, known))
        else:
            parts.append(_estimated_part(own, part, ahead, records, known))
    return _summed(found, parts)


def _of_unmet(source: Any, nothing: SourceCosts, records: Amount) -> SourceCosts:
    """The costs of a source that the start reads nothing of."""
    size = spec_bytes(getattr(source, "spec", None))
    delivered = None if size is None else records.times(size)
    found = dataclasses.replace(nothing, records=records, delivered_bytes=delivered)
    if not isinstance(source, LaidOutSource):
        return found
    chunks = [np.arange(part.chunk_count) for part in source.parts]
    parts = [
        estimated(_each_once(nothing, part, own))
        for part, own in zip(source.parts, chunks, strict=True)
    ]
    summed = _summed(found, parts)
    if records.low:
        return summed
    none = combined(lambda own: Amount(0, own.high), [summed])  # it may never be met
    return dataclasses.replace(none, records=records)


def _missing(run: DryRun, node: Node, streams: Sequence[_Stream]) -> float:
    """The elements of the streams divided by the elements that the run made."""
    ratio = node.elements().high / run.delivered if run.delivered else math.inf
    made = [run.made.get(id(each), 0) for each, _ in streams]
    whole = sum(min(count, own * ratio) for own, (_, count) in zip(made, streams, strict=True))
    return max(1.0, whole / max(1, sum(made)))


def _is_local(streams: Sequence[_Stream]) -> bool:
    """Whether the rest of a stream lies in other chunks than its start."""
    nodes = (node for each, _ in streams for node in walk(each))
    return _is_one_path(streams) and not any(map(is_global, nodes))


def _is_one_path(streams: Sequence[_Stream]) -> bool:
    nodes = (node for each, _ in streams for node in walk(each))
    return len(streams) == 1 and all(len(node.parents) < 2 for node in nodes)


def _is_once(part: Part, ahead: Sequence[PlannedPart]) -> bool:
    is_even = isinstance(part, ArrayPart)  # the rest has chunks of the same size
    return bool(ahead) and all(own.is_once and (is_even or own.ahead.room.keeps) for own in ahead)


def _each_once(own: SourceCosts, part: Part, chunks: IntArray) -> SourceCosts:
    count = Amount.exactly(len(chunks))
    return dataclasses.replace(
        own,
        chunks=count,
        reads=count,
        stored_bytes=Amount.exactly(int(part.stored_bytes(chunks).sum())),
        decoded_bytes=Amount.exactly(int(part.decoded_bytes(chunks).sum())),
        hits=about(own.hits.high),
    )


def _estimated_part(
    own: SourceCosts,
    part: Part,
    ahead: Sequence[PlannedPart],
    records: Amount,
    known: IntArray | None,
) -> SourceCosts:
    """Estimates for a part; `own` are the costs of what was made, scaled."""
    number, reads = records.middle, own.reads.high
    likely = min(part.chunk_count, own.chunks.high) if known is None else len(known)
    if ahead:
        room, whole = ahead[-1].ahead.room, ahead[-1].whole
        # More is planned than is made.
        planned = number / max(1, sum(each.uses.records for each in ahead))
        wanted = planned * sum(len(each.uses.last) for each in ahead)
        likely = min(part.chunk_count, wanted) if known is None else likely
        reads = planned * sum(each.ahead.entered for each in ahead)
        if reads > likely:
            # A read serves all records of its chunk that are planned; all chunks have equally many.
            horizon = whole.horizon_bytes / max(1, room.record_bytes + room.index_bytes)
            served = math.inf if room.fits else 1 + horizon / max(1.0, likely)
            reads = max(likely, min(reads, number / served))
    found = estimated(own.times(reads / max(1.0, own.reads.high)))
    return dataclasses.replace(
        found,
        chunks=Amount.exactly(likely) if known is not None and records.is_exact else about(likely),
        reads=records if part.alone else found.reads,
    )


# --- what is read as a whole ---------------------------------------------------------------------

# Shuffles do not change the set of records, so the chunks of a source that is read as a whole are
# known without computing an order.


def runs_some_lanes(node: Node) -> bool:
    """Whether a shard of a stream runs some of its lanes, and others run in other processes."""
    found = (each.run_lanes for each in walk(node) if isinstance(each, JoinsLanes))
    return any(len(own) < lanes for own, lanes in found)


def read_whole(node: Node) -> set[int]:
    """The `id` of each source whose every record a pass over a chain asks for."""
    if not node.takes_all:
        return set()
    own = set() if source_of(node) is None else {id(source_of(node))}
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
