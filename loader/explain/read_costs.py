"""Read costs: what a stream reads of each source, from one dry run.

A figure is exact, or an estimate: from half of a number to twice the number, or wider where a stream ends
early. Figures are exact if the run came to its end and every run would read the same. Where the run was
cut, the rest is taken to be like the start; what a chain takes as a whole stays exact.

Invariant: an exact figure is what `DatasetIterator.stats` counts of a run to the end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.explain.dry_run import MOST_S, DryRun, PlannedPart, dry_run, in_small_batches
from windrow.explain.memory import bound_of
from windrow.explain.paths import (
    may_end_early,
    passes_of,
    paths,
    takes_all,
    takes_some,
)
from windrow.sources.chunks import ArrayPart, LaidOutSource, ListPart, Part
from windrow.sources.foreign import ForeignDataSource
from windrow.stats.costs import Amount, SourceCosts, combined
from windrow.stats.read_counters import SourceCounters
from windrow.transforms.nodes import STREAM, Node, ToStreamNode, chains_of, sources_of, walk
from windrow.transforms.nodes.epochs import first_epoch
from windrow.transforms.nodes.reading import is_global
from windrow.transforms.nodes.streams import passes
from windrow.transforms.record_sizes import record_bytes, spec_bytes

# An estimate is at most this many times too small or too large.
_FACTOR: Final = 2
# The share of what is read that is not read ahead of an end in vain, at least.
_AHEAD: Final = 0.25

# A stream that reads a source, with its elements in all passes over it.
_Stream: TypeAlias = tuple[ToStreamNode, int]


def about(number: float) -> Amount:
    """An estimate."""
    return Amount(math.floor(number / _FACTOR), math.ceil(number * _FACTOR))


def estimated(costs: SourceCosts) -> SourceCosts:
    """The same costs, as estimates."""
    return combined(lambda own: about(own.high) if own.is_exact else own, [costs])


def at_least(share: float, costs: SourceCosts) -> SourceCosts:
    """The same costs, of what may not be read: at least a share of the least."""
    return combined(lambda own: Amount(int(own.low * share), own.high), [costs])


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """The costs of the first epoch of a stream, and a bound of its memory.

    Args:
        costs: The costs of reading each source.
        buffers_by: The bound of each kind of buffer.
        later: The costs of reading each source in a later epoch, if the stream is endless.
        cut: Streams that were cut, with the number of elements that were worked out.
    """

    costs: tuple[SourceCosts, ...]
    buffers_by: Mapping[str, Amount]
    later: tuple[SourceCosts, ...]
    cut: tuple[tuple[ToStreamNode, int], ...]

    @property
    def buffers(self) -> Amount:
        """The bound of all buffers."""
        return sum(self.buffers_by.values(), start=Amount.exactly(0))


def figures_of(node: Node, most_s: float = MOST_S) -> Figures:
    """The figures of one dry run of the first epoch of a stream.

    Args:
        node: The stream.
        most_s: The seconds that planning may take on a usual machine.
    """
    once = first_epoch(node)
    ran = in_small_batches(once)
    run = dry_run(ran, most_s)
    bound = bound_of(node, run, ran)
    costs = [
        dataclasses.replace(
            _costs(run, ran, counters, is_parted=ran is not once),
            held_bytes=Amount.exactly(bound.held.get(id(counters.source), 0)),
        )
        for counters in run.meter.read_counters.all
    ]
    cut = ((each, run.made.get(id(each), 0)) for each, _ in run.streams.values())
    begins_anew = any(each.length == STREAM and passes(each) is None for each in walk(node))
    return Figures(
        costs=tuple(costs),
        buffers_by={kind: Amount.exactly(size) for kind, size in bound.by.items()},
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
    found = estimated(costs)
    if all(own.ahead.room.fits for own in parts):
        found = at_least(0, costs.times(0 if all(own.is_kept for own in parts) else 1))
    return dataclasses.replace(
        costs,
        reads=found.reads,
        stored_bytes=found.stored_bytes,
        decoded_bytes=found.decoded_bytes,
        hits=estimated(costs).hits,
    )


def _costs(run: DryRun, node: Node, counters: SourceCounters, *, is_parted: bool) -> SourceCosts:
    """The costs of reading a source in the whole stream `node`, from a dry run of it.

    If it is parted, the run had other batches than the stream, so the reads are estimates.
    """
    source = counters.source
    streams = [own for own in run.streams.values() if source in sources_of(own[0])]
    if not run.is_whole:
        return _without_unknown(_scaled(run, node, counters, streams), source)
    costs = _of_whole(run, counters, streams)
    if may_end_early(node) and any(run.open[id(stream)] for stream, _ in streams):
        # How much is read ahead of the end depends on time, and all lanes are read ahead.
        few = at_least(_AHEAD, estimated(costs))
        many = few.times(max(stream.lanes for stream, _ in streams))
        costs = combined(lambda low, high: Amount(low.low, high.high), [few, many])
    if is_parted:
        costs = dataclasses.replace(
            estimated(costs), records=costs.records, delivered_bytes=costs.delivered_bytes
        )
    return _without_unknown(costs, source)


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
    # Whether read batches that are not planned have the same rows in every run.
    calls = any(node.functions for each, _ in streams for node in walk(each))
    lanes = any(each.lanes > 1 for each, _ in streams)
    is_steady = not run.varies and not lanes and not (calls and not run.options.num_threads)
    parts = []
    for part in source.parts:
        own, ahead = counters.part(part).costs(), run.parts_of(source, part)
        if not part.alone and own.reads.high:
            hits = about(own.hits.high) if run.varies else own.hits
            is_once = all(each.is_once for each in ahead) if ahead else is_steady
            found = own if is_once else dataclasses.replace(estimated(own), chunks=own.chunks)
            own = dataclasses.replace(found, hits=hits if is_once else found.hits)
        parts.append(own)
    return _summed(costs, parts)


def _summed(costs: SourceCosts, parts: Sequence[SourceCosts]) -> SourceCosts:
    """The costs of a source with the costs of its parts."""
    sums: dict[str, Amount | None] = {}
    for name in ("chunks", "reads", "stored_bytes", "decoded_bytes", "hits"):
        own: list[Amount | None] = [getattr(part, name) for part in parts]
        known = [amount for amount in own if amount is not None]
        sums[name] = None if len(known) < len(own) else sum(known, start=Amount.exactly(0))
    return dataclasses.replace(costs, **sums)  # type: ignore[arg-type]


# --- of a run that was cut -----------------------------------------------------------------------


def _scaled(
    run: DryRun, node: Node, counters: SourceCounters, streams: Sequence[_Stream]
) -> SourceCosts:
    """The costs of a source in the whole stream, as if the rest were like the start."""
    source, seen = counters.source, counters.costs()
    whole = len(source) * sum(passes_of(path) for own, path in paths(node) if own is source)
    is_all, likely = takes_all(node), counters.records * _missing(run, node, streams)
    records = Amount.exactly(whole) if is_all else about(likely)
    ends = all(passes(each) is not None for each in walk(node) if each.length == STREAM)
    ends = ends and not any(each.parent.is_endless() for each in chains_of(node))
    if not is_all and ends and takes_some(node) and (likely > whole or not likely):
        records = about(whole)
    times = records.middle / max(1, counters.records)
    found = dataclasses.replace(estimated(seen.times(times)), records=records)
    size = spec_bytes(getattr(source, "spec", None))
    if size is not None:
        found = dataclasses.replace(found, delivered_bytes=records.times(size))
    if isinstance(source, LaidOutSource):
        is_once = is_all and whole == len(source) and not any(map(is_global, walk(node)))
        parts = [
            _scaled_part(
                counters.part(part).costs().times(times),
                part,
                run.parts_of(source, part),
                records,
                is_once=is_once,
            )
            for part in source.parts
        ]
        found = _summed(found, parts)
    if not is_all and may_end_early(node):  # what was read ahead of the cut is scaled, too
        found = at_least(_AHEAD if counters.records else 0, found)
    return found


def _missing(run: DryRun, node: Node, streams: Sequence[_Stream]) -> float:
    """The elements of the streams divided by the elements that the run made."""
    ratio = node.elements().high / run.delivered if run.delivered else math.inf
    made = [(run.made.get(id(stream), 0), count) for stream, count in streams]
    whole = sum(min(count, own * ratio) for own, count in made if own)
    return max(1.0, whole / max(1, sum(own for own, _ in made)))


def _scaled_part(
    own: SourceCosts, part: Part, ahead: Sequence[PlannedPart], records: Amount, *, is_once: bool
) -> SourceCosts:
    """The costs of a part; `own` are the costs of what was made, scaled."""
    in_rows = isinstance(part, ListPart) or (isinstance(part, ArrayPart) and part.is_by_row)
    is_all = records.is_exact and in_rows
    likely = part.chunk_count if is_all else min(part.chunk_count, own.chunks.high)
    chunks = Amount.exactly(likely) if is_all else about(likely)
    if part.alone:
        return dataclasses.replace(estimated(own), chunks=chunks, reads=records)
    wanted = sum(each.uses.records for each in ahead)
    if not wanted and own.reads.high:
        return dataclasses.replace(estimated(own), chunks=chunks)
    if not wanted:  # nothing was planned: as if each chunk was read once
        return estimated(_each_once(own, part))
    # An uneven part may have longer read batches later.
    is_even = isinstance(part, ArrayPart)
    if is_once and is_all and all(p.is_once and (is_even or p.is_kept) for p in ahead):
        return _each_once(own, part)
    # More is planned than is made. A read serves all records of its chunk that are planned.
    planned = records.middle / wanted
    if not is_all:
        likely = min(part.chunk_count, planned * sum(len(each.uses.last) for each in ahead))
    reads = planned * sum(each.ahead.entered for each in ahead)
    if reads > likely:
        whole, room = ahead[-1].whole, ahead[-1].ahead.room
        horizon = whole.plan_bytes / max(1, room.record_bytes + room.index_bytes)
        served = math.inf if room.fits else 1 + horizon / max(1.0, likely)
        reads = max(likely, min(reads, records.middle / served))
    found = estimated(own.times(reads / max(1.0, own.reads.high)))
    return dataclasses.replace(found, chunks=Amount.exactly(likely) if is_all else about(likely))


def _each_once(own: SourceCosts, part: Part) -> SourceCosts:
    """The costs of a part whose chunks are all read once."""
    chunks = np.arange(part.chunk_count)
    return dataclasses.replace(
        own,
        chunks=Amount.exactly(len(chunks)),
        reads=Amount.exactly(len(chunks)),
        stored_bytes=Amount.exactly(int(part.stored_bytes(chunks).sum())),
        decoded_bytes=Amount.exactly(int(part.decoded_bytes(chunks).sum())),
        hits=about(own.hits.high),
    )
