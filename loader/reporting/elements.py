"""The first elements of a chain for a report: pictures, fields, lines, tokens and strings.

Invariant: an element that cannot be drawn is described, and an error while elements are made is shown
instead of raised, since the rest of the report is then worth reading.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.base import first_iterator
from windrow.core.text import counted, in_units, listing, shortened
from windrow.inspection.contact_sheet import scale_of
from windrow.inspection.contact_sheet_cells import (
    Sheet,
    SheetCell,
    cell_of,
    pictures,
    pixels_of,
    sheet_of,
)
from windrow.inspection.content import content_of, example_of, picture_of
from windrow.reporting.html import table, text
from windrow.sources.windows.source import WindowDataSource
from windrow.sources.zarr.source import ZarrDataSource
from windrow.transforms.nodes import STREAM, Node, ToStreamNode, as_chain
from windrow.transforms.options import ReadOptions

_MOST_SHEETS: Final = 4
_MOST_LABELS: Final = 3
_MOST_COLUMNS: Final = 8
_MOST_LEAVES: Final = 64
_MOST_TOKENS: Final = 64
_MOST_TEXT: Final = 400
# Records are read one by one, so that only shown records are read. If a filter drops some, or a window
# has to be read as a whole, they are read in growing batches instead.
_ONE_BY_ONE: Final = ReadOptions(num_threads=0, prefetch_buffer_size=0)
_IN_READ_BATCHES: Final = ReadOptions(num_threads=0)

# The most informative kind comes first.
_RANKS: Final = ("picture", "field", "tokens", "lines", "text")

Leaves = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ElementSample:
    """Some elements, or rows of batches.

    Args:
        places: The number of each element, and its row; None for the row of a whole element.
        elements: The leaves of each, by name.
        error: The error that ended the sample; '' without an error.
        units: Units of leaves, by name.
        size_bytes: Bytes of the whole first element; None if unknown.
    """

    places: tuple[tuple[int, int | None], ...] = ()
    elements: tuple[Leaves, ...] = ()
    error: str = ""
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)
    size_bytes: int | None = None


def sample_of(node: Node, count: int) -> ElementSample:
    """Make the first `count` elements of a chain, or as many rows of its first batches.

    They are made in this thread: no worker is started, and nothing is prefetched.
    """
    places: list[tuple[int, int | None]] = []
    found: list[Leaves] = []
    size_bytes = None
    # Rows of the first batches show as much as batches.
    batched = any(each.group_size is not None for each in _chain(node))
    many = any(each.needs_many for each in node.walk())
    options = _IN_READ_BATCHES if many else _ONE_BY_ONE
    stream = _here(node if node.length == STREAM else ToStreamNode((node,), options), options)
    try:
        with first_iterator(stream, count) as iterator:
            for number, element in enumerate(itertools.islice(iterator, count)):
                rows = _rows(element, count - len(found)) if batched else None
                here = [element] if rows is None else rows
                for row, value in enumerate(here):
                    places.append((number, None if rows is None else row))
                    found.append(dict(_leaves(value, "")))
                if number == 0:
                    size_bytes = _size_bytes(element)
                if len(found) >= count:
                    break
    except Exception as error:
        notes = [shortened(note, 600) for note in getattr(error, "__notes__", ())]
        words = [shortened(f"{type(error).__name__}: {error}", 600), *notes]
        return ElementSample(tuple(places), tuple(found), "\n".join(words), size_bytes=size_bytes)
    return ElementSample(tuple(places), tuple(found), units=_units(node), size_bytes=size_bytes)


def sample_html(
    sample: ElementSample, sources: Mapping[tuple[int, int | None], int] = MappingProxyType({})
) -> Iterator[str]:
    """Yield the elements as HTML: pictures and descriptions.

    Args:
        sample: The elements.
        sources: The number of the source that an element comes from, by its place.
    """
    if sample.error:
        place = f"element {len(sample.elements)}" if not sample.elements else "the next element"
        yield f'<p class="soft lines">Making {place} failed. {text(sample.error)}</p>'
    if not sample.elements:
        if not sample.error:
            yield '<p class="soft">There is no element.</p>'
        return
    first = sample.elements[0]
    kinds = {name: _kind(value) for name, value in first.items()}
    drawn = [name for rank in _RANKS for name, kind in kinds.items() if kind == rank]
    shown = drawn[:_MOST_SHEETS]
    labels = [name for name, kind in kinds.items() if kind == "label"]
    names = [_place(place, sources.get(place)) for place in sample.places]
    captions = [
        "\n".join([name, *_labels(leaves, labels)])
        for name, leaves in zip(names, sample.elements, strict=True)
    ]
    for name in shown:
        yield from _sheet(name, kinds[name], sample, captions)
    if not shown:
        yield _as_table(names, sample, kinds)
    left = [name for name in kinds if name not in shown and name not in labels[:_MOST_LABELS]]
    if shown and left:
        parts = [f"{_shown(name)} ({_description(first[name])})" for name in left]
        yield f'<p class="soft">Not drawn: {text(listing(parts, _MOST_COLUMNS))}</p>'


# --- elements ------------------------------------------------------------------------------------


def _here(node: Node, options: ReadOptions) -> Node:
    """Return the same stream, whose elements are made in this thread on demand."""
    if node.is_unseen:
        return _here(node.parent, options)
    if (chain := as_chain(node)) is not None:
        return dataclasses.replace(chain, read_options=options)
    return node.over(tuple(_here(parent, options) for parent in node.parents))


def _place(place: tuple[int, int | None], source: int | None) -> str:
    element, row = place
    parts = [f"element {element}"] + ([] if row is None else [f"row {row}"])
    return ", ".join(parts) + ("" if source is None else f"\nsource {source}")


def _size_bytes(element: Any) -> int | None:
    """Return the bytes of an element's leaves; None if a leaf has no size."""
    whole = 0
    for _, leaf in _leaves(element, "", whole=True):
        array = _array(leaf)
        if array is None and not isinstance(leaf, (bytes, str)):
            return None
        whole += len(leaf) if array is None else array.nbytes
    return whole


