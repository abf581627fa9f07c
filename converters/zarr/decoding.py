"""Decoding: from the bytes of records to columns, an array or ragged values for each feature.

Records are tf.train.Examples, whose features are given or inferred from a sample of the records. Or
they are anything, and a function of the user makes a dict of arrays from the bytes of a record.

Invariant: every row has the features, dtypes and shapes that were settled before the first one was
written. Other records are bad, and are named by file, number and, in TFRecord, offset.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from windrow.converters.records.record_files import Bad, RecordBlock
from windrow.errors import ArgumentError, ConversionError, ReadError, WindrowError
from windrow.sources.tf_example.columns import decode_examples, infer_features
from windrow.sources.tf_example.features import BYTES, DTYPES, Column, Feature, ragged_of

Decode = Callable[[bytes], Mapping[str, Any]]
# The number of a record among those given, and what is wrong with it.
Wrong = list[tuple[int, WindrowError]]

SAMPLE_RECORDS: Final = 256
# The bytes of a ragged row in addition to its values.
OFFSET_BYTES: Final = 8
_COMPLEX: Final = ("complex64", "complex128")


def function_name(function: Callable[..., Any] | None) -> str | None:
    """Return the name by which plans know a function; None without one."""
    if function is None:
        return None
    return str(getattr(function, "__qualname__", type(function).__qualname__))


class ColumnDecoder(Protocol):
    """Decodes records to columns. Picklable."""

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features of the columns, by name."""
        ...

    def columns(self, records: Any, wrong: Wrong) -> dict[str, Column]:
        """The columns of the good records; the others go into `wrong`, in their order."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class ExampleDecoder:
    """Decodes tf.train.Examples; `inferred` features are all that a record may have."""

    features: Mapping[str, Feature]
    inferred: bool = False

    def columns(self, records: Sequence[bytes], wrong: Wrong) -> dict[str, Column]:
        if not self.features:
            return {}
        bad: list[ReadError] = []
        found = decode_examples(records, self.features, exact=self.inferred, bad=bad)
        wrong += [(error.records[0] if error.records else 0, error) for error in bad]
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionDecoder:
    """Decodes by a function of the user's, record by record."""

    features: Mapping[str, Feature]
    decode: Decode

    def columns(self, records: Sequence[bytes], wrong: Wrong) -> dict[str, Column]:
        def row(record: bytes) -> dict[str, Any]:
            return _fitting(_row(self.decode, record), self.features)

        return columns_of_rows(records, self.features, row, wrong)


def columns_of_rows(
    records: Sequence[bytes],
    features: Mapping[str, Feature],
    row_of: Callable[[bytes], Mapping[str, Any]],
    wrong: Wrong,
) -> dict[str, Column]:
    """Return the columns of records that are decoded one by one.

    Args:
        records: The records.
        features: The features of the columns, by name.
        row_of: Gives the value of each feature: an array, or the bytes of a ragged row.
        wrong: Gets the records for which `row_of` raises an error of ours.
    """
    fixed = {
        name: np.empty((len(records), *feature.item_shape), feature.numpy_dtype)
        for name, feature in features.items()
        if not feature.ragged
    }
    pieces: dict[str, list[bytes]] = {name: [] for name in features if name not in fixed}
    rows = 0
    for number, record in enumerate(records):
        try:
            row = row_of(record)
        except WindrowError as error:
            wrong.append((number, error))
            continue
        for name, column in fixed.items():
            column[rows] = row[name]
        for name, found in pieces.items():
            found.append(row[name])
        rows += 1
    return {
        name: fixed[name][:rows] if name in fixed else ragged_of(pieces[name], feature)
        for name, feature in features.items()
    }


def decoded(decoder: ColumnDecoder, block: RecordBlock) -> dict[str, Column]:
    """Return the columns of a block.

    Raises:
        ReadError: If a record is not an Example of these features.
        ConversionError: If the function raised, or gave what does not fit.
    """
    wrong: Wrong = []
    found = decoder.columns(block.records, wrong)
    for row, error in wrong:
        raise placed(block, row, error) from (error.__cause__ or error)
    return found


def placed(block: RecordBlock, row: int, error: WindrowError) -> WindrowError:
    """The error for a record of a block, which says where it is."""
    source, number, offset = block.place(row)
    at = "" if offset is None else f" at byte {offset}"
    why = _why(error)
    text = f"{source.shown}: record {number}{at}: {why}"
    if not isinstance(error, ReadError):
        return ConversionError(text)
    return ReadError(text, file=source.shown, offset=offset, records=(number, number + 1), why=why)


def bad_in(decoder: ColumnDecoder, blocks: Iterator[RecordBlock]) -> Iterator[list[Bad]]:
    """The records of each block that do not decode."""
    for block in blocks:
        wrong: Wrong = []
        decoder.columns(block.records, wrong)
        yield [Bad(block.place(row)[1], _why(error)) for row, error in wrong]


def _why(error: WindrowError) -> str:
    return (error.why if isinstance(error, ReadError) else None) or str(error)


# Features, inferred from a sample.


