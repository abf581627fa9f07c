"""Positions of cells in the world: lengths, angles and times, and the spacing of an axis.

Invariant: a cell reaches half a step to both sides of its middle. The first cell's middle and the step
are all that is known of an axis, in the unit of the store.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from windrow.errors import ArgumentError

_NUMBER: Final = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S+)\s*")
# Symbol, kind, and size in nanometres, degrees or seconds; then the other names of the unit.
_UNITS: Final = (
    ("pm", "length", 1e-3, "picometer", "picometre"),
    ("Å", "length", 0.1, "angstrom", "\N{ANGSTROM SIGN}"),
    ("nm", "length", 1.0, "nanometer", "nanometre"),
    ("um", "length", 1e3, "micrometer", "micrometre", "micron", "\xb5m", "\u03bcm"),
    ("mm", "length", 1e6, "millimeter", "millimetre"),
    ("cm", "length", 1e7, "centimeter", "centimetre"),
    ("m", "length", 1e9, "meter", "metre"),
    ("km", "length", 1e12, "kilometer", "kilometre"),
    ("deg", "angle", 1.0, "degree", "\xb0"),
    ("ns", "time", 1e-9, "nanosecond"),
    ("us", "time", 1e-6, "microsecond", "\xb5s", "\u03bcs"),
    ("ms", "time", 1e-3, "millisecond"),
    ("s", "time", 1.0, "second", "sec"),
    ("min", "time", 60.0, "minute"),
    ("h", "time", 3600.0, "hour"),
    ("D", "time", 86400.0, "day", "d"),
)
# As the CF conventions name degrees of latitude and longitude.
_WAYS: Final = ("_north", "_N", "N", "_east", "_E", "E")
_OF_NAME: Final[Mapping[str, tuple[str, str, float]]] = {
    name: (symbol, kind, size)
    for symbol, kind, size, *others in _UNITS
    for name in (symbol, *others, *(f"{other}s" for other in others))
} | {f"{noun}{way}": ("deg", "angle", 1.0) for noun in ("degree", "degrees") for way in _WAYS}
_KINDS: Final = {"length": "a length", "angle": "an angle", "time": "a time"}
# Steps and positions in metadata are rounded: two grids are one up to this part of a cell.
SLACK: Final = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """A length, an angle or a time that a user gives, such as '320nm'.

    Args:
        value: In nanometres, degrees or seconds; without a kind, in the unit of the store.
        kind: 'length', 'angle', 'time', or '' for a plain number.
        text: As it was written.
    """

    value: float
    kind: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Spacing:
    """Where the cells of an axis lie.

    Args:
        step: From the middle of a cell to the middle of the next one; negative where positions
            descend.
        first: The middle of the first cell.
        unit: The unit of both; '' if the store has none.
    """

    step: float
    first: float
    unit: str = ""

    @property
    def shown_step(self) -> str:
        """The step as text for the user, such as '8nm'."""
        return self.shown(abs(self.step))

    def shown(self, value: float) -> str:
        """A length in the unit of the store as text for the user."""
        symbol = _OF_NAME[self.unit][0] if self.unit in _OF_NAME else self.unit
        return f"{value:.6g}{symbol}"

    def converted(self, unit: str) -> Spacing | None:
        """The same in another unit; None if there is no such conversion."""
        if unit == self.unit:
            return self
        own, other = _OF_NAME.get(self.unit), _OF_NAME.get(unit)
        if own is None or other is None or own[1] != other[1]:
            return None
        factor = own[2] / other[2]
        return Spacing(self.step * factor, self.first * factor, unit)

    def is_like(self, other: Spacing) -> bool:
        """Whether both have the same cells, up to rounding; both have one unit."""
        near = abs(self.step) * SLACK
        return (
            abs(self.step - other.step) <= 1e-6 * abs(self.step)
            and abs(self.first - other.first) <= near
        )

    def counts(self, extent: Extent) -> bool:
        """Whether `extent` is of the kind of the unit of the store."""
        known = _OF_NAME.get(self.unit)
        return not extent.kind or (known is not None and known[1] == extent.kind)

    def within(self, extent: Extent, what: str) -> float:
        """`extent` in the unit of the store.

        Raises:
            ArgumentError: If the store has no unit, or one of another kind.
        """
        known = _OF_NAME.get(self.unit)
        if not extent.kind:
            return extent.value
        if known is None:
            has = f"the unit {self.unit!r}, which is not known" if self.unit else "no unit"
            raise ArgumentError(f"{what} is {extent.text!r}, and the axis has {has}; give cells")
        if known[1] != extent.kind:
            raise ArgumentError(
                f"{what} is {extent.text!r}, {_KINDS[extent.kind]}, and the axis counts in"
                f" {known[0]}; give {_KINDS[known[1]]}, or cells"
            )
        return extent.value / known[2]


def extent(given: Any, what: str) -> Extent | None:
    """Reads a string such as '320nm', '2.5deg' or '10s'; returns None for anything but a string.

    Raises:
        ArgumentError: If it is not a number with a unit.
    """
    if not isinstance(given, str):
        return None
    found = _NUMBER.fullmatch(given)
    if found is None:
        raise ArgumentError(
            f"{what} is {given!r}; write a number and its unit, such as '320nm', '0.5um' or '2.5deg',"
            " or give cells"
        )
    unit = _OF_NAME.get(found[2])
    if unit is None:
        raise ArgumentError(
            f"{what} is {given!r}, with the unknown unit {found[2]!r}; known are"
            f" {', '.join(symbol for symbol, *_ in _UNITS)}"
        )
    return Extent(float(found[1]) * unit[2], unit[1], given)


def length_or_angle(given: Any) -> Extent | None:
    """`given` if it is a string with the unit of a length or an angle; else None."""
    found = _NUMBER.fullmatch(given) if isinstance(given, str) else None
    unit = None if found is None else _OF_NAME.get(found[2])
    return None if unit is None or unit[1] == "time" else extent(given, "")
