"""The first elements of a chain for a report: pictures, fields, lines, tokens and texts.

Invariant: an element that can not be drawn is told in words, and an error while elements are made is
shown and not raised: what else the report has is worth reading then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from windrow.contact_sheet_cells import Cell, cell_of, pixels_of, sheet_of
from windrow.inspection_content import content_of, example_of, picture_of
from windrow.inspection_facts import counted, in_units, shortened
from windrow.iterator import DatasetIterator
from windrow.record_order import nodes_below
from windrow.report_html import table, text
from windrow.report_sheet import sheet_html
from windrow.sources import WindowDataSource, ZarrDataSource
from windrow.transforms.halves import with_parents
from windrow.transforms.nodes import STREAM, BatchNode, FilterNode, Node, SourceNode, ValueNode
from windrow.transforms.options import ReadOptions
from windrow.transforms.streams import (
    ProcessNode,
    StreamLimitNode,
    StreamWindowShuffleNode,
    ToStreamNode,
)

_MOST_SHEETS: Final = 4
_MOST_LABELS: Final = 3
_MOST_COLUMNS: Final = 8
_MOST_LEAVES: Final = 64
_MOST_TOKENS: Final = 64
_MOST_TEXT: Final = 400
# Records are read one by one, so that none is read that is not shown; or ever more in a round,
# where a filter drops some, or a window has to be read as a whole.
_ONE_BY_ONE: Final = ReadOptions(num_threads=0, prefetch_buffer_size=0)
_IN_ROUNDS: Final = ReadOptions(num_threads=0)

# What is worth most to be seen comes first.
_RANKS: Final = ("picture", "field", "tokens", "lines", "text")

Leaves = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Some elements, or rows of batches.

    Args:
        places: For each the number of the element, and the row, or None of a whole element.
        elements: Their leaves by name.
        error: Why there are no more, in words.
        units: Of leaves, by name.
        size_bytes: Of the first element, as a whole; None where that is not known.
    """

    places: tuple[tuple[int, int | None], ...] = ()
    elements: tuple[Leaves, ...] = ()
    error: str = ""
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)
    size_bytes: int | None = None


def sample_of(node: Node, count: int) -> Sample:
    """The first `count` elements of a chain, or rows of its first batch, made for this.

    They are made in this thread: no worker is started, and nothing is read ahead.
    """
    places: list[tuple[int, int | None]] = []
    found: list[Leaves] = []
    size_bytes = None
    # Rows of the first batch are as good as batches.
    batched = any(isinstance(below, BatchNode) for below in _chain(node))
    many = any(isinstance(n, (FilterNode, StreamWindowShuffleNode)) for n in nodes_below(node))
    options = _IN_ROUNDS if many else _ONE_BY_ONE
    stream = _here(node if node.length == STREAM else ToStreamNode((node,), options), options)
    try:
        with DatasetIterator[Any](StreamLimitNode((stream,), count)) as iterator:
            for number, element in enumerate(iterator):
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
        return Sample(tuple(places), tuple(found), "\n".join(words), size_bytes=size_bytes)
    return Sample(tuple(places), tuple(found), units=_units(node), size_bytes=size_bytes)


def sample_html(
    sample: Sample, sources: Mapping[tuple[int, int | None], int] = MappingProxyType({})
) -> Iterator[str]:
    """The elements as pictures and in words.

    Args:
        sample: What is shown.
        sources: The number of the source that it comes from, by place.
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
        told = ", ".join(f"{_shown(name)} ({_told(first[name])})" for name in left[:_MOST_COLUMNS])
        more = f" and {len(left) - _MOST_COLUMNS:,} more" if len(left) > _MOST_COLUMNS else ""
        yield f'<p class="soft">Not drawn: {text(told)}{more}</p>'


# --- elements ------------------------------------------------------------------------------------


def _here(node: Node, options: ReadOptions) -> Node:
    """The same stream, made in this thread when it is asked for."""
    if isinstance(node, ProcessNode):
        return _here(node.parent, options)
    if isinstance(node, ToStreamNode):
        return dataclasses.replace(node, read_options=options)
    return with_parents(node, tuple(_here(parent, options) for parent in node.parents))


def _place(place: tuple[int, int | None], source: int | None) -> str:
    element, row = place
    told = [f"element {element}"] + ([] if row is None else [f"row {row}"])
    return ", ".join(told) + ("" if source is None else f"\nsource {source}")


def _size_bytes(element: Any) -> int | None:
    """Bytes of an element's leaves; None where one is nothing that has a size."""
    whole = 0
    for _, leaf in _leaves(element, "", whole=True):
        array = _array(leaf)
        if array is None and not isinstance(leaf, (bytes, str)):
            return None
        whole += len(leaf) if array is None else array.nbytes
    return whole


def _units(node: Node) -> Mapping[str, str]:
    """Units of leaves as the store has them, where no function may have changed the values."""
    below = nodes_below(node)
    sources = [n.source for n in below if isinstance(n, SourceNode)]
    if len(sources) != 1 or not isinstance(sources[0], (ZarrDataSource, WindowDataSource)):
        return {}
    if any(isinstance(n, ValueNode) and not isinstance(n, FilterNode) for n in below):
        return {}
    found = {array.found.name: array.found.attributes for array in sources[0]._tree.open()}
    # Packed values are read as they are stored: in no unit.
    return {
        name: shortened(str(told["units"]), 32)
        for name, told in found.items()
        if told.get("units") and not {"scale_factor", "add_offset"} & told.keys()
    }


