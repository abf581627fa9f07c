"""`windrow.shuffle_quality`: measures a dataset, or the order of a dataset given as an array.

Invariant: arguments are checked before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from windrow.base import Dataset
from windrow.errors import ArgumentError, PlanError, RecordIndexError
from windrow.quality.shuffle_quality import ShuffleQuality, batched, notes_on, quality
from windrow.sources.base import IntArray
from windrow.transforms.arguments import at_least
from windrow.transforms.nodes import Node, RangeNode, ReindexNode
from windrow.transforms.nodes.random_access import with_random_access


def shuffle_quality(
    dataset: Any,
    batch_size: int | None = None,
    *,
    block: int | Sequence[int] | IntArray | None = None,
) -> ShuffleQuality:
    """Compare the batches of a dataset with batches of a global shuffle. Reads no records.

    Three numbers: different blocks in a batch, the same under a global shuffle, and the variance ratio,
    from 1 for a global shuffle to about the batch size. Short epochs are counted as a whole, long ones
    are sampled; ≈ marks what is not exact. Filters are assumed to drop nothing.

    Args:
        dataset: A dataset of either kind, or the indices of the records in the order of one epoch,
            for instance the order of another library.
        batch_size: Records in a batch. By default the size of the dataset's topmost `batch`; if
            both are given, this number replaces it.
        block: Consecutive records of a block; or, where there is one source, the bounds of its
            blocks: 0, ..., number of records. By default the blocks of the sources: chunks of Zarr
            arrays, groups of records of ArrayRecord files.

    Raises:
        PlanError: If there is no batch size, the dataset is empty, or `block` does not fit.
        ArgumentError: If an argument is of another kind.
        RecordIndexError: If an index is negative.

    Example:
        >>> import windrow
        >>> dataset = windrow.MapDataset.range(10_000).batch(50)
        >>> print(windrow.shuffle_quality(dataset, block=100))
        batches of 50 of 10,000 records
          blocks in a batch: 1 of 100; under a global shuffle ≈39.6
          variance of batch means on sorted data: 50.2 times the variance of a global shuffle
          so a batch is worth 0.995 records drawn at random from the epoch
    """
    size = None if batch_size is None else at_least(1, batch_size, "shuffle_quality: batch_size")
    bounds = _as_blocks(block)
    node = dataset._node if isinstance(dataset, Dataset) else _as_node(dataset, bounds)
    if node.length == 0:
        raise PlanError("shuffle_quality: the dataset is empty, so it has no batches")
    batches = batched(with_random_access(node), size)
    if batches is None:
        raise PlanError(
            "shuffle_quality: the dataset has no batch node; give batch_size, the records in a batch"
        )
    return quality(batches, bounds, notes_on(node))


def _as_blocks(block: Any) -> int | IntArray | None:
    if block is None or np.ndim(block) == 0:
        return None if block is None else at_least(1, block, "shuffle_quality: block")
    bounds = np.asarray(block)
    if bounds.ndim != 1 or bounds.dtype.kind not in "iu":
        raise ArgumentError(
            "shuffle_quality: block must be an integer or the bounds of blocks, got an array of"
            f" shape {bounds.shape} and dtype {bounds.dtype}"
        )
    if len(bounds) < 2 or bounds[0] != 0 or not (bounds[1:] > bounds[:-1]).all():
        raise PlanError(
            "shuffle_quality: bounds of blocks must increase from 0 to the number of records, got"
            f" {bounds!r}"
        )
    return bounds.astype(np.int64)


def _as_node(indices: Any, block: int | IntArray | None) -> Node:
    """Make a chain whose order is an array of indices."""
    order = np.asarray(indices)
    if order.ndim != 1 or (order.size and order.dtype.kind not in "iu"):
        raise ArgumentError(
            "shuffle_quality: needs a dataset, or the indices of records as integers in one"
            f" dimension; got {type(indices).__name__} of shape {order.shape} and dtype"
            f" {order.dtype}"
        )
    if order.size and order.min() < 0:
        raise RecordIndexError(
            f"shuffle_quality: index {order.min()} is negative; count records from 0"
        )
    most = int(order.max()) + 1 if order.size else 0
    if isinstance(block, np.ndarray):
        if most > block[-1]:
            raise PlanError(
                f"shuffle_quality: the blocks end at record {block[-1]}, and an index is {most - 1}"
            )
        most = int(block[-1])
    return ReindexNode((RangeNode((), 0, most, 1),), order.astype(np.int64))
