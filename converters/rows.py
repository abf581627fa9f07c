"""Rows: the records of many TFRecord files as one run of rows, decoded into columns.

One file is one contiguous range of rows, in the order of the inputs. A piece is a range of rows
and where its records lie, so that it can be decoded by itself, from the nearest known offset.

Invariant: every row of a piece has the fields, dtypes and shapes of the first record of all; a
record that has not is an error that names its file and number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.converters.inputs import Input
from windrow.converters.tfrecord import scan
from windrow.errors import ConversionError, WindrowError

Decode = Callable[[bytes], Mapping[str, Any]]
Column = npt.NDArray[Any]

# The offset of one record in so many is remembered, to begin reading near any row.
STRIDE_RECORDS = 256

# What Zarr can hold row by row, by NumPy's names.
_DTYPES = frozenset(
    [
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    ]
)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One array of the output: `shape` and `dtype` are those of a row."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, not compressed."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


@dataclasses.dataclass(frozen=True, slots=True)
class Counted:
    """A file whose records are counted; `offsets[k]` is where record `k * STRIDE_RECORDS` is."""

    source: Input
    records: int
    offsets: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Records `[start, stop)` of one file; `start_byte` is where record `start_record` is."""

    source: Input
    start: int
    stop: int
    start_byte: int
    start_record: int

    @property
    def url(self) -> str:
        return self.source.shown


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Rows `[start, stop)` of the output, and the spans of records that give them, in order."""

    start: int
    stop: int
    spans: tuple[Span, ...]


def count(source: Input) -> Counted:
    """Count the records of a file, without checking more than their frames."""
    offsets = []
    records = 0
    for offset, _ in scan(source.url, check_data=False, storage_options=source.options):
        if records % STRIDE_RECORDS == 0:
            offsets.append(offset)
        records += 1
    return Counted(source, records, tuple(offsets))


def cut(files: Sequence[Counted], *, rows_per_piece: int) -> list[Piece]:
    """The rows of all files in pieces of `rows_per_piece`, the last one shorter."""
    total = sum(file.records for file in files)
    pieces = []
    for start in range(0, total, rows_per_piece):
        stop = min(start + rows_per_piece, total)
        pieces.append(Piece(start, stop, tuple(_spans(files, start, stop))))
    return pieces


def _spans(files: Sequence[Counted], start: int, stop: int) -> Iterator[Span]:
    first_row = 0
    for file in files:
        begin = max(start - first_row, 0)
        end = min(stop - first_row, file.records)
        if begin < end:
            known = begin // STRIDE_RECORDS
            offset = file.offsets[known]
            yield Span(file.source, begin, end, offset, known * STRIDE_RECORDS)
        first_row += file.records


def fields_of_first(files: Sequence[Counted], decode: Decode) -> tuple[Field, ...]:
    """The fields of the first record of all.

    Raises:
        ConversionError: If there is no record, or it decodes to what an array cannot hold.
    """
    for file in files:
        for _, data in scan(file.source.url, storage_options=file.source.options):
            where = f"{file.source.url}: record 0"
            row = _decoded(decode, data, where)
            return tuple(_field(name, value, where) for name, value in row.items())
    raise ConversionError(
        "inputs: no file has a record, so that shapes and dtypes of the arrays are not known"
    )


def columns(piece: Piece, fields: tuple[Field, ...], decode: Decode) -> dict[str, Column]:
    """The decoded rows of `piece`: by field, an array `(rows, *shape)`."""
    out = {
        field.name: np.empty((piece.stop - piece.start, *field.shape), dtype=field.dtype)
        for field in fields
    }
    row = 0
    for span in piece.spans:
        for where, data in _records(span):
            values = _decoded(decode, data, where)
            _check(values, fields, where)
            for name, value in values.items():
                out[name][row] = value
            row += 1
    return out


def _records(span: Span) -> Iterator[tuple[str, bytes]]:
    number = span.start_record
    for _, data in scan(
        span.source.url,
        start_byte=span.start_byte,
        start_record=number,
        storage_options=span.source.options,
    ):
        if number >= span.start:
            yield f"{span.url}: record {number}", data
        number += 1
        if number == span.stop:
            return
    raise ConversionError(
        f"{span.url}: has {number} records now, and had {span.stop} or more when they were counted;"
        " leave the inputs alone while they are converted, and start anew with overwrite=True"
    )


def _decoded(decode: Decode, data: bytes, where: str) -> dict[str, Column]:
    try:
        row = decode(data)
    except WindrowError as error:
        raise ConversionError(f"{where}: {error}") from error
    except Exception as error:
        raise ConversionError(f"{where}: decode raised {type(error).__name__}: {error}") from error
    if not isinstance(row, Mapping) or not row:
        raise ConversionError(
            f"{where}: decode returned {type(row).__name__} {row!r:.40}; it has to return a dict of"
            " arrays by name, with one or more"
        )
    return {name: np.asarray(value) for name, value in row.items()}


def _field(name: object, value: Column, where: str) -> Field:
    if (
        not isinstance(name, str)
        or not name
        or name.startswith(("_", "."))
        or name.endswith(".json")
        or "/" in name
        or "\\" in name
    ):
        raise ConversionError(
            f"{where}: the field {name!r} cannot name a Zarr array: use a str without slashes that"
            " does not begin with '_' or '.' or end with '.json'"
        )
    dtype = value.dtype.newbyteorder("=")
    if dtype.name not in _DTYPES:
        raise ConversionError(
            f"{where}: field {name!r} is of dtype {value.dtype}; Zarr rows hold numbers and"
            " booleans: decode it to such an array, or leave it out"
        )
    if 0 in value.shape:
        raise ConversionError(
            f"{where}: field {name!r} has shape {value.shape}, without a value; leave it out"
        )
    return Field(name, dtype.name, value.shape)


def _check(values: Mapping[str, Column], fields: tuple[Field, ...], where: str) -> None:
    if len(values) != len(fields) or any(field.name not in values for field in fields):
        raise ConversionError(
            f"{where}: has the fields {sorted(values)}, and the first record of all has"
            f" {sorted(field.name for field in fields)}; all records have to agree"
        )
    for field in fields:
        value = values[field.name]
        if value.shape != field.shape or value.dtype.name != field.dtype:
            raise ConversionError(
                f"{where}: field {field.name!r} is {value.dtype.name} {value.shape}, and"
                f" {field} in the first record of all; all records have to agree"
            )
