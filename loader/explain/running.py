"""Running: a few words on how each node of a chain runs.

Invariant: they say where functions are called and how sources are read, as the executors and the read
batches have it. tests/explain/test_running.py compares them with the threads and processes that it sees.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from windrow.sources.chunks import LaidOutSource
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.memory import ArrayDataSource, RangeDataSource, SequenceDataSource
from windrow.transforms.nodes import Node, ToStreamNode, as_chain, chains_of
from windrow.transforms.nodes.parts import CutNode
from windrow.transforms.nodes.planned import PlannedNode
from windrow.transforms.nodes.values import EachNode
from windrow.transforms.options import ReadOptions


def running(node: Node) -> dict[int, str]:
    """Describe how each node of a stream runs, by the node's `id`."""
    options = [each.read_options for each in chains_of(node)]
    first = next((own for own in options if own.ahead), options[0])
    is_ahead = first.ahead or any(each.workers is not None for each in node.walk())
    threads = max(own.num_threads for own in options) if first.ahead else 1
    found: dict[int, list[str]] = {}
    _look(node, _NodePlace(first, is_ahead, threads), found)
    return {key: "; ".join(dict.fromkeys(words)) for key, words in found.items()}


def _look(node: Node, place: _NodePlace, found: dict[int, list[str]]) -> None:
    place = dataclasses.replace(
        place,
        stream=as_chain(node) or place.stream,
        workers=place.workers if node.workers is None else node,
    )
    found.setdefault(id(node), []).append(place.words(node))
    for parent in node.parents:
        _look(parent, place, found)


@dataclasses.dataclass(frozen=True, slots=True)
class _NodePlace:
    """The place of a node, and the threads and workers of its iterator.

    Args:
        options: The options of the iterator.
        is_ahead: Whether a thread of the iterator makes its elements ahead of the loop.
        threads: The most threads that functions of one element run on, with the thread ahead.
        stream: The stream that it is before; None after all of them.
        workers: The node whose workers it runs in, if it calls functions; None for no workers.
    """

    options: ReadOptions
    is_ahead: bool
    threads: int
    stream: ToStreamNode | None = None
    workers: Node | None = None

    def words(self, node: Node) -> str:
        """How a node runs, by its kind."""
        if node.data_source is not None:
            return self._reading(node.data_source)
        if node.workers is not None:
            return f"functions below in {_processes(node)}"
        if isinstance(node, ToStreamNode):
            queue = self.options.prefetch_buffer_size
            ahead = f"made ahead, into a queue of {queue}" if queue else "made one block ahead"
            return ahead if self.is_ahead else "made when asked for"
        if isinstance(node, EachNode):
            return f"one by one, {self._of_each}"
        if node.functions:
            return f"many at once, {self._of_many}"
        if isinstance(node, PlannedNode):
            return f"planned by lengths: {node.pack_counts()[0].text()}"
        if isinstance(node, CutNode) and all(c.is_whole for box in node.have.values() for c in box):
            return "whole elements are made, then cut"
        if node.group_size is not None:
            return "rows gathered as batches"
        return "indices only" if node.chooses else "position only"

    @property
    def _of_each(self) -> str:
        """Where a function of one element is called."""
        uses_threads = self.stream is None or self.stream.read_options.ahead
        if self.workers is None and self.is_ahead and self.threads > 1 and uses_threads:
            return f"on up to {self.threads} threads, ahead"
        return self._of_many

    @property
    def _of_many(self) -> str:
        """Where a function of many elements is called."""
        if self.workers is not None:
            return f"in {_processes(self.workers)}"
        return "on a thread, ahead" if self.is_ahead else "when asked for"

    def _reading(self, source: Any) -> str:
        """How a source is read."""
        if isinstance(source, (RangeDataSource, SequenceDataSource)):
            return "copied from memory"
        if isinstance(source, ArrayDataSource) and source.is_in_memory:
            return "copied from memory"
        if isinstance(source, ForeignDataSource) and not source.batched:
            return f"record by record, {self._of_each}"
        if not isinstance(source, LaidOutSource):
            elsewhere = dataclasses.replace(self, workers=None)  # a call for many is made here
            return f"many records in one call, {elsewhere._of_many}"
        if all(part.alone for part in source.parts):
            return "records read alone"
        is_planned = self.stream is not None and self.stream.read_options.ahead
        return f"whole chunks, {'by prefetcher' if is_planned else 'batch by batch'}"


def _processes(node: Node) -> str:
    number = 0 if node.workers is None else node.workers.options.num_workers
    if number == "auto":
        most = node.workers.options.most_workers if node.workers is not None else 0
        return f"this process or up to {most} worker processes, as the first elements show"
    return f"{number} worker {'process' if number == 1 else 'processes'}"
