"""Running: a description of how each node of a chain runs.

Neighbouring functions of a stream are one stage, done block by block; functions before `mp_prefetch`
run in its workers; index nodes are arithmetic on arrays; sources are read as their layout allows.

Invariant: each description states what the prefetcher, the executors and the read batches make of
the chain. tests/explain/test_running.py compares it with the threads and processes that it sees.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from windrow.sources.chunks import LaidOutSource
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.memory import ArrayDataSource, RangeDataSource, SequenceDataSource
from windrow.transforms.nodes import Node, ToStreamNode, as_chain, chains_of, source_of, walk
from windrow.transforms.nodes.streams import workers_of


def running(node: Node) -> dict[int, str]:
    """Describe how each node of a stream runs, by the node's `id`."""
    options = [each.read_options for each in chains_of(node)]
    first = next((own for own in options if own.ahead), options[0])
    place = _NodePlace(
        is_ahead=first.ahead or any(workers_of(each) is not None for each in walk(node)),
        threads=max(own.num_threads for own in options) if first.ahead else 1,
        queue=first.prefetch_buffer_size,
    )
    found: dict[int, list[str]] = {}
    _look(node, place, found)
    return {key: "; ".join(dict.fromkeys(words)) for key, words in found.items()}


def _look(node: Node, place: _NodePlace, found: dict[int, list[str]]) -> None:
    place = dataclasses.replace(
        place,
        stream=as_chain(node) or place.stream,
        workers=place.workers if workers_of(node) is None else node,
    )
    found.setdefault(id(node), []).append(node.runs_as(place))
    for parent in node.parents:
        _look(parent, place, found)


@dataclasses.dataclass(frozen=True, slots=True)
class _NodePlace:
    """The place of a node, and the threads and workers of its iterator.

    Args:
        is_ahead: Whether a thread of the iterator makes its elements ahead of the loop.
        threads: The most threads that functions of one element run on, with the thread ahead.
        queue: The most elements that wait for the loop.
        stream: The stream that it is before; None after all of them.
        workers: The node whose workers it runs in, if it calls functions; None for no workers.
    """

    is_ahead: bool
    threads: int
    queue: int
    stream: ToStreamNode | None = None
    workers: Node | None = None

    @property
    def of_each(self) -> str:
        """Where a function of one element is called."""
        uses_threads = self.stream is None or self.stream.read_options.ahead
        if self.workers is None and self.is_ahead and self.threads > 1 and uses_threads:
            return f"on up to {self.threads} threads, ahead"
        return self.of_many

    @property
    def of_many(self) -> str:
        """Where a function of many elements is called."""
        if self.workers is not None:
            return f"in {_processes(self.workers)}"
        return "on a thread, ahead" if self.is_ahead else "when asked for"

    def streaming(self) -> str:
        """How the elements of a chain with random access are made."""
        if not self.is_ahead:
            return "made when asked for"
        return f"made ahead, into a queue of {self.queue}" if self.queue else "made one block ahead"

    def working(self, node: Node) -> str:
        """What workers do for the chain before a node."""
        if workers_of(node) is None:
            return "nothing: no workers"
        if not _has_work(node.parent):
            return "nothing: no functions below"
        return f"functions below in {_processes(node)}"

    def reading(self, source: Any) -> str:
        """How a source is read."""
        if isinstance(source, (RangeDataSource, SequenceDataSource)):
            return "copied from memory"
        if isinstance(source, ArrayDataSource) and source.is_in_memory:
            return "copied from memory"
        if _is_read_one_by_one(source):
            return f"record by record, {self.of_each}"
        if not isinstance(source, LaidOutSource):
            elsewhere = dataclasses.replace(self, workers=None)  # a call for many is made here
            return f"many records in one call, {elsewhere.of_many}"
        if all(part.alone for part in source.parts):
            return "records read alone"
        # A part without chunks has nothing to plan.
        any_chunks = any(part.chunk_count and not part.alone for part in source.parts)
        planned = any_chunks and self.stream is not None and self.stream.read_options.ahead
        some = ", of some parts records alone" if any(part.alone for part in source.parts) else ""
        return f"whole chunks, {'by prefetcher' if planned else 'batch by batch'}{some}"


def _processes(node: Node) -> str:
    workers = workers_of(node)
    number = 0 if workers is None else workers.options.num_workers
    if number == "auto":
        most = 0 if workers is None else workers.options.most_workers
        return f"this process or up to {most} worker processes, as the first elements show"
    return f"{number} worker {'process' if number == 1 else 'processes'}"


def _has_work(node: Node) -> bool:
    """Whether workers after a node have anything to do: functions, or reading in Python."""
    if workers_of(node) is not None:
        return False  # which has workers of its own
    own = bool(node.functions) or _is_read_one_by_one(source_of(node))
    return own or any(map(_has_work, node.parents))


def _is_read_one_by_one(source: Any) -> bool:
    return isinstance(source, ForeignDataSource) and not source.batched
