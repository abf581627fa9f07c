"""Running: a few words on how each node of a chain runs.

Invariant: they say where functions are called and how sources are read, as the executors and the read
batches have it. tests/explain/test_running.py compares them with the threads and processes that it sees.
"""

from __future__ import annotations

from typing import Any

from windrow.sources.chunks import LaidOutSource
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.memory import ArrayDataSource, RangeDataSource, SequenceDataSource
from windrow.transforms.nodes import Node, as_chain, chains_of, source_of, walk
from windrow.transforms.nodes.following import group_size
from windrow.transforms.nodes.reading import as_planned, calls_for_each, cuts_whole_elements
from windrow.transforms.nodes.streams import workers_of
from windrow.transforms.options import ReadOptions


def running(node: Node) -> dict[int, str]:
    """Describe how each node of a stream runs, by the node's `id`."""
    options = [each.read_options for each in chains_of(node)]
    first = next((own for own in options if own.ahead), options[0])
    threads = max(own.num_threads for own in options) if first.ahead else 1
    where = "when asked for"
    if first.ahead or any(workers_of(each) is not None for each in walk(node)):
        where = f"on up to {threads} threads, ahead" if threads > 1 else "on a thread, ahead"
    found: dict[int, list[str]] = {}
    _look(node, where, first, found)
    return {key: "; ".join(dict.fromkeys(words)) for key, words in found.items()}


def _look(node: Node, where: str, options: ReadOptions, found: dict[int, list[str]]) -> None:
    """Note the words for a node, and for those before it.

    Args:
        node: The node.
        where: Where a function of one element is called.
        options: The options of the iterator.
        found: The words for each node, by `id`.
    """
    found.setdefault(id(node), []).append(_words(node, where, options))
    for parent in node.parents:
        workers = workers_of(node)
        below = where if workers is None else f"in {_processes(workers.options)}"
        _look(parent, below, options, found)


def _words(node: Node, where: str, options: ReadOptions) -> str:
    """How a node runs, by its kind."""
    if source_of(node) is not None:
        return _reading(source_of(node), where, options)
    workers = workers_of(node)
    if workers is not None:
        return f"functions below in {_processes(workers.options)}"
    if as_chain(node) is not None:
        queue = options.prefetch_buffer_size
        ahead = f"made ahead, into a queue of {queue}" if queue else "made one block ahead"
        return "made when asked for" if where == "when asked for" else ahead
    if calls_for_each(node):
        return f"one by one, {where}"
    if node.functions:
        return "many at once"
    planned = as_planned(node)
    if planned is not None:
        return f"planned by lengths: {planned.pack_counts()[0].text()}"
    if cuts_whole_elements(node):
        return "whole elements are made, then cut"
    if group_size(node) is not None:
        return "rows gathered as batches"
    return "indices only" if node.chooses else "position only"


def _reading(source: Any, where: str, options: ReadOptions) -> str:
    """How a source is read."""
    in_memory = isinstance(source, ArrayDataSource) and source.is_in_memory
    if in_memory or isinstance(source, (RangeDataSource, SequenceDataSource)):
        return "copied from memory"
    if isinstance(source, ForeignDataSource) and not source.batched:
        return f"record by record, {where}"
    if not isinstance(source, LaidOutSource):
        return "many records in one call"
    if all(part.alone for part in source.parts):
        return "records read alone"
    return f"whole chunks, {'by prefetcher' if options.ahead else 'batch by batch'}"


def _processes(options: Any) -> str:
    if options.num_workers == "auto":
        most = options.most_workers
        return f"this process or up to {most} worker processes, as the first elements show"
    return f"{options.num_workers} worker {'process' if options.num_workers == 1 else 'processes'}"
