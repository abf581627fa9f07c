"""Shuffle quality: measures with two numbers how far an order is from a global shuffle.

The first number counts the different blocks (chunks, groups of records) in a batch. The second is
about the worst case, sorted data: it takes the rank of a record as its value, and divides the variance
of batch means by their variance under a global shuffle of the same records. A global shuffle has 1; an
order without a shuffle has about the batch size.

Both numbers come from a sample of batches (`batch_sample`). The same formulas apply to all sources
together and to the records of each source.

Invariant: an order is computed from the chain alone; no record is read, and no function of the user
is called except a selection map.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.core.text import notebook_html, shortened
from windrow.errors import PlanError, RecordIndexError
from windrow.quality.batch_sample import BatchSample, sample
from windrow.stats.costs import Amount
from windrow.transforms.arguments import integer
from windrow.transforms.nodes import BatchNode, Node, topmost_batch

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Batch size for chains without a batch node.
ASSUMED_BATCH: Final = 64

_FEW_RECORDS: Final = 2**14
_ERRORS: Final = 3.0  # standard errors on either side
_MOST_NAME: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class SourceQuality:
    """How far the records of one source in the batches are from a global shuffle of its records.

    Args:
        source: Description of the source.
        records: Its records in an epoch; an estimate if only a part of the epoch was traced.
        per_batch: Mean number of its records in a batch that has any.
        blocks: Number of blocks that it declares; None if it declares no blocks.
        blocks_per_batch: Mean number of its different blocks in such a batch.
        blocks_per_batch_shuffled: The same under a global shuffle of its records.
        variance_ratio: Variance of the batch means of its records, divided by the variance of means
            of equally many records drawn from all of them; the value of a record is its index.
            None if a batch has all its records, or they are one record over and over.
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
        ratio = "none" if self.variance_ratio is None else str(self.variance_ratio)
        return ", ".join([*parts, f"variance ratio {ratio}"])


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
        sources: The figures of each source's own records, if the chain has several sources.
        notes: Remarks on what the figures leave out.
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
        """How many records drawn at random represent the epoch as well as a batch does.

        This is the batch size divided by the ratio: on sorted data, the means of this many random
        records vary as much as batch means.
        """
        ratio = self.variance_ratio
        if ratio is None or not ratio.low:
            return None
        return Amount(self.batch_size / ratio.high, self.batch_size / ratio.low)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values; an Amount becomes its two bounds, `low` and `high`."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def _repr_html_(self) -> str:
        head, *lines = (line.strip() for line in str(self).splitlines())
        return notebook_html("", lists=[(head, lines)])

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
                "  variance of batch means on sorted data:"
                f" {self.variance_ratio} times the variance of a global shuffle"
            )
        if self.worth is not None:
            lines.append(
                f"  so a batch is worth {self.worth} records drawn at random from the epoch"
            )
        return "\n".join([*lines, *(f"  {line}" for line in (*self.sources, *self.notes))])


def _plain(value: Any) -> Any:
    if isinstance(value, Amount | SourceQuality):
        return dataclasses.asdict(value)
    return list(map(_plain, value)) if isinstance(value, tuple) else value


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
        plain = node.with_random_access()
        if batch_size is None and not any(each.group_size for each in plain.walk()):
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
    if node.group_size is not None:
        return True
    return bool(node.parents) and all(map(_has_batch, node.parents))


def notes_on(node: Node) -> tuple[str, ...]:
    """Return the notes on the figures of a chain, also of a stream."""
    if any(each.drops for each in node.walk()):
        return ("filters are assumed to drop nothing",)
    return ()


# --- the figures ---------------------------------------------------------------------------------


def quality(node: Node, block: int | IntArray | None, notes: tuple[str, ...]) -> ShuffleQuality:
    """Measure the shuffle quality of a chain with random access, whose elements are batches.

    Args:
        node: A chain of at least one batch.
        block: Records of a block, or the bounds of the blocks of the only source; None for the
            blocks that the sources declare.
        notes: Remarks to print with the figures.
    """
    # With another order in each epoch, so that more than one order is traced.
    found = sample(node.reseeded(), block)
    everything = _figures(found, 0, found.records)
    if len(found.leaves) > 1:
        notes += (f"ranks run on over {len(found.leaves)} sources, one after the other",)
    if found.batches[0].blocks is None:
        notes += ("blocks are not counted: a source declares no blocks, or too many",)
    return ShuffleQuality(
        batch_size=int(max(counts.max() for counts in found.batches[0].counts)),
        records=found.records,
        blocks=everything.blocks,
        blocks_per_batch=everything.blocks_per_batch,
        blocks_per_batch_shuffled=everything.blocks_per_batch_shuffled,
        variance_ratio=everything.variance_ratio,
        sources=tuple(_sources(found)),
        notes=notes,
    )


def _sources(found: BatchSample) -> Iterator[SourceQuality]:
    """Yield the quality of each source that has records in an epoch, if there are several."""
    for number in range(1, len(found.batches)):
        population = found.population[number]
        if found.batches[number].counts and population.counts:
            records = population.rows * found.records / found.population[0].rows
            name = found.leaves[number - 1].text
            yield SourceQuality(name, round(records), *_figures(found, number, records))


class _Figures(NamedTuple):
    """The figures of all records, or of the records of one source; see `SourceQuality`."""

    per_batch: Amount
    blocks: int | None
    blocks_per_batch: Amount | None
    blocks_per_batch_shuffled: Amount | None
    variance_ratio: Amount | None


