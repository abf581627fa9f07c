"""What the means of batches of a block shuffle vary by, from its blocks alone.

A window of a block shuffle has the records of a few blocks in a random order. So with the blocks of
every window known, the mean of a batch has a known mean and variance: those of a sample that is
drawn without replacement. Only the order of the blocks has to be drawn, and no order of records.

Invariant: what is computed is the expectation of what looking at the records would give.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.record_order import RecordOrder
from windrow.shuffle_sample import BUDGET_NS, ENOUGH_EPOCHS, cost_ns, spans
from windrow.transforms.block_nodes import BlockShuffleNode
from windrow.transforms.blocks import permutation
from windrow.transforms.nodes import (
    BatchNode,
    Node,
    RangeNode,
    RepeatNode,
    SeedNode,
    SliceNode,
    SourceNode,
    ValueNode,
)
from windrow.transforms.positions import positions

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_MOST_BLOCKS: Final = 2**22
_MOST_BATCHES: Final = 2**17
_MOST_EPOCHS: Final = 200
_LEAST_EPOCHS: Final = 4
_RUNS: Final = 16  # of each epoch


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Records of each block: how many, and sums of their ranks about the mean of all."""

    sizes: FloatArray
    sums: FloatArray
    squares: FloatArray

    @property
    def variance(self) -> float:
        """Of the ranks of all records."""
        return float(self.squares.sum() / self.sizes.sum())


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BlockBatches:
    """Batches of the elements of a block shuffle, or of a slice of them."""

    node: BlockShuffleNode
    batch: BatchNode
    part: SliceNode | None

    @property
    def length(self) -> int:
        """Elements that are batched, in one epoch."""
        return self.node.length if self.part is None else self.part.length

    def before(self, places: IntArray) -> IntArray:
        """How many of these elements stand before each of some places of the block shuffle."""
        if self.part is None:
            return places
        return np.clip(-((self.part.start - places) // self.part.step), 0, self.part.length)


def block_shuffled(node: Node) -> BlockBatches | None:
    """The block shuffle that the batches of a chain are made of; None where there is more to it."""
    batch: BatchNode | None = None
    part: SliceNode | None = None
    while True:
        match node:
            case BlockShuffleNode() if batch is not None:
                return BlockBatches(node, batch, part)
            case BatchNode() if batch is None:
                batch, node = node, node.parent
            case SliceNode() if batch is None and spans(node):
                node = node.parent
            case SliceNode() if part is None and node.step > 0 and batch is not None:
                part, node = node, node.parent
            case ValueNode() | SeedNode() | RepeatNode():
                node = node.parent
            case _:
                return None


def moments(order: RecordOrder, node: BlockShuffleNode) -> Moments | None:
    """The moments of the blocks that a node shuffles; None where there is too much to look at."""
    bounds = node.order.bounds
    if len(bounds) - 1 > _MOST_BLOCKS:
        return None
    sizes = np.diff(bounds).astype(np.float64)
    leaf = node.parent
    while isinstance(leaf, ValueNode | SeedNode):
        leaf = leaf.parent
    if isinstance(leaf, SourceNode | RangeNode) and node.order.elements is None:
        middles = bounds[:-1] + (sizes - 1) / 2 - (node.length - 1) / 2
        return Moments(sizes, sizes * middles, sizes * (middles**2 + (sizes**2 - 1) / 12))
    setup, each = cost_ns(node.parent)
    if setup + each * node.length > BUDGET_NS:
        return None
    places = np.arange(node.length)
    elements = places if node.order.elements is None else node.order.elements.at(places)
    rows = order.rows_at(node.parent, positions(elements, node.length))
    if len(rows.ranks) != node.length:
        return None
    centred = rows.ranks - rows.ranks.mean()
    sums = np.add.reduceat(centred, bounds[:-1])
    return Moments(sizes, sums, np.add.reduceat(centred**2, bounds[:-1]))


def squared_deviations(
    found: Moments, batches: BlockBatches
) -> tuple[FloatArray, IntArray, IntArray]:
    """The expected squared deviation of batches' means from the mean of all records.

    Returns:
        One number for each batch of some epochs, float64; the batches' sizes; and the batch at
        which each run begins, to be given to `shuffle_sample.amount`.
    """
    size, length = batches.batch.size, batches.length
    whole = length // size * size if batches.batch.drop_remainder else length
    stop = min(whole, _MOST_BATCHES * size)
    edges = np.append(np.arange(0, stop, size), stop)
    cost_of_epoch_ns = 100.0 * (len(found.sizes) + len(edges))
    epochs = int(np.clip(BUDGET_NS / 4 / cost_of_epoch_ns, _LEAST_EPOCHS, _MOST_EPOCHS))
    each = [_of_epoch(found, batches, epoch, edges) for epoch in range(epochs)]
    # What shares a window is no two draws: where epochs are few they have many windows.
    count = 1 if epochs >= ENOUGH_EPOCHS else min(_RUNS, len(edges) - 1)
    runs = np.arange(count) * (len(edges) - 1) // count
    starts = (np.arange(epochs)[:, None] * (len(edges) - 1) + runs).ravel()
    return np.concatenate(each), np.tile(np.diff(edges), epochs), starts


def _of_epoch(found: Moments, batches: BlockBatches, epoch: int, edges: IntArray) -> FloatArray:
    """The expected squared deviations of the batches between `edges`, for one order of blocks."""
    order = permutation(len(found.sizes), epoch)
    firsts = np.arange(0, len(order), batches.node.order.window_blocks)
    sizes, sums, squares = (
        np.add.reduceat(values[order], firsts)
        for values in (found.sizes, found.sums, found.squares)
    )
    means = sums / sizes
    spread = np.maximum(0.0, squares - sums * means) / np.maximum(1.0, sizes - 1)
    ends = batches.before(np.cumsum(sizes).astype(np.int64))
    # Every stretch of records lies in one window and in one batch.
    cuts = np.sort(np.concatenate([edges, ends[ends < edges[-1]]]), kind="stable")
    cuts = cuts[np.append(True, cuts[1:] > cuts[:-1])]
    taken = np.diff(cuts)
    window = ends.searchsorted(cuts[:-1], side="right")
    batch = edges.searchsorted(cuts[:-1], side="right") - 1
    total = np.diff(edges)
    # A slice may have windows that are not like the whole; without one this is 0.
    middle = float(taken @ means[window]) / edges[-1]
    deviation = np.bincount(batch, taken * (means[window] - middle)) / total
    drawn = taken * spread[window] * (1 - taken / sizes[window])
    variance: FloatArray = deviation**2 + np.bincount(batch, drawn) / total**2
    return variance
