"""Shuffle quality: how far an order is from a global shuffle, as two numbers with a meaning.

The first number is how many different blocks (chunks, groups of records) a batch is made of. The
second is about the worst case, data that is sorted: take the record's rank as its value, and compare
how much the means of batches vary with how much they vary under a global shuffle of the same
records. 1 is a global shuffle; the batch size is no shuffle at all.

Invariant: an order is worked out from the chain alone; no record is read and no function is called.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from windrow.costs import Amount
from windrow.transforms.nodes import Node


@dataclasses.dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How far batches are from those of a global shuffle. Printing it says what it means.

    Args:
        batch_size: Elements of a batch.
        elements: Elements in an epoch.
        blocks: Blocks that they lie in; None where no source tells.
        blocks_per_batch: Different blocks in a batch, on average.
        blocks_per_batch_shuffled: The same under a global shuffle of these elements.
        variance_ratio: Variance of the means of batches over that under a global shuffle, where
            records have their ranks as values. None where an epoch is one batch.
        notes: What the figures leave out, in words.
    """

    batch_size: int
    elements: int
    blocks: int | None
    blocks_per_batch: Amount | None
    blocks_per_batch_shuffled: Amount | None
    variance_ratio: Amount | None
    notes: tuple[str, ...] = ()

    @property
    def worth(self) -> Amount | None:
        """How many records drawn from the whole tell as much of it as a batch does."""
        ratio = self.variance_ratio
        if ratio is None or not ratio.low:
            return None
        return Amount(self.batch_size / ratio.high, self.batch_size / ratio.low)

    def to_json(self) -> dict[str, Any]:
        """The fields as what JSON knows; an Amount is a list of its two bounds."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Amount):
        return [value.low, value.high]
    return list(value) if isinstance(value, tuple) else value


def quality_of(
    node: Node, *, batch_size: int | None = None, block: int | None = None
) -> ShuffleQuality | None:
    """The shuffle quality of a chain; None where it has no batches, or no elements.

    Args:
        node: Any chain, a stream too.
        batch_size: Elements of a batch; by default those of the topmost batch node.
        block: Records of a block; by default the blocks of the sources.
    """
    return None
