"""Defaults of the read options of a chain."""

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
    """The default number of threads; none for a chain that reads nothing."""
    return ReadOptions() if node.sources() else ReadOptions(num_threads=0)
