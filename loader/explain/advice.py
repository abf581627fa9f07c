"""Advice: cheaper ways to elements that are as good, which dry runs have found.

Each piece of advice has a benchmark of a chain before and after following it, `benchmarks/explaining.py`.

Invariant: a dry run of the same chain has tried every number in a piece of advice. A chain that
follows a piece of advice does not get it again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.core.machine import machine_bytes
from windrow.engine.budgets import MOST_KEPT, USUAL_KEPT, CacheRoom
from windrow.errors import PlanError
from windrow.explain.dry_run import rooms_of, streams_of
from windrow.explain.explanation import Advice, in_bytes
from windrow.explain.prediction import PartRun, Prediction, predicted
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.chunks import ArrayPart, LaidOutSource
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.part_sizes import bytes_per_record, largest_bytes
from windrow.sources.tfds.source import TFDSDataSource
from windrow.sources.windows.source import WindowDataSource
from windrow.stats.costs import Amount, SourceCosts, known
from windrow.transforms.nodes import (
    STREAM,
    BlockShuffleNode,
    Node,
    ShuffleNode,
    ToStreamNode,
)

# Thresholds for advice: reads of a chunk in an epoch, and bytes decoded per byte delivered.
_OFTEN: Final = 1.5
_SURE: Final = 1.1
_MUCH: Final = 2.0
# Records by which a run of them is judged.
_JUDGED: Final = 1 << 18

_ON_EACH: Final = " on each of the datasets below"

# The share of the machine's memory that advice may use, and how often a number is tried. Each try is
# half as large again as the one before.
_MEMORY: Final = 0.25
_TRIES: Final = 6

_Path: TypeAlias = tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _SourceRead:
    """A source and how it is read.

    Args:
        source: The source.
        paths: The nodes from the last one to the source; a source that occurs twice has two paths.
        costs: Its costs in an epoch.
        parts: Its parts that are read through a prefetcher, with the stream that reads them.
        passes: How often in an epoch streams that read it begin anew, without kept chunks.
        repeats: How often a chain reads through it in a pass, in which kept chunks are not read
            again.
    """

    source: Any
    paths: Sequence[_Path]
    costs: SourceCosts
    parts: Sequence[tuple[ToStreamNode, PartRun]]
    passes: int
    repeats: int

    @property
    def chunks(self) -> float:
        """The fewest chunks read in an epoch: each is read once in a pass."""
        return self.passes * self.costs.chunks.high

    @property
    def most_wanted(self) -> tuple[ToStreamNode, PartRun] | None:
        """The part whose chunks made room for others most often; None if no part lost any."""
        crowded = (pair for pair in self.parts if pair[1].crowded_out)
        return max(crowded, key=lambda pair: pair[1].crowded_out, default=None)

    @property
    def shuffles(self) -> list[Node]:
        """The shuffles between the last node and the source, in the order of the chain."""
        return [node for path in self.paths for node in reversed(path) if node.shuffles]


def advice_on(node: Node, numbers: Mapping[int, int], found: Prediction) -> Iterator[Advice]:
    """Cheaper ways.

    Args:
        node: The chain.
        numbers: The numbers of its nodes by `id`.
        found: The prediction of its costs.
    """
    reads = _reads(node, found)
    for read in reads:
        yield from _on_calls(read, numbers)
        if read.costs.chunks.high:
            yield from _on_order(read, node, numbers)
    for stream in streams_of(node):
        yield from _on_room(node, stream, reads, numbers)
        yield from _on_threads(stream, numbers)


def _reads(node: Node, found: Prediction) -> list[_SourceRead]:
    paths: dict[int, list[_Path]] = {}
    for source, path in _paths(node, ()):
        paths.setdefault(id(source), []).append(path)
    parts = [(stream, own) for stream in streams_of(node) for own in found.parts(stream)]
    return [
        _SourceRead(
            source=source,
            paths=paths[id(source)],
            costs=costs,
            parts=[pair for pair in parts if pair[1].room.source is source],
            passes=max(_times_over(path, stream=True) for path in paths[id(source)]),
            repeats=max(_times_over(path, stream=False) for path in paths[id(source)]),
        )
        for source, costs in zip(node.sources(), found.epoch, strict=True)
    ]


def _paths(node: Node, above: _Path) -> Iterator[tuple[Any, _Path]]:
    """Sources, with the nodes from the top down to them."""
    path = (*above, node)
    if node.data_source is not None:
        yield node.data_source, path
    for parent in node.parents:
        yield from _paths(parent, path)


def _times_over(path: _Path, *, stream: bool) -> int:
    """How often the streams of a path, or its chain with random access, go through the source."""
    nodes = (node for node in path if (node.length == STREAM) == stream)
    return math.prod(node.passes or 1 for node in nodes)


# --- what is read again --------------------------------------------------------------------------


def _on_order(read: _SourceRead, node: Node, numbers: Mapping[int, int]) -> Iterator[Advice]:
    costs, crowded = read.costs, read.most_wanted
    if crowded is not None:
        once = read.repeats * read.chunks
        block = next((each for each in read.shuffles if isinstance(each, BlockShuffleNode)), None)
        shuffle = next((each for each in read.shuffles if isinstance(each, ShuffleNode)), None)
        if shuffle is not None and costs.reads.low > _OFTEN * once:
            yield _global_shuffle(shuffle, read, numbers)
        elif block is not None and costs.reads.low > _SURE * once:
            yield _window(block, read, crowded, node, numbers)
    ratio = costs.decoded_per_delivered
    if ratio is not None and ratio.low >= _MUCH and costs.reads.low <= _OFTEN * read.chunks:
        yield from _on_strides(read, ratio, numbers)


def _times(costs: Sequence[SourceCosts]) -> Amount:
    reads = sum((each.reads for each in costs), start=Amount.exactly(0))
    chunks = sum((each.chunks for each in costs), start=Amount.exactly(0))
    return Amount(reads.low / chunks.high, reads.high / max(1, chunks.low))


def _each(read: _SourceRead, passes: int) -> Amount:
    """Bytes decoded if every chunk is read once in each of `passes` passes."""
    costs = read.costs
    mean = known(costs.decoded_bytes).middle / max(1.0, costs.reads.middle)
    return costs.chunks.times(passes * mean)


def _are_read(passes: int) -> str:
    return "once" if passes == 1 else f"{passes} times, once in each pass"


def _global_shuffle(shuffle: Node, read: _SourceRead, numbers: Mapping[int, int]) -> Advice:
    costs, passes = read.costs, read.passes * read.repeats
    alone = _alone(read.source)
    then = f"each is decoded {_are_read(passes)}, {in_bytes(_each(read, passes))}"
    return Advice(
        "global-shuffle",
        numbers[id(shuffle)],
        f"{shuffle.written} over {_chunks_of(read)} decodes each {_times([costs])} times an"
        f" epoch, {in_bytes(costs.decoded_bytes)} for {in_bytes(costs.delivered_bytes)} delivered",
        _block_shuffle(shuffle) + (f", or {alone}" if alone else ""),
        then + ("; alone, no more than is delivered" if alone else ""),
    )


def _alone(source: Any) -> str | None:
    """How to store records so that each can be read by itself; None where they overlap."""
    if isinstance(source, (ArrayRecordDataSource, TFDSDataSource)):
        return "write the files with group_size:1"
    if isinstance(source, WindowDataSource):
        return None
    return "convert with one record per inner chunk"


def _block_shuffle(shuffle: Node) -> str:
    return "use block_shuffle" + ("" if _has_blocks(shuffle) else _ON_EACH)


def _has_blocks(shuffle: Node) -> bool:
    """Whether the input of a shuffle has blocks of its own."""
    try:
        shuffle.parent.layout()
    except PlanError:
        return False
    return True


def _chunks_of(read: _SourceRead) -> str:
    """Describe the chunks of a source and the records that they hold."""
    files = isinstance(read.source, (ArrayRecordDataSource, TFDSDataSource))
    sizes = set()
    for part in {id(own.room.part): own.room.part for _, own in read.parts}.values():
        if not isinstance(part, ArrayPart):
            sizes.add(len(read.source) / max(1, part.chunk_count) if files else 0)
        else:
            sizes.add(min(part.chunk_rows, part.rows) if part.has_single_rows else 0)
    what = "groups" if files else "chunks"
    if not sizes or 0 in sizes:  # a window or box lies in several chunks
        return what
    return f"{what} of {' and '.join(f'{size:,.0f}' for size in sorted(sizes))} records"


def _window(
    block: BlockShuffleNode,
    read: _SourceRead,
    crowded: tuple[ToStreamNode, PartRun],
    node: Node,
    numbers: Mapping[int, int],
) -> Advice:
    stream, part = crowded
    passes = read.passes * read.repeats
    number = _number_of(read.source, list(node.sources()))
    held = _wanted_at_a_time(node, stream, part)

    def is_good(found: Prediction, other: ToStreamNode) -> bool:
        roomy = not any(own.crowded_out for own in found.parts(other))
        return roomy and found.epoch[number].reads.low <= _SURE * read.repeats * read.chunks

    enough = _room_for_chunks(node, stream, held, is_good)
    ways = list(_smaller_windows(block, part.room))
    if enough is not None:
        ways.append(f"give chunks room: {_with_room(enough)}")
    return Advice(
        "window-room",
        numbers[id(block)],
        f"windows of {block.written} want {held:,} chunks at a time, and"
        f" {part.room.places:,} have a place: chunks are read {_times([read.costs])} times",
        ", or ".join(ways),
        f"each chunk is read {_are_read(passes)}",
    )


def _smaller_windows(block: BlockShuffleNode, room: CacheRoom) -> Iterator[str]:
    if block.block is not None:
        own = "leave block out, for the source's own blocks"
        yield own if _has_blocks(block) else f"leave block out, and use block_shuffle{_ON_EACH}"
    part = room.part
    if block.block is None or (isinstance(part, ArrayPart) and block.block >= part.chunk_rows):
        yield "choose a smaller window_blocks"


def _with_room(resident_bytes: int) -> str:
    return f"to_iter_dataset(ReadOptions(resident_bytes={resident_bytes:_}))"


def _on_room(
    node: Node, stream: ToStreamNode, reads: Sequence[_SourceRead], numbers: Mapping[int, int]
) -> Iterator[Advice]:
    """Advise a budget that keeps all chunks of a stream."""
    rooms = rooms_of(node, stream)
    read = [each for each in reads if any(room.source is each.source for room in rooms)]
    again = [each for each in read if each.costs.reads.low > _OFTEN * each.chunks]
    if not again or _fit(rooms):
        return
    sources = list(node.sources())
    numbered = [(each, _number_of(each.source, sources)) for each in again]

    def is_good(found: Prediction) -> bool:
        return all(found.epoch[own].reads.low <= _OFTEN * each.chunks for each, own in numbered)

    enough = _room_for_stores(node, stream, is_good)
    if enough is None:
        return
    stored = sum(room.part.chunk_count * room.chunk_bytes for room in rooms)
    once = sum((_each(each, each.passes) for each in again), start=Amount.exactly(0))
    yield Advice(
        "resident-bytes",
        numbers[id(stream)],
        f"{in_bytes(Amount.exactly(stored))} of chunks do not fit what is kept, and each is"
        f" read {_times([each.costs for each in again])} times an epoch",
        f"give them room: {_with_room(enough)}",
        f"each is read {_are_read(max(each.passes for each in again))}, {in_bytes(once)} an epoch",
    )


def _number_of(source: Any, sources: Sequence[Any]) -> int:
    return next(number for number, each in enumerate(sources) if each is source)


# --- how much room -------------------------------------------------------------------------------


def _fit(rooms: Sequence[CacheRoom]) -> bool:
    return all(room.fits for room in rooms)


def _with_bytes(node: Node, stream: ToStreamNode, number: int) -> tuple[Node, ToStreamNode]:
    """The chain with other `resident_bytes` for a stream, and that stream."""
    options = dataclasses.replace(stream.read_options, resident_bytes=number)
    other = dataclasses.replace(stream, read_options=options)
    return _with(node, stream, other, {}), other


def _with(node: Node, stream: Node, other: Node, known: dict[int, Node]) -> Node:
    """The chain with another node for `stream`."""
    if node is stream:
        return other
    if id(node) not in known:
        parents = (_with(parent, stream, other, known) for parent in node.parents)
        known[id(node)] = node.over(tuple(parents))
    return known[id(node)]


def _wanted_at_a_time(node: Node, stream: ToStreamNode, part: PartRun) -> int:
    """Slots of a part if there is room for all of its chunks."""
    number = math.ceil(_stores_bytes(rooms_of(node, stream))) * len(streams_of(node))
    top, other = _with_bytes(node, stream, number)
    found = next(own for own in predicted(top).parts(other) if own.room.part is part.room.part)
    return max(found.held, part.room.places + 1)


def _room_for_stores(
    node: Node, stream: ToStreamNode, is_good: Callable[[Prediction], bool]
) -> int | None:
    """The bytes that keep all chunks that a stream of a chain reads; None if they are too many.

    Chunks of a store that hardly fits are kept once one of them is wanted again, so an epoch of few
    passes needs more room than the store.

    Args:
        node: The chain.
        stream: One of its streams.
        is_good: Whether the costs of a chain with that room are as low as hoped.
    """
    own_bytes = _stores_bytes(rooms_of(node, stream))

    def is_enough(top: Node, other: ToStreamNode) -> bool:
        return _fit(rooms_of(top, other)) and is_good(predicted(top))

    return _enough(node, stream, own_bytes, is_enough)


def _room_for_chunks(
    node: Node,
    stream: ToStreamNode,
    held: int,
    is_good: Callable[[Prediction, ToStreamNode], bool],
) -> int | None:
    """The bytes that keep chunks as long as they are needed; None if they are too many.

    Args:
        node: The chain.
        stream: One of its streams.
        held: Chunks of a part that are needed at the same time.
        is_good: Whether the costs of a chain with that room are as low as hoped.
    """
    rooms = rooms_of(node, stream)
    kept = 1 if all(room.scatters for room in rooms) else USUAL_KEPT
    own_bytes = min(_stores_bytes(rooms), held * _bytes_together(rooms) / kept)

    def is_enough(top: Node, other: ToStreamNode) -> bool:
        return is_good(predicted(top), other)

    found = _enough(node, stream, own_bytes, is_enough)
    if found is None:
        found = _enough(node, stream, _stores_bytes(rooms), is_enough)
    return found


def _stores_bytes(rooms: Sequence[CacheRoom]) -> float:
    """Bytes that keep all chunks of each part."""
    most = max((room.part.chunk_count for room in rooms), default=0)
    return most * _bytes_together(rooms) / MOST_KEPT


def _bytes_together(rooms: Sequence[CacheRoom]) -> int:
    """Bytes of a chunk of each part."""
    return sum(largest_bytes(room.part) for room in rooms)


def _enough(
    node: Node,
    stream: ToStreamNode,
    own_bytes: float,
    is_enough: Callable[[Node, ToStreamNode], bool],
) -> int | None:
    """A round number of at least `own_bytes`, for one of several streams, that is enough."""
    wanted_bytes = own_bytes * len(streams_of(node))
    for _ in range(_TRIES):
        number = _rounded(wanted_bytes)
        if number > _MEMORY * machine_bytes():
            return None
        if is_enough(*_with_bytes(node, stream, number)):
            return number
        wanted_bytes *= 1.5
    return None


def _rounded(number: float) -> int:
    """Up to two digits, as people write numbers."""
    step: int = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(number / step) * step


# --- bytes read without need ---------------------------------------------------------------------


def _on_strides(read: _SourceRead, ratio: Amount, numbers: Mapping[int, int]) -> Iterator[Advice]:
    path = next((path for path in read.paths if any(node.skips for node in path)), None)
    if path is None:
        return
    at = max(number for number, node in enumerate(path) if node.skips)
    strided, costs = path[at], read.costs
    records = min(len(read.source), round(costs.records.low / (read.passes * read.repeats)))
    run = _of_a_run(read.source, max(1, records))
    if ratio.low < _MUCH * run:
        return
    order = next((node for node in path[at:] if node.shuffles), None)
    below = "" if order is None else f"below {order.written} "
    alone = _alone(read.source)
    yield Advice(
        "strides",
        numbers[id(strided)],
        f"{strided.written} takes some records of each chunk, and {ratio} bytes are decoded for"
        " each one delivered",
        f"{below}take consecutive records, as [a:b], where a part is all that is wanted, or each"
        " host its own run of them" + (f"; or {alone}" if alone else ""),
        f"of consecutive records {Amount.exactly(run)} bytes are decoded for each one delivered,"
        f" {in_bytes(known(costs.delivered_bytes).times(run))} an epoch",
    )


def _of_a_run(source: LaidOutSource, records: int) -> float:
    """Bytes decoded per byte of the first `records` records of a source."""
    judged = min(records, _JUDGED)
    indices = np.arange(judged)
    decoded = delivered = 0
    for part in source.parts:
        own = judged * bytes_per_record(part, len(source))
        delivered += own
        chunks = np.unique(part.needs(indices).chunks)
        decoded += own if part.alone else int(part.memory_bytes(chunks).sum())
    return decoded / max(1, delivered)


# --- what is waited for --------------------------------------------------------------------------


def _on_calls(read: _SourceRead, numbers: Mapping[int, int]) -> Iterator[Advice]:
    source, costs = read.source, read.costs
    if isinstance(source, ForeignDataSource) and not source.batched and costs.records.high > 1:
        yield Advice(
            "record-by-record",
            numbers[id(read.paths[0][-1])],
            f"{costs.records} records an epoch are read by as many calls of Python",
            "give the source a method __getitems__(indices) that reads many at once, or convert it"
            " to Zarr or ArrayRecord (windrow.converters)",
            "one call a batch, or more",
        )


def _on_threads(stream: ToStreamNode, numbers: Mapping[int, int]) -> Iterator[Advice]:
    options = stream.read_options
    if options.ahead or not any(
        isinstance(source, LaidOutSource) and not all(part.alone for part in source.parts)
        for source in stream.sources()
    ):
        return
    names = [name for name in ("num_threads", "prefetch_buffer_size") if not getattr(options, name)]
    yield Advice(
        "no-threads",
        numbers[id(stream)],
        f"with {' and '.join(f'{name}=0' for name in names)} no read batch is read ahead of"
        " the one before it, and a chunk that two read batches want is decoded for both",
        f"leave {' and '.join(names)} out",
        "chunks are read ahead, each once for all read batches that are planned",
    )
