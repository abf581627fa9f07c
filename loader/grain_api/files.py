"""Streams of the records of TFRecord and Parquet files, as they are.

A file is opened when the dataset is made, to count its records; elements are read one after the
other, or a row group at a time. To train from such data over many epochs convert it: see
`windrow.converters`.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.job.inputs import Input
from windrow.converters.records.tfrecord import is_gzip, read_batches, record_stops
from windrow.converters.texts.parquet import opened, types_of
from windrow.errors import ArgumentError, NotFoundError
from windrow.iter_dataset import IterDataset
from windrow.map_dataset import MapDataset
from windrow.sources.base import BatchedSource, IntArray, checked_indices

# As many files are read in turn, as in Grain.
_FILES_AT_ONCE: Final = 16


class TFRecordIterDataset(IterDataset[bytes]):
    """The records of a TFRecord file, as bytes, in order. Checksums are checked.

    Args:
        path: A local file that is not compressed.

    Raises:
        ArgumentError: If it is compressed.
        NotFoundError: If there is no such file.
        ReadError: If a record is cut off, or on iteration if a checksum is wrong.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(MapDataset.source(_TFRecordSource(path)).to_iter_dataset()._node)


class ParquetIterDataset(IterDataset[dict[str, Any]]):
    """The rows of Parquet files, as dicts by column.

    The rows of several files come in turn, from 16 files at a time, as in
    `IterDataset.interleave`.

    Args:
        path: A file, or several.
        read_kwargs: Arguments of `pyarrow.parquet.ParquetFile`.

    Raises:
        ArgumentError: If there is no file.
        NotFoundError: If a file does not exist.
        ReadError: If a file is not Parquet, or on iteration if it is damaged.
        MissingExtraError: If pyarrow is not installed.
    """

    def __init__(
        self, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **read_kwargs: Any
    ) -> None:
        paths = [path] if isinstance(path, (str, bytes, os.PathLike)) else list(path)
        if not paths:
            raise ArgumentError("ParquetIterDataset: needs at least one path, got none")
        sources = [_ParquetSource(os.fspath(each), read_kwargs) for each in paths]
        streams = [MapDataset.source(each).to_iter_dataset() for each in sources]
        whole = streams[0] if len(streams) == 1 else IterDataset.interleave(streams, _FILES_AT_ONCE)
        super().__init__(whole._node)


class _TFRecordSource(BatchedSource):
    """Random access to the records of a TFRecord file, by where each begins."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        if is_gzip(self._path):
            raise ArgumentError(
                f"TFRecordIterDataset: {self._path} is compressed, so its records cannot be found"
                " without decompressing it; convert it, or decompress the file"
            )
        if not os.path.exists(self._path):
            raise NotFoundError(f"{self._path} does not exist")
        self._bounds = np.array([0, *record_stops(self._path)], np.int64)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __repr__(self) -> str:
        return f"TFRecord({len(self):,} records)"

    @property
    def fingerprint(self) -> str:
        return f"tfrecord({len(self)} records, {self._bounds[-1]} bytes)"

    def read(self, indices: IntArray) -> list[bytes]:
        wanted = checked_indices(indices, len(self), "TFRecordIterDataset")
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
        return [record for run in runs for record in self._run(run.tolist())]

    def _run(self, run: Sequence[int]) -> Iterator[bytes]:
        """The records of consecutive numbers."""
        if not run:
            return iter(())
        start_byte = int(self._bounds[run[0]])
        batches = read_batches(self._path, start_byte=start_byte, start_record=run[0])
        records = itertools.chain.from_iterable(batch.records for batch in batches)
        return itertools.islice(records, len(run))


class _ParquetSource(BatchedSource):
    """Random access to the rows of a Parquet file; the row group read last is kept."""

    def __init__(self, path: str, read_kwargs: Mapping[str, Any]) -> None:
        self._file, self._read_kwargs = Input(path, path, 0), dict(read_kwargs)
        with opened(self._file, **self._read_kwargs) as file:
            meta = file.metadata
            rows = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
            self._schema = ", ".join(f"{name}: {kind}" for name, kind in types_of(file).items())
        self._bounds = np.cumsum([0, *rows])
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[int, dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_kept")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __repr__(self) -> str:
        return f"Parquet({self._schema}; {len(self):,} rows)"

    @property
    def fingerprint(self) -> str:
        return f"parquet({self._schema}; {len(self)} rows)"

    def read(self, indices: IntArray) -> list[dict[str, Any]]:
        wanted = checked_indices(indices, len(self), "ParquetIterDataset")
        groups = self._bounds.searchsorted(wanted, side="right") - 1
        places = zip(groups.tolist(), (wanted - self._bounds[groups]).tolist(), strict=True)
        rows: list[dict[str, Any]] = []
        for number, several in itertools.groupby(places, key=lambda place: place[0]):
            columns = self._group(number)
            rows += [
                {name: _own(column[row]) for name, column in columns.items()} for _, row in several
            ]
        return rows

    def _group(self, number: int) -> dict[str, Any]:
        """The columns of a row group, as Grain has them: NumPy arrays."""
        with self._lock:
            if self._kept is None or self._kept[0] != number:
                with opened(self._file, **self._read_kwargs) as file:
                    table = file.read_row_group(number)
                names = table.column_names
                self._kept = (
                    number,
                    {name: table.column(place).to_numpy() for place, name in enumerate(names)},
                )
            return self._kept[1]


def _own(value: Any) -> Any:
    """A cell that the caller may change: a list is an array of the row group that is kept."""
    return value.copy() if isinstance(value, np.ndarray) else value
