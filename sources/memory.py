"""Reads data in memory: a range, NumPy arrays, or a sequence of any objects. Also rows of open arrays.

Invariant: the caller owns the result of `read`. Arrays are copied and containers rebuilt, so that
changing a result never changes the data or a later result. An array that lies elsewhere, such as a dataset
of h5py, is never read as a whole.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, Union

import numpy as np

from windrow.core import buffer_pool
from windrow.core.text import with_article
from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import (
    AnyArray,
    ArraySpec,
    BatchedSource,
    Columns,
    IntArray,
    checked_indices,
    run_of,
)
from windrow.sources.mapped import MappedArray, mapped

ArrayTree: TypeAlias = Union[
    AnyArray, "dict[str, ArrayTree]"
]  # or open arrays, such as h5py.Dataset

_PLAIN: Final = frozenset(
    {bytes, str, int, float, complex, bool, type(None)}
    | {np.dtype(code).type for code in "?bhilqBHILQefdgFDG"}
)
_INT64_SAFE: Final = 2**62
# Their arrays are in memory, and some have an `[i]` that is not row i.
_HELD_LIBRARIES: Final = ("pandas", "polars", "pyarrow")


class RangeDataSource(BatchedSource):
    """The integers of `range(start, stop, step)`, as Python ints."""

    def __init__(self, start: int, stop: int | None = None, step: int = 1) -> None:
        """Takes the arguments of `range`.

        Args:
            start: First integer; with `stop` left out, the end, and 0 is the first.
            stop: End, not included.
            step: Distance, not 0; may be negative.

        Raises:
            ArgumentError: If an argument is not an integer.
            SourceError: If `step` is 0.

        Example:
            >>> RangeDataSource(10, 20, 3)[-1]
            19
        """
        for name, value in (("start", start), ("stop", stop), ("step", step)):
            if not isinstance(value, numbers.Integral) and not (name == "stop" and value is None):
                raise ArgumentError(f"RangeDataSource: {name} must be an integer, got {value!r}")
        if step == 0:
            raise SourceError("RangeDataSource: step must not be 0; use 1 to count upwards")
        first, end = (0, start) if stop is None else (start, stop)
        self._range = range(int(first), int(end), int(step))
        bound = max(abs(self._range.start), abs(self._range.stop), abs(self._range.step))
        self._fits = bound < _INT64_SAFE

    def __len__(self) -> int:
        return len(self._range)

    def __repr__(self) -> str:
        r = self._range
        return f"RangeDataSource(start={r.start}, stop={r.stop}, step={r.step})"

    def read(self, indices: IntArray) -> list[int]:
        """The integers at `indices`, as Python ints."""
        wanted = checked_indices(indices, len(self), "RangeDataSource")
        if self._fits:
            values: list[int] = (self._range.start + wanted * self._range.step).tolist()
            return values
        return [self._range[i] for i in wanted.tolist()]

    @property
    def fingerprint(self) -> str:
        """The range itself."""
        return f"range({self._range.start}, {self._range.stop}, {self._range.step})"

    @property
    def spec(self) -> Any:
        """An integer."""
        return ArraySpec((), np.int64) if self._fits else int


class ArrayDataSource(BatchedSource):
    """Rows of an array of NumPy or an open array of h5py, or of a tree of dicts of them with one length."""

    def __init__(self, arrays: Any) -> None:
        """Takes an array, or a (nested) dict of arrays whose first axes have one length.

        The arrays are not copied here: do not change them while they are read. Rows of a dataset of h5py, or
        of another array that is not in memory, are read from it when they are asked for.

        Raises:
            ArgumentError: If a leaf is not an array, or is one of dask, or a key is not a string.
            SourceError: If an array has no first axis, or the lengths differ.

        Example:
            >>> source = ArrayDataSource({"x": np.arange(6).reshape(3, 2), "y": np.array([7, 8, 9])})
            >>> source[1]
            {'x': array([2, 3]), 'y': np.int64(8)}
        """
        self._arrays = _checked_tree(arrays, "")
        leaves = _leaves(self._arrays, "")
        if not leaves:
            raise SourceError("ArrayDataSource: the dict holds no arrays; give it at least one")
        lengths = {name: int(array.shape[0]) for name, array in leaves}
        if len(set(lengths.values())) > 1:
            shown = "\n".join(f"  {name}: {length:,}" for name, length in lengths.items())
            raise SourceError(
                f"ArrayDataSource: the arrays differ in length\n{shown}\n"
                "The first axis counts records: cut the arrays to one length."
            )
        self._length = int(leaves[0][1].shape[0])

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"ArrayDataSource({_layout(self._arrays)})"

    @property
    def is_in_memory(self) -> bool:
        """Whether all arrays are of NumPy, mapped files too."""
        return all(isinstance(array, np.ndarray) for _, array in _leaves(self._arrays, ""))

    def read(self, indices: IntArray) -> Columns:
        """Rows at `indices`: per array, a C-order array with a leading axis of records.

        Arrays of strings, bytes and objects give lists.
        """
        return _rows(self._arrays, checked_indices(indices, self._length, "ArrayDataSource"))

    @property
    def fingerprint(self) -> str:
        """Names, dtypes and shapes of the arrays."""
        return f"arrays({_layout(self._arrays)})"

    def fingerprint_of_first(self, records: int) -> str:
        """As `sources.base.KnowsEarlier`."""
        return f"arrays({_layout(self._arrays, records)})"

    @property
    def spec(self) -> Any:
        """Shape and dtype of a row of each array; None if a row may be any object."""
        objects = any(
            a.dtype.kind == "O" and len(a.shape) == 1 for _, a in _leaves(self._arrays, "")
        )
        return None if objects else _row_specs(self._arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": _packed(self._arrays)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _arrays=_unpacked(state["_arrays"]))


class SequenceDataSource(BatchedSource):
    """The items of a list, a tuple or any other sequence.

    Dicts, lists, tuples and NamedTuples are rebuilt, and NumPy arrays, bytearrays and sets in them
    copied; other objects are handed out as they are.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        """Takes a sequence; its length is read once, here.

        Raises:
            ArgumentError: If `items` is a string or bytes, or has no length or no `[i]`.

        Example:
            >>> SequenceDataSource(["a", "b", "c"])[1]
            'b'
        """
        if isinstance(items, str | bytes | bytearray) or not isinstance(items, Sequence):
            raise ArgumentError(
                f"SequenceDataSource: needs a list, a tuple or another sequence of records, got"
                f" {type(items).__name__}; wrap a single record as [record]"
            )
        self._items = items
        self._length = len(items)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"SequenceDataSource({type(self._items).__name__} of {self._length:,} records)"

    def read(self, indices: IntArray) -> list[Any]:
        """The items at `indices`."""
        wanted = checked_indices(indices, self._length, "SequenceDataSource")
        items = self._items
        records = [items[i] for i in wanted.tolist()]
        if _PLAIN.issuperset(map(type, records)):
            return records
        return [own(record) for record in records]

    def lengths(self) -> IntArray | None:
        """The lengths of items that are all strings, bytes or arrays with an axis; else None."""
        if not all(map(_is_sequence, self._items)):
            return None
        return np.fromiter(map(len, self._items), np.int64, self._length)

    @property
    def fingerprint(self) -> str:
        """The length and the type of the first item."""
        return self.fingerprint_of_first(self._length)

    def fingerprint_of_first(self, records: int) -> str:
        """As `sources.base.KnowsEarlier`."""
        first = type(self._items[0]).__qualname__ if records else "nothing"
        return f"sequence({records} records of {first})"