def _units(node: Node) -> Mapping[str, str]:
    """Return the stored units of leaves, if no function may have changed the values."""
    chain = list(node.walk())
    sources = [each.data_source for each in chain if each.data_source is not None]
    if len(sources) != 1 or not isinstance(sources[0], (ZarrDataSource, WindowDataSource)):
        return {}
    if not all(each.keeps_values for each in chain):
        return {}
    found = {array.found.name: array.found.attributes for array in sources[0]._tree.open()}
    # Packed values are read as stored, and so have no unit.
    return {
        name: shortened(str(attributes["units"]), 32)
        for name, attributes in found.items()
        if attributes.get("units") and not {"scale_factor", "add_offset"} & attributes.keys()
    }


def _chain(node: Node) -> Iterator[Node]:
    yield node
    while len(node.parents) == 1:
        node = node.parent
        yield node


def _rows(batch: Any, most: int) -> list[Any] | None:
    """Return the first rows of a batch; None if it does not look like a batch."""
    columns = dict(_leaves(batch, "", whole=True))
    sizes = {_size(column) for column in columns.values()}
    if len(sizes) != 1 or min(sizes) < 1:
        return None
    kept = range(min(most, sizes.pop()))
    if "" in columns:
        return [columns[""][row] for row in kept]
    return [{name: column[row] for name, column in columns.items()} for row in kept]


def _size(column: Any) -> int:
    """Return the rows of a column of a batch; 0 if it is not a column."""
    return len(column) if isinstance(column, list) or np.ndim(column) else 0


