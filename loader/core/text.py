"""Text for people: counts, sizes, ranges, shortened lines, lists of names and tables.

Invariant: this module imports nothing of Windrow, so every layer writes the same things alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

ABSENT: Final = "-"
"""Stands in a table for an unknown value."""

_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB", "PB")
_SIBILANTS: Final = ("s", "x", "ch", "sh")


def in_units(size_bytes: int | None, *, decimals: int | None = None) -> str:
    """A number of bytes in the largest unit that keeps it at 1 or more.

    Args:
        size_bytes: The number; None if it is unknown.
        decimals: Digits after the point; None for three digits in all.

    >>> in_units(999), in_units(1234567), in_units(1234567, decimals=1)
    ('999 bytes', '1.23 MB', '1.2 MB')
    """
    if size_bytes is None:
        return ABSENT
    most = 999.5 if decimals is None else 1000 - 0.5 * 10.0**-decimals
    size, unit = float(size_bytes), 0
    while size >= most and unit + 1 < len(_UNITS):
        size, unit = size / 1000, unit + 1
    digits = ".3g" if decimals is None else f".{decimals}f"
    return f"{size:{digits}} {_UNITS[unit]}" if unit else f"{size_bytes} bytes"


def counted(count: int, what: str) -> str:
    """Return a number with its noun; `what` is the singular.

    >>> counted(1, "record"), counted(1200, "batch")
    ('1 record', '1,200 batches')
    """
    many = "" if count == 1 else "es" if what.endswith(_SIBILANTS) else "s"
    return f"{count:,} {what}{many}"


def in_range(low: str, high: str) -> str:
    """Two bounds as one string: the bound itself where both are equal."""
    return low if low == high else f"{low} to {high}"


def shortened(text: str, characters: int = 72) -> str:
    """`text` on one line, cut off with `...` where it is longer than `characters`."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 3] + "..."


def listing(names: Sequence[str], most: int = 8) -> str:
    """The first `most` names, and how many more there are; 'nothing' for no names."""
    if not names:
        return "nothing"
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def bad_lines(bad: Sequence[object], counts: str, *, joint: str, most: int = 20) -> Iterator[str]:
    """The lines of a report: the counts, and the first `most` bad things.

    Args:
        bad: The bad things, each printed as one line.
        counts: What was counted.
        joint: Stands between the number of bad things and `counts`.
        most: Lines of `bad` at most.
    """
    yield f"{len(bad):,} bad{joint}{counts}" if bad else counts
    yield from (f"  {one}" for one in bad[:most])
    if len(bad) > most:
        yield f"  and {len(bad) - most:,} more, see `bad` of the report"


class TextTable(NamedTuple):
    """Rows of strings under headers; without headers the rows are names and values."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_text(self) -> str:
        """The table for a terminal, each line indented by two."""
        text = self._formatted("simple" if self.headers else "plain")
        return "\n".join(f"  {line}".rstrip() for line in text.splitlines())

    def to_html(self) -> str:
        """The table as HTML, with all strings escaped."""
        return self._formatted("html")

    def _formatted(self, style: str) -> str:
        from tabulate import tabulate

        # Strings stay as they are: a name such as 1e5 is not a number.
        return tabulate(self.rows, self.headers, tablefmt=style, disable_numparse=True)