def inferred_examples(sample: RecordBlock, *, skip_bad: bool) -> dict[str, Feature]:
    """Return the features that tf.train.Examples have; {} without records.

    Raises:
        ReadError: If one is not an Example, unless such ones are to be skipped.
        ConversionError: If a feature is not one that a column could be made of.
    """
    left = RecordBlock(list(sample.records), list(sample.runs))
    kept = list(range(len(left.records)))
    while kept:
        try:
            return infer_features([sample.records[row] for row in kept])
        except ReadError as error:
            if error.records is None:
                raise
            row = kept[error.records[0]]
            if not skip_bad:
                raise placed(sample, row, error) from error
            kept.remove(row)
    return {}


def inferred_rows(
    sample: RecordBlock, decode: Decode, *, skip_bad: bool
) -> tuple[dict[str, Feature], float]:
    """Return the features that `decode` gives ({} without records), and bytes of a row of ragged ones.

    Raises:
        ConversionError: If its result cannot become a column, or it fails.
    """
    rows = rows_of_sample(sample, functools.partial(_row, decode), skip_bad=skip_bad)
    if not rows:
        return {}, 0.0
    features = {}
    first, names = rows[0]
    ragged_bytes = 0
    for name in names:
        values = [row[name] for _, row in rows if name in row]
        try:
            features[name] = _feature(name, values)
        except WindrowError as error:
            raise placed(sample, first, error) from error
        if features[name].ragged:
            sizes = (len(v) if isinstance(v, bytes) else v.nbytes for v in values)
            ragged_bytes += sum(sizes) + OFFSET_BYTES * len(values)
    return features, ragged_bytes / len(rows)


def rows_of_sample(
    sample: RecordBlock, row_of: Callable[[bytes], dict[str, Any]], *, skip_bad: bool
) -> list[tuple[int, dict[str, Any]]]:
    """Return the number in the sample, and the row, of each record; bad ones raise unless skipped."""
    rows: list[tuple[int, dict[str, Any]]] = []
    for at, record in enumerate(sample.records):
        try:
            rows.append((at, row_of(record)))
        except WindrowError as error:
            if not skip_bad:
                raise placed(sample, at, error) from (error.__cause__ or error)
    return rows


def _feature(name: str, values: Sequence[Any]) -> Feature:
    if all(isinstance(value, bytes) for value in values):
        return Feature(BYTES)
    first = values[0]
    if isinstance(first, bytes):
        return Feature(BYTES)
    dtype = first.dtype.name
    if dtype not in DTYPES:
        raise ConversionError(
            f"field {name!r} is of dtype {first.dtype}; arrays hold numbers and booleans, or one"
            " string or bytes object: decode it to such a value, or leave it out"
        )
    shape: tuple[int | None, ...] = first.shape
    arrays = [value for value in values if not isinstance(value, bytes)]
    # Where only the first axis differs; all else that differs is found record by record.
    if any(value.shape != shape for value in arrays) and all(
        value.ndim == first.ndim > 0 and value.shape[1:] == shape[1:] for value in arrays
    ):
        shape = (None, *shape[1:])
    try:
        return Feature(dtype, shape, raw=dtype in _COMPLEX)
    except ArgumentError as error:
        raise ConversionError(f"field {name!r}: {error}") from error


# One row, as a function of the user's gives it.


def _row(decode: Decode, record: bytes) -> dict[str, Any]:
    """Return the arrays and bytes of one row, by name."""
    try:
        row = decode(record)
    except WindrowError as error:
        raise ConversionError(str(error)) from error
    except Exception as error:
        raise ConversionError(f"decode raised {type(error).__name__}: {error}") from error
    if not isinstance(row, Mapping) or not row:
        raise ConversionError(
            f"decode returned {type(row).__name__} {row!r:.40}; it has to return a dict of arrays by"
            " name, with one or more"
        )
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    match value:
        case str():
            return value.encode()
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case _:
            return np.asarray(value)


def _fitting(row: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Any]:
    """What is put into the columns: arrays of rows, and the bytes of ragged ones."""
    if row.keys() != features.keys():
        raise ConversionError(
            f"has the fields {sorted(map(str, row))}, and {sorted(features)} were settled from the"
            " first records, or given; all records have to agree"
        )
    return {name: _fitted(name, row[name], feature) for name, feature in features.items()}


def _fitted(name: str, value: Any, feature: Feature) -> Any:
    if feature.opaque:
        if isinstance(value, bytes):
            return value
    elif not isinstance(value, bytes) and value.dtype.name == feature.dtype:
        if not feature.ragged and value.shape == feature.shape:
            return value
        same_rank = value.ndim == len(feature.shape)
        if feature.ragged and same_rank and value.shape[1:] == feature.item_shape:
            return np.ascontiguousarray(value, feature.numpy_dtype).tobytes()
    given = "bytes" if isinstance(value, bytes) else f"{value.dtype.name} {value.shape}"
    wanted = BYTES if feature.opaque else f"{feature.dtype} {feature.shape}"
    raise ConversionError(
        f"field {name!r} is {given}, and {wanted} was settled from the first records, or given; all"
        " records have to agree, and features= says what they are"
    )
