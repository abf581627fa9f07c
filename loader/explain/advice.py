"""Advice: cheaper ways to elements that are as good, by rules.

Each piece of advice has a benchmark of a chain before and after following it, `benchmarks/explaining.py`.

Invariant: what costs most comes first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.core.machine import machine_bytes
from windrow.engine.budgets import MOST_KEPT
from windrow.errors import PlanError
from windrow.explain.explanation import Advice, in_bytes, in_numbers
from windrow.explain.memory import rooms_of
from windrow.quality.shuffle_quality import ShuffleQuality
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.chunks import ArrayPart, LaidOutSource, Part
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.part_sizes import bytes_per_record
from windrow.sources.tfds.source import TFDSDataSource
from windrow.sources.windows.source import WindowDataSource
from windrow.stats.costs import Amount, SourceCosts, known
from windrow.transforms.nodes import (
    STREAM,
    BlockShuffleNode,
    Node,
    ShuffleNode,
    ToStreamNode,
    chains_of,
    source_of,
    sources_of,
    walk,
)
from windrow.transforms.nodes.following import group_size

# Thresholds for advice: reads of a chunk in an epoch, bytes decoded per byte delivered, and the
# variance ratio of batch means.
_OFTEN: Final = 1.5
_SURE: Final = 1.1
_MUCH: Final = 2.0
_UNLIKE: Final = 2.0
# Records by which a run of them is judged.
_JUDGED: Final = 1 << 18
# The share of the machine's memory that advice may use.
_MEMORY: Final = 0.25
# How dear each kind is, in bytes decoded per byte delivered, where these do not show it.
_CALLS, _NO_THREADS, _ORDER = 100.0, 10.0, 1.0

_ON_EACH: Final = " on each of the datasets below"

_Path: TypeAlias = tuple[Node, ...]
_Dear: TypeAlias = tuple[float, Advice]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _SourceRead:
    """A source and how it is read.

    Args:
        source: The source.
        paths: The nodes from the last one to the source; a source that occurs twice has two paths.
        costs: Its costs in an epoch.
        room: The `resident_bytes` that keep all chunks of the streams that read it; 0 if they have
            room, and None if the machine has none.
    """

    source: Any
    paths: Sequence[_Path]
    costs: SourceCosts
    room: int | None

    @property
    def reads(self) -> float:
        """How often a chunk is read in a pass."""
        streams = max(_passes(path, stream=True) for path in self.paths)
        return self.costs.reads.middle / max(1, streams * self.costs.chunks.middle)

    @property
    def ratio(self) -> float:
        """Bytes decoded per byte delivered."""
        ratio = self.costs.decoded_per_delivered
        return 1.0 if ratio is None else ratio.middle

    @property
    def shuffles(self) -> list[Node]:
        """The shuffles between the last node and the source, in the order of the chain."""
        return [node for path in self.paths for node in reversed(path) if node.shuffles]


def advice_on(
    node: Node,
    numbers: Mapping[int, int],
    epoch: Sequence[SourceCosts],
    quality: ShuffleQuality | None,
) -> list[Advice]:
    """Cheaper ways, those that spare most first.

    Args:
        node: The chain.
        numbers: The numbers of its nodes by `id`.
        epoch: The costs of reading each source.
        quality: The quality of its order.
    """
    paths: dict[int, list[_Path]] = {}
    for source, path in _paths(node, ()):
        paths.setdefault(id(source), []).append(path)
    reads = [
        _SourceRead(source, paths[id(source)], costs, _room(node, source))
        for source, costs in zip(sources_of(node), epoch, strict=True)
    ]
    found: list[_Dear] = []
    for read in reads:
        found += _on_calls(read, numbers)
        if read.costs.chunks.high:
            found += _on_order(read, numbers)
            found += _on_strides(read, numbers)
    for stream in {id(each): each for each in chains_of(node)}.values():
        found += _on_room(stream, reads, numbers)
        found += _on_threads(stream, numbers)
    found += _on_batches(node, quality, numbers)
    return [advice for _, advice in sorted(found, key=lambda pair: -pair[0])]


def _paths(node: Node, above: _Path) -> Iterator[tuple[Any, _Path]]:
    """Sources, with the nodes from the top down to them."""
    path = (*above, node)
    if source_of(node) is not None:
        yield source_of(node), path
    for parent in node.parents:
        yield from _paths(parent, path)


def _passes(path: _Path, *, stream: bool) -> int:
    """How often the streams of a path, or its chain with random access, go through the source."""
    nodes = (node for node in path if (node.length == STREAM) == stream)
    return math.prod(node.passes or 1 for node in nodes)


# --- what is read again --------------------------------------------------------------------------


def _on_order(read: _SourceRead, numbers: Mapping[int, int]) -> Iterator[_Dear]:
    block = next((each for each in read.shuffles if isinstance(each, BlockShuffleNode)), None)
    shuffle = next((each for each in read.shuffles if is_global(each)), None)
    costs = read.costs
    if read.room == 0:  # then a chunk is read twice at most
        return
    if shuffle is not None and read.reads > _OFTEN:
        alone = _alone(read.source)
        yield (
            read.ratio,
            Advice(
                "global-shuffle",
                numbers[id(shuffle)],
                f"{shuffle.written} decodes each chunk {_times(read.reads)} times an epoch,"
                f" {in_bytes(costs.decoded_bytes)} for {in_bytes(costs.delivered_bytes)} delivered",
                _block_shuffle(shuffle) + (f", or {alone}" if alone else ""),
                "each is decoded once in each pass",
            ),
        )
    elif block is not None and read.reads > _SURE:
        yield (
            read.ratio,
            Advice(
                "window-room",
                numbers[id(block)],
                f"windows of {block.written} want more chunks at a time than have a place: chunks are"
                f" read {_times(read.reads)} times",
                ", or ".join(_ways_out(block, read)),
                "each chunk is read once in each pass",
            ),
        )


def _times(number: float) -> str:
    return in_numbers(Amount(number / 2, number * 2))


def _alone(source: Any) -> str | None:
    """How to store records so that each can be read by itself; None where they overlap."""
    if isinstance(source, (ArrayRecordDataSource, TFDSDataSource)):
        return "write the files with group_size:1"
    if isinstance(source, WindowDataSource):
        return None
    return "convert with one record per inner chunk"


def is_global(node: Node) -> bool:
    """Whether neighbours after a shuffle lie anywhere before it."""
    return isinstance(node, ShuffleNode)


def in_place_of(shuffle: Node) -> str:
    """The advice to use a block shuffle; nothing if the shuffle is one."""
    if isinstance(shuffle, BlockShuffleNode):
        return ""
    return f"use block_shuffle in place of {shuffle.written}, and "


def _block_shuffle(shuffle: Node) -> str:
    return "use block_shuffle" + ("" if _has_blocks(shuffle) else _ON_EACH)


def _has_blocks(shuffle: Node) -> bool:
    """Whether the input of a shuffle has blocks of its own."""
    try:
        shuffle.parent.layout()
    except PlanError:
        return False
    return True


def _planned(source: Any) -> list[Part]:
    parts = source.parts if isinstance(source, LaidOutSource) else ()
    return [part for part in parts if part.chunk_count and not part.alone]


def _ways_out(block: BlockShuffleNode, read: _SourceRead) -> Iterator[str]:
    if block.block is not None:
        own = "leave block out, for the source's own blocks"
        yield own if _has_blocks(block) else f"leave block out, and use block_shuffle{_ON_EACH}"
    rows = [part.chunk_rows for part in _planned(read.source) if isinstance(part, ArrayPart)]
    if block.block is None or (rows and block.block >= max(rows)):
        yield "choose a smaller window_blocks"
    if read.room is not None:
        yield f"give chunks room: {_with_room(read.room)}"


def _with_room(resident_bytes: int) -> str:
    return f"to_iter_dataset(ReadOptions(resident_bytes={resident_bytes:_}))"


def _room(node: Node, source: Any) -> int | None:
    wanted = [0.0]
    for stream in chains_of(node):
        rooms, _ = rooms_of(node, stream)
        if any(room.source is source for room in rooms) and not all(room.fits for room in rooms):
            most = max(room.part.chunk_count for room in rooms)
            wanted.append(most * sum(room.chunk_bytes for room in rooms) / MOST_KEPT)
    number = _rounded(max(wanted) * len(chains_of(node)))
    return number if number <= _MEMORY * machine_bytes() else None


def _rounded(number: float) -> int:
    """Round up to two digits, as people write numbers."""
    step: int = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(number / step) * step


def _on_room(
    stream: ToStreamNode, reads: Sequence[_SourceRead], numbers: Mapping[int, int]
) -> Iterator[_Dear]:
    """Advise a budget that keeps all chunks of a stream."""
    again = [
        (each, each.room)
        for each in reads
        if each.reads > _OFTEN and each.source in sources_of(stream) and each.room
    ]
    if again:
        times = max(each.reads for each, _ in again)
        yield (
            max(each.ratio for each, _ in again),
            Advice(
                "resident-bytes",
                numbers[id(stream)],
                f"chunks do not fit what is kept, and each is read {_times(times)} times an epoch",
                f"give them room: {_with_room(max(room for _, room in again))}",
                "each is read once, or twice until the loader sees that it comes back",
            ),
        )


# --- bytes read without need ---------------------------------------------------------------------


def _on_strides(read: _SourceRead, numbers: Mapping[int, int]) -> Iterator[_Dear]:
    path = next((path for path in read.paths if any(node.skips for node in path)), None)
    if path is None or read.ratio < _MUCH or read.reads > _OFTEN:
        return
    at = max(number for number, node in enumerate(path) if node.skips)
    strided, costs = path[at], read.costs
    passes = max(_passes(each, stream=s) for each in read.paths for s in (True, False))
    run = _of_a_run(read.source, min(len(read.source), round(costs.records.middle / passes)))
    if read.ratio < _MUCH * run:
        return
    order = next((node for node in path[at:] if node.shuffles), None)
    below = "" if order is None else f"below {order.written} "
    alone = _alone(read.source)
    yield (
        read.ratio,
        Advice(
            "strides",
            numbers[id(strided)],
            f"{strided.written} takes some records of each chunk, and"
            f" {in_numbers(known(costs.decoded_per_delivered))} bytes are decoded for each one delivered",
            f"{below}take consecutive records, as [a:b], where a part is all that is wanted, or each"
            " host its own run of them" + (f"; or {alone}" if alone else ""),
            f"of consecutive records {Amount.exactly(run)} bytes are decoded for each one delivered",
        ),
    )


def _of_a_run(source: LaidOutSource, records: int) -> float:
    """Bytes decoded per byte of the first `records` records of a source."""
    judged = max(1, min(records, _JUDGED))
    indices = np.arange(judged)
    decoded = delivered = 0
    for part in source.parts:
        own = judged * bytes_per_record(part, len(source))
        delivered += own
        chunks = np.unique(part.needs(indices).chunks)
        decoded += own if part.alone else int(part.memory_bytes(chunks).sum())
    return decoded / max(1, delivered)


# --- what is waited for --------------------------------------------------------------------------


def _on_calls(read: _SourceRead, numbers: Mapping[int, int]) -> Iterator[_Dear]:
    source, costs = read.source, read.costs
    if isinstance(source, ForeignDataSource) and not source.batched and costs.records.high > 1:
        yield (
            _CALLS,
            Advice(
                "record-by-record",
                numbers[id(read.paths[0][-1])],
                f"{in_numbers(costs.records)} records an epoch are read by as many calls of Python",
                "give the source a method __getitems__(indices) that reads many at once, or convert it"
                " to Zarr or ArrayRecord (windrow.converters)",
                "one call a batch, or more",
            ),
        )


def _on_threads(stream: ToStreamNode, numbers: Mapping[int, int]) -> Iterator[_Dear]:
    options = stream.read_options
    if options.ahead or not any(map(_planned, sources_of(stream))):
        return
    names = [name for name in ("num_threads", "prefetch_buffer_size") if not getattr(options, name)]
    yield (
        _NO_THREADS,
        Advice(
            "no-threads",
            numbers[id(stream)],
            f"with {' and '.join(f'{name}=0' for name in names)} no read batch is read ahead of"
            " the one before it, and a chunk that two read batches want is decoded for both",
            f"leave {' and '.join(names)} out",
            "chunks are read ahead, each once for all read batches that are planned",
        ),
    )


# --- orders --------------------------------------------------------------------------------------


def _on_batches(
    node: Node, quality: ShuffleQuality | None, numbers: Mapping[int, int]
) -> Iterator[_Dear]:
    """Advise to shuffle before the batch, where batches of neighbours are shuffled as wholes."""
    ratio = None if quality is None else quality.variance_ratio
    if ratio is None or ratio < _UNLIKE:
        return
    for shuffle in walk(node):
        batch = next((each for each in walk(shuffle) if (group_size(each) or 1) > 1), None)
        if shuffle.shuffles and batch is not None and not any(n.shuffles for n in walk(batch)):
            yield (
                _ORDER,
                Advice(
                    "shuffled-batches",
                    numbers[id(shuffle)],
                    f"{shuffle.written} shuffles whole batches, and each holds {group_size(batch):,}"
                    f" neighbours: on sorted data their means vary ≈{ratio:.3g} times as much as under a"
                    " global shuffle",
                    f"shuffle before {batch.written}",
                    "batches of records from anywhere",
                ),
            )
