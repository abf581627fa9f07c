"""Arrays: one batch, as the engine makes it, as a tree of global arrays of JAX.

Each leaf has the rows that this process takes, in ascending order. It is cut to the pieces of the
addressable devices, and each piece goes to its device. Devices that hold the same piece get the same
memory. JAX keeps a reference to memory until a transfer is done, or as long as an array is that
memory, as on CPU devices where its address is a multiple of 64.

Along other axes than the first a leaf has the cells of its box, which all devices of the process share
(`devices.boxes`), and the pieces are cut out of it.
"""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from windrow.core import buffer_pool
from windrow.core.text import with_article
from windrow.devices import trees
from windrow.devices.extra import jax
from windrow.devices.placement import (
    Placement,
    RowParts,
    check_shape,
    is_supported,
    not_an_array,
)
from windrow.devices.trees import Path, shown
from windrow.errors import ElementError, PlanError
from windrow.sources.base import AnyArray
from windrow.sources.cells import Boxes, Cells
from windrow.transforms import columns

Records = Callable[[], Sequence[Any]]
"""Returns the records of a batch, row by row."""


class Narrowing:
    """The one warning that leaves of 64 bits become leaves of 32 bits."""

    def __init__(self) -> None:
        self._lock, self._is_given = threading.Lock(), False

    def warn(self, leaves: Sequence[str], stacklevel: int) -> None:
        """Warn, if that was not done before."""
        with self._lock:
            is_given, self._is_given = self._is_given, True
        if not is_given:
            warnings.warn(
                f"to_jax: leaves of 64 bits become leaves of 32 bits, as JAX has no others unless"
                f" jax_enable_x64 is set: {', '.join(leaves)}",
                stacklevel=stacklevel + 1,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return Narrowing, ()


def narrowed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that JAX has in place of another one."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))


def narrowing_text(path: Path, dtype: np.dtype[Any]) -> str:
    """A leaf that becomes a leaf of fewer bits, for the warning."""
    return f"{trees.name(path) or 'the batch'} ({dtype} to {narrowed(dtype)})"


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalArrays:
    """Makes global arrays of the rows of a process.

    Args:
        placement: Where leaves go.
        parts: The rows of each batch that this process takes.
        narrowing: The warning, given once for a dataset.
        boxes: The cells that leaves have of whole samples; others have all cells.
    """

    placement: Placement
    parts: RowParts
    narrowing: Narrowing
    boxes: Boxes = dataclasses.field(default_factory=dict)
    _checked: dict[tuple[Path, tuple[int, ...]], Any] = dataclasses.field(default_factory=dict)

    def of(self, batch: Any, records: Records) -> Any:
        """The tree of a batch, with global arrays as leaves; leaves named in `host` stay in NumPy.

        Raises:
            ElementError: If a leaf is not an array or its shape does not divide, or an integer does
                not fit into 32 bits.
        """
        tree = columns.columns_in(batch)
        if self.placement.host:
            self.placement.check_names([path for path, _ in trees.leaves(tree, is_spec=False)])
        return trees.mapped(lambda path, leaf: self._leaf(path, leaf, records), tree, is_spec=False)

    def _leaf(self, path: Path, leaf: Any, records: Records) -> Any:
        if self.placement.is_kept(path):
            return _kept(leaf)
        array = columns.as_array(leaf)
        if array is None:
            kind = type(leaf[0] if isinstance(leaf, list) and leaf else leaf).__name__
            held = (
                f"holds values of type {kind}"
                if isinstance(leaf, list)
                else f"is {with_article(kind)}"
            )
            raise ElementError(not_an_array(path, held))
        if not is_supported(array.dtype):
            raise ElementError(not_an_array(path, f"has dtype {array.dtype}"))
        return self._global(path, self._narrowed(path, np.asarray(array), records))

    def _global(self, path: Path, array: AnyArray) -> jax.Array:
        parts, shape = self.parts, array.shape
        if shape:
            each, rest = divmod(shape[0], len(parts.numbers))
            if rest:
                raise ElementError(
                    f"to_jax: {shown(path)} has {shape[0]} rows in this process, which takes"
                    f" {len(parts.numbers)} equal parts of a batch"
                )
            box = self.boxes.get(path)
            others = shape[1:] if box is None else tuple(cells.size for cells in box[1:])
            shape = (each * parts.count, *others)
        sharding = self._checked.get((path, shape))
        if sharding is None:
            sharding = self.placement.sharding_of(path)
            try:
                check_shape(path, shape, sharding)
            except PlanError as error:
                raise ElementError(str(error)) from error
            self._checked[path, shape] = sharding
        pieces = _DeviceCuts(path, array, parts, shape, self.boxes.get(path, ()))
        made: jax.Array = jax.make_array_from_callback(
            shape, sharding, pieces.at, dtype=array.dtype
        )
        return made

    def _narrowed(self, path: Path, array: AnyArray, records: Records) -> AnyArray:
        dtype = narrowed(array.dtype)
        if dtype == array.dtype:
            return array
        if dtype.itemsize < array.dtype.itemsize:
            self.narrowing.warn([narrowing_text(path, array.dtype)], stacklevel=1)
        found = buffer_pool.empty(array.shape, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(found, array, casting="unsafe")
        if dtype.kind in "iu" and not np.array_equal(found, array):
            raise ElementError(_too_large(path, array, found, records))
        return found


class _DeviceCuts:
    """The pieces of a leaf that devices hold, by their indices in the global array."""

    def __init__(
        self,
        path: Path,
        array: AnyArray,
        parts: RowParts,
        shape: tuple[int, ...],
        box: Sequence[Cells],
    ) -> None:
        self._firsts = [cells.start for cells in box[1:]]
        self._path, self._array, self._cut = path, array, dict[Any, AnyArray]()
        self._each, self._last = (shape[0] // parts.count if shape else 1), parts.count - 1
        # The first row, in `array`, of each part.
        self._place = {part: n * self._each for n, part in enumerate(parts.numbers)}

    def at(self, index: tuple[slice, ...] | None) -> AnyArray:
        """The piece at global indices."""
        if not index:
            return self._array
        key = tuple((each.start, each.stop) for each in index)
        piece = self._cut.get(key)
        if piece is None:
            piece = self._cut[key] = _contiguous(self._array[self._local(index)])
        return piece

    def _local(self, index: tuple[slice, ...]) -> tuple[slice, ...]:
        rows, *others = index
        if self._firsts:
            sizes = self._array.shape[1:]
            others = [
                slice((each.start or 0) - first, size if each.stop is None else each.stop - first)
                for each, first, size in zip(others, self._firsts, sizes, strict=True)
            ]
        if not self._each:  # no rows
            return (slice(0, 0), *others)
        start, stop = rows.start or 0, rows.stop
        part, inside = divmod(start, self._each)
        last = self._last if stop is None else (stop - 1) // self._each
        first, end = self._place.get(part), self._place.get(last)
        # Parts of one piece are neighbours here too, if all of its rows are taken.
        if first is None or end is None or end - first != (last - part) * self._each:
            raise ElementError(
                f"to_jax: {shown(self._path)} needs rows that this process did not read: the spec of"
                " the chain, or its first rows, did not show the leaf; declare it in output_spec"
            )
        stop = end + self._each if stop is None else first + inside + stop - start
        return (slice(first + inside, stop), *others)


def _contiguous(array: AnyArray) -> AnyArray:
    """The same values without gaps, in memory that JAX takes as it is."""
    if array.flags.c_contiguous:
        return array
    found = buffer_pool.empty(array.shape, array.dtype)
    found[...] = array
    return found


def _kept(leaf: Any) -> Any:
    if not isinstance(leaf, list):
        return leaf
    found = np.empty(len(leaf), object)
    for row, value in enumerate(leaf):
        found[row] = value
    return found


def _too_large(path: Path, array: AnyArray, found: AnyArray, records: Records) -> str:
    place = np.argwhere(found != array)[0].tolist()
    value, limits = array[tuple(place)], np.iinfo(found.dtype)
    row, where = (place[0] if place else 0), ""
    try:
        names = records()
        where = f", which is made of {names[row]}" if len(names) == len(array) else ""
    except PlanError:  # a node of the user's does not say what its rows are made of
        pass
    return (
        f"to_jax: {shown(path)} has the value {value} in row {row} of this process's rows{where}; it does"
        f" not fit into {found.dtype}, which holds {limits.min} to {limits.max}. Make it smaller in a"
        " map, keep the leaf in NumPy with host=, or set jax_enable_x64"
    )
