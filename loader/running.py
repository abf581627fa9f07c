"""Running: what becomes of each node of a chain when it runs, in words.

Neighbouring functions of a stream are one stage, done block by block; functions below `mp_prefetch`
run in its workers; index nodes are arithmetic on arrays; sources are read as their layout allows.

Invariant: what is told here is what the look-ahead, the crews and the rounds make of the chain:
tests/test_running.py holds each of the words to the threads and processes that are seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from windrow.sources import (
    ArrayDataSource,
    ForeignDataSource,
    LaidOutSource,
    RangeDataSource,
    SequenceDataSource,
)
from windrow.stream_facts import StreamFacts
from windrow.transforms.block_nodes import BlockShuffleNode
from windrow.transforms.functions import name_of
from windrow.transforms.halves import has_function
from windrow.transforms.nodes import (
    STREAM,
    BatchNode,
    FilterNode,
    IndexNode,
    MapNode,
    MapWithIndexNode,
    Node,
    RandomMapNode,
    RangeNode,
    RoutingNode,
    SeedNode,
    SelectNode,
    SourceNode,
    ZipNode,
)
from windrow.transforms.streams import (
    ProcessNode,
    StreamMixNode,
    StreamWindowShuffleNode,
    ToStreamNode,
)


def label_of(node: Node) -> str:
    """A node as written, with the names of functions."""
    match node:
        case SourceNode():
            return f"source({node.source!r})"
        case MapNode() | MapWithIndexNode() | RandomMapNode() | FilterNode():
            name, _, more = node.label.partition("(")
            inside = [name_of(node.function), more.rstrip(")")]
            return f"{name}({', '.join(filter(None, inside))})"
        case BlockShuffleNode(block=None):
            return f"block_shuffle(seed={node.seed}, window_blocks={node.window_blocks})"
        case ToStreamNode():
            return node.label if node.label.endswith(")") else f"{node.label}()"
        case ProcessNode():
            return f"mp_prefetch({node.options.num_workers})"
        case _:
            return node.label


def running(node: Node, facts: Mapping[int, StreamFacts]) -> dict[int, str]:
    """What becomes of each node of a chain, by the node's `id`.

    Args:
        node: The chain, a stream.
        facts: How its streams are read, as `stream_facts` has them.
    """
    found: dict[int, list[str]] = {}
    _look(node, _Place(_Team.of(node, facts), None, None), facts, found)
    return {key: "; ".join(dict.fromkeys(words)) for key, words in found.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class _Team:
    """Who does the work of an iterator.

    Args:
        is_ahead: Whether a thread of the iterator makes its elements ahead of the loop.
        threads: Threads that functions of one element run on at most, that one among them.
        queue: Elements that wait for the loop at most.
    """

    is_ahead: bool
    threads: int
    queue: int

    @classmethod
    def of(cls, node: Node, facts: Mapping[int, StreamFacts]) -> _Team:
        """As `Run` has it."""
        found = [each.options for each in facts.values()]
        first = next((options for options in found if options.ahead), found[0])
        return cls(
            is_ahead=first.ahead or _has_workers(node),
            threads=max(options.num_threads for options in found) if first.ahead else 1,
            queue=first.prefetch_buffer_size,
        )


def _has_workers(node: Node) -> bool:
    own = isinstance(node, ProcessNode) and node.options.num_workers > 0
    return own or any(map(_has_workers, node.parents))


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where a node stands: in which stream, None above all of them, and below which workers."""

    team: _Team
    stream: StreamFacts | None
    workers: ProcessNode | None

    @property
    def of_each(self) -> str:
        """Where a function of one element is called."""
        team, stream = self.team, self.stream
        spreads = stream is None or stream.options.ahead
        if self.workers is None and team.is_ahead and team.threads > 1 and spreads:
            return f"on up to {team.threads} threads, ahead"
        return self.of_many

    @property
    def of_many(self) -> str:
        """Where a function of many elements is called."""
        if self.workers is not None:
            return f"in {_processes(self.workers)}"
        return "on a thread, ahead" if self.team.is_ahead else "when asked for"


def _processes(node: ProcessNode) -> str:
    number = node.options.num_workers
    return f"{number} worker {'process' if number == 1 else 'processes'}"


def _look(
    node: Node, place: _Place, facts: Mapping[int, StreamFacts], found: dict[int, list[str]]
) -> None:
    stream = facts.get(id(node), place.stream)
    workers = place.workers
    if isinstance(node, ProcessNode) and node.options.num_workers:
        workers = node
    place = dataclasses.replace(place, stream=stream, workers=workers)
    found.setdefault(id(node), []).append(_runs(node, place))
    for parent in node.parents:
        _look(parent, place, facts, found)


def _runs(node: Node, place: _Place) -> str:
    match node:
        case SourceNode():
            return _reading(node.source, place)
        case RangeNode():
            return "nothing is read"
        case SeedNode():
            return "seeds only"
        case IndexNode():
            return "indices only"
        case SelectNode():
            return "indices only, asked one by one"
        case RoutingNode():
            return "indices only"
        case ZipNode():
            return "columns side by side"
        case BatchNode():
            return _batching(node, place)
        case MapNode(batched=True):
            return f"columns at once, {place.of_many}"
        case MapNode() | MapWithIndexNode() | RandomMapNode() | FilterNode():
            return f"one by one, {place.of_each}"
        case ToStreamNode():
            return _streaming(place.team)
        case ProcessNode():
            return _working(node)
        case StreamWindowShuffleNode():
            return "a window is gathered, then given out"
        case StreamMixNode():
            return "blocks of each stream put together"
        case _:
            return "position only"


def _batching(node: BatchNode, place: _Place) -> str:
    if node.batch_fn is not None:
        return f"{name_of(node.batch_fn)} of a list of elements, {place.of_many}"
    if node.length == STREAM:
        return "rows of blocks, stacked"
    return "rows gathered as batches"


def _streaming(team: _Team) -> str:
    if not team.is_ahead:
        return "made when asked for"
    return f"made ahead, into a queue of {team.queue}" if team.queue else "made one block ahead"


def _working(node: ProcessNode) -> str:
    if not node.options.num_workers:
        return "nothing: no workers"
    if not _has_work(node.parent):
        return "nothing: no functions below"
    return f"functions below in {_processes(node)}"


def _has_work(node: Node) -> bool:
    """Whether workers above a node have anything to do: functions, or reading in Python."""
    if isinstance(node, ProcessNode) and node.options.num_workers:
        return False  # which has workers of its own
    return has_function(node) or _is_read_one_by_one(node) or any(map(_has_work, node.parents))


def _is_read_one_by_one(node: Node) -> bool:
    source = node.source if isinstance(node, SourceNode) else None
    return isinstance(source, ForeignDataSource) and not source.batched


def _reading(source: Any, place: _Place) -> str:
    if isinstance(source, (ArrayDataSource, RangeDataSource, SequenceDataSource)):
        return "copied from memory"
    if isinstance(source, ForeignDataSource) and not source.batched:
        return f"record by record, {place.of_each}"
    if not isinstance(source, LaidOutSource):
        elsewhere = dataclasses.replace(place, workers=None)  # a call for many is made here
        return f"many records in one call, {elsewhere.of_many}"
    if all(part.alone for part in source.parts):
        return "records read alone"
    planned = place.stream is not None and any(r.source is source for r in place.stream.rooms)
    some = ", of some parts records alone" if any(part.alone for part in source.parts) else ""
    return f"whole pieces, {'by look-ahead' if planned else 'round by round'}{some}"
