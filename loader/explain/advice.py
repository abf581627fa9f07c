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
from windrow.engine.budgets import MOST_KEPT
from windrow.errors import PlanError
from windrow.explain.explanation import Advice
from windrow.explain.memory import rooms_of
from windrow.sources.chunks import LaidOutSource
from windrow.sources.foreign import ForeignDataSource
from windrow.stats.costs import Amount, SourceCosts, in_bytes, in_numbers
from windrow.transforms.nodes import (
    STREAM,
    Node,
    ToStreamNode,
    chains_of,
    source_of,
    sources_of,
    walk,
)
from windrow.transforms.nodes.reading import as_block_shuffle, is_global
from windrow.transforms.nodes.streams import passes

# Thresholds for advice: reads of a chunk in a pass.
_OFTEN: Final = 1.5
_SURE: Final = 1.1
# The share of the machine's memory that advice may use.
_MEMORY: Final = 0.25

# The kind of a piece of advice, the node that it is about, and what it says: now, do, then.
_Rule: TypeAlias = Iterator[tuple[str, Node, str, str, str]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _SourceRead:
    """A source and how it is read.

    Args:
        chain: The chain.
        source: The source.
        costs: Its costs in an epoch.
        room: The `resident_bytes` that keep all chunks of the streams that read it; 0 if they have
            room, and None if the machine has none.
    """

    chain: Node
    source: Any
    costs: SourceCosts
    room: int | None

    @property
    def reads(self) -> float:
        """How often a chunk is read in a pass; 0 without chunks."""
        times = (passes(node) or 1 for node in walk(self.chain) if node.length == STREAM)
        return self.costs.reads.middle / (math.prod(times) * self.costs.chunks.middle or math.inf)

    @property
    def often(self) -> str:
        """How often a chunk is read in a pass, as text."""
        return f"{in_numbers(Amount(self.reads / 2, self.reads * 2))} times"

    @property
    def shuffles(self) -> list[Node]:
        """The shuffles after the source, in the order of the chain."""
        found = [n for n in walk(self.chain) if n.shuffles and self.source in sources_of(n)]
        return found[::-1]


def advice_on(node: Node, numbers: Mapping[int, int], epoch: Sequence[SourceCosts]) -> list[Advice]:
    """Cheaper ways, in the order of the rules below.

    Args:
        node: The chain.
        numbers: The numbers of its nodes by `id`.
        epoch: The costs of reading each source.
    """
    reads = [
        _SourceRead(node, source, costs, _room(node, source))
        for source, costs in zip(sources_of(node), epoch, strict=True)
    ]
    streams = list({id(each): each for each in chains_of(node)}.values())
    rules = [
        *map(_on_calls, reads),
        *map(_on_threads, streams),
        *map(_on_order, reads),
        *(_on_room(stream, reads) for stream in streams),
    ]
    return [
        Advice(kind, numbers[id(about)], now, do, then)
        for rule in rules
        for kind, about, now, do, then in rule
    ]


def _on_calls(read: _SourceRead) -> _Rule:
    source, records = read.source, read.costs.records
    if isinstance(source, ForeignDataSource) and not source.batched and records.high > 1:
        yield (
            "record-by-record",
            next(node for node in walk(read.chain) if source_of(node) is source),
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


def _on_order(read: _SourceRead) -> _Rule:
    """Advise an order that reads each chunk once."""
    block = next(filter(None, map(as_block_shuffle, read.shuffles)), None)
    shuffle = next(filter(is_global, read.shuffles), None)
    costs = read.costs
    if read.room == 0:  # then a chunk is read twice at most
        return
    if shuffle is not None and read.reads > _OFTEN:
        yield (
            "global-shuffle",
            shuffle,
            f"{shuffle.written} decodes each chunk {read.often} an epoch,"
            f" {in_bytes(costs.decoded_bytes)} for {in_bytes(costs.delivered_bytes)} delivered",
            f"use block_shuffle{'' if has_blocks(shuffle) else ' on each of the datasets below'}",
            "each is decoded once in each pass",
        )
    elif block is not None and read.reads > _SURE:
        fewer = "choose a smaller window_blocks" if block.block is None else "leave block out"
        yield (
            "window-room",
            block,
            f"windows of {block.written} want more chunks at a time than have a place: chunks are"
            f" read {read.often}",
            f"{fewer}, or give chunks room: {_with_room(read.room)}" if read.room else fewer,
            "each chunk is read once in each pass",
        )


def _on_room(stream: ToStreamNode, reads: Sequence[_SourceRead]) -> _Rule:
    """Advise a budget that keeps all chunks of a stream."""
    again = [r for r in reads if r.reads > _OFTEN and r.room and r.source in sources_of(stream)]
    if again:
        most = max(again, key=lambda each: each.reads)
        yield (
            "resident-bytes",
            stream,
            f"chunks do not fit what is kept, and each is read {most.often} an epoch",
            f"give them room: {_with_room(max(each.room or 0 for each in again))}",
            "each is read once, or twice until the loader sees that it comes back",
        )


def _with_room(resident_bytes: int) -> str:
    return f"to_iter_dataset(ReadOptions(resident_bytes={resident_bytes:_}))"


def _room(node: Node, source: Any) -> int | None:
    wanted = [0.0]
    for stream in chains_of(node):
        rooms, _ = rooms_of(node, stream)
        if any(room.source is source for room in rooms) and not all(room.fits for room in rooms):
            most = max(room.part.chunk_count for room in rooms)
            wanted.append(most * sum(room.chunk_bytes for room in rooms) / MOST_KEPT)
    number = max(wanted) * len(chains_of(node))
    # Rounded up to two digits, as people write numbers.
    step = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    room = math.ceil(number / step) * step
    return room if room <= _MEMORY * machine_bytes() else None


def has_blocks(shuffle: Node) -> bool:
    """Whether the input of a shuffle has blocks of its own."""
    try:
        shuffle.parent.layout()
    except PlanError:
        return False
    return True
