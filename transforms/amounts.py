"""Amounts: exact numbers, or intervals that contain a number."""

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
        """The middle of the interval, or the exact number."""
        return (self.low + self.high) / 2

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