def _leaves(value: Any, name: str, *, whole: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of an element, with names joined by `/`; `whole` keeps lists as leaves."""
    if isinstance(value, bytes) and not whole and (features := _features(value)) is not None:
        value = features
    children: Mapping[Any, Any] | None = None
    if isinstance(value, Mapping):
        children = value
    elif isinstance(value, tuple):
        fields = getattr(value, "_fields", range(len(value)))
        children = dict(zip(fields, value, strict=True))
    elif isinstance(value, list) and not whole and not _is_numbers(value):
        children = dict(enumerate(value))
    if children is None:
        yield name, value
        return
    for at, (key, child) in enumerate(children.items()):
        if at == _MOST_LEAVES:
            return
        yield from _leaves(child, f"{name}/{key}" if name else str(key), whole=whole)


def _features(record: bytes) -> Mapping[str, Any] | None:
    """Return the features of a tf.train.Example; None for other records."""
    found = example_of(record) if record[:1] == b"\n" and picture_of(record) is None else None
    if not found:
        return None
    return {
        name: values[0] if len(values) == 1 else values for name, values in sorted(found.items())
    }


def _is_numbers(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, (bool, int, float)) for value in values)


# --- how each is drawn ---------------------------------------------------------------------------


def _kind(value: Any) -> str:
    """Return one of `_RANKS`, 'label' for a value of a few letters, or 'other'."""
    if isinstance(value, bytes):
        if picture_of(value) is not None:
            return "picture"
        return "text" if content_of(value).kind == "text" else "other"
    if isinstance(value, str):
        return "text" if len(value) > 24 else "label"
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return "label"
    array = _array(value)
    if array is None:
        return "other"
    if array.size == 1:
        return "label"
    if np.squeeze(array).ndim == 1 and array.dtype.kind in "iu":
        return "tokens"
    kind = cell_of("", array).kind
    return "other" if kind == "note" else kind


def _array(value: Any) -> Any:
    """Return a value as an array of numbers; None if it is not numeric."""
    plain = isinstance(value, (bool, int, float, complex, list))
    if not plain and getattr(type(value), "__array__", None) is None:
        return None
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            return array
        # Times and strings are not numbers. The types of ml_dtypes are, though NumPy calls them void.
        return array.astype(np.float64) if array.dtype.kind == "V" else None
    except (TypeError, ValueError):
        return None


def _sheet(name: str, kind: str, sample: ElementSample, captions: Sequence[str]) -> Iterator[str]:
    values = [leaves.get(name) for leaves in sample.elements]
    described = _description(values[0])
    described += "" if kind in ("tokens", "text") else _left_out(values[0])
    yield f"<h3>{text(_shown(name) or 'elements')} <span class='soft'>{text(described)}</span></h3>"
    if kind in ("tokens", "text"):
        draw = _tokens if kind == "tokens" else _paragraph
        figures = "".join(
            f"<figure>{draw(value)}<figcaption>{text(caption)}</figcaption></figure>"
            for value, caption in zip(values, captions, strict=True)
        )
        yield f'<div class="sheet {kind}-sheet">{figures}</div>'
        return
    cells = tuple(map(_cell, captions, values))
    unit = f" [{sample.units[name]}]" if name in sample.units else ""
    yield sheet_html(sheet_of(name, cells, unit=_shown(name) + unit))


def _shown(name: str) -> str:
    """Return a leaf's name for people, with items of tuples and lists as numbers in brackets."""
    parts = [f"[{part}]" if part.isdigit() else part for part in name.split("/")]
    return "/".join(parts).replace("/[", " [").replace("]/", "] ")


def _left_out(value: Any) -> str:
    """Describe how much of a value its picture leaves out."""
    array = None if isinstance(value, bytes) else _array(value)
    if array is None or not array.size:
        return ""
    drawn = cell_of("", array)
    shape = np.squeeze(array).shape
    # Lines and fields of channels last are drawn in full.
    axes = len(shape) - (0 if drawn.values is None else drawn.values.ndim)
    count = int(np.prod(shape[:axes])) if axes > 0 else 1
    return f"; the first of its {count:,} {drawn.kind}s is drawn" if count > 1 else ""


def _cell(caption: str, value: Any) -> SheetCell:
    if isinstance(value, bytes):
        return cell_of(caption, pixels_of(value))
    array = _array(value)
    return cell_of(caption, "no numbers" if array is None else array)


def _tokens(value: Any) -> str:
    """Draw numbers on coloured backgrounds; equal numbers have equal colours."""
    array = _array(value)
    numbers = [] if array is None else array.reshape(-1).tolist()
    shown = "".join(
        f'<span style="--hue: {int(number) * 47 % 360}">{text(number)}</span>'
        for number in numbers[:_MOST_TOKENS]
    )
    more = len(numbers) - _MOST_TOKENS
    rest = f'<small class="soft">and {more:,} more</small>' if more > 0 else ""
    return f'<div class="tokens">{shown}{rest}</div>'


def _paragraph(value: Any) -> str:
    words = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    cut = words if len(words) <= _MOST_TEXT else f"{words[:_MOST_TEXT]} ..."
    return f'<p class="words">{text(cut)}</p>'


def _labels(leaves: Leaves, names: Sequence[str]) -> list[str]:
    return [
        f"{shown}{':' if shown.endswith(']') else ''} {_short(leaves[name])}".strip()
        for name, shown in [(name, _label(name, names)) for name in names[:_MOST_LABELS]]
        if name in leaves
    ]


def _label(name: str, names: Sequence[str]) -> str:
    """Return the last part of a name, unless another label ends in the same part."""
    last = name.rpartition("/")[2]
    is_unique = [other.rpartition("/")[2] for other in names].count(last) == 1
    return last if is_unique and not last.isdigit() else _shown(name)


def _short(value: Any) -> str:
    """Format a label in a few letters."""
    if isinstance(value, str):
        return shortened(value, 32)
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return str(value)
    array = _array(value)
    if array is None or array.size != 1:
        return _description(value)
    number = array.reshape(-1)[0]
    return f"{number:.6g}" if array.dtype.kind in "f" else str(number)


def _description(value: Any) -> str:
    """Describe a leaf briefly: its type, shape and size."""
    if isinstance(value, bytes):
        return content_of(value).looks_like if value else "no bytes"
    if isinstance(value, str):
        return counted(len(value), "character")
    array = value if isinstance(value, (np.ndarray, np.generic)) else _array(value)
    if array is None:
        return type(value).__name__
    shape = " x ".join(map(str, array.shape))
    return f"{shape} {array.dtype}, {in_units(array.nbytes)}" if shape else str(array.dtype)


def _as_table(captions: Sequence[str], sample: ElementSample, kinds: Mapping[str, str]) -> str:
    names = list(kinds)[:_MOST_COLUMNS]
    rows = [
        [caption.replace("\n", ", "), *(_short(leaves.get(name)) for name in names)]
        for caption, leaves in zip(captions, sample.elements, strict=True)
    ]
    return table("The first elements", ["", *(_shown(name) or "value" for name in names)], rows)


# --- sheets -------------------------------------------------------------------------------------

# Pictures are their own pixels without a frame. The browser draws lines and the scale of colours in the
# colours of the page, so that they are visible on light and dark.

# A cell is up to 180 pixels wide, on screens of up to two dots per pixel.
_MOST_PIXELS: Final = 360
# Smaller pictures show their pixels as squares.
_COARSE: Final = 128
_SCALE_STEPS: Final = 256
_TICKS: Final = 5
_LINES: Final = ("reading", "mapping", "loop", "waiting")


def sheet_html(sheet: Sheet) -> str:
    """Return the cells of a sheet with their captions and their scale."""
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


def _drawn(cell: SheetCell, sheet: Sheet) -> str:
    if cell.kind == "note" or cell.values is None:
        return _blank(cell.note, sheet)
    if cell.kind == "picture":
        return _image(cell.values, cell, sheet)
    if not np.isfinite(cell.values).any():
        return _blank("no numbers", sheet)
    if cell.kind == "lines":
        return _line_art(cell.values, cell, sheet)
    scale = scale_of(sheet)
    colours = scale.cmap(scale.norm(np.ma.masked_invalid(cell.values)), bytes=True)
    return _image(colours[::-1] if sheet.upwards else colours, cell, sheet)


def _blank(words: str, sheet: Sheet) -> str:
    return f'<div class="blank" style="{_shape(sheet)}">{text(words)}</div>'


def _shape(sheet: Sheet) -> str:
    return f"aspect-ratio: 1 / {sheet.height:.4g}"


def _image(values: npt.NDArray[Any], cell: SheetCell, sheet: Sheet) -> str:
    coarse = " coarse" if max(values.shape[:2]) <= _COARSE else ""
    return (
        f'<img class="{cell.kind}{coarse}" style="{_shape(sheet)}" alt="{text(cell.caption)}"'
        f' src="{_data_uri(values)}">'
    )


def _data_uri(values: npt.NDArray[Any]) -> str:
    """Encode pixels as a PNG, no larger than they are displayed."""
    image = pictures("PIL.Image").fromarray(np.ascontiguousarray(values, np.uint8))
    image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    out = io.BytesIO()
    image.save(out, format="png")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _line_art(values: npt.NDArray[Any], cell: SheetCell, sheet: Sheet) -> str:
    """Draw lines in a box of 100 by 100 that is stretched to the cell, without its strokes."""
    low, high = sheet.limits
    lines = values.reshape(len(values), -1)
    xs = 2 + 96 * np.arange(len(lines)) / max(1, len(lines) - 1)
    ys = 96 - 92 * (np.clip(lines, low, high) - low) / (high - low)
    paths = "".join(
        f'<path d="{_line_path(xs, ys[:, at])}" style="stroke: var(--{_LINES[at % len(_LINES)]})"/>'
        for at in range(lines.shape[1])
    )
    few = " few" if len(lines) < 3 else ""
    return (
        f'<svg class="lines{few}" role="img" aria-label="{text(cell.caption)}" style="{_shape(sheet)}"'
        f' viewBox="0 0 100 100" preserveAspectRatio="none">{paths}</svg>'
    )


def _line_path(xs: npt.NDArray[Any], ys: npt.NDArray[Any]) -> str:
    """Draw a line with gaps at values that are not finite; a lone value is a dot."""
    drawn = []
    is_open = False
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if np.isfinite(y):
            # A move starts with a line of length 0, which round ends turn into a dot.
            drawn.append(f"L{x:.4g},{y:.4g}" if is_open else f"M{x:.4g},{y:.4g}h0")
        is_open = bool(np.isfinite(y))
    return "".join(drawn)


def _scale(sheet: Sheet) -> str:
    """Draw the scale of the colours of fields."""
    scale = scale_of(sheet)
    low, high = float(scale.norm.vmin), float(scale.norm.vmax)
    colours = scale.cmap(np.linspace(0, 1, _SCALE_STEPS), bytes=True)[None]
    found = pictures("matplotlib.ticker").MaxNLocator(_TICKS).tick_values(low, high)
    ticks = "".join(
        f'<span style="left: {100 * (value - low) / (high - low):.2f}%">{_tick(value)}</span>'
        for value in found.tolist()
        if low <= value <= high
    )
    words = f"{sheet.unit or 'values'} from {low:.4g} to {high:.4g}"
    return (
        f'<figure class="scale-box"><img class="scale" alt="{text(words)}"'
        f' src="{_data_uri(colours)}"><div class="ticks">{ticks}</div>'
        f"<figcaption>{text(sheet.unit)}</figcaption></figure>"
    )


def _tick(value: float) -> str:
    return f"{value:.6g}" if value else "0"
