"""Shuffle quality: three numbers that compare an order with a global shuffle.

1. How many different blocks (chunks, groups of records) a batch has.
2. How many it would have under a global shuffle of the same records.
3. The variance ratio, for the worst case, sorted data. The rank of a record is its value, and the
   variance of batch means is divided by their variance under a global shuffle: 1 is a global
   shuffle, and an order without a shuffle has about the batch size.

All come from a sample of batches (`batch_sample`): the first and the third by counting, the second by
shuffling the records of the sample.

Invariant: an order is computed from the chain alone; no record is read, and no function of the user
is called except a selection map.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from windrow.core.text import notebook_html
from windrow.errors import PlanError, RecordIndexError
from windrow.quality.batch_sample import BatchSample, Leaves, sample
from windrow.sources.base import IntArray
from windrow.transforms.arguments import integer
from windrow.transforms.nodes import BatchNode, Node, topmost_batch, walk
from windrow.transforms.nodes.following import group_size
from windrow.transforms.nodes.random_access import reseeded, with_random_access

ASSUMED_BATCH: Final = 64
"""Batch size for chains without a batch node."""

_SHUFFLED_ROWS: Final = 2**17  # rows of shuffled batches; of a short epoch in several shuffles
_MOST_SHUFFLES: Final = 100
_FEW_PARTS: Final = 32  # the ratio is about sqrt(2 / parts) off


@dataclasses.dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How far batches are from the batches of a global shuffle. Printing it explains the numbers.

    Args:
        batch_size: Records in a batch.
        records: Records in an epoch; a zip counts its tuples.
        blocks: Number of blocks that these lie in; None if a source does not declare its blocks.
        blocks_per_batch: Mean number of different blocks in a batch.
        blocks_per_batch_shuffled: The same under a global shuffle of these records.
        variance_ratio: Variance of batch means, divided by their variance under a global shuffle.
            The value of a record is its rank: its index, counted on over the sources. None if means
            cannot vary: a batch is an epoch or more, or one record over and over.
        is_exact: Whether the batches of every epoch were counted, so that `blocks_per_batch` and
            `variance_ratio` are exact.
        notes: Remarks on what the numbers leave out.
    """

    batch_size: int
    records: int
    blocks: int | None
    blocks_per_batch: float | None
    blocks_per_batch_shuffled: float | None
    variance_ratio: float | None
    is_exact: bool = False
    notes: tuple[str, ...] = ()

    @property
    def worth(self) -> float | None:
        """How many records drawn at random represent the epoch as well as a batch does.

        This is the batch size divided by the ratio: on sorted data, the means of this many random
        records vary as much as batch means.
        """
        return self.batch_size / self.variance_ratio if self.variance_ratio else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return dataclasses.asdict(self) | {"notes": list(self.notes)}

    def _repr_html_(self) -> str:
        head, *lines = (line.strip() for line in str(self).splitlines())
        return notebook_html("", lists=[(head, lines)])

    def __str__(self) -> str:
        about = "" if self.is_exact else "≈"
        lines = [f"batches of {self.batch_size:,} of {self.records:,} records"]
        if self.blocks_per_batch is not None:
            lines.append(
                f"  blocks in a batch: {about}{_shown(self.blocks_per_batch)} of {self.blocks:,}; under"
                f" a global shuffle ≈{_shown(self.blocks_per_batch_shuffled)}"
            )
        if self.variance_ratio is None and self.batch_size == self.records:
            lines.append("  an epoch is one batch, in any order")
        elif self.variance_ratio is None and self.batch_size > self.records:
            lines.append("  a batch is more than an epoch, in any order")
        elif self.variance_ratio is None:
            lines.append("  all records have the same rank, so all batches have the same mean")
        else:
            lines.append(
                f"  variance of batch means on sorted data: {about}{_shown(self.variance_ratio)} times"
                " the variance of a global shuffle"
            )
        if self.worth is not None:
            lines.append(
                f"  so a batch is worth {about}{_shown(self.worth)} records drawn at random from the"
                " epoch"
            )
        return "\n".join([*lines, *(f"  {line}" for line in self.notes)])


