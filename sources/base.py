"""Defines sources: random access to records that never change.

A source knows nothing of chains, orders or epochs. One call reads many records, since one call may be
one request. It returns them in the order of the given indices, duplicates included.

`read` returns columns: the tree of one record. Each leaf is an array with a leading axis of records,
or a list with one entry per record if the rows differ in shape or dtype (bytes and str are always
lists). A plain list at the top is a list of records.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import numpy.typing as npt

from windrow.core.text import counted
from windrow.errors import ArgumentError, RecordIndexError

IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]
Columns = Any  # a tree; see the module's header


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class ArraySpec:
    """Shape, dtype and names of the axes of an array that need not exist yet.

    It serves as the array where JAX needs shape and dtype only, as in `jax.eval_shape`.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    dims: tuple[str | None, ...] | None

    def __init__(
        self,
        shape: Sequence[int | None],
        dtype: npt.DTypeLike,
        dims: Sequence[str | None] | None = None,
    ) -> None:
        """Describes an array.

        Args:
            shape: None for an axis whose length is known only after reading.
            dtype: Anything that `np.dtype` takes.
            dims: A name for each axis, None for one without; None where no axis has a name.

        Raises:
            ArgumentError: If the names are not one for each axis.
        """
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", np.dtype(dtype))
        object.__setattr__(self, "dims", None if dims is None else tuple(dims))
        if self.dims is not None and len(self.dims) != len(self.shape):
            raise ArgumentError(
                f"ArraySpec: dims={self.dims} must have a name, or None, for each axis of"
                f" shape {self.shape}"
            )


@runtime_checkable
class Source(Protocol):
    """Random access to `len(source)` records. Thread-safe and picklable; opens again lazily."""

    def __len__(self) -> int:
        """Number of records. It is called often, so it must be cheap."""
        ...

    def __getitem__(self, index: int) -> Any:
        """The record at `index`."""
        ...

    def read(self, indices: IntArray) -> Columns:
        """Records at `indices`, in that order, as columns or as a list of records.

        The answer is the caller's own memory: the caller may change it.
        """
        ...

    @property
    def fingerprint(self) -> str:
        """A string that names the data and its order: no paths, no times, no contents."""
        ...


@runtime_checkable
class Specified(Protocol):
    """A source that knows the spec of its records without reading one."""

    @property
    def spec(self) -> Any:
        """The tree of a record, with an `ArraySpec` or the type of the value for each leaf.

        None where it is known only after reading. Python's numbers are arrays without axes.
        """
        ...


@runtime_checkable
class KnowsLengths(Protocol):
    """A source that knows how long its records are without reading one."""

    def lengths(self) -> IntArray | None:
        """The length of each record, int64 `(len(source),)`, from metadata alone; None if unknown.

        It is what packers count: items of a sequence, such as tokens of a document.
        """
        ...


@runtime_checkable
class KnowsSomeLengths(Protocol):
    """A source that knows the lengths of some records without finding all lengths."""

    def lengths_of(self, records: IntArray) -> IntArray | None:
        """The lengths of `records`, int64 `(len(records),)`; None to ask for all by `lengths()`.

        It is asked for no records too, where a chain is built: it reads nothing then, and is None, or
        raises, if lengths are not known.
        """
        ...


@runtime_checkable
class KnowsEarlier(Protocol):
    """A source whose data may grow, and which knows what it was before."""

    def fingerprint_of_first(self, records: int) -> str | None:
        """The fingerprint that the source had when it ended after its first `records` records.

        By it, a state that was taken then is recognized. None if it cannot have ended there.
        """
        ...


class BatchedSource(abc.ABC):
    """Base class of Windrow's sources; subclasses define `__len__`, `read` and `fingerprint`."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, indices: IntArray) -> Columns:
        """Records at `indices`, in that order, as columns or as a list of records."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A string that names the data and its order, from metadata alone."""

    @final
    def __getitem__(self, index: int) -> Any:
        """The record at `index`; negative indices count from the end, as in NumPy."""
        return row(self.read(checked_indices([index], len(self), type(self).__name__)), 0)

    @final
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The records at `indices` as a list, as torch and HF datasets expect under this name."""
        wanted = checked_indices(indices, len(self), type(self).__name__)
        columns = self.read(wanted)
        return [row(columns, i) for i in range(len(wanted))]


def row(columns: Columns, at: int) -> Any:
    """Record `at` of columns: the same tree of dicts with one row per leaf."""
    if isinstance(columns, dict):
        return {name: row(column, at) for name, column in columns.items()}
    return columns[at]


def checked_indices(indices: Any, length: int, what: str) -> IntArray:
    """Returns `indices` as int64 in `[0, length)`; negative ones count from the end, as in NumPy.

    The result may be `indices` itself, so the caller does not change it.

    Raises:
        ArgumentError: If the indices are not integers in one dimension.
        RecordIndexError: If an index is not in `[-length, length)`.
    """
    array = np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ArgumentError(f"{what}: {_not_indices(indices, array)}")
    # Most calls come from the engine, whose indices are right.
    if array.size and int(array.min()) >= 0 and int(array.max()) < length:
        return array.astype(np.int64, copy=False)
    wrong = np.flatnonzero((array < -length) | (array >= length)) if array.size else array
    if wrong.size:
        raise RecordIndexError(
            f"{what}: index {array[wrong[0]]} is out of range for {counted(length, 'record')};"
            f" choose -{length} <= index < {length}"
        )
    array = array.astype(np.int64)
    array[array < 0] += length
    return array


def _not_indices(given: Any, array: npt.NDArray[Any]) -> str:
    """Why `given` is not indices of records, and what to write; `source[i]` gives a list of one."""
    one = given[0] if isinstance(given, list) and len(given) == 1 else given
    if isinstance(one, slice):
        ends = [one.start, one.stop] if one.step is None else [one.start, one.stop, one.step]
        written = ":".join("" if end is None else str(end) for end in ends)
        return f"a source has no slices; slice the dataset: MapDataset.source(source)[{written}]"
    if isinstance(one, str):
        return (
            f"indices must be integers, got {one!r}; choose arrays by name where the source is made,"
            f" such as names=[{one!r}], and fields of a record as record[{one!r}]"
        )
    return (
        "indices must be integers in one dimension, got an array of shape"
        f" {array.shape} and dtype {array.dtype}"
    )


def run_of(indices: IntArray) -> slice | None:
    """The slice equal to `indices` in `[0, length)`; None if they do not ascend by one."""
    count = len(indices)
    if count == 0:
        return slice(0, 0)
    first = int(indices[0])
    if int(indices[-1]) - first != count - 1 or not bool(np.all(np.diff(indices) == 1)):
        return None
    return slice(first, first + count)
