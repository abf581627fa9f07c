"""Running: a description of how each node of a chain runs.

Neighbouring functions of a stream are one stage, done block by block; functions below `mp_prefetch`
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
from windrow.transforms.nodes import Node, ToStreamNode, as_chain, chains_of
from windrow.transforms.nodes.split import has_function


def label_of(node: Node) -> str:
    """A node as written, with the names of functions."""
    return node.written


def running(node: Node) -> dict[int, str]:
    """What becomes of each node of a stream when it runs, by the node's `id`."""
    found: dict[int, list[str]] = {}
    _look(node, _NodePlace(_Team.of(node), None, None), found)
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
    def of(cls, node: Node) -> _Team:
        """As `Run` has it."""
        found = [each.read_options for each in chains_of(node)]
        first = next((options for options in found if options.ahead), found[0])
        return cls(
            is_ahead=first.ahead or _has_workers(node),
            threads=max(options.num_threads for options in found) if first.ahead else 1,
            queue=first.prefetch_buffer_size,
        )


def _has_workers(node: Node) -> bool:
    return any(each.workers is not None for each in node.walk())


@dataclasses.dataclass(frozen=True, slots=True)
class _NodePlace:
    """Where a node stands: in which stream, None above all of them, and below which workers."""

    team: _Team
    stream: ToStreamNode | None
    workers: Node | None

    @property
    def of_each(self) -> str:
        """Where a function of one element is called."""
        team, stream = self.team, self.stream
        spreads = stream is None or stream.read_options.ahead
        if self.workers is None and team.is_ahead and team.threads > 1 and spreads:
            return f"on up to {team.threads} threads, ahead"
        return self.of_many

    @property
    def of_many(self) -> str:
        """Where a function of many elements is called."""
        if self.workers is not None:
            return f"in {_processes(self.workers)}"
        return "on a thread, ahead" if self.team.is_ahead else "when asked for"

    def reading(self, source: Any) -> str:
        """How a source is read."""
        return _reading(source, self)

    def streaming(self) -> str:
        """How the elements of a chain with random access are made."""
        return _streaming(self.team)

    def working(self, node: Node) -> str:
        """What workers do for the chain before a node."""
        return _working(node)


def _processes(node: Node) -> str:
    number = 0 if node.workers is None else node.workers.options.num_workers
    return f"{number} worker {'process' if number == 1 else 'processes'}"


def _look(node: Node, place: _NodePlace, found: dict[int, list[str]]) -> None:
    stream = as_chain(node) or place.stream
    workers = place.workers
    if node.workers is not None:
        workers = node
    place = dataclasses.replace(place, stream=stream, workers=workers)
    found.setdefault(id(node), []).append(node.runs_as(place))
    for parent in node.parents:
        _look(parent, place, found)


def _streaming(team: _Team) -> str:
    if not team.is_ahead:
        return "made when asked for"
    return f"made ahead, into a queue of {team.queue}" if team.queue else "made one block ahead"


def _working(node: Node) -> str:
    if node.workers is None:
        return "nothing: no workers"
    if not _has_work(node.parent):
        return "nothing: no functions below"
    return f"functions below in {_processes(node)}"


def _has_work(node: Node) -> bool:
    """Whether workers above a node have anything to do: functions, or reading in Python."""
    if node.workers is not None:
        return False  # which has workers of its own
    return has_function(node) or _is_read_one_by_one(node) or any(map(_has_work, node.parents))


def _is_read_one_by_one(node: Node) -> bool:
    source = node.data_source
    return isinstance(source, ForeignDataSource) and not source.batched


def _reading(source: Any, place: _NodePlace) -> str:
    if isinstance(source, (ArrayDataSource, RangeDataSource, SequenceDataSource)):
        return "copied from memory"
    if isinstance(source, ForeignDataSource) and not source.batched:
        return f"record by record, {place.of_each}"
    if not isinstance(source, LaidOutSource):
        elsewhere = dataclasses.replace(place, workers=None)  # a call for many is made here
        return f"many records in one call, {elsewhere.of_many}"
    if all(part.alone for part in source.parts):
        return "records read alone"
    # A part without chunks has nothing to plan.
    any_chunks = any(part.chunk_count and not part.alone for part in source.parts)
    planned = any_chunks and place.stream is not None and place.stream.read_options.ahead
    some = ", of some parts records alone" if any(part.alone for part in source.parts) else ""
    return f"whole chunks, {'by prefetcher' if planned else 'batch by batch'}{some}"
