"""Advice: cheaper ways to elements that are as good, by a few rules.

Each piece of advice has a benchmark of a chain before and after following it, `benchmarks/explaining.py`.

Invariant: the rules are asked in the order of what following them spares.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from windrow.core.machine import machine_bytes
from windrow.engine.budgets import memory_for
from windrow.errors import PlanError
from windrow.explain.explanation import Advice, in_bytes, in_numbers
from windrow.explain.memory import rooms_of
from windrow.explain.paths import Path, passes_of, paths
from windrow.quality.shuffle_quality import ShuffleQuality
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.chunks import ArrayPart, LaidOutSource
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.tfds.source import TFDSDataSource
from windrow.sources.windows.source import WindowDataSource
from windrow.stats.costs import Amount, SourceCosts, known
from windrow.transforms.nodes import (
    STREAM,
    BlockShuffleNode,
    Node,
    ToStreamNode,
    chains_of,
    sources_of,
    walk,
)
from windrow.transforms.nodes.following import group_size
from windrow.transforms.nodes.reading import (
    as_block_shuffle,
    is_global,
    leaves_out_between,
)

# Thresholds for advice: reads of a chunk in an epoch, bytes decoded per byte delivered, and the
# variance ratio of batch means.
_OFTEN: Final = 1.5
_SURE: Final = 1.1
_MUCH: Final = 2.0
_UNLIKE: Final = 2.0
# The share of the machine's memory that advice may use.
_MEMORY: Final = 0.25

_ON_EACH: Final = " on each of the datasets below"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _SourceRead:
    """A source and how it is read.

    Args:
        source: The source.
        ways: The nodes from the last one to the source; a source that occurs twice has two paths.
        costs: Its costs in an epoch.
        room: The `memory_bytes` that keep all chunks of the streams that read it; 0 if they have
            room, and None if the machine has none.
    """

    source: Any
    ways: Sequence[Path]
    costs: SourceCosts
    room: int | None

    @property
    def reads(self) -> float:
        """How often a chunk is read in a pass."""
        streams = max(passes_of([n for n in path if n.length == STREAM]) for path in self.ways)
        return self.costs.reads.middle / max(1, streams * self.costs.chunks.middle)

    @property
    def often(self) -> str:
        """How often a chunk is read in a pass, as text."""
        return f"{in_numbers(Amount(self.reads / 2, self.reads * 2))} times"

    @property
    def shuffles(self) -> list[Node]:
        """The shuffles between the last node and the source, in the order of the chain."""
        return [node for path in self.ways for node in reversed(path) if node.shuffles]

    @property
    def alone(self) -> str:
        """How to store records so that each can be read by itself; empty where they overlap."""
        if isinstance(self.source, (ArrayRecordDataSource, TFDSDataSource)):
            return "write the files with group_size:1"
        overlap = isinstance(self.source, WindowDataSource)
        return "" if overlap else "convert with one record per inner chunk"


def advice_on(
    node: Node,
    numbers: Mapping[int, int],
    epoch: Sequence[SourceCosts],
    quality: ShuffleQuality | None,
) -> list[Advice]:
    """Cheaper ways, in the order of the rules below.

    Args:
        node: The chain.
        numbers: The numbers of its nodes by `id`.
        epoch: The costs of reading each source.
        quality: The quality of its order.
    """
    ways = list(paths(node))
    reads = [
        _SourceRead(s, [path for own, path in ways if own is s], costs, _room(node, s))
        for s, costs in zip(sources_of(node), epoch, strict=True)
    ]
    chunked = [read for read in reads if read.costs.chunks.high]
    streams = list({id(each): each for each in chains_of(node)}.values())
    rules = [
        *(_on_calls(read) for read in reads),
        *(_on_threads(stream) for stream in streams),
        *(_on_order(read) for read in chunked),
        *(_on_room(stream, reads) for stream in streams),
        *(_on_strides(read) for read in chunked),
        _on_batches(node, quality),
    ]
    return [
        Advice(kind, numbers[id(about)], now, do, then)
        for rule in rules
        for kind, about, now, do, then in rule
    ]


# The kind of a piece of advice, the node that it is about, and what it says: now, do, then.
_Rule: TypeAlias = Iterator[tuple[str, Node, str, str, str]]


def _on_calls(read: _SourceRead) -> _Rule:
    source, records = read.source, read.costs.records
    if isinstance(source, ForeignDataSource) and not source.batched and records.high > 1:
        yield (
            "record-by-record",
            read.ways[0][-1],
            f"{in_numbers(records)} records an epoch are read by as many calls of Python",
            "give the source a method __getitems__(indices) that reads many at once, or convert it"
            " to Zarr or ArrayRecord (windrow.converters)",
            "one call a batch, or more",
        )


def _on_threads(stream: ToStreamNode) -> _Rule:
    options = stream.read_options
    sources = [source for source in sources_of(stream) if isinstance(source, LaidOutSource)]
    is_chunked = any(p.chunk_count and not p.alone for source in sources for p in source.parts)
    if options.ahead or not is_chunked:
        return
    names = [name for name in ("num_threads", "prefetch_buffer_size") if not getattr(options, name)]
    yield (
        "no-threads",
        stream,
        f"with {' and '.join(f'{name}=0' for name in names)} no read batch is read ahead of the one"
        " before it, and a chunk that two read batches want is decoded for both",
        f"leave {' and '.join(names)} out",
        "chunks are read ahead, each once for all read batches that are planned",
    )


# --- what is read again --------------------------------------------------------------------------


def _on_order(read: _SourceRead) -> _Rule:
    block = next(filter(None, map(as_block_shuffle, read.shuffles)), None)
    shuffle = next((each for each in read.shuffles if is_global(each)), None)
    costs = read.costs
    if read.room == 0:  # then a chunk is read twice at most
        return
    if shuffle is not None and read.reads > _OFTEN:
        yield (
            "global-shuffle",
            shuffle,
            f"{shuffle.written} decodes each chunk {read.often} an epoch,"
            f" {in_bytes(costs.decoded_bytes)} for {in_bytes(costs.delivered_bytes)} delivered",
            f"use block_shuffle{'' if _has_blocks(shuffle) else _ON_EACH}"
            + (f", or {read.alone}" if read.alone else ""),
            "each is decoded once in each pass",
        )
    elif block is not None and read.reads > _SURE:
        yield (
            "window-room",
            block,
            f"windows of {block.written} want more chunks at a time than have a place: chunks are"
            f" read {read.often}",
            ", or ".join(_ways_out(block, read)),
            "each chunk is read once in each pass",
        )


def in_place_of(shuffle: Node) -> str:
    """The advice to use a block shuffle; nothing if the shuffle is one."""
    if as_block_shuffle(shuffle) is not None:
        return ""
    return f"use block_shuffle in place of {shuffle.written}, and "


def _has_blocks(shuffle: Node) -> bool:
    """Whether the input of a shuffle has blocks of its own."""
    try:
        shuffle.parent.layout()
    except PlanError:
        return False
    return True


def _ways_out(block: BlockShuffleNode, read: _SourceRead) -> Iterator[str]:
    if block.block is not None:
        own = "leave block out, for the source's own blocks"
        yield own if _has_blocks(block) else f"leave block out, and use block_shuffle{_ON_EACH}"
    parts = [part for part in read.source.parts if isinstance(part, ArrayPart) and not part.alone]
    if block.block is None or (parts and block.block >= max(part.chunk_rows for part in parts)):
        yield "choose a smaller window_blocks"
    if read.room is not None:
        yield f"give chunks room: {_with_room(read.room)}"


def _with_room(memory_bytes: int) -> str:
    return f"to_iter_dataset(ReadOptions(memory_bytes={memory_bytes:_}))"


def _room(node: Node, source: Any) -> int | None:
    wanted = [0]
    for stream in chains_of(node):
        rooms, _ = rooms_of(node, stream)
        if any(room.source is source for room in rooms) and not all(room.fits for room in rooms):
            store_bytes = sum(room.part.chunk_count * room.chunk_bytes for room in rooms)
            wanted.append(memory_for(store_bytes, len(chains_of(node))))
    number = max(wanted)
    # Rounded up to two digits, as people write numbers.
    step = 10 ** max(0, math.floor(math.log10(max(1, number))) - 1)
    room = math.ceil(number / step) * step
    return room if room <= _MEMORY * machine_bytes() else None


def _on_room(stream: ToStreamNode, reads: Sequence[_SourceRead]) -> _Rule:
    """Advise a budget that keeps all chunks of a stream."""
    again = [r for r in reads if r.reads > _OFTEN and r.room and r.source in sources_of(stream)]
    if again:
        most = max(again, key=lambda each: each.reads)
        yield (
            "memory-bytes",
            stream,
            f"chunks do not fit what is kept, and each is read {most.often} an epoch",
            f"give them room: {_with_room(max(each.room or 0 for each in again))}",
            "each is read once, or twice until the loader sees that it comes back",
        )


# --- bytes read without need ---------------------------------------------------------------------


def _on_strides(read: _SourceRead) -> _Rule:
    path = next((path for path in read.ways if any(map(leaves_out_between, path))), None)
    ratio = known(read.costs.decoded_per_delivered)
    if path is None or ratio.middle < _MUCH or read.reads > _OFTEN or read.costs.chunks.high <= 2:
        return
    at = max(number for number, node in enumerate(path) if leaves_out_between(node))
    order = next((node for node in path[at:] if node.shuffles), None)
    below = "" if order is None else f"below {order.written} "
    yield (
        "strides",
        path[at],
        f"{path[at].written} takes some records of each chunk, and {in_numbers(ratio)} bytes are"
        " decoded for each one delivered",
        f"{below}take consecutive records, as [a:b], where a part is all that is wanted, or each"
        " host its own run of them" + (f"; or {read.alone}" if read.alone else ""),
        "consecutive records share their chunks",
    )


# --- orders --------------------------------------------------------------------------------------


def _on_batches(node: Node, quality: ShuffleQuality | None) -> _Rule:
    """Advise to shuffle before the batch, where batches of neighbours are shuffled as wholes."""
    ratio = None if quality is None else quality.variance_ratio
    if ratio is None or ratio < _UNLIKE:
        return
    for shuffle in walk(node):
        batch = next((each for each in walk(shuffle) if (group_size(each) or 1) > 1), None)
        if shuffle.shuffles and batch is not None and not any(n.shuffles for n in walk(batch)):
            yield (
                "shuffled-batches",
                shuffle,
                f"{shuffle.written} shuffles whole batches, and each holds {group_size(batch):,}"
                f" neighbours: on sorted data their means vary ≈{ratio:.3g} times as much as under a"
                " global shuffle",
                f"shuffle before {batch.written}",
                "batches of records from anywhere",
            )
