"""Shuffle quality: how far an order is from a global shuffle, as two numbers with a meaning.

The first number is how many different blocks (chunks, groups of records) a batch is made of. The
second is about the worst case, data that is sorted: take the record's rank as its value, and compare
how much the means of batches vary with how much they vary under a global shuffle of the same
records. 1 is a global shuffle; about the batch size is no shuffle at all.

Invariant: an order is worked out from the chain alone; no record is read, and no function of the
user's is called but a selection map.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow import shuffle_sample, shuffle_sources, shuffle_windows
from windrow.costs import Amount
from windrow.errors import PlanError, RecordIndexError
from windrow.record_order import RecordOrder, nodes_below, random_access
from windrow.shuffle_sources import SourceQuality
from windrow.transforms.arguments import integer
from windrow.transforms.halves import with_parents
from windrow.transforms.nodes import BatchNode, FilterNode, Node, RepeatNode

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Of chains that do not say how large their batches will be.
ASSUMED_BATCH: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How far batches are from those of a global shuffle. Printing it says what it means.

    Args:
        batch_size: Records in a batch.
        records: Records in an epoch; of a zip, its tuples.
        blocks: Blocks that these lie in; None where a source does not tell.
        blocks_per_batch: Different blocks in a batch, on average.
        blocks_per_batch_shuffled: The same under a global shuffle of these records.
        variance_ratio: Variance of the means of batches over that under a global shuffle, where
            every record has its rank as its value: its index, counted on over the sources. None
            where means can not vary: a batch is an epoch or more, or one record over and over.
        sources: The same of each source's own records, where the chain has several.
        notes: What the figures leave out, in words.
    """

    batch_size: int
    records: int
    blocks: int | None
    blocks_per_batch: Amount | None
    blocks_per_batch_shuffled: Amount | None
    variance_ratio: Amount | None
    sources: tuple[SourceQuality, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def worth(self) -> Amount | None:
        """Records drawn at random from the epoch that tell as much of it as a batch does.

        The batch size over the ratio: on sorted data, means of so many records would vary as much.
        """
        ratio = self.variance_ratio
        if ratio is None or not ratio.low:
            return None
        return Amount(self.batch_size / ratio.high, self.batch_size / ratio.low)

    def to_json(self) -> dict[str, Any]:
        """The fields as what JSON knows; an Amount has its two bounds, `low` and `high`."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def __str__(self) -> str:
        lines = [f"batches of {self.batch_size:,} of {self.records:,} records"]
        if self.blocks_per_batch is not None:
            lines.append(
                f"  blocks in a batch: {self.blocks_per_batch} of {self.blocks:,}; under a global"
                f" shuffle {self.blocks_per_batch_shuffled}"
            )
        if self.variance_ratio is None and self.batch_size == self.records:
            lines.append("  an epoch is one batch, in any order")
        elif self.variance_ratio is None and self.batch_size > self.records:
            lines.append("  a batch is more than an epoch, in any order")
        elif self.variance_ratio is None:
            lines.append("  all records have the same rank, so all batches have the same mean")
        else:
            lines.append(
                "  variance of the means of batches on sorted data:"
                f" {self.variance_ratio} times that of a global shuffle"
            )
        if self.worth is not None:
            lines.append(
                f"  so a batch tells as much of the epoch as {self.worth} records drawn at random"
            )
        return "\n".join([*lines, *(f"  {line}" for line in (*self.sources, *self.notes))])


def _plain(value: Any) -> Any:
    if isinstance(value, Amount | SourceQuality):
        return dataclasses.asdict(value)
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def quality_of(
    node: Node, *, batch_size: int | None = None, block: int | None = None
) -> ShuffleQuality | None:
    """The shuffle quality of a chain; None where it has no elements, or not all of them batches.

    Of a chain without batches it is that of some elements that come one after the other.

    Args:
        node: Any chain, a stream too.
        batch_size: Records in a batch; by default those of the topmost batch node.
        block: Records of a block; by default the blocks of the sources.
    """
    notes = notes_on(node)
    try:
        plain = random_access(node)
        if batch_size is None and not any(isinstance(n, BatchNode) for n in nodes_below(plain)):
            batch_size = ASSUMED_BATCH
            notes += (f"the chain has no batch: as if .batch({batch_size}) were put on top",)
        batches = batched(plain, batch_size)
        if batches is None or batches.length == 0:
            return None
        return quality(batches, block, notes)
    except PlanError:  # an empty stream in a mixture, a zip of batches that differ, a huge batch
        return None
    except RecordIndexError:  # a later epoch of part of what is endless
        return None


def batched(node: Node, size: int | None) -> Node | None:
    """The chain whose elements are batches, of a given size or of its own; None where it has none."""
    if size is None:
        return node if _has_batch(node) else None
    below = node
    while len(below.parents) == 1:
        if isinstance(below, BatchNode):
            return dataclasses.replace(below, size=integer(size, "shuffle_quality: batch_size"))
        below = below.parent
    return BatchNode((node,), size)


def _has_batch(node: Node) -> bool:
    """Whether every element of a chain is a batch."""
    if isinstance(node, BatchNode):
        return True
    return bool(node.parents) and all(map(_has_batch, node.parents))


def notes_on(node: Node) -> tuple[str, ...]:
    """What is to be said of the figures of a chain, a stream too."""
    if any(isinstance(below, FilterNode) for below in nodes_below(node)):
        return ("filters are taken to drop nothing",)
    return ()


# --- the figures ---------------------------------------------------------------------------------


def quality(node: Node, block: int | IntArray | None, notes: tuple[str, ...]) -> ShuffleQuality:
    """The shuffle quality of a chain with random access, whose elements are batches.

    Args:
        node: At least one batch.
        block: Records of a block, or the bounds of the blocks of the only source; None for those
            that the sources tell.
        notes: To be said with the figures.
    """
    order = RecordOrder(_reseeded(node))
    numbers = shuffle_sample.block_numbers(order, block)
    own, own_all = (shuffle_sources.own_batches(order, block) for _ in range(2))
    found = shuffle_sample.looked_at(order, numbers, own, own_all)
    sources: tuple[SourceQuality, ...] = ()
    if own is not None and own_all is not None:
        whole = not any(each.counts for each in own_all.each)
        sources = shuffle_sources.qualities(own, own if whole else own_all, found)
    if len(order.leaves) > 1:
        notes += (f"ranks run on over {len(order.leaves)} sources, one after the other",)
    per_batch = shuffled = blocks = None
    if numbers is None:
        notes += ("blocks are not looked at: a source tells none, or too many",)
    else:
        blocks = sum(leaf.count for leaf in numbers)
        per_batch, shuffled = _blocks(found, numbers)
    return ShuffleQuality(
        batch_size=int(found.sizes.max()),
        records=found.records,
        blocks=blocks,
        blocks_per_batch=per_batch,
        blocks_per_batch_shuffled=shuffled,
        variance_ratio=_variance_ratio(order, found),
        sources=sources,
        notes=notes,
    )


def _reseeded(node: Node) -> Node:
    """The chain with another order in each epoch, so that more than one order can be looked at."""
    if not any(isinstance(below, RepeatNode) for below in nodes_below(node)):
        return node
    moved = with_parents(node, tuple(_reseeded(parent) for parent in node.parents))
    return dataclasses.replace(moved, reseed=True) if isinstance(moved, RepeatNode) else moved


def _blocks(
    found: shuffle_sample.Batches, numbers: Sequence[shuffle_sample.BlockNumbers]
) -> tuple[Amount, Amount]:
    """Different blocks in a batch: of this order, and of a global shuffle."""
    own = shuffle_sample.amount(found.blocks, found.runs, is_exact=found.is_exact)
    sizes, many = found.population.block_sizes(numbers, found.records)
    each, counts = np.unique(found.sizes, return_counts=True)
    expected = [
        shuffle_sample.blocks_if_shuffled(sizes, many, found.records, min(size, found.records))
        for size in each.tolist()
    ]
    return own, Amount.exactly(float(np.average(expected, weights=counts)))


def _variance_ratio(order: RecordOrder, found: shuffle_sample.Batches) -> Amount | None:
    batches = shuffle_windows.block_shuffled(order.node)
    moments = None if batches is None else shuffle_windows.moments(order, batches.node)
    if batches is not None and moments is not None:
        squares, sizes, runs = shuffle_windows.squared_deviations(moments, batches)
        return shuffle_sample.over_shuffled(
            squares, sizes, found.records, moments.variance, runs, is_exact=False
        )
    squares = (found.means - found.population.mean) ** 2
    variance = found.population.variance
    return shuffle_sample.over_shuffled(
        squares, found.sizes, found.records, variance, found.runs, is_exact=found.is_exact
    )
