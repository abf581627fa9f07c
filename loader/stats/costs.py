"""Costs: what a chain reads and holds, in the same columns for predictions and measurements.

Invariant: plain values only, so that costs can be printed, compared, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

from windrow.core.text import ABSENT, TextTable
from windrow.transforms.amounts import Amount

__all__ = ["Amount", "SourceCosts", "column_text", "costs_table", "known"]

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
        texts = [column_text(column, getattr(own, column)) for column in _AMOUNTS]
        rows.append([name, *texts, column_text("", own.decoded_per_delivered)])
    return TextTable(title, heads, rows)
