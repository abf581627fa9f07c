"""Sheets of a report: pictures, fields and lines side by side, on the page's own ground.

Pictures are their own pixels without a frame. Lines, and what a colour of a field stands for, are
drawn by the browser in the colours and the type of the page, so that they are seen on light and dark.

Invariant: cells come in their order and with the limits of their sheet; what was read is never part
of the page's code.
"""

from __future__ import annotations

import base64
import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.contact_sheet import scale_of
from windrow.contact_sheet_cells import Cell, Sheet, pictures
from windrow.report_html import text

# A cell is up to 180 pixels wide, on screens of up to two dots a pixel.
_MOST_PIXELS: Final = 360
# Below this a picture's own pixels are seen as squares.
_COARSE: Final = 128
_SCALE_STEPS: Final = 256
_TICKS: Final = 5
_LINES: Final = ("reading", "mapping", "loop", "waiting")


def sheet_html(sheet: Sheet) -> str:
    """The cells of a sheet with their captions, and their scale."""
    parts = ['<div class="sheet">']
    parts += [
        f"<figure>{_drawn(cell, sheet)}<figcaption>{text(cell.caption)}</figcaption></figure>"
        for cell in sheet.cells
    ]
    parts.append("</div>")
    if sheet.has_scale:
        parts.append(_scale(sheet))
    if any(cell.kind == "lines" and cell.values is not None for cell in sheet.cells):
        low, high = (f"{limit:.4g}" for limit in sheet.limits)
        of = f"{sheet.unit}, all" if sheet.unit else "All"
        parts.append(f'<p class="soft">{text(of)} on one scale, from {low} to {high}.</p>')
    return "\n".join(parts)


def _drawn(cell: Cell, sheet: Sheet) -> str:
    if cell.kind == "note" or cell.values is None:
        return _blank(cell.note, sheet)
    if cell.kind == "picture":
        return _image(cell.values, cell, sheet)
    if not np.isfinite(cell.values).any():
        return _blank("no numbers", sheet)
    if cell.kind == "lines":
        return _lines(cell.values, cell, sheet)
    scale = scale_of(sheet)
    colours = scale.cmap(scale.norm(np.ma.masked_invalid(cell.values)), bytes=True)
    return _image(colours[::-1] if sheet.upwards else colours, cell, sheet)


def _blank(words: str, sheet: Sheet) -> str:
    return f'<div class="blank" style="{_shape(sheet)}">{text(words)}</div>'


def _shape(sheet: Sheet) -> str:
    return f"aspect-ratio: 1 / {sheet.height:.4g}"


def _image(values: npt.NDArray[Any], cell: Cell, sheet: Sheet) -> str:
    coarse = " coarse" if max(values.shape[:2]) <= _COARSE else ""
    return (
        f'<img class="{cell.kind}{coarse}" style="{_shape(sheet)}" alt="{text(cell.caption)}"'
        f' src="{_data_uri(values)}">'
    )


def _data_uri(values: npt.NDArray[Any]) -> str:
    """Pixels as a PNG, no larger than they are seen."""
    image = pictures("PIL.Image").fromarray(np.ascontiguousarray(values, np.uint8))
    image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    out = io.BytesIO()
    image.save(out, format="png")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _lines(values: npt.NDArray[Any], cell: Cell, sheet: Sheet) -> str:
    """Lines in a box of 100 by 100, which is stretched to the cell; strokes are not."""
    low, high = sheet.limits
    lines = values.reshape(len(values), -1)
    xs = 2 + 96 * np.arange(len(lines)) / max(1, len(lines) - 1)
    ys = 96 - 92 * (np.clip(lines, low, high) - low) / (high - low)
    paths = "".join(
        f'<path d="{_path(xs, ys[:, at])}" style="stroke: var(--{_LINES[at % len(_LINES)]})"/>'
        for at in range(lines.shape[1])
    )
    few = " few" if len(lines) < 3 else ""
    return (
        f'<svg class="lines{few}" role="img" aria-label="{text(cell.caption)}" style="{_shape(sheet)}"'
        f' viewBox="0 0 100 100" preserveAspectRatio="none">{paths}</svg>'
    )


def _path(xs: npt.NDArray[Any], ys: npt.NDArray[Any]) -> str:
    """A line that has gaps where there is no number; a lone number is a dot."""
    drawn = []
    is_open = False
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if np.isfinite(y):
            # Of no length, with round ends.
            drawn.append(f"L{x:.4g},{y:.4g}" if is_open else f"M{x:.4g},{y:.4g}h0")
        is_open = bool(np.isfinite(y))
    return "".join(drawn)


def _scale(sheet: Sheet) -> str:
    """What the colours of fields stand for."""
    scale = scale_of(sheet)
    low, high = float(scale.norm.vmin), float(scale.norm.vmax)
    colours = scale.cmap(np.linspace(0, 1, _SCALE_STEPS), bytes=True)[None]
    found = pictures("matplotlib.ticker").MaxNLocator(_TICKS).tick_values(low, high)
    ticks = "".join(
        f'<span style="left: {100 * (value - low) / (high - low):.2f}%">{_short(value)}</span>'
        for value in found.tolist()
        if low <= value <= high
    )
    words = f"{sheet.unit or 'values'} from {low:.4g} to {high:.4g}"
    return (
        f'<figure class="scale-box"><img class="scale" alt="{text(words)}"'
        f' src="{_data_uri(colours)}"><div class="ticks">{ticks}</div>'
        f"<figcaption>{text(sheet.unit)}</figcaption></figure>"
    )


def _short(value: float) -> str:
    return f"{value:.6g}" if value else "0"
