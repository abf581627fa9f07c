"""Methods of `MapDataset` that choose which elements come, and in which order.

Invariant: an order is a function of seed, epoch and index, so any element of any epoch can be asked for
directly. Nothing is read.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Final, TypeVar

from windrow.random_access import PlannedByLengths
from windrow.transforms import nodes
from windrow.transforms.arguments import checked_seed, integer

if TYPE_CHECKING:
    from windrow.map_dataset import MapDataset

T_co = TypeVar("T_co", covariant=True)
_SEEDS: Final = 2**32


class Ordered(PlannedByLengths[T_co]):
    """Shuffles elements, or draws them at random."""

    @abc.abstractmethod
    def _with(self, node: nodes.Node) -> MapDataset[T_co]:
        """The dataset of a node."""

    def seed(self, seed: int) -> MapDataset[T_co]:
        """Derive the seeds of later nodes from `seed`, unless they are given one.

        Raises:
            PlanError: If it is not in `[0, 2**64)`.
        """
        return self._with(nodes.SeedNode((self._node,), checked_seed(seed, "seed", 2**64)))

    def shuffle(self, seed: int | None = None) -> MapDataset[T_co]:
        """Shuffle globally, in another order in each epoch.

        Epoch `e` of seed `s` has the order of epoch 0 of seed `s + e`, as in Grain: choose seeds
        far apart for runs whose orders must differ.

        Args:
            seed: An integer in `[0, 2**32)`; by default derived from an earlier `seed(...)`.

        Raises:
            PlanError: If there is no seed at all, or it is out of range.
        """
        found = nodes.seed_for(self._node, seed, "shuffle", _SEEDS)
        return self._with(nodes.ShuffleNode((self._node,), found))

    def window_shuffle(self, window_size: int, seed: int | None = None) -> MapDataset[T_co]:
        """Shuffle inside windows of consecutive elements, each element once per epoch.

        The last window of an epoch is shorter where `window_size` does not divide the length. The
        order is Grain's, whose definition makes a window cost about 1 ms however small it is
        (benchmarks/orders.py): prefer windows of hundreds of elements and more.

        Raises:
            PlanError: If the window is smaller than 1, or there is no seed.
        """
        size = integer(window_size, "window_shuffle: window_size")
        found = nodes.seed_for(self._node, seed, "window_shuffle", 2**64)
        return self._with(nodes.WindowShuffleNode((self._node,), size, found))

    def block_shuffle(
        self, seed: int | None = None, *, block: int | None = None, window_blocks: int = 16
    ) -> MapDataset[T_co]:
        """Shuffle blocks, then elements in windows, so that each block of the data is read once.

        Blocks of consecutive elements come in a random order over the whole epoch. All elements of
        `window_blocks` blocks in a row come in a random order too. Each epoch has another order.

        Args:
            seed: An integer in `[0, 2**32)`; by default derived from an earlier `seed(...)`.
            block: Elements per block. By default the source's own chunks: chunks of a Zarr array,
                groups of records of ArrayRecord files.
            window_blocks: Blocks per window; this many are in memory at a time.

        Raises:
            PlanError: If there is no seed, a number is out of range, the dataset is endless, or
                `block` is not given and the chain so far has no layout: the message names the node.
        """
        found = nodes.seed_for(self._node, seed, "block_shuffle", _SEEDS)
        size = None if block is None else integer(block, "block_shuffle: block")
        window = integer(window_blocks, "block_shuffle: window_blocks")
        return self._with(nodes.BlockShuffleNode((self._node,), found, size, window))

    def sample(
        self, num_elements: int, seed: int | None = None, *, weights: Any = None
    ) -> MapDataset[T_co]:
        """Elements drawn at random, anew in each epoch: an element may come twice, or not at all.

        With windows at every place of an array (`strides` of 1) it gives random crops. The element at
        any index of any epoch follows from the seed, so crops are read ahead like any others.

        Args:
            num_elements: Elements in an epoch.
            seed: An integer in `[0, 2**32)`; by default derived from an earlier `seed(...)`.
            weights: How often each element comes, in proportion: one number of at least 0 for each,
                or a mask, whose true ones come equally often. Windows of a grid are counted in
                C order, so that an array of weights by place is taken as it is. Takes 8 bytes of
                memory for each element.

        Raises:
            ArgumentError: If `weights` are not numbers, one for each element.
            PlanError: If there is no seed, no element to draw, or a number is out of range.

        Example:
            >>> import windrow
            >>> dataset = windrow.MapDataset.range(10).sample(4, seed=3)
            >>> list(dataset.repeat(2))
            [7, 9, 7, 5, 0, 7, 8, 5]
            >>> list(windrow.MapDataset.range(3).sample(5, seed=3, weights=[0, 3, 1]))
            [1, 1, 2, 1, 1]
        """
        count = integer(num_elements, "sample: num_elements")
        found = nodes.seed_for(self._node, seed, "sample", _SEEDS)
        return self._with(nodes.sample_node(self._node, count, found, weights))
