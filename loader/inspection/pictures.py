"""Draws values as a grid of pictures, with matplotlib, which is imported here and nowhere else.

Invariant: a grid has a cell for each value; the cell of a value that cannot be drawn says why.
"""

from __future__ import annotations

import functools
import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core.optional_imports import optional
from windrow.core.text import counted
from windrow.inspection.content import picture_of

_CELL_INCHES: Final = 2.0
_DPI: Final = 110
_MOST_PIXELS: Final = 1024
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# Larger values would make a range infinite.
_LARGEST: Final = 1e300

library: Final = functools.partial(optional, purpose="drawing pictures", extra="pictures")
"""Imports a module of matplotlib or Pillow, as `optional` does."""


def grid(values: Sequence[Any], captions: Sequence[str], title: str = "") -> bytes:
    """Draw values as one PNG.

    Args:
        values: Arrays, encoded pictures, or notes as strings; at least one.
        captions: A line above each of them.
        title: The heading.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    columns = math.ceil(math.sqrt(len(values)))
    rows = -(-len(values) // columns)
    # A title needs some width.
    size = max(columns * _CELL_INCHES, 5.0), rows * (_CELL_INCHES + 0.3) + 0.5
    figure = library("matplotlib.figure").Figure(size, _DPI, layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False)
    drawn = [drawable(value) for value in values]
    limits = _limits(drawn)
    for cell in axes.flat:
        cell.axis("off")
    scaled = None
    for cell, value, caption in zip(axes.flat, drawn, captions, strict=False):
        # Text from the data is not a formula.
        cell.set_title(caption, fontsize=7, loc="left", parse_math=False)
        scaled = _draw(cell, value, limits) or scaled
    if scaled is not None:
        figure.colorbar(scaled, ax=axes, shrink=0.6)
    figure.suptitle(title, fontsize=9, parse_math=False)
    out = io.BytesIO()
    # No version in the file: equal grids are equal files.
    figure.savefig(out, format="png", bbox_inches="tight", metadata={"Software": None})
    return out.getvalue()


def drawable(value: Any) -> npt.NDArray[Any] | str:
    """Return what is drawn of a value: uint8 pixels, a field or a line of floats; else a note."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return _decoded(value)
    array = np.squeeze(np.asarray(value))
    if array.dtype.kind not in "biufcV":
        return f"no numbers: {array.dtype}"
    if not array.size:
        return f"no values: shape {array.shape}"
    array = np.abs(array) if array.dtype.kind == "c" else np.atleast_1d(array)
    while array.ndim > 2 and not _is_coloured(array):
        array = array[0]
    if array.dtype == np.uint8 and array.ndim > 1:
        return array
    try:
        floats = array.astype(np.float64)
    except (TypeError, ValueError):
        return f"no numbers: {array.dtype}"
    floats[~np.isfinite(floats)] = np.nan
    floats = floats.clip(-_LARGEST, _LARGEST)
    if floats.ndim < 3:
        return floats
    low, high = _limits([floats[..., 0], floats[..., 1], floats[..., 2]])
    return (255 * np.nan_to_num((floats - low) / (high - low))).astype(np.uint8)


def _is_coloured(array: npt.NDArray[Any]) -> bool:
    return array.ndim == 3 and array.shape[2] in (3, 4) and array.dtype.kind in "uf"


def _decoded(data: bytes) -> npt.NDArray[Any] | str:
    if picture_of(data) is None:
        return f"{counted(len(data), 'byte')}, not a picture"
    images = library("PIL.Image")
    try:
        with images.open(io.BytesIO(data), formats=_FORMATS) as image:
            image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
            if image.mode in ("I;16", "I", "F"):  # depths and other numbers that are not shades
                return np.asarray(image).astype(np.float64)
            return np.asarray(image if image.mode in ("L", "RGBA") else image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, images.DecompressionBombError) as error:
        return f"damaged picture: {error}"


def _limits(drawn: Sequence[npt.NDArray[Any] | str]) -> tuple[float, float]:
    """Return the range of the fields; it is never empty."""
    fields = [v for v in drawn if not isinstance(v, str) and v.ndim == 2 and v.dtype != np.uint8]
    finite = np.concatenate([np.zeros(0), *(field[np.isfinite(field)] for field in fields)])
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    return float(low), float(high if high > low else low + max(1.0, abs(low)))


def _draw(cell: Any, value: npt.NDArray[Any] | str, limits: tuple[float, float]) -> Any:
    """Draw into the axes of a cell; return what a scale of colours is for, None without one."""
    if isinstance(value, str):
        note = {"fontsize": 7, "ha": "center", "va": "center", "parse_math": False}
        cell.text(0.5, 0.5, textwrap.fill(value, 24, max_lines=6), **note)
    elif value.ndim == 1:
        cell.plot(value, linewidth=0.9, marker="." if len(value) < 3 else None)
    elif value.dtype == np.uint8:
        cell.imshow(value, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    else:
        return cell.imshow(value, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    return None
