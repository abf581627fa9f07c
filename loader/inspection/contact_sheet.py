"""Contact sheets: draw some records of a data set into a PNG or an HTML page.

1. `windrow.inspection.contact_sheet_cells` reads the records and decides how to draw each.
2. This module draws them with matplotlib, which is imported here and nowhere else.

Invariant: a sheet has as many cells as records were requested; if a record cannot be drawn, its cell
says why. An HTML page needs no other file, and nothing that was read becomes part of its code.
"""

from __future__ import annotations

import base64
import html
import io
import math
import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core.text import counted
from windrow.errors import ArgumentError, ConversionError
from windrow.inspection.contact_sheet_cells import (
    Sheet,
    SheetCell,
    SheetRequest,
    pictures,
    read_sheet,
)
from windrow.inspection.facts import Inspection, tables
from windrow.sources.location import Location

_MOST_SHOWN: Final = 400
_SUFFIXES: Final = (".png", ".html", ".htm")
_CELL_INCHES: Final = 2.0
_DPI: Final = 110
_INK, _SOFT, _ABSENT = "#1b1f24", "#6a737d", "#e6e8eb"
_FIELDS: Final = "viridis"
_SIGNED: Final = "RdBu_r"

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; color: #1b1f24; margin: 2rem auto; max-width: 75rem;
  padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
td, th {{ padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #e6e8eb;
  white-space: nowrap; }}