def _chain(node: Node) -> Iterator[Node]:
    yield node
    while len(node.parents) == 1:
        node = node.parent
        yield node


def _rows(batch: Any, most: int) -> list[Any] | None:
    """The first rows of a batch; None of what does not look like one."""
    columns = dict(_leaves(batch, "", whole=True))
    sizes = {_size(column) for column in columns.values()}
    if len(sizes) != 1 or min(sizes) < 1:
        return None
    kept = range(min(most, sizes.pop()))
    if "" in columns:
        return [columns[""][row] for row in kept]
    return [{name: column[row] for name, column in columns.items()} for row in kept]


def _size(column: Any) -> int:
    """Rows of a column of a batch; 0 of what is none."""
    return len(column) if isinstance(column, list) or np.ndim(column) else 0


def _leaves(value: Any, name: str, *, whole: bool = False) -> Iterator[tuple[str, Any]]:
    """What an element is made of, by names joined with `/`; lists stay whole where asked."""
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
    """What a record of a tf.train.Example holds; None of other records."""
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
    """One of `_RANKS`, 'label' for what is told in a few letters, or 'other'."""
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
    """A value as an array of numbers; None where it is none."""
    plain = isinstance(value, (bool, int, float, complex, list))
    if not plain and getattr(type(value), "__array__", None) is None:
        return None
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            return array
        # Times and texts are no numbers; the types of ml_dtypes are, and NumPy calls them void.
        return array.astype(np.float64) if array.dtype.kind == "V" else None
    except (TypeError, ValueError):
        return None


def _sheet(name: str, kind: str, sample: Sample, captions: Sequence[str]) -> Iterator[str]:
    values = [leaves.get(name) for leaves in sample.elements]
    told = _told(values[0]) + ("" if kind in ("tokens", "text") else _left_out(values[0]))
    yield f"<h3>{text(_shown(name) or 'elements')} <span class='soft'>{text(told)}</span></h3>"
    if kind in ("tokens", "text"):
        draw = _tokens if kind == "tokens" else _words
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
    """A leaf's name for people: parts of a tuple or a list are numbers in brackets."""
    parts = [f"[{part}]" if part.isdigit() else part for part in name.split("/")]
    return "/".join(parts).replace("/[", " [").replace("]/", "] ")


def _left_out(value: Any) -> str:
    """How much of a value is not in its picture, in words."""
    array = None if isinstance(value, bytes) else _array(value)
    if array is None or not array.size:
        return ""
    drawn = cell_of("", array)
    shape = np.squeeze(array).shape
    # Lines and fields of channels last are drawn in full.
    axes = len(shape) - (0 if drawn.values is None else drawn.values.ndim)
    count = int(np.prod(shape[:axes])) if axes > 0 else 1
    return f"; of its {count:,} {drawn.kind}s the first is drawn" if count > 1 else ""


def _cell(caption: str, value: Any) -> Cell:
    if isinstance(value, bytes):
        return cell_of(caption, pixels_of(value))
    array = _array(value)
    return cell_of(caption, "no numbers" if array is None else array)


def _tokens(value: Any) -> str:
    """Numbers on grounds of colours, the same number on the same colour."""
    array = _array(value)
    numbers = [] if array is None else array.reshape(-1).tolist()
    shown = "".join(
        f'<span style="--hue: {int(number) * 47 % 360}">{text(number)}</span>'
        for number in numbers[:_MOST_TOKENS]
    )
    more = len(numbers) - _MOST_TOKENS
    rest = f'<small class="soft">and {more:,} more</small>' if more > 0 else ""
    return f'<div class="tokens">{shown}{rest}</div>'


def _words(value: Any) -> str:
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
    """The last part of a name, where no other label has the same."""
    last = name.rpartition("/")[2]
    alone = [other.rpartition("/")[2] for other in names].count(last) == 1
    return last if alone and not last.isdigit() else _shown(name)


def _short(value: Any) -> str:
    """A label in a few letters."""
    if isinstance(value, str):
        return shortened(value, 32)
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return str(value)
    array = _array(value)
    if array is None or array.size != 1:
        return _told(value)
    number = array.reshape(-1)[0]
    return f"{number:.6g}" if array.dtype.kind in "f" else str(number)


def _told(value: Any) -> str:
    """What a leaf is, in a few words."""
    if isinstance(value, bytes):
        return content_of(value).looks_like if value else "no bytes"
    if isinstance(value, str):
        return counted(len(value), "character")
    array = value if isinstance(value, (np.ndarray, np.generic)) else _array(value)
    if array is None:
        return type(value).__name__
    shape = " x ".join(map(str, array.shape))
    return f"{shape} {array.dtype}, {in_units(array.nbytes)}" if shape else str(array.dtype)


def _as_table(captions: Sequence[str], sample: Sample, kinds: Mapping[str, str]) -> str:
    names = list(kinds)[:_MOST_COLUMNS]
    rows = [
        [caption.replace("\n", ", "), *(_short(leaves.get(name)) for name in names)]
        for caption, leaves in zip(captions, sample.elements, strict=True)
    ]
    return table("The first elements", ["", *(_shown(name) or "value" for name in names)], rows)
