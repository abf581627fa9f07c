"""Read costs: what a stream reads of each source, from one dry run.

A figure is exact, or an estimate: from half of a number to twice the number, or wider where a stream ends
early. Figures are exact if the run came to its end and every run would read the same. If a run was cut, its
start is scaled to the whole stream.

Invariant: an exact figure is what `DatasetIterator.stats` counts of a run to the end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from windrow.explain.dry_run import MOST_S, DryRun, dry_run, in_small_batches, mean_bytes
from windrow.explain.memory import bound_of
from windrow.sources.base import IntArray
from windrow.sources.chunks import LaidOutSource, Part
from windrow.sources.foreign import ForeignDataSource
from windrow.stats.costs import Amount, SourceCosts
from windrow.stats.read_counters import SourceCounters
from windrow.transforms.nodes import Node, ToStreamNode, source_of, sources_of
from windrow.transforms.nodes.epochs import first_epoch
from windrow.transforms.nodes.reading import may_end_early, takes_again
from windrow.transforms.nodes.streams import passes
from windrow.transforms.record_sizes import record_bytes

# An estimate is at most this many times too small or too large.
_FACTOR: Final = 2
# Chunks whose mean bytes are taken where none was read.
_SAMPLE: Final = 64

# A stream that reads a source, with its elements in all passes over it.
_Stream: TypeAlias = tuple[ToStreamNode, int]


def about(amount: Amount) -> Amount:
    """An estimate of an amount that was counted."""
    return Amount(math.floor(amount.low / _FACTOR), math.ceil(amount.high * _FACTOR))


def from_none(amount: Amount) -> Amount:
    """The same amount, of what may not be read at all."""
    return Amount(0, amount.high)


class Figures(NamedTuple):
    """The costs of the first epoch of a stream, and a bound of its memory.

    Args:
        costs: The costs of reading each source.
        buffers_by: The bound of each kind of buffer.
        cut: Streams that were cut, with the number of elements that were worked out.
    """

    costs: tuple[SourceCosts, ...]
    buffers_by: Mapping[str, Amount]
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
    cut = () if run.is_whole else run.streams.values()
    return Figures(
        costs=tuple(
            _costs(run, ran, counters, is_parted=ran is not once)
            for counters in run.meter.read_counters.all
        ),
        buffers_by={k: Amount.exactly(size) for k, size in bound_of(node, run, ran).items()},
        cut=tuple((each, run.made.get(id(each), 0)) for each, _ in cut),
    )


def _costs(run: DryRun, node: Node, counters: SourceCounters, *, is_parted: bool) -> SourceCosts:
    """The costs of reading a source in the whole stream `node`, from a dry run of it.

    If it is parted, the run had other batches than the stream, so the reads are estimates.
    """
    source, costs = counters.source, counters.costs()
    streams = [own for own in run.streams.values() if source in sources_of(own[0])]
    if not run.is_whole:
        costs = _scaled(run, node, counters, streams)
    elif may_end_early(node) and any(run.open[id(stream)] for stream, _ in streams):
        # How much is read ahead of the end depends on time, and all lanes are read ahead.
        lanes = max(stream.lanes for stream, _ in streams)
        costs = costs.changed(lambda own: Amount(own.low // 8, 2 * lanes * own.high))
    elif is_parted or not _reads_once(run, source):
        costs = dataclasses.replace(
            costs.changed(about),
            records=costs.records,
            chunks=costs.chunks,
            delivered_bytes=costs.delivered_bytes,
        )
    return _without_unknown(costs, source)


def _reads_once(run: DryRun, source: Any) -> bool:
    """Whether every run reads the same chunks of a source, each of them once."""
    if not isinstance(source, LaidOutSource):
        return True
    # Read batches that are not planned are as long as they take a tenth of a second.
    planned = [run.parts_of(source, part) for part in source.parts if not part.alone]
    return all(ahead and all(own.is_once for own in ahead) for ahead in planned)


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


# --- of a run that was cut -----------------------------------------------------------------------


def _scaled(
    run: DryRun, node: Node, counters: SourceCounters, streams: Sequence[_Stream]
) -> SourceCosts:
    """The costs of a source in the whole stream, as if the rest were like the start."""
    source, most = counters.source, _most_records_of(counters.source, node)
    records = min(most, counters.records * _missing(run, node, streams) or len(source))
    found = counters.costs().times(records / max(1, counters.records))
    found = dataclasses.replace(
        found,
        records=Amount.exactly(records),
        delivered_bytes=Amount.exactly(records * mean_bytes(source)),
    )
    if isinstance(source, LaidOutSource):
        parts = [_scaled_part(run, counters, part, records) for part in source.parts]
        nothing = Amount.exactly(0)
        whole = dataclasses.replace(
            found, chunks=nothing, reads=nothing, stored_bytes=nothing, decoded_bytes=nothing
        )
        found = sum(parts, start=whole)
    is_certain = counters.records or not may_end_early(node)
    return found.changed(about if is_certain else lambda own: from_none(about(own)))


def _most_records_of(source: Any, node: Node) -> float:
    """The most records of a source that a stream takes, where it takes none again in a pass."""
    times = passes(node)
    if takes_again(node) or node.is_endless() or times is None:
        return math.inf
    own = source_of(node)
    if own is not None:
        return len(own) if own is source else 0
    return times * sum(_most_records_of(source, parent) for parent in node.parents)


def _missing(run: DryRun, node: Node, streams: Sequence[_Stream]) -> float:
    """The elements of the streams divided by the elements that the run made."""
    ratio = node.elements().high / run.delivered if run.delivered else math.inf
    made = [(run.made.get(id(stream), 0), count) for stream, count in streams]
    whole = sum(min(count, own * ratio) for own, count in made if own)
    return max(1.0, whole / max(1, sum(own for own, _ in made)))


def _scaled_part(run: DryRun, counters: SourceCounters, part: Part, records: float) -> SourceCosts:
    """The costs of a part in a stream that takes `records` records of the source."""
    own, ahead = counters.part(part).costs(), run.parts_of(counters.source, part)
    planned = sum(each.uses.records for each in ahead)
    if planned:  # more is planned than is made
        times = records / planned
        chunks = times * sum(len(each.uses.last) for each in ahead)
        reads = times * sum(each.ahead.entered for each in ahead)
    elif own.reads.high:
        times = records / max(1, counters.records)
        chunks, reads = times * own.chunks.high, times * own.reads.high
    else:  # as if each chunk was read once
        chunks = reads = part.chunk_count
    chunks = min(part.chunk_count, chunks)
    if planned and reads > chunks:  # a read serves all records of its chunk that are planned
        room, horizon_bytes = ahead[-1].ahead.room, ahead[-1].whole.horizon_bytes
        horizon = horizon_bytes / max(1, room.record_bytes + room.index_bytes)
        served = math.inf if room.fits else 1 + horizon / max(1.0, chunks)
        reads = max(chunks, min(reads, records / served))
    some: IntArray = np.arange(min(part.chunk_count, _SAMPLE))
    stored, decoded, count = own.stored_bytes, own.decoded_bytes, own.reads.high
    if not count:
        stored = Amount.exactly(int(part.stored_bytes(some).sum()))
        decoded, count = Amount.exactly(int(part.decoded_bytes(some).sum())), max(1, len(some))
    return dataclasses.replace(
        own,
        chunks=Amount.exactly(chunks),
        reads=Amount.exactly(reads),
        stored_bytes=None if stored is None else stored.times(reads / count),
        decoded_bytes=None if decoded is None else decoded.times(reads / count),
    )