.sheet {{ display: flex; flex-wrap: wrap; gap: 1rem; }}
figure {{ margin: 0; width: 13rem; }}
figure img {{ width: 100%; }}
figcaption {{ color: #6a737d; font-size: .85rem; }}
</style>
{body}
</html>
"""


def check_request(path: str | None, records: str | None, field: str | None) -> SheetRequest | None:
    """Check the options of a command before anything is read; return None if they ask for no sheet.

    Raises:
        ArgumentError: If they contradict one another, or are out of range.
        MissingExtraError: If matplotlib is not installed.
    """
    if path is None:
        if records is not None or field is not None:
            raise ArgumentError(
                "--records and --field choose what --sheet draws: give --sheet FILE"
            )
        return None
    if not path.lower().endswith(_SUFFIXES):
        raise ArgumentError(f"--sheet {path}: name a file that ends in .png or .html")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ArgumentError(f"--sheet {path}: there is no folder {folder}; make it first")
    pictures("matplotlib")
    return SheetRequest(None if records is None else _numbers(records), field)


def draw(inspection: Inspection, location: Location, request: SheetRequest, path: str) -> str:
    """Draw a contact sheet into a file, and return a message about it.

    Args:
        inspection: The inspection of `location`.
        location: Where the records are.
        request: What to draw.
        path: A file that ends in .png or .html.

    Raises:
        ArgumentError: If a requested record or field does not exist, or cannot be drawn.
        SourceError: If there is nothing to draw.
        ReadError: If a record cannot be read.
        ConversionError: If the file cannot be written.
    """
    sheet = read_sheet(inspection, location, request)
    is_png = path.lower().endswith(".png")
    data = png_of(sheet) if is_png else html_of(inspection, sheet).encode()
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise ConversionError(
            f"--sheet {path}: cannot be written: {error.strerror or error}"
        ) from error
    return f"{counted(len(sheet.cells), 'record')} of {sheet.title} drawn in {path}"


def png_of(sheet: Sheet) -> bytes:
    """Draw the sheet as one PNG."""
    columns = min(len(sheet.cells), max(1, math.ceil(math.sqrt(len(sheet.cells) * sheet.height))))
    rows = -(-len(sheet.cells) // columns)
    wide = columns * _CELL_INCHES + (0.8 if sheet.has_scale else 0.0)
    high = rows * (_CELL_INCHES * sheet.height + 0.28) + 0.75
    # A title needs some width.
    figure = _figure(max(wide, 5.0), high)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, cell in zip(grid.flat, sheet.cells, strict=False):
        _draw(axes, cell, sheet)
        axes.set_title(cell.caption, fontsize=7.5, color=_SOFT, loc="left", pad=3)
    for axes in grid.flat[len(sheet.cells) :]:
        axes.axis("off")
    if sheet.has_scale:
        bar = figure.colorbar(scale_of(sheet), ax=grid, fraction=0.04, pad=0.015, aspect=35)
        _dress_scale(bar, sheet)
    figure.suptitle(
        f"{sheet.title}\n{sheet.subtitle}",
        x=0.01,
        ha="left",
        fontsize=9,
        color=_INK,
        linespacing=1.5,
    )
    return _png(figure)


def html_of(inspection: Inspection, sheet: Sheet) -> str:
    """Return an HTML page with the tables and the pictures."""
    parts = [f"<h1>{html.escape(inspection.url)}</h1>", f"<p>{html.escape(inspection.summary)}</p>"]
    parts += [f"<h2>{html.escape(sheet.title)}</h2>", f"<p>{html.escape(sheet.subtitle)}</p>"]
    parts.append(html_cells(sheet))
    for table in tables(inspection):
        parts += [f"<h2>{html.escape(table.title)}</h2>", table.to_html()]
    return _PAGE.format(title=html.escape(inspection.url), body="\n".join(parts))


def html_cells(sheet: Sheet) -> str:
    """Return the pictures of a sheet with their captions and their scale as HTML."""
    parts = ['<div class="sheet">']
    for cell in sheet.cells:
        figure = _figure(_CELL_INCHES, _CELL_INCHES * sheet.height)
        _draw(figure.subplots(), cell, sheet)
        parts.append(_html_figure(_png(figure), cell.caption))
    parts.append("</div>")
    if sheet.has_scale:
        figure = _figure(5.0, 0.55)
        bar = figure.colorbar(scale_of(sheet), cax=figure.subplots(), orientation="horizontal")
        _dress_scale(bar, sheet)
        parts.append(f'<p><img class="scale" alt="scale" src="{_data_uri(_png(figure))}"></p>')
    return "\n".join(parts)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not 1 <= len(numbers) <= _MOST_SHOWN or min(numbers) < 0:
        raise ArgumentError(
            f"--records {text!r:.60}: give numbers of records, from 0, such as 0,5,9; at most"
            f" {_MOST_SHOWN}"
        )
    return numbers


def _figure(wide: float, high: float) -> Any:
    """Make a figure for matplotlib's Agg backend, without pyplot and its windows."""
    figures = pictures("matplotlib.figure")
    return figures.Figure(figsize=(wide, high), dpi=_DPI, layout="constrained", facecolor="white")


def _png(figure: Any) -> bytes:
    backend = pictures("matplotlib.backends.backend_agg")
    backend.FigureCanvasAgg(figure)
    out = io.BytesIO()
    # No time and no version: equal sheets are equal files.
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _note(axes: Any, text: str) -> None:
    lines = "\n".join(text[at : at + 24] for at in range(0, min(len(text), 144), 24))
    # Text from the data is not a formula.
    look = {"fontsize": 6.5, "color": _SOFT, "ha": "center", "va": "center", "parse_math": False}
    axes.text(0.5, 0.5, lines, transform=axes.transAxes, **look)


def _draw(axes: Any, cell: SheetCell, sheet: Sheet) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(_ABSENT)
    if cell.kind == "note" or cell.values is None:
        axes.set_facecolor("#f6f7f8")
        _note(axes, cell.note)
        return
    if cell.kind != "picture" and not np.isfinite(cell.values).any():
        _note(axes, "no numbers")
    if cell.kind == "picture":
        gray = cell.values.ndim == 2
        axes.imshow(cell.values, cmap="gray" if gray else None, vmin=0, vmax=255,
                    interpolation="nearest")  # fmt: skip
    elif cell.kind == "field":
        axes.set_facecolor(_ABSENT)
        scale = scale_of(sheet)
        axes.imshow(np.ma.masked_invalid(cell.values), cmap=scale.cmap, norm=scale.norm,
                    interpolation="nearest", aspect="auto",
                    origin="lower" if sheet.upwards else "upper")  # fmt: skip
    else:
        _draw_lines(axes, cell.values, sheet.limits)


def _draw_lines(axes: Any, values: npt.NDArray[Any], limits: tuple[float, float]) -> None:
    colors = pictures("matplotlib").colormaps[_FIELDS]
    lines = values.reshape(len(values), -1)
    for number in range(lines.shape[1]):
        shade = colors(0.25 + 0.6 * number / max(1, lines.shape[1] - 1))
        dots = "." if len(values) < 3 else None
        axes.plot(lines[:, number], color=shade, linewidth=0.9, marker=dots, markersize=4)
    margin = 0.04 * (limits[1] - limits[0])
    axes.set_ylim(limits[0] - margin, limits[1] + margin)
    axes.margins(x=0.02)


def scale_of(sheet: Sheet) -> Any:
    """Return the map from values to colours for all cells of a sheet: matplotlib's `ScalarMappable`."""
    mappable = pictures("matplotlib.cm").ScalarMappable
    norms = pictures("matplotlib.colors")
    low, high = sheet.limits
    signed = low < 0 < high and min(-low, high) > 0.2 * max(-low, high)
    if signed:
        high = max(-low, high)
        low = -high
    return mappable(norms.Normalize(low, high), _SIGNED if signed else _FIELDS)


def _dress_scale(bar: Any, sheet: Sheet) -> None:
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, color=_SOFT, labelcolor=_INK, length=2)
    bar.set_label(sheet.unit, fontsize=7.5, color=_SOFT, parse_math=False)


def _html_figure(png: bytes, caption: str) -> str:
    text = html.escape(caption)
    return (
        f'<figure><img alt="{html.escape(caption, quote=True)}" src="{_data_uri(png)}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
