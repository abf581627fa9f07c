"""The cells of a level along its axes, and sizes with units, such as '8nm', that choose a level.

Invariant: a plain number is in the unit of the store. A string converts to it, or is an error.
"""

from __future__ import annotations

import dataclasses
import numbers
import re
from collections.abc import Mapping
from typing import Any, Final

from windrow.errors import ArgumentError

_NUMBER: Final = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S+)\s*")
# Symbol, kind, and size in nanometres or seconds; then the other names of the unit.
_UNITS: Final = (
    ("pm", "length", 1e-3, "picometer", "picometre"),
    ("Å", "length", 0.1, "angstrom", "\N{ANGSTROM SIGN}"),
    ("nm", "length", 1.0, "nanometer", "nanometre"),
    ("um", "length", 1e3, "micrometer", "micrometre", "micron", "\xb5m", "\u03bcm"),
    ("mm", "length", 1e6, "millimeter", "millimetre"),
    ("cm", "length", 1e7, "centimeter", "centimetre"),
    ("m", "length", 1e9, "meter", "metre"),
    ("km", "length", 1e12, "kilometer", "kilometre"),
    ("ns", "time", 1e-9, "nanosecond"),
    ("us", "time", 1e-6, "microsecond", "\xb5s", "\u03bcs"),
    ("ms", "time", 1e-3, "millisecond"),
    ("s", "time", 1.0, "second", "sec"),
    ("min", "time", 60.0, "minute"),
    ("h", "time", 3600.0, "hour"),
    ("D", "time", 86400.0, "day", "d"),
)
_OF_NAME: Final[Mapping[str, tuple[str, str, float]]] = {
    name: (symbol, kind, size)
    for symbol, kind, size, *others in _UNITS
    for name in (symbol, *others, *(f"{other}s" for other in others))
}
# Sizes in metadata are rounded: two are equal up to this part.
_SLACK: Final = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class LevelCells:
    """The cells of a level along an axis.

    Args:
        size: The size of a cell, above 0.
        first: The middle of the first cell.
        unit: The unit of both, as the store names it; '' if it has none.
    """

    size: float
    first: float
    unit: str = ""

    def shown(self, value: float) -> str:
        """A length in the unit of the store as text for the user."""
        symbol = _OF_NAME[self.unit][0] if self.unit in _OF_NAME else self.unit
        return f"{value:.6g}{symbol}"

    def are_where(self, other: LevelCells) -> bool:
        """Whether both have the same cells, up to rounding."""
        own, its = _OF_NAME.get(self.unit), _OF_NAME.get(other.unit)
        factor = 1.0
        if self.unit != other.unit:
            if own is None or its is None or own[1] != its[1]:
                return False
            factor = its[2] / own[2]
        near = self.size * _SLACK
        return (
            abs(self.size - other.size * factor) <= 1e-6 * self.size
            and abs(self.first - other.first * factor) <= near
        )

    def have_size(self, wanted: Any, what: str) -> bool:
        """Whether their size is `wanted`, a number or a string with a unit, up to rounding.

        Raises:
            ArgumentError: If `wanted` is neither, or of a kind that the store does not count in.
        """
        size = self._within(wanted, what)
        return abs(self.size - size) <= _SLACK * size

    def _within(self, wanted: Any, what: str) -> float:
        """`wanted` in the unit of the store."""
        if isinstance(wanted, str):
            return self._converted(wanted, what)
        if isinstance(wanted, bool) or not isinstance(wanted, numbers.Real):
            raise ArgumentError(
                f"{what} must be a number, or a string such as '8nm', got {wanted!r}"
            )
        return float(wanted)

    def _converted(self, text: str, what: str) -> float:
        number, (symbol, kind, factor) = _parsed(text, what)
        own = _OF_NAME.get(self.unit)
        if own is None:
            has = f"the unit {self.unit!r}, which is not known" if self.unit else "no unit"
            raise ArgumentError(f"{what} is {text!r}, and the axis has {has}; give a number")
        if own[1] != kind:
            raise ArgumentError(
                f"{what} is {text!r}, a {kind}, and the axis counts in {own[0]}; give a {own[1]},"
                " or a number"
            )
        # Equal units are not converted, so that nothing is rounded.
        return number if own[0] == symbol else number * factor / own[2]


def _parsed(text: str, what: str) -> tuple[float, tuple[str, str, float]]:
    """The number of a string such as '320nm', and its unit."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ArgumentError(
            f"{what} is {text!r}; write a number and its unit, such as '8nm' or '0.5um', or give a"
            " number"
        )
    unit = _OF_NAME.get(found[2])
    if unit is None:
        raise ArgumentError(
            f"{what} is {text!r}, with the unknown unit {found[2]!r}; known are"
            f" {', '.join(symbol for symbol, *_ in _UNITS)}"
        )
    return float(found[1]), unit
