"""Parquet files as runs of rows, and their fields as columns.

A row group is the unit that is read: a file can be cut between two of them. The footers say what the
fields are, before a row is read.

Invariant: a row has a value in every column that is taken, or it is bad: it has a null there, or a
string that is not Unicode.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.job.inputs import Input
from windrow.converters.job.stages import Report, dropped
from windrow.converters.records.record_files import (
    Counted,
    Lose,
    RecordBlock,
    RecordFormat,
    RecordRun,
    RecordSpan,
    fewer,
)
from windrow.converters.records.tfrecord import open_to_read
from windrow.converters.texts.fields import RAW, TextField, without_tokens
from windrow.converters.zarr.decoding import Wrong
from windrow.core.optional_imports import optional
from windrow.errors import NotFoundError, ReadError, SourceError, WindrowError
from windrow.sources.tf_example.features import BYTES, Array, Column, Feature, Ragged

EXTRA: Final = "parquet"


def pyarrow(module: str = "pyarrow") -> Any:
    """Import a module of pyarrow.

    Raises:
        MissingExtraError: If it is not installed.
    """
    return optional(module, "Parquet", EXTRA)


@contextlib.contextmanager
def opened(file: Input, **options: Any) -> Iterator[Any]:
    """Open a file, as `pyarrow.parquet.ParquetFile` with `options`.

    Raises:
        NotFoundError: If there is no such file.
        ReadError: If it cannot be opened, or is damaged where it is read in the context.
    """
    parquet, arrow = pyarrow("pyarrow.parquet"), pyarrow()
    with open_to_read(file.url, file.options) as raw:
        try:
            yield parquet.ParquetFile(raw, **options)
        except (arrow.ArrowException, OSError) as error:
            if isinstance(error, WindrowError):
                raise
            why = " ".join(str(error).split())
            raise ReadError(
                f"{file.shown}: cannot be read as Parquet: {why}; write or copy the file anew",
                file=file.shown,
                why=why,
            ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class ParquetFiles(RecordFormat):
    """Reads the fields `names` of Parquet files. Counting reads their footers."""

    names: tuple[str, ...]
    schema: Mapping[str, str]
    """The types of the fields, which all files have."""

    counts_at_once = True
    sample_bytes = 8 << 20

    def count(self, files: Sequence[Input], progress: Report = dropped) -> list[Counted]:
        return [self._counted(file) for file in files]

    def _counted(self, file: Input) -> Counted:
        with opened(file) as table:
            self._check(file, types_of(table))
            groups = [table.metadata.row_group(at) for at in range(table.metadata.num_row_groups)]
        starts = np.cumsum([0, *(group.num_rows for group in groups)]).tolist()
        decoded = sum(group.total_byte_size for group in groups)
        mean = -(-decoded // max(1, starts[-1]))
        return Counted(file, starts[-1], record_bytes=mean, cuts=tuple(starts[:-1]))

    def _check(self, file: Input, types: Mapping[str, str]) -> None:
        for name in self.names:
            if types.get(name) != self.schema[name]:
                raise SourceError(
                    f"{file.shown}: field {name!r} is of type {types.get(name, 'none')}, and"
                    f" {self.schema[name]} in the first file; convert files of one schema together"
                )

    def first(self, files: Sequence[Input], records: int, *, skip_bad: bool) -> RecordBlock:
        found = (block for file in files for block in self.beginning(file, records, None))
        return next(found, RecordBlock())

    def blocks(
        self, spans: Sequence[RecordSpan], block_bytes: int, lose: Lose | None = None
    ) -> Iterator[RecordBlock]:
        for span in spans:
            if span.start < span.stop:
                yield from self._blocks(span, block_bytes)

    def _blocks(self, span: RecordSpan, block_bytes: int) -> Iterator[RecordBlock]:
        arrow = pyarrow()
        first = 0
        with opened(span.source) as table:
            for at in range(table.metadata.num_row_groups):
                group = table.metadata.row_group(at)
                begin, first = first, first + group.num_rows
                if begin >= span.stop:
                    return
                if first <= span.start or not group.num_rows:
                    continue
                rows = max(1, block_bytes * group.num_rows // max(1, group.total_byte_size))
                for batch in table.iter_batches(rows, row_groups=[at], columns=[*self.names]):
                    numbers = np.arange(begin, begin + batch.num_rows)
                    begin += batch.num_rows
                    wanted = (numbers >= span.start) & (numbers < span.stop)
                    wanted &= ~np.isin(numbers, span.skipped)
                    if wanted.any():
                        kept = arrow.Table.from_batches([batch]).filter(arrow.array(wanted))
                        yield RecordBlock(kept, [RecordRun(span.source, numbers[wanted])])
        if first < span.stop:
            raise fewer(span, first)


def types_of(table: Any) -> dict[str, str]:
    """Return the types of the fields of a `ParquetFile`, by name."""
    return {field.name: str(field.type) for field in table.schema_arrow}


def fields_of(file: Input, names: Sequence[str] | None, text: str | None) -> dict[str, Any]:
    """Return the types of the fields that are taken of a file, as pyarrow has them, by name.

    Args:
        file: The file; its footer is read.
        names: Fields to take; None for all, or for none but the text.
        text: The field with the text; None for none.

    Raises:
        ReadError: If the file is not Parquet.
        NotFoundError: If it has no such field.
        SourceError: If the field with the text is of another type.
    """
    with opened(file) as table:
        there = {field.name: field.type for field in table.schema_arrow}
    if names is None:
        names = list(there) if text is None else []
    for name in (*names, *([] if text is None else [text])):
        if name not in there:
            raise NotFoundError(
                f"{file.shown}: has no field {name!r:.80}; it has {', '.join(map(repr, there))}"
            )
    if text is not None and not is_text(there[text]):
        raise SourceError(
            f"{file.shown}: field {text!r} is of type {there[text]}, and strings are wanted; field="
            " names one of strings"
        )
    taken = names if text is None else [*names, text]
    return {name: there[name] for name in dict.fromkeys(taken)}


def is_text(kind: Any) -> bool:
    """Return whether values of a type of pyarrow are strings or bytes."""
    types = pyarrow("pyarrow.types")
    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        is_kind(kind)
        for is_kind in (
            *(types.is_string, types.is_large_string, types.is_string_view),
            *(types.is_binary, types.is_large_binary, types.is_binary_view),
            types.is_fixed_size_binary,
        )
    )


def feature_of(shown: str, name: str, kind: Any) -> Feature:
    """Return what a field of a type of pyarrow becomes.

    Raises:
        SourceError: If no array can be made of it.
    """
    types = pyarrow("pyarrow.types")
    if is_text(kind):
        return Feature(BYTES)
    shape: tuple[int | None, ...] = ()
    inner = kind
    if types.is_fixed_size_list(kind):
        inner, shape = kind.value_type, (kind.list_size,)
    elif types.is_list(kind) or types.is_large_list(kind):
        inner, shape = kind.value_type, (None,)
    if types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner):
        dtype = np.dtype(inner.to_pandas_dtype()).name
        return Feature(dtype, shape, raw=dtype in RAW)
    raise SourceError(
        f"{shown}: field {name!r} is of type {kind}; arrays hold strings, numbers, booleans and lists"
        " of numbers: name the fields to take by names= (--name)"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class TableDecoder:
    """Decodes rows of tables. Picklable.

    Args:
        features: The columns, by name.
        text: The field with the text; None for none.
    """

    features: Mapping[str, Feature]
    text: TextField | None = None

    @property
    def checker(self) -> TableDecoder:
        """A decoder that finds the same bad records, and makes no tokens."""
        return TableDecoder(*without_tokens(self.features, self.text))

    def columns(self, records: Any, wrong: Wrong) -> dict[str, Column]:
        fields = {name: name for name in self.features}
        texts: list[Any] = []
        why: dict[int, str] = {}
        if self.text is not None:
            fields[self.text.column] = self.text.name
            texts = _texts(records[self.text.name], self.text.name, why)
        for field in fields.values():
            for row in _nulls(records[field]):
                why.setdefault(row, f"field {field!r} is null, or has a null in it")
        wrong += [(row, ReadError(why[row], why=why[row])) for row in sorted(why)]
        good = [row for row in range(len(records)) if row not in why]
        if why:
            records = records.take(pyarrow().array(good, pyarrow().int64()))
        columns = {
            name: _column(records[fields[name]], feature)
            for name, feature in self.features.items()
            if self.text is None or name != self.text.column
        }
        if self.text is not None:
            self.text.add_to(columns, [texts[row] for row in good], good, wrong)
        return columns


def _nulls(column: Any) -> list[int]:
    """Return the rows of a column that are null, or lists with nulls in them."""
    found = np.asarray(column.is_null().combine_chunks().to_numpy(zero_copy_only=False))
    rows = np.flatnonzero(found).tolist()
    if pyarrow("pyarrow.types").is_nested(column.type):
        compute = pyarrow("pyarrow.compute")
        inner, parents = compute.list_flatten(column), compute.list_parent_indices(column)
        if inner.null_count:
            within = parents.filter(inner.is_null())
            rows = sorted({*rows, *within.to_pylist()})
    return rows


def _texts(column: Any, name: str, reasons: dict[int, str]) -> list[Any]:
    """Return the documents of a column; bad ones get a reason, and are of no use."""
    found: list[Any] = []
    for row, value in enumerate(column.cast(pyarrow().large_binary()).to_pylist()):
        try:
            found.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            reasons.setdefault(row, f"field {name!r} is not UTF-8: {error}")
            found.append(None)
    return found


def _column(column: Any, feature: Feature) -> Column:
    """Return the values of a column without nulls."""
    arrow = pyarrow()
    if feature.opaque:
        array = column.cast(arrow.large_binary()).combine_chunks()
        return _ragged(array, np.frombuffer(array.buffers()[2] or b"", np.uint8))
    if feature.ragged:
        array = column.cast(arrow.large_list(column.type.value_type)).combine_chunks()
        return _ragged(array, _numbers(array.values, feature))
    if feature.shape:
        column = pyarrow("pyarrow.compute").list_flatten(column)
    rows: Array = _numbers(column, feature).reshape(-1, *feature.item_shape)
    return rows


def _ragged(array: Any, values: Any) -> Ragged:
    """Return the column of an array of Arrow; its first row may begin after its first value."""
    if not len(array):
        return Ragged(values[:0], np.zeros(1, np.int64))
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array) + 1]
    return Ragged(values[offsets[0] : offsets[-1]], offsets - offsets[0])


def _numbers(values: Any, feature: Feature) -> Any:
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(feature.numpy_dtype)
