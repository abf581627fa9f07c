"""Costs: what a chain reads and holds, in the same columns whether it is predicted or was measured.

Invariant: plain values only, so that costs can be printed, compared, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Amount:
    """A number, or an interval that it lies in: `low <= number <= high`.

    Example:
        >>> from windrow.costs import Amount
        >>> print(Amount.exactly(12_000), "|", Amount(1_500, 2_000))
        12,000 | 1,500 to 2,000
        >>> Amount(1, 2) + Amount.exactly(3)
        Amount(low=4, high=5)
    """

    low: float
    high: float

    @classmethod
    def exactly(cls, number: float) -> Amount:
        """A number that is known."""
        return cls(number, number)

    @property
    def is_exact(self) -> bool:
        """Whether the number is known, and not only an interval."""
        return self.low == self.high

    @property
    def middle(self) -> float:
        """The middle of the interval: the number itself where that is known."""
        return (self.low + self.high) / 2

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Amount:
        """Every bound times a factor, which is not negative."""
        return Amount(self.low * factor, self.high * factor)

    def __str__(self) -> str:
        low, high = _shown(self.low), _shown(self.high)
        return low if low == high else f"{low} to {high}"


def _shown(number: float) -> str:
    """Three digits at least, with commas."""
    if number == int(number) or abs(number) >= 1000:
        return f"{round(number):,}"
    digits = 2 - math.floor(math.log10(abs(float(f"{number:.3g}"))))  # 0.9999 is shown as 1.00
    return f"{number:,.{max(0, digits)}f}"


def known(amount: Amount | None) -> Amount:
    """An amount to add up; what is not known counts as nothing."""
    return Amount(0, 0) if amount is None else amount


@dataclasses.dataclass(frozen=True, slots=True)
class SourceCosts:
    """What reading one source comes to: in an epoch, in a batch, or in a run so far.

    Args:
        source: The source in words.
        records: Records that are asked for.
        pieces: Different pieces that they lie in; each one once. 0 where there are no pieces.
        reads: Pieces that are read, those that are read again too, and records that are read alone.
        stored_bytes: Bytes of them in storage, as the layout tells them: of a Zarr array its chunks
            are taken to be like the first that is there. None where that is unknown.
        decoded_bytes: Bytes of them in memory; None where that is unknown.
        delivered_bytes: Bytes of the records; None where that is unknown.
        hits: Pieces that a round wants and that were read, or being read, for another one.
        held_bytes: The most bytes of its pieces that Windrow has in memory at a time.
    """

    source: str
    records: Amount
    pieces: Amount
    reads: Amount
    stored_bytes: Amount | None
    decoded_bytes: Amount | None
    delivered_bytes: Amount | None
    hits: Amount
    held_bytes: Amount = Amount(0, 0)

    @property
    def decoded_per_delivered(self) -> Amount | None:
        """Bytes decoded per byte delivered; None where nothing is delivered, or that is unknown."""
        decoded, delivered = self.decoded_bytes, self.delivered_bytes
        if decoded is None or delivered is None or not delivered.low:
            return None
        return Amount(decoded.low / delivered.high, decoded.high / delivered.low)

    def times(self, factor: float) -> SourceCosts:
        """The same for so many times as much, of which no more is held at a time."""
        numbers: dict[str, Any] = {
            field.name: value.times(factor)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Amount)
        }
        del numbers["held_bytes"]
        return dataclasses.replace(self, **numbers)