def _shown(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


# --- of a chain ------------------------------------------------------------------


def quality_of(
    node: Node, *, batch_size: int | None = None, block: int | None = None
) -> ShuffleQuality | None:
    """Measure the shuffle quality of a chain; None if it is empty, or only some elements are batches.

    A chain without batches is measured as if its elements were batched.

    Args:
        node: Any chain, also a stream.
        batch_size: Records in a batch; by default the size of the topmost batch node.
        block: Records of a block; by default the blocks of the sources.
    """
    notes = notes_on(node)
    try:
        plain = with_random_access(node)
        if batch_size is None and not any(group_size(each) for each in walk(plain)):
            batch_size = ASSUMED_BATCH
            notes += (f"the chain has no batch: as if .batch({batch_size}) were put on top",)
        batches = batched(plain, batch_size)
        if batches is None or batches.length == 0:
            return None
        return quality(batches, block, notes)
    except PlanError:  # an empty stream in a mixture, a zip of batches that differ, a huge batch
        return None
    except RecordIndexError:  # a later epoch of part of an endless chain
        return None


def batched(node: Node, size: int | None) -> Node | None:
    """Return the chain with batches of the given size, or of its own; None if it has no batches."""
    if size is None:
        return node if _has_batch(node) else None
    batch = topmost_batch(node)
    if batch is None:
        return BatchNode((node,), size)
    return dataclasses.replace(batch, size=integer(size, "shuffle_quality: batch_size"))


def _has_batch(node: Node) -> bool:
    """Return whether every element of a chain is a batch."""
    if group_size(node) is not None:
        return True
    return bool(node.parents) and all(map(_has_batch, node.parents))


def notes_on(node: Node) -> tuple[str, ...]:
    """Return the notes on the numbers of a chain, also of a stream."""
    if any(each.drops for each in walk(node)):
        return ("filters are assumed to drop nothing",)
    return ()


# --- the numbers ---------------------------------------------------------------------------------


def quality(node: Node, block: int | IntArray | None, notes: tuple[str, ...]) -> ShuffleQuality:
    """Measure the shuffle quality of a chain with random access, whose elements are batches.

    Args:
        node: A chain of at least one batch.
        block: Records of a block, or the bounds of the blocks of the only source; None for the
            blocks that the sources declare.
        notes: Remarks to print with the numbers.
    """
    leaves = Leaves(node, block)
    found = sample(reseeded(node))  # with another order in each epoch
    counts = found.batches.counts
    ratio = _variance_ratio(found, leaves)
    if leaves.count > 1:
        notes += (f"ranks run on over {leaves.count} sources, one after the other",)
    if leaves.blocks is None:
        notes += ("blocks are not counted: a source declares no blocks, or too many",)
    if ratio is not None and not found.is_exact and found.parts < _FEW_PARTS:
        notes += (
            f"the ratio is rough: only {found.parts} independent parts of the order were seen",
        )
    return ShuffleQuality(
        batch_size=int(counts.max()),
        records=found.records,
        blocks=leaves.blocks,
        blocks_per_batch=_blocks_per_batch(leaves.blocks_of(found.batches), counts),
        blocks_per_batch_shuffled=_if_shuffled(leaves.blocks_of(found.population), counts),
        variance_ratio=ratio,
        is_exact=found.is_exact,
        notes=notes,
    )


def _variance_ratio(found: BatchSample, leaves: Leaves) -> float | None:
    """Compare the means of batches with means of equally many rows of an epoch, drawn at random.

    The mean of `b` records that are drawn without replacement from `N` of variance `s` has the
    variance `s / b * (N - b) / (N - 1)` (Cochran, "Sampling Techniques", theorem 2.2).
    """
    counts, ranks = found.batches.counts, leaves.ranks(found.batches)
    owners = np.repeat(np.arange(len(counts)), counts)
    means = np.bincount(owners, ranks - ranks.mean(), len(counts)) / counts
    # Repeats of repeats may have more records than 64 bits can count.
    left = (float(found.records) - counts) / max(1, found.records - 1)
    expected = ranks.var() / counts * left
    return float((means**2 / expected).mean()) if expected.min() > 0 else None


def _blocks_per_batch(blocks: tuple[IntArray, IntArray] | None, counts: IntArray) -> float | None:
    """Count the different blocks of a batch; `blocks` has the row and the block of each record."""
    if blocks is None:
        return None
    owners = np.repeat(np.arange(len(counts)), counts)
    return _different(owners[blocks[0]], blocks[1]) / len(counts)


def _if_shuffled(blocks: tuple[IntArray, IntArray] | None, counts: IntArray) -> float | None:
    """Count the different blocks of a batch that is cut from shuffled rows of an epoch."""
    if blocks is None:
        return None
    places, numbers = blocks
    rows = int(places.max()) + 1
    sizes = np.minimum(counts, rows)
    most = min(rows, max(_SHUFFLED_ROWS, int(sizes.max())))
    generator = np.random.default_rng(0)
    different = batches = 0
    for _ in range(int(np.clip(_SHUFFLED_ROWS // rows, 1, _MOST_SHUFFLES))):
        ends = np.cumsum(generator.permutation(sizes))
        ends = ends[: int(ends.searchsorted(most, side="right"))]
        owners = ends.searchsorted(generator.permutation(rows)[places], side="right")
        is_in = owners < len(ends)  # the last rows may be too few for a batch
        different += _different(owners[is_in], numbers[is_in])
        batches += len(ends)
    return different / batches


def _different(owners: IntArray, blocks: IntArray) -> int:
    """Count the different blocks of each batch, and add them up."""
    if int(blocks.max()) + 1 > 2**62 // (int(owners.max()) + 1):  # keys would be beyond 64 bits
        blocks = np.unique(blocks, return_inverse=True)[1]
    return len(np.unique(owners * (int(blocks.max()) + 1) + blocks))
