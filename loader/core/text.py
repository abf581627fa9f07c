"""Text for people: counts, sizes, ranges, shortened lines, lists of names and tables.

Invariant: this module imports nothing of Windrow, so every layer writes the same things alike.
"""

from __future__ import annotations

import contextlib
import contextvars
import html
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

ABSENT: Final = "-"
"""Stands in a table for an unknown value."""

_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB", "PB")
_SIBILANTS: Final = ("s", "x", "ch", "sh")
_AS_YOU: Final = ("uint", "uni")  # they begin with the sound of "you"
_INDENT: Final = 2
_GAP: Final = 2  # between two columns
_PADDING: Final = 2  # tabulate adds it to headers
_NARROWEST: Final = 8  # characters of a column that is wrapped
_columns: contextvars.ContextVar[int | None] = contextvars.ContextVar("columns", default=None)


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


def with_article(noun: str) -> str:
    """Return a noun, such as the name of a type, with its article.

    >>> with_article("int"), with_article("MapDataset"), with_article("uint8")
    ('an int', 'a MapDataset', 'a uint8')
    """
    spoken = noun.lower()
    is_vowel = spoken.startswith((*"aeiou", "ndarray", "xarray")) and not spoken.startswith(_AS_YOU)
    return f"{'an' if is_vowel else 'a'} {noun}"


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
    is_of_numbers: bool = False
    """Whether the columns after the first one are numbers, which end at the right."""

    def to_text(self) -> str:
        """The table for a terminal, each line indented by two; see `tables_within`."""
        from tabulate import tabulate

        headers, rows, widths = self.headers, self.rows, self._widths()
        if widths is not None:
            rows = [_wrapped(row, widths) for row in rows]
            headers = _wrapped(headers, [width - _PADDING for width in widths]) if headers else ()
        # Strings stay as they are: a name such as 1e5 is not a number.
        text = tabulate(
            rows,
            headers,
            tablefmt="simple" if headers else "plain",
            disable_numparse=True,
            colglobalalign="right" if self.is_of_numbers else "left",
            colalign=("left",) if rows else None,
        )
        return "\n".join(f"{' ' * _INDENT}{line}".rstrip() for line in text.splitlines())

    def to_html(self) -> str:
        """The table as HTML, with all strings escaped."""
        head = _row("th", self.headers) if self.headers else ""
        return f"<table>{head}{''.join(_row('td', row) for row in self.rows)}</table>"

    def _widths(self) -> list[int] | None:
        """The characters of each column, the widest ones cut down; None if all fit."""
        most = _columns.get()
        lines = [[len(cell) for cell in row] for row in self.rows]
        if self.headers:
            lines.append([len(name) + _PADDING for name in self.headers])
        if most is None or not lines:
            return None
        widths = [max(sizes) for sizes in zip(*lines, strict=True)]
        room = most - _INDENT - _GAP * (len(widths) - 1)
        if sum(widths) <= room:
            return None
        while sum(widths) > room and max(widths) > _NARROWEST:
            widths[widths.index(max(widths))] -= 1
        return widths


def _wrapped(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        "\n".join(textwrap.wrap(cell, max(1, width), break_on_hyphens=False))
        for cell, width in zip(cells, widths, strict=True)
    ]


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


@contextlib.contextmanager
def tables_within(columns: int | None) -> Iterator[None]:
    """Wrap the cells of tables that are printed inside, so that no line is longer than `columns`.

    Columns stay at least 8 characters wide. With None nothing is wrapped.
    """
    token = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(token)


def notebook_html(
    heading: str,
    tables: Iterable[TextTable] = (),
    lists: Iterable[tuple[str, Sequence[str]]] = (),
) -> str:
    """HTML for a notebook, with all strings escaped.

    Args:
        heading: A line; "" for none.
        tables: Tables under it.
        lists: Titles with their lines, at the end.
    """
    parts = [f"<p><b>{html.escape(heading)}</b></p>"] if heading else []
    for table in tables:
        title = f"<h4>{html.escape(table.title)}</h4>" if table.title else ""
        parts.append(title + table.to_html())
    for title, lines in lists:
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        parts.append(f"<h4>{html.escape(title)}</h4><ul>{items}</ul>")
    return "<div>" + "\n".join(parts) + "</div>"
