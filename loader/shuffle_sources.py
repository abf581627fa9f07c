"""Shuffle quality source by source: of the records that each source has in the batches of a chain.

Where a chain has several sources, a batch has some records of each. A source's own records in a
batch are compared with as many that are drawn from its records alone, so what other sources do, and
how many records of each a batch gets, is no part of it.

Invariant: batches that have no record of a source say nothing of it.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow import shuffle_sample
from windrow.costs import Amount
from windrow.inspection_facts import shortened
from windrow.record_order import RecordOrder, Rows, Taken
from windrow.transforms.nodes import RangeNode, SourceNode

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MOST_SOURCES: Final = 32
_MOST_NAME: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class SourceQuality:
    """How far a source's own records in the batches are from a global shuffle of these records.

    Args:
        source: The source, in words.
        records: Its records in an epoch; about as many where a part of the epoch was looked at.
        per_batch: Its records in a batch that has any, on average.
        blocks: Blocks that it tells; None where it tells none.
        blocks_per_batch: Different blocks of it in such a batch, on average.
        blocks_per_batch_shuffled: The same if its records were drawn from all of them.
        variance_ratio: Variance of the means of its records in batches over that of means of as
            many that are drawn from all of them; the value of a record is its index. None where
            a batch has all of them, or they are one record over and over.
    """

    source: str
    records: int
    per_batch: Amount
    blocks: int | None
    blocks_per_batch: Amount | None
    blocks_per_batch_shuffled: Amount | None
    variance_ratio: Amount | None

    def __str__(self) -> str:
        parts = [f"{shortened(self.source, _MOST_NAME)}: {self.per_batch} of a batch's records"]
        if self.blocks_per_batch is not None:
            parts.append(
                f"of {self.blocks_per_batch} of {self.blocks:,} blocks, under a global shuffle of it"
                f" {self.blocks_per_batch_shuffled}"
            )
        told = "none" if self.variance_ratio is None else str(self.variance_ratio)
        return ", ".join([*parts, f"variance ratio {told}"])


class OwnRecords:
    """What one leaf has in batches, added up while these are looked at.

    Each list has an array for every look, with a number for each batch that has records of the leaf.
    """

    def __init__(self, leaf: SourceNode | RangeNode, block: int | None) -> None:
        """Nothing was looked at.

        Args:
            leaf: Where the records are from.
            block: Records of a block; None for the blocks that it tells.
        """
        found = shuffle_sample.block_numbers(RecordOrder(leaf), block)
        self.leaf = leaf
        self.numbers = None if found is None else found[0]
        self.batches: list[IntArray] = []
        self.counts: list[IntArray] = []
        self.sums: list[FloatArray] = []  # of indices less half the length, so that no digits go
        self.squares: list[FloatArray] = []
        self.different: list[IntArray] = []
        self.in_blocks: list[tuple[IntArray, IntArray]] = []

    def add(self, first: int, batches: int, owners: IntArray, records: IntArray) -> None:
        """Add the records of some batches.

        Args:
            first: How many batches were looked at before these.
            batches: How many these are.
            owners: Which of these each record is in.
            records: Their indices.
        """
        counts = np.bincount(owners, minlength=batches)
        having = np.flatnonzero(counts)
        values = (records - self.leaf.length // 2).astype(np.float64)
        self.batches.append(first + having)
        self.counts.append(counts[having])
        self.sums.append(np.asarray(np.bincount(owners, values, batches)[having], np.float64))
        self.squares.append(np.asarray(np.bincount(owners, values**2, batches)[having], np.float64))
        if self.numbers is not None:
            known, blocks, many = np.unique(
                self.numbers.of(records), return_inverse=True, return_counts=True
            )
            pairs = np.unique(owners * len(known) + blocks)
            self.different.append(np.bincount(pairs // len(known), minlength=batches)[having])
            self.in_blocks.append((known, many))

    def block_sizes(self, records: float) -> tuple[FloatArray, FloatArray]:
        """Records of a block in an epoch that has so many: the sizes, and how many blocks have each."""
        _, which = np.unique(np.concatenate([k for k, _ in self.in_blocks]), return_inverse=True)
        found = np.bincount(which, np.concatenate([many for _, many in self.in_blocks]))
        sizes, many = np.unique(found * (records / found.sum()), return_counts=True)
        return sizes, many.astype(np.float64)


class OwnBatches:
    """The batches of a chain, source by source; called with what is looked at."""

    def __init__(self, order: RecordOrder, block: int | None) -> None:
        """Nothing was looked at."""
        self.each = [OwnRecords(leaf, block) for leaf in order.leaves]

    def __call__(self, first: int, rows: Rows) -> None:
        """Add some batches, the first of which is the one of this number."""
        owner = np.repeat(np.arange(len(rows.counts)), rows.counts)
        found: dict[int, list[Taken]] = {}
        for taken in rows.taken:
            found.setdefault(taken.leaf, []).append(taken)
        for leaf, parts in found.items():
            owners = np.concatenate([owner[part.rows] for part in parts])
            records = np.concatenate([part.records for part in parts])
            self.each[leaf].add(first, len(rows.counts), owners, records)


def qualities(
    batches: OwnBatches, population: OwnBatches, found: shuffle_sample.Batches
) -> tuple[SourceQuality, ...]:
    """The quality of each source that has records in an epoch.

    Args:
        batches: The batches that were looked at.
        population: All records of an epoch, or a sample of them.
        found: The same batches, as a whole.
    """
    pairs = zip(batches.each, population.each, strict=True)
    return tuple(_quality(own, all_, found) for own, all_ in pairs if own.counts and all_.counts)


def _quality(
    own: OwnRecords, population: OwnRecords, found: shuffle_sample.Batches
) -> SourceQuality:
    taken = sum(int(counts.sum()) for counts in population.counts)
    mean = sum(float(sums.sum()) for sums in population.sums) / taken
    squares = sum(float(part.sum()) for part in population.squares) / taken
    records = taken / found.population.rows * found.records
    at, counts = np.concatenate(own.batches), np.concatenate(own.counts)
    # Runs that have no record of this source are none.
    runs = np.unique(at.searchsorted(found.runs))
    runs = runs[runs < len(at)]
    deviations = (np.concatenate(own.sums) / counts - mean) ** 2
    different = shuffled = None
    if own.numbers is not None:
        blocks = np.concatenate(own.different).astype(np.float64)
        different = shuffle_sample.amount(blocks, runs, is_exact=found.is_exact)
        shuffled = _blocks_if_shuffled(population, round(records), counts, is_all=own is population)
    return SourceQuality(
        source=_name(own.leaf),
        records=round(records),
        per_batch=shuffle_sample.amount(counts.astype(np.float64), runs, is_exact=found.is_exact),
        blocks=None if own.numbers is None else own.numbers.count,
        blocks_per_batch=different,
        blocks_per_batch_shuffled=shuffled,
        variance_ratio=shuffle_sample.over_shuffled(
            deviations, counts, records, max(0.0, squares - mean**2), runs, is_exact=found.is_exact
        ),
    )


def _blocks_if_shuffled(
    population: OwnRecords, records: int, counts: IntArray, *, is_all: bool
) -> Amount | None:
    numbers = population.numbers
    if numbers is None:
        return None
    if is_all:
        sizes, many = population.block_sizes(records)
    else:  # as if an epoch left records out evenly
        sizes, many = numbers.sizes()
        sizes = sizes * (records / numbers.length)
    each, often = np.unique(counts, return_counts=True)
    expected = [
        shuffle_sample.blocks_if_shuffled(sizes, many, records, min(size, records))
        for size in each.tolist()
    ]
    return Amount.exactly(float(np.average(expected, weights=often)))


def _name(leaf: SourceNode | RangeNode) -> str:
    return repr(leaf.source) if isinstance(leaf, SourceNode) else leaf.label


def own_batches(order: RecordOrder, block: int | IntArray | None) -> OwnBatches | None:
    """What adds up the batches of a chain source by source; None where there is one, or very many."""
    if isinstance(block, np.ndarray) or not 1 < len(order.leaves) <= MOST_SOURCES:
        return None
    return OwnBatches(order, block)