def _is_sequence(item: Any) -> bool:
    return isinstance(item, (str, bytes)) or (isinstance(item, np.ndarray) and item.ndim > 0)


def own(value: Any) -> Any:
    """Copies arrays, bytearrays and sets and rebuilds containers; other values are not copied.

    Subclasses count too, as in the chain's trees: a dict of any class gives a plain dict in its
    order, a list a list, and a tuple a tuple; NamedTuples keep their class.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray):
        return _own_array(value)
    if isinstance(value, dict):
        return {key: own(item) for key, item in value.items()}
    if isinstance(value, list):
        return [own(item) for item in value]
    if isinstance(value, tuple):
        items = [own(item) for item in value]
        named = getattr(type(value), "_fields", None) is not None
        return type(value)(*items) if named else tuple(items)
    if isinstance(value, (bytearray, set)):
        return value.copy()
    return value


def _own_array(array: AnyArray) -> AnyArray:
    copied = array.copy()
    if array.dtype == object:
        for at, item in enumerate(array.flat):
            copied.flat[at] = own(item)
    return copied


def _checked_tree(value: Any, name: str) -> ArrayTree:
    if isinstance(value, Mapping):
        tree: dict[str, ArrayTree] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise ArgumentError(f"ArrayDataSource: keys must be strings, got {key!r}")
            tree[key] = _checked_tree(item, f"{name}/{key}" if name else key)
        return tree
    shown = f"{name!r} is" if name else "got"
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            f"ArrayDataSource: {shown} a masked array, whose mask would be lost; give its data and"
            " its mask as two arrays of a dict"
        )
    if not isinstance(value, np.ndarray) and getattr(value, "__array__", None) is None:
        raise ArgumentError(
            f"ArrayDataSource: {shown} {with_article(type(value).__name__)}; it must be a NumPy array: use"
            " np.asarray(...)"
        )
    refuse_computed(f"ArrayDataSource: {shown}", value)
    # asarray also turns np.memmap into a plain array, whose rows are not memmaps.
    array: AnyArray = (
        value
        if _lies_elsewhere(value) or getattr(value, "shape", ()) is None  # h5py.Empty
        else np.asarray(value)
    )
    if not array.shape:
        raise SourceError(
            f"ArrayDataSource: {shown} an array of shape (), which has no first axis to count"
            " records; use array[None] for one record"
        )
    return array


def refuse_computed(shown: str, value: Any) -> None:
    """Refuse what dask computes: each read would compute it again.

    Args:
        shown: Begins the message, such as 'MapDataset.source: got'.
        value: Any object.

    Raises:
        ArgumentError: If `value` is an array, a table or a bag of dask.
    """
    graph = getattr(value, "__dask_graph__", None)
    if isinstance(value, type) or not callable(graph) or graph() is None:
        return
    raise ArgumentError(
        f"{shown} {with_article(type(value).__name__)} of dask, which computes its rows again each time they are read."
        " Write it once, with its .to_zarr('x.zarr'), and give windrow.sources.ZarrDataSource('x.zarr');"
        " or give the source that it was made from, and its computation as a map"
    )


def _lies_elsewhere(value: Any) -> bool:
    """Whether an array-like has rows that can be read one by one, and is not known to be in memory."""
    if isinstance(value, np.ndarray | np.generic) or getattr(value, "__dlpack__", None) is not None:
        return False
    if type(value).__module__.partition(".")[0] in _HELD_LIBRARIES:
        return False
    if getattr(getattr(value, "variable", value), "_in_memory", False):  # of xarray
        return False
    return all(getattr(value, name, None) is not None for name in ("shape", "dtype", "__getitem__"))


def _packed(tree: ArrayTree) -> Any:
    if isinstance(tree, dict):
        return {name: _packed(item) for name, item in tree.items()}
    return mapped(tree) or tree


def _unpacked(tree: Any) -> ArrayTree:
    if isinstance(tree, dict):
        return {name: _unpacked(item) for name, item in tree.items()}
    array: AnyArray = tree.open() if isinstance(tree, MappedArray) else tree
    return array


def _leaves(tree: ArrayTree, name: str) -> list[tuple[str, AnyArray]]:
    if isinstance(tree, dict):
        return [
            leaf
            for key, item in tree.items()
            for leaf in _leaves(item, f"{name}/{key}" if name else key)
        ]
    return [(name, tree)]


def _layout(tree: ArrayTree, records: int | None = None) -> str:
    """Names, dtypes and shapes; `records` are all rows for None."""
    parts = []
    for name, array in _leaves(tree, ""):
        rows = array.shape[0] if records is None else min(records, array.shape[0])
        layout = f"{array.dtype} {[rows, *array.shape[1:]]}"
        parts.append(f"{name}: {layout}" if name else layout)
    return "; ".join(parts)


def _row_specs(tree: ArrayTree) -> Any:
    if isinstance(tree, dict):
        return {name: _row_specs(item) for name, item in tree.items()}
    if len(tree.shape) == 1 and tree.dtype.kind in "SUT":
        return bytes if tree.dtype.kind == "S" else str
    return ArraySpec(tree.shape[1:], tree.dtype)


def _unmasked(rows: Any) -> Any:
    """The rows, if no value is masked."""
    if np.ma.is_masked(rows):
        raise ArgumentError(
            "ArrayDataSource: read a masked array, whose mask would be lost; turn masks off where the file is"
            " opened (netCDF4: dataset.set_auto_mask(False)), and mask the values in a map"
        )
    return rows


def _rows(tree: ArrayTree, wanted: IntArray) -> Columns:
    if isinstance(tree, dict):
        return {name: _rows(item, wanted) for name, item in tree.items()}
    run = run_of(wanted)
    rows: AnyArray = buffer_pool.empty((len(wanted), *tree.shape[1:]), tree.dtype)
    if run is not None:
        rows[...] = _unmasked(tree[run])
    elif not isinstance(tree, np.ndarray):
        # A list of indices, where the library takes one, must rise in h5py, and is slower there than this.
        for at, index in enumerate(wanted.tolist()):
            rows[at] = _unmasked(tree[index])
    else:
        np.take(tree, wanted, axis=0, out=rows, mode="clip")
    if tree.dtype.kind not in "OSUT":
        return rows
    records = rows.tolist() if rows.ndim == 1 else list(rows)
    return [own(record) for record in records]