def _figures(found: BatchSample, number: int, records: float) -> _Figures:
    """Compare the records in batches with equally many drawn at random from an epoch.

    Args:
        found: The batches.
        number: 0 for all records, k for the records of the k-th source.
        records: How many of these records an epoch has.
    """
    own, population = found.batches[number], found.population[number]
    batches, counts = np.concatenate(own.batches), np.concatenate(own.counts)
    # Leave out runs without a record of the source.
    runs = np.unique(batches.searchsorted(found.runs))
    runs = runs[runs < len(batches)]
    per_batch = amount(counts.astype(np.float64), runs, is_exact=found.is_exact)
    squares = (np.concatenate(own.sums) / counts - population.mean) ** 2
    ratio = over_shuffled(
        squares, counts, records, population.variance, runs, is_exact=found.is_exact
    )
    if own.blocks is None:
        return _Figures(per_batch, None, None, None, ratio)
    whole = round(records)
    sizes, many = population.block_sizes(whole, is_whole=found.is_whole)
    each, often = np.unique(counts, return_counts=True)
    drawn = [blocks_if_shuffled(sizes, many, whole, min(size, whole)) for size in each.tolist()]
    different = np.concatenate(own.different).astype(np.float64)
    return _Figures(
        per_batch,
        sum(numbers.count for numbers in own.blocks),
        amount(different, runs, is_exact=found.is_exact),
        Amount.exactly(float(np.average(drawn, weights=often))),
        ratio,
    )


def amount(values: FloatArray, runs: IntArray, *, is_exact: bool) -> Amount:
    """Return the mean of some values, with three standard errors on either side unless it is exact.

    The error follows from the differences between neighbouring runs (Wolter, "Introduction to
    Variance Estimation", on systematic sampling), so that a trend over the epoch does not widen it.
    The error of few runs is uncertain, so the interval is as much wider as Student's distribution
    requires.
    """
    mean = float(values.mean())
    if is_exact:
        return Amount.exactly(mean)
    if len(runs) < 2:
        runs = np.unique([0, len(values) // 2])
    means = np.add.reduceat(values, runs) / np.diff(np.append(runs, len(values)))
    error = _ERRORS * mean  # one run says little
    if len(means) > 1:
        steps = float(np.square(np.diff(means)).sum())
        error = _errors(len(means)) * math.sqrt(steps / (2 * len(means) * (len(means) - 1)))
    return Amount(max(0.0, mean - error), mean + error)


def _errors(runs: int) -> float:
    """Return how many standard errors of few runs are as safe as three of many runs.

    It uses the first terms of the expansion of Student's distribution (Abramowitz and Stegun, 26.7.5).
    """
    free, z = runs - 1, _ERRORS
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)


def over_shuffled(
    squares: FloatArray,
    sizes: IntArray,
    records: float,
    variance: float,
    runs: IntArray,
    *,
    is_exact: bool,
) -> Amount | None:
    """Divide squared deviations of batch means by the values that a global shuffle would have.

    The mean of `b` records that are drawn without replacement from `N` of variance `s` has the
    variance `s / b * (N - b) / (N - 1)` (Cochran, "Sampling Techniques", theorem 2.2). The result is
    None if that is 0, since nothing can vary.
    """
    # Repeats of repeats may have more records than 64 bits can count.
    expected = variance / sizes * (float(records) - sizes) / max(1, records - 1)
    if not expected.min() > 0:
        return None
    return amount(squares / expected, runs, is_exact=is_exact)


def blocks_if_shuffled(sizes: FloatArray, many: FloatArray, records: int, batch: int) -> float:
    """Return the expected number of different blocks in a batch of a global shuffle.

    A batch of `b` records misses a block of `n` records with the probability `C(N - n, b) / C(N, b)`.

    Args:
        sizes: Sizes of blocks, in records; an average need not be whole.
        many: Number of blocks of each size.
        records: Records in all blocks, `N`.
        batch: Records that are drawn, `b`.
    """
    if not records:
        return 0.0
    sizes = np.minimum(sizes, records)  # a block that zipped parts share counts for each of them
    left = np.maximum(records - sizes - batch, 0.0)
    if records <= _FEW_RECORDS:
        numbers = np.array([records, records - batch], np.float64)
        whole, rest = _log_factorial(numbers)
        log_none = _log_factorial(records - sizes) - _log_factorial(left) - whole + rest
    else:
        # The same by Stirling's formula, arranged so that no large numbers are subtracted.
        others = records - sizes
        log_none = (
            (records - batch + 0.5) * math.log1p(-batch / records)
            - (left + 0.5) * np.log1p(-batch / np.maximum(others, batch + 1.0))
            + batch * np.log1p(-np.minimum(sizes / records, 1 - 1e-15))
        )
    is_drawn = np.where(records - sizes < batch, 1.0, -np.expm1(np.minimum(log_none, 0.0)))
    # For tiny parts the logarithms lose digits, and two records in one block are negligible.
    part = sizes / records * batch
    is_drawn = np.where(part < 1e-6, part, is_drawn)
    return float((many * is_drawn).sum())


def _log_factorial(n: FloatArray) -> FloatArray:
    """Return `log(n!)`: by Stirling's series from 16 on, and by the recurrence below."""
    up = np.where(n < 16, n + 16, n) + 1
    series = 1 / (12 * up) - 1 / (360 * up**3) + 1 / (1260 * up**5)
    value = (up - 0.5) * np.log(up) - up + 0.5 * math.log(2 * math.pi) + series
    steps = np.log(np.maximum(n, 0)[:, None] + np.arange(1, 17)).sum(axis=1)
    logs: FloatArray = np.where(n < 16, value - steps, value)
    return logs
