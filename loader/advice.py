"""Advice: cheaper ways to elements that are as good, where a forecast shows that there are some.

Each piece of advice has a benchmark of a chain before and after following it, `benchmarks/advice.py`.

Invariant: nothing is advised that a benchmark does not show to pay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from windrow.budget import MOST_KEPT
from windrow.buffers import PartLook
from windrow.costs import Amount, SourceCosts
from windrow.explanation import Advice, in_bytes
from windrow.memory import machine_bytes
from windrow.running import label_of
from windrow.sources import ArrayRecordDataSource, ForeignDataSource, LaidOutSource, TFDSDataSource
from windrow.stretches import Stretch
from windrow.transforms.block_nodes import BlockShuffleNode
from windrow.transforms.nodes import Node, ReindexNode, ShuffleNode, SliceNode, SourceNode
from windrow.transforms.streams import ToStreamNode

# Reads of a piece in an epoch, and bytes decoded per byte delivered, from which on others pay.
_OFTEN: Final = 1.5
_SURE: Final = 1.1
_MUCH: Final = 2.0
# Of the machine's memory, what a store may take to be kept.
_MEMORY: Final = 0.25
_STEP_BYTES: Final = 1 << 20

Streams = Sequence[tuple[Stretch, Sequence[PartLook]]]


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
    looks = {id(look.room.source): look for _, found in streams for look in found}
    costs = iter(epoch)
    seen: set[int] = set()
    for path in _paths(node, ()):
        source = path[-1].source if isinstance(path[-1], SourceNode) else None
        if source is None or id(source) in seen:
            continue
        seen.add(id(source))
        yield from _on_source(path, next(costs), looks.get(id(source)), numbers)
    for stretch, _ in streams:
        yield from _on_threads(stretch, numbers)


def _paths(node: Node, above: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    """The nodes from the top down to each source."""
    path = (*above, node)
    if isinstance(node, SourceNode):
        yield path
    for parent in node.parents:
        yield from _paths(parent, path)


def _on_source(
    path: Sequence[Node], costs: SourceCosts, look: PartLook | None, numbers: Mapping[int, int]
) -> Iterator[Advice]:
    source = path[-1].source if isinstance(path[-1], SourceNode) else None
    if isinstance(source, ForeignDataSource) and not source.batched and costs.records.high > 1:
        yield Advice(
            "record-by-record",
            numbers[id(path[-1])],
            f"{costs.records} records an epoch are read by as many calls of Python",
            "give the source a method __getitems__(indices) that reads many at once, or convert it"
            " to Zarr or ArrayRecord (windrow.converters)",
            "one call a batch, or more",
        )
    if not costs.pieces.high:
        return
    often = costs.reads.low > _OFTEN * costs.pieces.high
    block = _first(path, BlockShuffleNode)
    shuffle = _first(path, ShuffleNode)
    if often and shuffle is not None:
        yield _global_shuffle(shuffle, source, costs, numbers)
    elif block is not None and look is not None and costs.reads.low > _SURE * costs.pieces.high:
        yield _window(block, costs, look, numbers)
    if often and look is not None:
        yield from _room(path, costs, look, numbers)
    strided = _first(path, SliceNode, ReindexNode)
    ratio = costs.decoded_per_delivered
    if strided is not None and not often and ratio is not None and ratio.low >= _MUCH:
        yield from _strides(strided, costs, ratio, numbers)


def _first(path: Sequence[Node], *kinds: type[Node]) -> Node | None:
    return next((node for node in reversed(path) if isinstance(node, kinds)), None)


def _times(costs: SourceCosts) -> Amount:
    pieces = costs.pieces
    return Amount(costs.reads.low / pieces.high, costs.reads.high / pieces.low)


def _each_once(costs: SourceCosts) -> Amount:
    """Bytes decoded if every piece is read once."""
    reads, decoded = costs.reads, costs.decoded_bytes
    mean = decoded.middle / max(1.0, reads.middle)
    return Amount(costs.pieces.low * mean, costs.pieces.high * mean)


def _global_shuffle(
    shuffle: Node, source: Any, costs: SourceCosts, numbers: Mapping[int, int]
) -> Advice:
    records = costs.records.low / max(1.0, costs.pieces.high)
    files = isinstance(source, (ArrayRecordDataSource, TFDSDataSource))
    what = "groups" if files else "chunks"
    alone = (
        "write the files with group_size:1" if files else "convert with one record per inner chunk"
    )
    return Advice(
        "global-shuffle",
        numbers[id(shuffle)],
        f"{label_of(shuffle)} over {what} of {records:,.0f} records decodes each {_times(costs)}"
        f" times an epoch, {in_bytes(costs.decoded_bytes)} for {in_bytes(costs.delivered_bytes)}"
        " delivered",
        f"use block_shuffle, or {alone}",
        f"each is decoded once, {in_bytes(_each_once(costs))}; alone, no more than is delivered",
    )


def _window(block: Node, costs: SourceCosts, look: PartLook, numbers: Mapping[int, int]) -> Advice:
    room = look.room
    wanted = (2 * look.forecast.held + room.most_in_flight) * room.piece_bytes
    return Advice(
        "window-room",
        numbers[id(block)],
        f"windows of {label_of(block)} want {look.forecast.held:,} pieces at a time, and"
        f" {room.slots:,} have a place: pieces are read {_times(costs)} times",
        "choose a smaller window_blocks, or a larger ReadOptions(resident_bytes=...): a quarter of"
        f" it is for pieces, so that {in_bytes(Amount.exactly(4 * wanted))} is enough",
        "each piece is read once",
    )


def _room(
    path: Sequence[Node], costs: SourceCosts, look: PartLook, numbers: Mapping[int, int]
) -> Iterator[Advice]:
    """Where the whole store could be kept."""
    stream = _first(path, ToStreamNode)
    store_bytes = look.room.part.piece_count * look.room.piece_bytes
    wanted = math.ceil(store_bytes / MOST_KEPT / _STEP_BYTES + 1) * _STEP_BYTES
    if stream is None or wanted > _MEMORY * machine_bytes():
        return
    yield Advice(
        "resident-bytes",
        numbers[id(stream)],
        f"{in_bytes(Amount.exactly(store_bytes))} of pieces do not fit what is kept, and each is"
        f" read {_times(costs)} times an epoch",
        f"give them room: to_iter_dataset(ReadOptions(resident_bytes={wanted}))",
        f"each is read once, {in_bytes(_each_once(costs))} an epoch",
    )


def _strides(
    strided: Node, costs: SourceCosts, ratio: Amount, numbers: Mapping[int, int]
) -> Iterator[Advice]:
    yield Advice(
        "strides",
        numbers[id(strided)],
        f"{label_of(strided)} takes some records of each piece, and {ratio} bytes are decoded for"
        " each one delivered",
        "take consecutive records, as [a:b], where a part is all that is wanted, or each host its own"
        " run of them; or convert to smaller chunks",
        "of consecutive records one byte is decoded for each delivered,"
        f" {in_bytes(costs.delivered_bytes)} an epoch",
    )


def _on_threads(stretch: Stretch, numbers: Mapping[int, int]) -> Iterator[Advice]:
    facts = stretch.facts
    if facts.options.ahead or not any(
        isinstance(source, LaidOutSource) and not all(part.alone for part in source.parts)
        for source in stretch.sources
    ):
        return
    name = "num_threads" if not facts.options.num_threads else "prefetch_buffer_size"
    yield Advice(
        "no-threads",
        numbers[id(facts.node)],
        f"with {name}=0 the loop waits while each round is read, and a piece that two rounds want is"
        " decoded for both",
        f"leave {name} out",
        "pieces are read ahead, each once for all rounds that are planned",
    )
