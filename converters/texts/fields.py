"""Fields of JSON Lines: from lines to columns, one for each field that is taken.

A number or a string is a scalar, a list of numbers a row of an array; a list that differs in length from
record to record is ragged, and so is a string. The text field may become tokens instead.

Invariant: a record has a row in every column, or it is bad: a line that is not a JSON object in UTF-8,
lacks a field that is taken, or has a value of another type there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.records.record_files import RecordBlock
from windrow.converters.texts.tokens import TokenizerError, Tokens
from windrow.converters.zarr.decoding import Wrong, columns_of_rows, placed, rows_of_sample
from windrow.errors import ConversionError, ReadError
from windrow.sources.tf_example.features import (
    BYTES,
    Column,
    Feature,
    cast,
    ragged_of,
)

# The column of the tokens of the text field.
TOKENS: Final = "tokens"
# The column of whole lines.
LINE: Final = "line"
# Dtypes that a tf.train.Example holds as bytes.
RAW: Final = frozenset({"float16", "float64", "uint64"})
# Dtypes of JSON numbers by NumPy's kind; all get the first one whose kind is there.
_DTYPES: Final = {"f": "float64", "b": "bool", "u": "uint64", "i": "int64"}


@dataclasses.dataclass(frozen=True, slots=True)
class TextField:
    """The field with the text, and what becomes of it: its bytes in UTF-8, or tokens. Picklable."""

    name: str
    tokens: Tokens | None = None

    @property
    def column(self) -> str:
        """The name of the column."""
        return self.name if self.tokens is None else TOKENS

    @property
    def feature(self) -> Feature:
        """A row of the column."""
        return Feature(BYTES) if self.tokens is None else self.tokens.feature

    def add_to(
        self, columns: dict[str, Column], texts: Sequence[str], rows: Sequence[int], wrong: Wrong
    ) -> None:
        """Add the column of documents, which are the records `rows`; if one fails, to `wrong`."""
        if self.tokens is None:
            columns[self.column] = ragged_of([text.encode() for text in texts], self.feature)
            return
        try:
            columns[self.column] = self.tokens.encode(texts)
        except TokenizerError as error:
            failed = ConversionError(f"field {self.name!r}: the tokenizer fails at it: {error}")
            wrong.append((rows[error.at], failed))


def without_tokens(
    features: Mapping[str, Feature], text: TextField | None
) -> tuple[Mapping[str, Feature], TextField | None]:
    """Return columns and their text field with the text itself in place of its tokens."""
    if text is None or text.tokens is None:
        return features, text
    others = {name: one for name, one in features.items() if name != TOKENS}
    return {**others, text.name: Feature(BYTES)}, TextField(text.name)


@dataclasses.dataclass(frozen=True, slots=True)
class JsonDecoder:
    """Decodes lines. Picklable.

    Args:
        features: The columns, by name.
        text: The field with the text; None for none.
        exact: Whether a record with other fields is bad.
        whole: Whether the only column is of whole lines.
    """

    features: Mapping[str, Feature]
    text: TextField | None = None
    exact: bool = False
    whole: bool = False

    @property
    def checker(self) -> JsonDecoder:
        """A decoder that finds the same bad records, and makes no tokens."""
        return JsonDecoder(*without_tokens(self.features, self.text), self.exact, self.whole)

    def columns(self, records: Sequence[bytes], wrong: Wrong) -> dict[str, Column]:
        if self.text is None or self.text.tokens is None:
            return columns_of_rows(records, self.features, self._row, wrong)
        texts: list[str] = []

        def row(record: bytes) -> dict[str, Any]:
            found = self._row(record)
            texts.append(found[TOKENS])
            return found

        others = {name: one for name, one in self.features.items() if name != TOKENS}
        columns = columns_of_rows(records, others, row, wrong)
        bad = {number for number, _ in wrong}
        self.text.add_to(columns, texts, [at for at in range(len(records)) if at not in bad], wrong)
        return columns

    def _row(self, record: bytes) -> dict[str, Any]:
        """Return what is put into the columns: bytes of ragged rows, arrays of others, and the text."""
        found = parsed(record)
        if self.whole:
            return {LINE: record}
        if self.exact and not found.keys() <= self.features.keys():
            name = min(found.keys() - self.features.keys())
            raise _wrong(
                f"field {name!r:.80} is not in the first records; name the fields to take by names="
                " (--name), or describe them by features= (--features)"
            )
        row: dict[str, Any] = {}
        for name, feature in self.features.items():
            if self.text is not None and name == self.text.column:
                text = text_of(self.text.name, found)
                row[name] = text.encode() if self.text.tokens is None else text
            else:
                row[name] = _fitted(name, _value(name, found), feature)
        return row


def parsed(record: bytes) -> dict[str, Any]:
    """Return the object that a line holds.

    Raises:
        ReadError: If it holds none.
    """
    try:
        found = json.loads(record.decode())
    except UnicodeDecodeError as error:
        raise _wrong(f"is not UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise _wrong(f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _wrong(f"is {_kind(found)}, not a JSON object")
    return found


def text_of(name: str, found: Mapping[str, Any]) -> str:
    """Return the text in a field.

    Raises:
        ReadError: If the field has no string.
    """
    text = _value(name, found)
    if not isinstance(text, str):
        raise _wrong(f"field {name!r} is {_kind(text)}, not a string")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # such as "\ud800" in JSON
            raise _wrong(f"field {name!r} is not Unicode: {error}") from error
    return text


def _value(name: str, found: Mapping[str, Any]) -> Any:
    try:
        return found[name]
    except KeyError:
        raise _lacking(name) from None


def _fitted(name: str, value: Any, feature: Feature) -> Any:
    """Return bytes of a ragged row, or the array or number of another."""
    if feature.opaque:
        return text_of(name, {name: value}).encode()
    array = _array(value)
    if array is None:
        raise _wrong(f"field {name!r} is {_kind(value)}, not {feature}")
    dtype, ragged = feature.numpy_dtype, feature.ragged
    if not array.size and ragged:  # an empty list has neither a dtype nor inner axes
        return b""
    if ragged:
        fits = array.ndim == len(feature.shape) and array.shape[1:] == feature.item_shape
    else:
        fits = array.shape == feature.shape
    is_float = array.dtype.kind == "f"
    fits = fits and (array.dtype.kind == "b") == (dtype.kind == "b")
    if fits and is_float and dtype.kind in "fV":  # a decimal number has no float that is exact
        array = array.astype(dtype)
    elif fits:
        array, exact = cast(array, dtype)
        fits = exact is None or bool(np.all(exact))
    if not fits:
        raise _wrong(
            f"field {name!r} is {json.dumps(value)[:40]}, which does not fit {feature}; all records"
            " have to agree, and features= says what they are"
        )
    return np.ascontiguousarray(array).tobytes() if ragged else array


def _array(value: Any) -> Any:
    """Return a number or a list of numbers of one kind as an array; None for anything else."""
    types = _types(value)
    if not types <= {int, float} and types != {bool}:
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    kinds = "b" if bool in types else "f" if float in types else "iu"
    return array if not array.size or array.dtype.kind in kinds else None


def _types(value: Any) -> set[type]:
    """Return the types of the items of a list, and of the lists in it, or of a single value."""
    if not isinstance(value, list):
        return {type(value)}
    found: set[type] = set(map(type, value))
    return found.union(*map(_types, value)) - {list} if list in found else found


def inferred_fields(
    sample: RecordBlock, names: Sequence[str] | None, *, skip_bad: bool
) -> dict[str, Feature]:
    """Return the features of the fields that lines have; {} without lines.

    Args:
        sample: Some lines.
        names: The fields to take; None for all.
        skip_bad: Whether lines that are not JSON objects are passed over.

    Raises:
        ReadError: If a line is not a JSON object, or lacks a field that another one has.
        ConversionError: If no array can be made of a field.
    """
    rows = rows_of_sample(sample, parsed, skip_bad=skip_bad)
    if not rows:
        return {}
    taken = list(dict.fromkeys(name for _, row in rows for name in row)) if names is None else names
    features: dict[str, Feature] = {}
    for name in taken:
        there = [(at, row[name]) for at, row in rows if name in row]
        if len(there) < len(rows) and not (skip_bad and there):
            lacks = next(at for at, row in rows if name not in row)
            raise placed(sample, lacks, _lacking(name))
        feature = _inferred([value for _, value in there])
        if feature is None:
            at, value = next((one for one in there if _array(one[1]) is None), there[0])
            raise placed(sample, at, _no_array(name, value))
        features[name] = feature
    return features


def _inferred(values: Sequence[Any]) -> Feature | None:
    """Return the feature of all values of a field; None if no array can be made of them."""
    if all(isinstance(value, str) for value in values):
        return Feature(BYTES)
    arrays = [_array(value) for value in values]
    full = [array for array in arrays if array is not None and array.size]
    if not full or any(array is None for array in arrays):
        return None
    kinds = {array.dtype.kind for array in full}
    if len({array.shape[1:] for array in full}) > 1 or len({array.ndim for array in arrays}) > 1:
        return None
    if "b" in kinds and len(kinds) > 1:
        return None
    dtype = next(name for kind, name in _DTYPES.items() if kind in kinds)
    shape = full[0].shape
    if len({array.shape for array in arrays}) > 1:
        shape = (None, *shape[1:])
    return Feature(dtype, shape, raw=dtype in RAW)


def _no_array(name: str, value: Any) -> ConversionError:
    return ConversionError(
        f"field {name!r} is {_kind(value)}, and no array can be made of it and of the others: arrays"
        " hold strings, or numbers, or lists of numbers; leave it out by names= (--name), or"
        " describe it by features= (--features)"
    )


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "an empty list" if not value else "a list"
    return "an object"


def _lacking(name: str) -> ReadError:
    return _wrong(f"has no field {name!r}")


def _wrong(why: str) -> ReadError:
    return ReadError(why, why=why)
