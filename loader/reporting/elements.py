"""The first elements of a chain for a report: a grid of pictures for each leaf, and a table.

Invariant: an element that cannot be drawn is described, and an error while elements are made is shown
instead of raised, since the rest of the report is then worth reading.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from windrow.base import first_iterator
from windrow.core.text import counted, in_units, shortened
from windrow.inspection.content import content_of, leaves_of, picture_of
from windrow.inspection.pictures import drawable, grid
from windrow.transforms import columns
from windrow.transforms.nodes import STREAM, Node, ToStreamNode, as_chain, walk
from windrow.transforms.nodes.following import group_size, over
from windrow.transforms.options import ReadOptions

_MOST_GRIDS: Final = 4
_MOST_COLUMNS: Final = 8
_MOST_LEAVES: Final = 64
_MOST_NUMBERS: Final = 8
_MOST_TEXT: Final = 80
# Records are read one by one, so that only shown records are read. If a filter drops some, or a window
# has to be read as a whole, they are read in growing batches instead.
_ONE_BY_ONE: Final = ReadOptions(num_threads=0, prefetch_buffer_size=0)
_IN_READ_BATCHES: Final = ReadOptions(num_threads=0)

Leaves = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ElementSample:
    """Some elements, or rows of batches.

    Args:
        places: The name of each.
        elements: The leaves of each, by name.
        error: The error that ended the sample; '' without an error.
    """

    places: tuple[str, ...] = ()
    elements: tuple[Leaves, ...] = ()
    error: str = ""

    @property
    def drawn(self) -> list[str]:
        """The names of the leaves that are drawn."""
        first = self.elements[0] if self.elements else {}
        return [name for name, value in first.items() if _is_drawn(value)][:_MOST_GRIDS]

    def grids(self) -> Iterator[tuple[str, str, str]]:
        """Yield the name, a description and the pictures of each drawn leaf, as PNG in base64."""
        for name in self.drawn:
            values = [_drawable(leaves.get(name)) for leaves in self.elements]
            data = base64.b64encode(grid(values, self.places)).decode()
            yield name or "elements", _description(self.elements[0][name]), data

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The names of the other leaves, and for each element its name and their values."""
        names = [name for name in self.elements[0] if name not in self.drawn][:_MOST_COLUMNS]
        rows = [
            [place, *(_short(leaves.get(name)) for name in names)]
            for place, leaves in zip(self.places, self.elements, strict=True)
        ]
        return [name or "value" for name in names], rows


def sample_of(node: Node, count: int) -> ElementSample:
    """Make the first `count` elements of a chain, or as many rows of its first batches.

    They are made in this thread: no worker is started, and nothing is prefetched.
    """
    places: list[str] = []
    found: list[Leaves] = []
    error = ""
    many = any(each.needs_many for each in walk(node))
    options = _IN_READ_BATCHES if many else _ONE_BY_ONE
    stream = _here(node if node.length == STREAM else ToStreamNode((node,), options), options)
    try:
        with first_iterator(stream, count) as iterator:
            for number, element in enumerate(itertools.islice(iterator, count)):
                # Rows of the first batches show as much as batches.
                rows = _rows(element, count - len(found)) if is_batched(node) else None
                for row, value in enumerate([element] if rows is None else rows):
                    places.append(f"element {number}" + ("" if rows is None else f", row {row}"))
                    found.append(dict(itertools.islice(leaves_of(value), _MOST_LEAVES)))
                if len(found) >= count:
                    break
    except Exception as raised:
        notes = getattr(raised, "__notes__", ())
        words = [f"{type(raised).__name__}: {raised}", *notes]
        error = "\n".join(shortened(line, 600) for line in words)
    return ElementSample(tuple(places), tuple(found), error)


def is_batched(node: Node) -> bool:
    """Return whether a chain gives batches."""
    while len(node.parents) == 1 and group_size(node) is None:
        node = node.parent
    return group_size(node) is not None


# --- elements ------------------------------------------------------------------------------------


def _here(node: Node, options: ReadOptions) -> Node:
    """Return the same stream, whose elements are made in this thread on demand."""
    if node.is_unseen:
        return _here(node.parent, options)
    if (chain := as_chain(node)) is not None:
        return dataclasses.replace(chain, read_options=options)
    return over(node, tuple(_here(parent, options) for parent in node.parents))


def _rows(batch: Any, most: int) -> list[Any] | None:
    """Return the first rows of a batch; None if it does not look like a batch."""
    tree = columns.columns_in(batch)
    sizes = {
        len(column) if isinstance(column, list) or np.ndim(column) else 0
        for column in columns.leaves_of(tree)
    }
    if len(sizes) != 1 or min(sizes) < 1:
        return None
    kept = min(most, sizes.pop())
    return columns.split(columns.sliced(tree, 0, kept), kept)


# --- how each is drawn ---------------------------------------------------------------------------


def _is_drawn(value: Any) -> bool:
    """Return whether a picture shows a value better than a table: pictures, fields and lines."""
    if isinstance(value, bytes):
        return picture_of(value) is not None
    array = columns.as_array(value)
    if array is None or array.size < 2 or isinstance(drawable(array), str):
        return False
    return bool(np.squeeze(array).ndim > 1 or array.dtype.kind in "fV")


def _drawable(value: Any) -> Any:
    """Return what is given to `grid` for a value."""
    array = value if isinstance(value, bytes) else columns.as_array(value)
    return "no numbers" if array is None else array


def _short(value: Any) -> str:
    """Format a value in a few letters."""
    if isinstance(value, bytes) and content_of(value).kind == "text":
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return shortened(value, _MOST_TEXT)
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return str(value)
    array = columns.as_array(value)
    numeric = array is not None and array.dtype.kind in "biufcV"
    if array is None or not numeric or not array.size or np.squeeze(array).ndim > 1:
        return _description(value)
    first = array.reshape(-1)[:_MOST_NUMBERS].tolist()
    numbers = [f"{number:.6g}" if isinstance(number, float) else str(number) for number in first]
    more = array.size - len(numbers)
    return " ".join(numbers) + (f" and {more:,} more" if more else "")


def _description(value: Any) -> str:
    """Describe a leaf briefly: its type, shape and size."""
    if isinstance(value, bytes):
        return content_of(value).looks_like if value else "no bytes"
    if isinstance(value, str):
        return counted(len(value), "character")
    array = columns.as_array(value)
    if array is None:
        return type(value).__name__
    shape = " x ".join(map(str, array.shape))
    return f"{shape} {array.dtype}, {in_units(array.nbytes)}" if shape else str(array.dtype)
