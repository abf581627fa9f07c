"""Costs: what a chain reads and holds, in the same columns for predictions and measurements.

Invariant: plain values only, so that costs can be printed, compared, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from windrow.core.text import ABSENT
from windrow.transforms.amounts import Amount

__all__ = ["Amount", "SourceCosts", "column_text", "combined", "known"]

_NOTHING: Final = Amount.exactly(0)


def column_text(name: str, amount: Amount | None) -> str:
    """Format an amount, marked with ≈ unless it is exact; columns named `..._bytes` are in bytes."""
    if amount is None:
        return ABSENT
    if not amount.is_exact:
        number = float(f"{amount.middle:.3g}")
        return f"≈{column_text(name, Amount.exactly(number))}"
    return amount.in_units() if name.endswith("_bytes") else str(amount)


def known(amount: Amount | None) -> Amount:
    """Return an amount that can be added; an unknown amount counts as 0."""
    return _NOTHING if amount is None else amount


@dataclasses.dataclass(frozen=True, slots=True)
class SourceCosts:
    """The cost of reading one source: in an epoch, in a batch, or in a run so far.

    Args:
        source: A description of the source.
        records: Records that are requested.
        chunks: Distinct chunks that contain them. 0 if the source has no chunks.
        reads: Reads of chunks, repeated reads included, and of single records.
        stored_bytes: Bytes of them in storage, as the layout gives them. The chunks of a Zarr array
            are assumed to be like the first one that is stored. None if unknown.
        decoded_bytes: Bytes of them once they are decoded, without Python's objects around records of
            bytes; None if unknown.
        delivered_bytes: Bytes of the records; None if unknown.
        hits: Chunks that a read batch needs and that another read batch has read or is reading.
        held_bytes: The most bytes of its chunks that Windrow holds in memory at a time.
    """

    source: str
    records: Amount
    chunks: Amount
    reads: Amount
    stored_bytes: Amount | None
    decoded_bytes: Amount | None
    delivered_bytes: Amount | None
    hits: Amount
    held_bytes: Amount = _NOTHING

    @property
    def decoded_per_delivered(self) -> Amount | None:
        """Bytes decoded per byte delivered; None if nothing is delivered, or if it is unknown."""
        decoded, delivered = self.decoded_bytes, self.delivered_bytes
        if decoded is None or delivered is None or not delivered.low:
            return None
        return Amount(decoded.low / delivered.high, decoded.high / delivered.low)

    def times(self, factor: float) -> SourceCosts:
        """Return the costs multiplied by `factor`; the memory held at a time stays the same."""
        found = combined(lambda own: own.times(factor), [self])
        return dataclasses.replace(found, held_bytes=self.held_bytes)


def combined(function: Callable[..., Amount], costs: Sequence[SourceCosts]) -> SourceCosts:
    """Return costs of one source, with `function` of the amounts in each column that all know."""
    numbers: dict[str, Any] = {}
    for field in dataclasses.fields(SourceCosts):
        values = [getattr(each, field.name) for each in costs]
        if all(isinstance(value, Amount) for value in values):
            numbers[field.name] = function(*values)
    return dataclasses.replace(costs[0], **numbers)
