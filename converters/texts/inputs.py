"""What a conversion of text reads: files and fields, and what becomes of the text.

Invariant: equal inputs and settings give an equal `TextWork`. At most the first records of JSON Lines are
read for it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windrow.converters.job.inputs import Input, Paths, find_inputs
from windrow.converters.records.record_files import RecordFormat, reporting_changes
from windrow.converters.texts.fields import (
    LINE,
    JsonDecoder,
    TextField,
    inferred_fields,
)
from windrow.converters.texts.lines import JsonLinesFiles
from windrow.converters.texts.parquet import ParquetFiles, TableDecoder, feature_of, fields_of
from windrow.converters.texts.tokens import Tokens, tokens_of
from windrow.converters.zarr.decoding import SAMPLE_RECORDS
from windrow.converters.zarr.records_work import RecordsWork
from windrow.converters.zarr.rows import Described, Features, Storage, asked_for, check_names
from windrow.errors import ArgumentError
from windrow.sources.signatures import JSON_LINES, PARQUET
from windrow.sources.tf_example.features import BYTES, Feature

_HINT: Final = "leave it out by names= (--name)"


@dataclasses.dataclass(frozen=True, slots=True)
class TextWork:
    """Files, how they are read, and how their records become columns. Picklable.

    `files` reads the files `found`.
    """

    found: tuple[Input, ...]
    files: RecordFormat
    decoder: JsonDecoder | TableDecoder

    @property
    def tokens(self) -> Tokens | None:
        """What makes tokens of the text; None if it stays text, or there is no text."""
        return None if self.decoder.text is None else self.decoder.text.tokens

    def to_json(self) -> dict[str, Any]:
        """The settings of a plan."""
        text = self.decoder.text
        tokens = {"tokenizer": None, "end_token": None}
        return {
            "field": None if text is None else text.name,
            **(tokens if self.tokens is None else self.tokens.to_json()),
        }

    def counting(
        self, known: Described, storage: Storage, max_bad_records: int, memory_bytes: int
    ) -> RecordsWork:
        """Return the work whose first stage counts the records, and which writes them to Zarr."""
        return RecordsWork(
            self.files,
            self.found,
            known,
            None,
            storage,
            max_bad_records,
            memory_bytes,
            self.decoder,
            self.decoder.checker,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class TextRequest:
    """The arguments of `json_lines_to_zarr` that say what is read.

    Raises:
        ArgumentError: If they are of the wrong kind, or do not go together.
    """

    inputs: Paths
    field: str | None
    tokenizer: str | os.PathLike[str] | None
    end_token: str | int | None
    storage_options: Mapping[str, Any] | None
    names: Sequence[str] | None = None

    def text(self) -> TextField | None:
        """Return the field with the text, if there is one; the tokenizer is read."""
        field, tokenizer, end_token = self.field, self.tokenizer, self.end_token
        if field is not None and (not isinstance(field, str) or not field):
            raise ArgumentError(f"field is the name of the field with the text, got {field!r:.80}")
        if tokenizer is not None and field is None:
            raise ArgumentError("tokenizer needs field=, the name of the field with the text")
        if end_token is not None and tokenizer is None:
            raise ArgumentError("end_token needs tokenizer=, the path of a tokenizer.json")
        if field is None or tokenizer is None:
            return None if field is None else TextField(field)
        tokens = tokens_of(tokenizer, end_token, storage_options=self.storage_options)
        return TextField(field, tokens)

    def distinct(self) -> list[str] | None:
        """Return the names of fields, each once; None for none."""
        names = self.names
        if names is None:
            return None
        is_list = isinstance(names, Sequence) and not isinstance(names, str)
        if not is_list or not names or not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"names is a list of one field or more, got {names!r:.80}")
        return list(dict.fromkeys(names))


def json_lines_work(
    asked: TextRequest,
    *,
    features: Features | None = None,
    skip_bad: bool = False,
    whole_lines: bool = False,
) -> TextWork:
    """Return what `json_lines_to_zarr` reads; arguments and errors as there.

    With `whole_lines`, records are the lines themselves unless there is a field.
    """
    if asked.names is not None and features is not None:
        raise ArgumentError("names and features both say which fields to take; give one of them")
    text, names = asked.text(), asked.distinct()
    found = find_inputs(asked.inputs, storage_options=asked.storage_options, marks=JSON_LINES.marks)
    files = JsonLinesFiles()
    if whole_lines and text is None:
        return TextWork(found, files, JsonDecoder({LINE: Feature(BYTES)}, whole=True))
    taken: dict[str, Feature] = {}
    if features is not None:
        taken = dict(asked_for(features).features)
    elif text is None or names:
        with reporting_changes(found):
            sample = files.first(found, SAMPLE_RECORDS, skip_bad=skip_bad)
        taken = inferred_fields(sample, names, skip_bad=skip_bad)
    columns = _columns(taken, text)
    decoder = JsonDecoder(columns, text, exact=text is None and names is None and features is None)
    return TextWork(found, files, decoder)


def parquet_work(asked: TextRequest) -> TextWork:
    """Return what `parquet_to_zarr` reads; arguments and errors as there."""
    text = asked.text()
    found = find_inputs(asked.inputs, storage_options=asked.storage_options, marks=PARQUET.marks)
    names = asked.distinct()
    kinds = fields_of(found[0], names, asked.field)
    wanted = kinds if text is None else names or ()
    taken = {name: feature_of(found[0].shown, name, kinds[name]) for name in wanted}
    files = ParquetFiles(tuple(kinds), {name: str(kind) for name, kind in kinds.items()})
    return TextWork(found, files, TableDecoder(_columns(taken, text), text))


def _columns(taken: Mapping[str, Feature], text: TextField | None) -> dict[str, Feature]:
    """Return the columns of all fields that are taken.

    Raises:
        ArgumentError: If no array can have the name of one.
    """
    columns = dict(taken)
    if text is not None:
        if text.tokens is None:
            columns.pop(text.name, None)
        elif text.column in columns:
            raise ArgumentError(
                f"field {text.column!r} would have the name of the array of tokens; {_HINT}"
            )
        columns[text.column] = text.feature
    check_names(columns, hint=_HINT)
    return columns
