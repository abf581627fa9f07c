"""Nodes of a stream: what has no length and no random access, only an order and a position.

A stream's position is a short list of integers, `width(node)` of them; `origin(node)` is where it
starts. Every row carries the position that follows it, so that a stream can be cut at any row and
go on from those integers alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from windrow.transforms.arguments import at_least, check_times
from windrow.transforms.nodes import (
    STREAM,
    MapNode,
    MapWithIndexNode,
    Node,
    RandomMapNode,
    UnseenNode,
    mix_proportions,
)
from windrow.transforms.options import ReadOptions


@dataclasses.dataclass(frozen=True, eq=False)
class ToStreamNode(Node):
    """The elements of a random-access parent in order, absent ones left out."""

    read_options: ReadOptions
    allow_nones: bool = False

    def count(self) -> int:
        return STREAM

    @property
    def label(self) -> str:
        return "to_iter_dataset(allow_nones=True)" if self.allow_nones else "to_iter_dataset"


@dataclasses.dataclass(frozen=True, eq=False)
class StreamWindowShuffleNode(Node):
    """A shuffle inside windows of consecutive elements of a stream."""

    window_size: int
    seed: int

    def count(self) -> int:
        at_least(1, self.window_size, "window_shuffle: window_size")
        return STREAM

    @property
    def label(self) -> str:
        return f"window_shuffle(window_size={self.window_size}, seed={self.seed})"


@dataclasses.dataclass(frozen=True, eq=False)
class StreamRepeatNode(Node):
    """The stream again from its start, the same each time."""

    times: int | None

    def count(self) -> int:
        check_times(self.times)
        return STREAM

    @property
    def label(self) -> str:
        return f"repeat({'for ever' if self.times is None else self.times})"


@dataclasses.dataclass(frozen=True, eq=False)
class StreamLimitNode(Node):
    """The first `size` elements of the stream."""

    size: int

    def count(self) -> int:
        at_least(1, self.size, "limit: count")
        return STREAM

    @property
    def label(self) -> str:
        return f"limit({self.size})"


@dataclasses.dataclass(frozen=True, eq=False)
class StreamMixNode(Node):
    """Streams in the proportions of `weights`, until the first one ends."""

    weights: tuple[float, ...] | None

    def count(self) -> int:
        mix_proportions(len(self.parents), self.weights)
        return STREAM

    @property
    def proportions(self) -> tuple[int, ...]:
        """The weights as integers."""
        return mix_proportions(len(self.parents), self.weights)

    @property
    def label(self) -> str:
        return f"mix({', '.join(map(str, self.proportions))})"


@dataclasses.dataclass(frozen=True, eq=False)
class ProcessNode(UnseenNode):
    """Functions below run in worker processes, as `options` say."""

    options: Any
    init: Callable[[int, int], None] | None = None

    @property
    def label(self) -> str:
        return "mp_prefetch"


def own_width(node: Node) -> int:
    """Integers that a node adds to the position of its parents."""
    match node:
        case ToStreamNode() | MapWithIndexNode() | RandomMapNode():
            return 1
        case StreamRepeatNode() | StreamLimitNode() | StreamMixNode():
            return 1
        case MapNode(batched=True):
            return 1  # rows of the parent since the block began
        case StreamWindowShuffleNode():
            return 2  # the window, and elements of it already given
        case _:
            return 0


def width(node: Node) -> int:
    """Integers in the position of a stream."""
    if isinstance(node, ToStreamNode):
        return own_width(node)
    return own_width(node) + sum(width(parent) for parent in node.parents)


def origin(node: Node) -> list[int]:
    """The position at which a stream starts."""
    return [0] * width(node)
