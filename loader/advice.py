"""Advice: cheaper ways to elements that are as good, where a forecast shows that there are some.

Each piece of advice has a benchmark of a chain before and after following it, `benchmarks/advice.py`.

Invariant: whoever follows a piece of advice, with the number that it tells, does not get it again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow import demand
from windrow.advised_room import room_for_pieces, room_for_stores
from windrow.budget import bytes_per_record
from windrow.buffers import PartLook
from windrow.costs import Amount, SourceCosts, known
from windrow.errors import PlanError
from windrow.explanation import Advice, in_bytes
from windrow.forecast import Forecast
from windrow.running import label_of
from windrow.sources import (
    ArrayPart,
    ArrayRecordDataSource,
    ForeignDataSource,
    LaidOutSource,
    TFDSDataSource,
    WindowDataSource,
)
from windrow.stretches import Stretch
from windrow.transforms.block_nodes import BlockShuffleNode, layout
from windrow.transforms.nodes import (
    Node,
    ReindexNode,
    RepeatNode,
    ShuffleNode,
    SliceNode,
    SourceNode,
    WindowShuffleNode,
)

# Reads of a piece in an epoch, and bytes decoded per byte delivered, from which on others pay.
_OFTEN: Final = 1.5
_SURE: Final = 1.1
_MUCH: Final = 2.0
# Records by which a run of them is judged.
_JUDGED: Final = 1 << 18

_ON_EACH: Final = " on each of the datasets below"

Streams: TypeAlias = Sequence[tuple[Stretch, Sequence[PartLook]]]
_Path: TypeAlias = tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """A source and how it is read.

    Args:
        source: The source.
        paths: The nodes from the top down to it, one path for each time that it is met.
        costs: What it comes to in an epoch.
        looks: What was worked out of its parts, in all streams.
        passes: How often streams that read it begin anew in an epoch, with nothing kept.
        repeats: How often a chain goes through it in a pass, where what is kept is not read again.
    """

    source: Any
    paths: Sequence[_Path]
    costs: SourceCosts
    looks: Sequence[tuple[Stretch, PartLook]]
    passes: int
    repeats: int

    @property
    def pieces(self) -> float:
        """Pieces that are read in an epoch at least, if none is read again within a pass."""
        return self.passes * self.costs.pieces.high

    @property
    def most_wanted(self) -> tuple[Stretch, PartLook] | None:
        """The part of which most pieces want a slot that others have; None where there is none."""
        return max(
            (pair for pair in self.looks if pair[1].forecast.is_saturated),
            key=lambda pair: pair[1].forecast.held - pair[1].room.slots,
            default=None,
        )

    def first(self, *kinds: type[Node]) -> Node | None:
        """A node of these kinds between the top and the source, the nearest one to the source."""
        found = (node for path in self.paths for node in reversed(path) if isinstance(node, kinds))
        return next(found, None)


def advice_on(
    node: Node, numbers: Mapping[int, int], epoch: Sequence[SourceCosts], streams: Streams
) -> Iterator[Advice]:
    """Cheaper ways.

    Args:
        node: The chain.
        numbers: Numbers of its nodes, by their `id`.
        epoch: What its sources come to, as they are met from the top.
        streams: What was worked out of each of its streams.
    """
    reads = _reads(node, epoch, streams)
    for read in reads:
        yield from _on_calls(read, numbers)
        if read.costs.pieces.high:
            yield from _on_order(read, node, numbers)
    for stretch, looks in streams:
        yield from _on_room(node, stretch, looks, reads, numbers)
        yield from _on_threads(stretch, numbers)


def _reads(node: Node, epoch: Sequence[SourceCosts], streams: Streams) -> list[_Read]:
    paths: dict[int, list[_Path]] = {}
    for source, path in _paths(node, ()):
        paths.setdefault(id(source), []).append(path)
    times: dict[int, int] = {}
    passes: dict[int, int] = {}
    for taken in demand.taken(node):
        own = times[id(taken.node)] = times.get(id(taken.node), 0) + taken.times
        for source in demand.all_sources(taken.node):
            passes[id(source)] = max(passes.get(id(source), 1), own)
    return [
        _Read(
            source=source,
            paths=paths[id(source)],
            costs=costs,
            looks=[
                (stretch, look)
                for stretch, looks in streams
                for look in looks
                if look.room.source is source
            ],
            passes=passes.get(id(source), 1),
            repeats=max(map(_repeats, paths[id(source)])),
        )
        for source, costs in zip(demand.all_sources(node), epoch, strict=True)
    ]


def _paths(node: Node, above: _Path) -> Iterator[tuple[Any, _Path]]:
    """Sources, with the nodes from the top down to them."""
    path = (*above, node)
    if isinstance(node, SourceNode):
        yield node.source, path
    for parent in node.parents:
        yield from _paths(parent, path)


def _repeats(path: _Path) -> int:
    """How often a path goes through its source in a pass."""
    times = [node.times for node in path if isinstance(node, RepeatNode)]
    return math.prod(number for number in times if number is not None)


# --- what is read again --------------------------------------------------------------------------


def _on_order(read: _Read, node: Node, numbers: Mapping[int, int]) -> Iterator[Advice]:
    costs, crowded = read.costs, read.most_wanted
    if crowded is not None:
        once = read.repeats * read.pieces
        block, shuffle = read.first(BlockShuffleNode), read.first(ShuffleNode)
        if shuffle is not None and costs.reads.low > _OFTEN * once:
            yield _global_shuffle(shuffle, read, numbers)
        elif isinstance(block, BlockShuffleNode) and costs.reads.low > _SURE * once:
            yield _window(block, read, crowded, node, numbers)
    ratio = costs.decoded_per_delivered
    if ratio is not None and ratio.low >= _MUCH and costs.reads.low <= _OFTEN * read.pieces:
        yield from _on_strides(read, ratio, numbers)


def _times(costs: Sequence[SourceCosts]) -> Amount:
    reads = sum((each.reads for each in costs), start=Amount.exactly(0))
    pieces = sum((each.pieces for each in costs), start=Amount.exactly(0))
    return Amount(reads.low / pieces.high, reads.high / max(1, pieces.low))


def _each(read: _Read, passes: int) -> Amount:
    """Bytes decoded if every piece is read once in so many passes."""
    costs = read.costs
    mean = known(costs.decoded_bytes).middle / max(1.0, costs.reads.middle)
    return costs.pieces.times(passes * mean)


def _are_read(passes: int) -> str:
    return "once" if passes == 1 else f"{passes} times, once in each pass"


def _global_shuffle(shuffle: Node, read: _Read, numbers: Mapping[int, int]) -> Advice:
    costs, passes = read.costs, read.passes * read.repeats
    alone = _alone(read.source)
    then = f"each is decoded {_are_read(passes)}, {in_bytes(_each(read, passes))}"
    return Advice(
        "global-shuffle",
        numbers[id(shuffle)],
        f"{label_of(shuffle)} over {_pieces_of(read)} decodes each {_times([costs])} times an"
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
    """Whether what is shuffled has blocks of its own."""
    try:
        layout(shuffle.parent)
    except PlanError:
        return False
    return True


def _pieces_of(read: _Read) -> str:
    """The pieces of a source in words, with the records that they hold."""
    files = isinstance(read.source, (ArrayRecordDataSource, TFDSDataSource))
    sizes = set()
    for part in {id(look.room.part): look.room.part for _, look in read.looks}.values():
        if not isinstance(part, ArrayPart):
            sizes.add(len(read.source) / max(1, part.piece_count) if files else 0)
        else:
            sizes.add(min(part.piece_rows, part.rows) if part.size is None else 0)
    what = "groups" if files else "chunks"
    if not sizes or 0 in sizes:  # of windows and boxes, records are in several
        return what
    return f"{what} of {' and '.join(f'{size:,.0f}' for size in sorted(sizes))} records"


def _window(
    block: BlockShuffleNode,
    read: _Read,
    crowded: tuple[Stretch, PartLook],
    node: Node,
    numbers: Mapping[int, int],
) -> Advice:
    stretch, look = crowded
    passes = read.passes * read.repeats
    number = [source is read.source for source in demand.all_sources(node)].index(True)

    def is_good(found: Forecast) -> bool:
        return found.epoch[number].reads.low <= _SURE * read.repeats * read.pieces

    enough = room_for_pieces(node, stretch.facts.node, look.forecast.held, is_good)
    ways = list(_smaller_windows(block, look))
    if enough is not None:
        ways.append(f"give pieces room: {_with_room(enough)}")
    return Advice(
        "window-room",
        numbers[id(block)],
        f"windows of {label_of(block)} want {look.forecast.held:,} pieces at a time, and"
        f" {look.room.slots:,} have a place: pieces are read {_times([read.costs])} times",
        ", or ".join(ways),
        f"each piece is read {_are_read(passes)}",
    )


def _smaller_windows(block: BlockShuffleNode, look: PartLook) -> Iterator[str]:
    if block.block is not None:
        own = "leave block out, for the source's own blocks"
        yield own if _has_blocks(block) else f"leave block out, and use block_shuffle{_ON_EACH}"
    part = look.room.part
    if block.block is None or (isinstance(part, ArrayPart) and block.block >= part.piece_rows):
        yield "choose a smaller window_blocks"


def _with_room(resident_bytes: int) -> str:
    return f"to_iter_dataset(ReadOptions(resident_bytes={resident_bytes:_}))"


def _on_room(
    node: Node,
    stretch: Stretch,
    looks: Sequence[PartLook],
    reads: Sequence[_Read],
    numbers: Mapping[int, int],
) -> Iterator[Advice]:
    """Where all that a stream reads in pieces could be kept."""
    here = {id(look.room.source) for look in looks}
    read = [each for each in reads if id(each.source) in here]
    again = [each for each in read if each.costs.reads.low > _OFTEN * each.pieces]
    if not again or all(look.room.fits for look in looks):
        return
    enough = room_for_stores(node, stretch.facts.node)
    if enough is None:
        return
    stored = sum(look.room.part.piece_count * look.room.piece_bytes for look in looks)
    once = sum((_each(each, each.passes) for each in again), start=Amount.exactly(0))
    yield Advice(
        "resident-bytes",
        numbers[id(stretch.facts.node)],
        f"{in_bytes(Amount.exactly(stored))} of pieces do not fit what is kept, and each is"
        f" read {_times([each.costs for each in again])} times an epoch",
        f"give them room: {_with_room(enough)}",
        f"each is read {_are_read(max(each.passes for each in again))}, {in_bytes(once)} an epoch",
    )


# --- what is read beside -------------------------------------------------------------------------


def _on_strides(read: _Read, ratio: Amount, numbers: Mapping[int, int]) -> Iterator[Advice]:
    path = next((path for path in read.paths if any(map(_is_strided, path))), None)
    if path is None:
        return
    at = max(number for number, node in enumerate(path) if _is_strided(node))
    strided, costs = path[at], read.costs
    records = min(len(read.source), round(costs.records.low / (read.passes * read.repeats)))
    run = _of_a_run(read.source, max(1, records))
    if ratio.low < _MUCH * run:
        return
    orders = (ShuffleNode, BlockShuffleNode, WindowShuffleNode)
    order = next((node for node in path[at:] if isinstance(node, orders)), None)
    below = "" if order is None else f"below {label_of(order)} "
    alone = _alone(read.source)
    yield Advice(
        "strides",
        numbers[id(strided)],
        f"{label_of(strided)} takes some records of each piece, and {ratio} bytes are decoded for"
        " each one delivered",
        f"{below}take consecutive records, as [a:b], where a part is all that is wanted, or each"
        " host its own run of them" + (f"; or {alone}" if alone else ""),
        f"of consecutive records {Amount.exactly(run)} bytes are decoded for each one delivered,"
        f" {in_bytes(known(costs.delivered_bytes).times(run))} an epoch",
    )


def _is_strided(node: Node) -> bool:
    """Whether elements that lie apart are taken."""
    match node:
        case SliceNode():
            return abs(node.step) > 1 and node.length > 1
        case ReindexNode() if node.length:
            lowest, highest = int(node.indices.min()), int(node.indices.max())
            return highest - lowest + 1 >= _MUCH * node.length
        case _:
            return False


def _of_a_run(source: LaidOutSource, records: int) -> float:
    """Bytes decoded per byte of so many consecutive records of a source, from its first on."""
    judged = min(records, _JUDGED)
    indices = np.arange(judged)
    decoded = delivered = 0
    for part in source.parts:
        own = judged * bytes_per_record(part, len(source))
        delivered += own
        pieces = np.unique(part.needs(indices).pieces)
        decoded += own if part.alone else int(part.decoded_bytes(pieces).sum())
    return decoded / max(1, delivered)


# --- what is waited for --------------------------------------------------------------------------


def _on_calls(read: _Read, numbers: Mapping[int, int]) -> Iterator[Advice]:
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


def _on_threads(stretch: Stretch, numbers: Mapping[int, int]) -> Iterator[Advice]:
    facts = stretch.facts
    if facts.options.ahead or not any(
        isinstance(source, LaidOutSource) and not all(part.alone for part in source.parts)
        for source in stretch.sources
    ):
        return
    names = [
        name for name in ("num_threads", "prefetch_buffer_size") if not getattr(facts.options, name)
    ]
    yield Advice(
        "no-threads",
        numbers[id(facts.node)],
        f"with {' and '.join(f'{name}=0' for name in names)} no round is read ahead of the one"
        " before it, and a piece that two rounds want is decoded for both",
        f"leave {' and '.join(names)} out",
        "pieces are read ahead, each once for all rounds that are planned",
    )
