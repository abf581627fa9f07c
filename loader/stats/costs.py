"""Costs: what a chain reads and holds, in the same columns for predictions and measurements.

Invariant: plain values only, so that costs can be printed, compared, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

from windrow.core.text import TextTable
from windrow.transforms.amounts import Amount

__all__ = ["Amount", "SourceCosts", "costs_table", "in_bytes", "in_numbers", "known"]

_NOTHING: Final = Amount.exactly(0)


def in_numbers(amount: Amount | None) -> str:
    """Format an amount as a number, marked with ≈ unless it is exact."""
    return _marked(amount, str)


def in_bytes(amount: Amount | None) -> str:
    """Format an amount in units of bytes, marked in the same way."""
    return _marked(amount, Amount.in_units)


def _marked(amount: Amount | None, text: Callable[[Amount], str]) -> str:
    if amount is None:
        return "unknown"
    if amount.is_exact:
        return text(amount)
    return f"≈{text(Amount.exactly(float(f'{amount.middle:.3g}')))}"


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
    """

    source: str
    records: Amount
    chunks: Amount
    reads: Amount
    stored_bytes: Amount | None
    decoded_bytes: Amount | None
    delivered_bytes: Amount | None

    @property
    def decoded_per_delivered(self) -> Amount | None:
        """Bytes decoded per byte delivered; None if nothing is delivered, or if it is unknown."""
        decoded, delivered = self.decoded_bytes, self.delivered_bytes
        if decoded is None or delivered is None or not delivered.low:
            return None
        return Amount(decoded.low / delivered.high, decoded.high / delivered.low)

    def times(self, factor: float) -> SourceCosts:
        """Return the costs multiplied by `factor`."""
        return self.changed(lambda own: own.times(factor))

    def changed(self, function: Callable[[Amount], Amount]) -> SourceCosts:
        """Return the costs with `function` of each amount that is known."""
        amounts = {name: getattr(self, name) for name in _AMOUNTS}
        found: dict[str, Any] = {n: function(own) for n, own in amounts.items() if own is not None}
        return dataclasses.replace(self, **found)

    def __add__(self, other: SourceCosts) -> SourceCosts:
        sums: dict[str, Any] = {}
        for name in _AMOUNTS:
            one, two = getattr(self, name), getattr(other, name)
            sums[name] = None if one is None or two is None else one + two
        return dataclasses.replace(self, **sums)


_AMOUNTS: Final = tuple(field.name for field in dataclasses.fields(SourceCosts)[1:])


def costs_table(title: str, costs: Iterable[tuple[str, SourceCosts]]) -> TextTable:
    """Make a table of costs, with a row for each name."""
    heads = ["", *(name.replace("_", " ") for name in _AMOUNTS), "decoded per delivered"]
    rows = []
    for name, own in costs:
        numbers = map(in_numbers, (own.records, own.chunks, own.reads))
        sizes = map(in_bytes, (own.stored_bytes, own.decoded_bytes, own.delivered_bytes))
        rows.append([name, *numbers, *sizes, in_numbers(own.decoded_per_delivered)])
    return TextTable(title, heads, rows)
