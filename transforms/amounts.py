"""Amounts: exact numbers, or intervals that contain a number; and the counts of packed documents."""

from __future__ import annotations

import dataclasses
import math

from windrow.core.text import in_range, in_units


@dataclasses.dataclass(frozen=True, slots=True)
class Amount:
    """A number, or an interval that contains it: `low <= number <= high`.

    Example:
        >>> from windrow.stats.costs import Amount
        >>> print(Amount.exactly(12_000), "|", Amount(1_500, 2_000))
        12,000 | 1,500 to 2,000
        >>> Amount(1, 2) + Amount.exactly(3)
        Amount(low=4, high=5)
    """

    low: float
    high: float

    @classmethod
    def exactly(cls, number: float) -> Amount:
        """Make an exact amount."""
        return cls(number, number)

    @property
    def is_exact(self) -> bool:
        """Whether the number is exact, not an interval."""
        return self.low == self.high

    @property
    def middle(self) -> float:
        """The exact number, or the geometric mean of the bounds; the high bound if the low one is 0."""
        return math.sqrt(self.low * self.high) if 0 < self.low < self.high else self.high

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Amount:
        """Multiply both bounds by a factor of at least 0."""
        return Amount(self.low * factor, self.high * factor)

    def in_units(self) -> str:
        """The amount as a number of bytes, for people."""
        return in_range(in_units(round(self.low)), in_units(round(self.high)))

    def __str__(self) -> str:
        return in_range(_shown(self.low), _shown(self.high))


def _shown(number: float) -> str:
    """Three digits at least, with commas."""
    if number == int(number) or abs(number) >= 1000:
        return f"{round(number):,}"
    digits = 2 - math.floor(math.log10(abs(float(f"{number:.3g}"))))  # 0.9999 is shown as 1.00
    return f"{number:,.{max(0, digits)}f}"


@dataclasses.dataclass(frozen=True, slots=True)
class PackCounts:
    """Documents and tokens of some windows, and what became of those that were too long.

    Args:
        documents: Documents, with those that have no tokens.
        tokens: Tokens of all documents.
        rows: Rows that were made of them.
        cells: Tokens that the rows have room for.
        empty: Documents without tokens, which are in no row.
        split: Documents that were cut into pieces.
        split_tokens: Tokens of these, which all are in rows.
        truncated: Documents that were made shorter.
        truncated_tokens: Tokens of these that are in no row.
        dropped: Documents that were left out.
        dropped_tokens: Tokens of these.
    """

    documents: int = 0
    tokens: int = 0
    rows: int = 0
    cells: int = 0
    empty: int = 0
    split: int = 0
    split_tokens: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    dropped: int = 0
    dropped_tokens: int = 0

    def __add__(self, other: PackCounts) -> PackCounts:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return PackCounts(*(one + two for one, two in pairs))

    @property
    def fill(self) -> float:
        """Tokens in rows per cell; 1.0 where there are no rows."""
        kept = self.tokens - self.truncated_tokens - self.dropped_tokens
        return kept / self.cells if self.cells else 1.0

    def text(self, elements: str = "documents", items: str = "tokens", rows: str = "rows") -> str:
        """All that is not zero, with the names of what is planned."""
        parts = [
            f"{self.documents:,} {elements} of {self.tokens:,} {items} in {self.rows:,} {rows},"
            f" {self.fill:.2%} full"
        ]
        for count, what, lost in (
            (self.split, "split, of", self.split_tokens),
            (self.truncated, "truncated, which lost", self.truncated_tokens),
            (self.dropped, "dropped, of", self.dropped_tokens),
        ):
            if count:
                parts.append(f"{count:,} {what} {lost:,} {items}")
        if self.empty:
            parts.append(f"{self.empty:,} empty")
        return "; ".join(parts)
