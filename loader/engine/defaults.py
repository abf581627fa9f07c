"""Defaults: how a chain is read where its user does not say."""

from __future__ import annotations

from windrow.sources.foreign import ForeignDataSource
from windrow.transforms.nodes import Node
from windrow.transforms.options import ReadOptions


def reads_records_alone(node: Node, elements: int) -> bool:
    """Whether making `elements` elements reads several records one by one, so that threads help."""
    several = elements > 1 or any(each.group_size is not None for each in node.walk())
    return several and any(
        isinstance(source, ForeignDataSource) and not source.batched for source in node.sources()
    )


def default_options(node: Node) -> ReadOptions:
    """Threads ahead of the consumer, unless there is nothing to read."""
    return ReadOptions() if node.sources() else ReadOptions(num_threads=0)
