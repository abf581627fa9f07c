"""Defaults of the read options of a chain."""

from __future__ import annotations

from windrow.transforms.nodes import Node
from windrow.transforms.options import ReadOptions


def default_options(node: Node) -> ReadOptions:
    """The default number of threads; none for a chain that reads nothing."""
    return ReadOptions() if node.sources() else ReadOptions(num_threads=0)
