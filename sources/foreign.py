"""Wraps sources from elsewhere: Grain's, torch's map-style datasets, any object with `len` and `[i]`.

Invariant: the source gets Python ints only. Its errors keep their type, with a note that names the
record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from windrow.core.text import counted
from windrow.errors import ArgumentError, ReadError, SourceError
from windrow.sources.base import BatchedSource, IntArray, checked_indices
from windrow.sources.memory import own

_BATCH_METHODS = ("__getitems__", "_getitems")
# What `[i]` of these returns is a column, or a row by its label: not record `i`.
_COLUMNS_OF_FRAME = (
    "a dict of its columns: {name: frame[name].to_numpy() for name in frame.columns}"
)
_TABLES = {
    "pandas.DataFrame": _COLUMNS_OF_FRAME,
    "pandas.Series": "its values: series.to_numpy()",
    "polars.DataFrame": _COLUMNS_OF_FRAME,
    "pyarrow.Table": "a dict of its columns: {name: table[name].to_numpy() for name in table.column_names}",
}
_LIBRARIES = ("pandas", "polars", "pyarrow")


@runtime_checkable
class RandomAccessDataSource(Protocol):
    """The minimum of a data source, under Grain's name: a length, and records by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, record_key: int, /) -> Any: ...


class ForeignDataSource(BatchedSource):
    """Any object with `len` and `[i]`, read in batches where it can, else record by record."""

    def __init__(self, source: Any) -> None:
        """Wraps `source` and reads its length once.

        Args:
            source: An object with `__len__` and `__getitem__`. Its `__getitems__(list of ints)`
                or `_getitems(list of ints)`, where it has one, is used for batches. It must be
                thread-safe, and picklable where worker processes read it.

        Raises:
            ArgumentError: If `source` has no length or no `[i]`, or is a table, whose `[i]` is not a record.

        Example:
            >>> import numpy as np
            >>> class Squares:
            ...     def __len__(self) -> int:
            ...         return 5
            ...
            ...     def __getitem__(self, index: int) -> int:
            ...         return index**2
            >>> ForeignDataSource(Squares()).read(np.array([4, 2]))
            [16, 4]
        """
        if isinstance(source, type) or getattr(source, "__getitem__", None) is None:
            raise ArgumentError(_needs(source, "has no __getitem__"))
        _refuse_table(source)
        try:
            self._length = len(source)
        except TypeError as error:
            # Array-likes such as zarr.Array have a shape and no len.
            shape = getattr(source, "shape", None)
            if not isinstance(shape, tuple) or not shape:
                raise ArgumentError(_needs(source, f"has no length: {error}")) from error
            self._length = int(shape[0])
        self._source = source
        self._method = next(
            (name for name in _BATCH_METHODS if callable(getattr(source, name, None))), None
        )

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"ForeignDataSource({_name(self._source)}, {self._length:,} records)"

    @property
    def source(self) -> Any:
        """The object that was wrapped."""
        return self._source

    @property
    def batched(self) -> bool:
        """Whether the source reads many records in one call."""
        return self._method is not None

    def read(self, indices: IntArray) -> list[Any]:
        """The records at `indices`, in one call of the source or one after the other."""
        wanted: list[int] = checked_indices(indices, self._length, "ForeignDataSource").tolist()
        if not wanted:
            return []
        return self._read_batch(wanted) if self.batched else self._read_each(wanted)

    @property
    def fingerprint(self) -> str:
        """Class and length, and the source's own `fingerprint` where that is a string."""
        theirs = getattr(self._source, "fingerprint", None)
        more = f", {theirs}" if isinstance(theirs, str) else ""
        return f"{_name(self._source)}({self._length} records{more})"

    @property
    def spec(self) -> Any:
        """The source's own `spec`; None if it has none, or has a method of that name."""
        found = getattr(self._source, "spec", None)
        return None if callable(found) else found

    def blocks(self) -> Any:
        """The result of the source's own method `blocks`; None if it has no such method."""
        blocks = getattr(self._source, "blocks", None)
        return blocks() if callable(blocks) else None

    def lengths(self) -> Any:
        """The result of the source's own method `lengths`; None if it has no such method."""
        lengths = getattr(self._source, "lengths", None)
        return lengths() if callable(lengths) else None

    def lengths_of(self, records: IntArray) -> Any:
        """The result of the source's own method `lengths_of`; None if it has no such method."""
        lengths_of = getattr(self._source, "lengths_of", None)
        return lengths_of(records) if callable(lengths_of) else None

    def _read_each(self, wanted: list[int]) -> list[Any]:
        source, records, index = self._source, [], 0
        try:
            for index in wanted:
                records.append(own(source[index]))
        except StopIteration as error:
            # Unchanged, it would end a generator or a for loop in the caller, as if the data had ended.
            raise ReadError(
                f"{_name(source)}.__getitem__ raised StopIteration for record {index}; it must"
                " return the record or raise an IndexError"
            ) from error
        except Exception as error:
            error.add_note(f"windrow: while reading record {index} of {_name(source)}")
            raise
        return records

    def _read_batch(self, wanted: list[int]) -> list[Any]:
        source, method = self._source, str(self._method)
        which = f"{len(wanted):,} records, the first of them {wanted[0]},"
        call: Callable[[list[int]], Sequence[Any]] = getattr(source, method)
        try:
            # A copy: the source may keep or change the list it is given.
            records = list(call(list(wanted)))
        except StopIteration as error:
            raise ReadError(
                f"{_name(source)}.{method} raised StopIteration for {which} and must return the"
                " records instead"
            ) from error
        except Exception as error:
            error.add_note(f"windrow: while reading {which} of {_name(source)} by {method}")
            raise
        if len(records) != len(wanted):
            raise SourceError(
                f"{_name(source)}.{method} returned {counted(len(records), 'record')} for"
                f" {len(wanted):,} indices; it must return one record per index, in their order"
            )
        return [own(record) for record in records]


def _name(source: Any) -> str:
    kind = type(source)
    return f"{kind.__module__}.{kind.__qualname__}"


def _needs(source: Any, lack: str) -> str:
    shown = source.__name__ if isinstance(source, type) else type(source).__name__
    what = f"the class {shown} itself is not a source" if isinstance(source, type) else lack
    return (
        f"a data source needs __len__ and __getitem__(int): {shown} {what}; give an object that"
        " has both, a list, a NumPy array, or a source of windrow.sources"
    )


def _refuse_table(source: Any) -> None:
    for kind in type(source).__mro__:
        if kind.__module__.partition(".")[0] not in _LIBRARIES and "__getitem__" in vars(kind):
            return  # of the user
        name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        if name in _TABLES and not _is_numbered(source):
            raise ArgumentError(
                f"a {name} is not a source of records, since its [i] is not record i; give {_TABLES[name]}"
            )


def _is_numbered(source: Any) -> bool:
    """Whether the labels of a Series of pandas are 0, 1, 2 and so on."""
    if hasattr(source, "columns") or not hasattr(source, "index"):
        return False
    return bool(np.array_equal(np.asarray(source.index), np.arange(len(source))))
