"""Running: what becomes of each node of a chain when it runs, in words.

Neighbouring functions of a stream are one stage, done block by block; functions below `mp_prefetch`
run in its workers; index nodes are arithmetic on arrays; sources are read as their layout allows.

Invariant: what is told here is what the look-ahead, the crews and the rounds make of the chain.
"""

from __future__ import annotations

from typing import Any

from windrow.sources import ForeignDataSource, LaidOutSource
from windrow.stream_facts import StreamFacts
from windrow.transforms.block_nodes import BlockShuffleNode
from windrow.transforms.functions import name_of
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


def running(node: Node, facts: dict[int, StreamFacts]) -> dict[int, str]:
    """What becomes of each node below `node`, by the node's `id`."""
    found: dict[int, str] = {}
    _look(node, None, None, facts, found)
    return found


def _look(
    node: Node,
    stream: StreamFacts | None,
    workers: ProcessNode | None,
    facts: dict[int, StreamFacts],
    found: dict[int, str],
) -> None:
    stream = facts.get(id(node), stream)
    if isinstance(node, ProcessNode) and node.options.num_workers:
        workers = node
    found.setdefault(id(node), _runs(node, stream, workers))
    for parent in node.parents:
        _look(parent, stream, workers, facts, found)


def _runs(node: Node, stream: StreamFacts | None, workers: ProcessNode | None) -> str:
    match node:
        case SourceNode():
            return _reading(node.source, stream, workers)
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
            return _batching(node, stream, workers)
        case MapNode(batched=True):
            return f"columns at once, {_where(stream, workers)}"
        case MapNode() | MapWithIndexNode() | RandomMapNode() | FilterNode():
            return f"one by one, {_where(stream, workers)}"
        case ToStreamNode():
            return _streaming(stream)
        case ProcessNode():
            number = node.options.num_workers
            return (
                f"functions below in {_counted(number, 'worker process', 'worker processes')}"
                if (number)
                else "nothing: no workers"
            )
        case StreamWindowShuffleNode():
            return "a window is gathered, then given out"
        case StreamMixNode():
            return "blocks of each stream put together"
        case _:
            return "position only"


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _where(stream: StreamFacts | None, workers: ProcessNode | None) -> str:
    if workers is not None:
        number = workers.options.num_workers
        return f"in {_counted(number, 'worker process', 'worker processes')}"
    if stream is not None and stream.options.ahead:
        return f"on up to {_counted(stream.options.num_threads, 'thread', 'threads')}, ahead"
    if stream is not None:
        return "when asked for"
    return "on a thread, ahead"


def _batching(node: BatchNode, stream: StreamFacts | None, workers: ProcessNode | None) -> str:
    if node.batch_fn is not None:
        return f"{name_of(node.batch_fn)} of a list of elements, {_where(stream, workers)}"
    if node.length == STREAM:
        return "rows of blocks, stacked"
    return "rows gathered as batches"


def _streaming(stream: StreamFacts | None) -> str:
    if stream is None or not stream.options.ahead:
        return "made when asked for"
    return f"made ahead, {stream.options.prefetch_buffer_size} at most"


def _reading(source: Any, stream: StreamFacts | None, workers: ProcessNode | None) -> str:
    if isinstance(source, ForeignDataSource):
        if source.batched:
            return "many records in one call of the source"
        if workers is not None:
            return f"record by record, {_where(stream, workers)}"
        if stream is not None and stream.options.ahead:
            number = stream.options.num_threads
            return f"record by record, on {_counted(number, 'thread', 'threads')}"
        return "record by record"
    if not isinstance(source, LaidOutSource):
        return "copied from memory"
    planned = stream is not None and any(room.source is source for room in stream.rooms)
    if all(part.alone for part in source.parts):
        return "records read alone"
    if not planned:
        return "whole pieces, round by round"
    return "whole pieces, by look-ahead"
