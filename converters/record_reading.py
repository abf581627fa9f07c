"""ArrayRecord files as input: found and counted, and read from end to end.

Invariant: records come in their order, each record group is decoded once, and what is damaged is an
error or is left out by number: never other bytes, never a shorter file.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.inputs import Input, Paths, find_inputs
from windrow.converters.manifest import Manifest
from windrow.converters.record_groups import opened
from windrow.converters.record_writing import SkippedRecords
from windrow.converters.spans import cut_records
from windrow.errors import ConversionError, NotFoundError, ReadError
from windrow.sources.array_record import ArrayRecordDataSource
from windrow.sources.paths import is_remote, split_path

MARKS: Final = (".array_record", ".arrayrecord")
# What `zarr_to_array_record` keeps in the settings of the manifest for who reads the records.
TOLD: Final = ("features", "arrays", "attributes", "group_attributes")
_NAME: Final = r"(?P<stem>.*?)(?P<mark>\.array_?record)?(?P<shard>-\d+-of-\d+)?"
# Records that are read at once, decoded.
BATCH_BYTES: Final = 8 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFile:
    """An ArrayRecord file that was found whole: input number `at`, with its number of records.

    `group` records are stored as one, of about `record_bytes` each in memory.
    """

    at: int
    source: Input
    records: int
    group: int
    record_bytes: float

    def share(self, start: int, stop: int) -> int:
        """The stored bytes of records `[start, stop)`, as if all were alike; all add up to its size."""
        size, records = self.source.size_bytes, max(1, self.records)
        # What an empty file has belongs to its only range.
        end = size if stop == self.records else size * stop // records
        return end - size * start // records


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Records `[start, stop)` of a file."""

    file: RecordFile
    start: int
    stop: int

    @property
    def stored_bytes(self) -> int:
        """Their share of the file."""
        return self.file.share(self.start, self.stop)


def find_record_files(
    inputs: Paths, *, storage_options: Mapping[str, Any] | None
) -> tuple[RecordFile, ...]:
    """The files that `inputs` names, opened and found whole; no record is read.

    Raises:
        NotFoundError: If a file does not exist.
        SourceError: If one is no whole ArrayRecord file.
        ReadError, ConversionError, ArgumentError: As for `find_inputs`.
    """
    found = find_inputs(inputs, storage_options=storage_options, marks=MARKS)
    source = ArrayRecordDataSource([one.url for one in found], storage_options=storage_options)
    return tuple(
        RecordFile(at, one, file.records, file.group, file.decoded_bytes_each)
        for at, (one, file) in enumerate(zip(found, source.files, strict=True))
    )


def told_of(files: Sequence[RecordFile]) -> dict[str, Any]:
    """What the manifest beside the files says of the features of their records; {} without one.

    Raises:
        ReadError: If there is one, and it is damaged.
    """
    folders = {split_path(file.source.url)[0] for file in files}
    if len(folders) != 1:
        return {}
    (folder,) = folders
    try:
        manifest = Manifest.read(folder, storage_options=files[0].source.options)
    except NotFoundError:
        return {}
    except ReadError:
        if is_remote(folder):
            return {}  # a store that shows its files alone
        raise
    named = {file.name for file in manifest.files}
    if not named.issuperset(file.source.name for file in files):
        return {}
    return {name: manifest.settings[name] for name in TOLD if name in manifest.settings}


def parts_of_name(name: str) -> tuple[str, str, str]:
    """A file's name as what it is called, its mark, and its place in a set; '' for none."""
    match = re.fullmatch(_NAME, name, re.DOTALL)
    if match is None:
        return name, "", ""
    return match["stem"], match["mark"] or "", match["shard"] or ""


def read_span(
    span: Span, skipped: SkippedRecords, *, batch_bytes: int = BATCH_BYTES
) -> Iterator[tuple[int, list[bytes]]]:
    """The records of a span, about `batch_bytes` at a time, each run with the number of its first.

    A record group that cannot be read is left out with all of its records that are in the span, as
    far as `skipped` lets them.

    Raises:
        ReadError: If a record cannot be read; the message names file and records.
        ConversionError: If the file has changed since it was found.
    """
    file = span.file
    open_file = opened([file.source])
    source = open_file.source
    if len(source) != file.records:
        raise ConversionError(
            f"{file.source.shown}: has {len(source)} records now, and had {file.records} when it was"
            " found; leave inputs alone meanwhile, and start anew with overwrite=True"
        )
    begin = span.start
    while begin < span.stop:
        stop = open_file.fitting(file.source, begin, span.stop, batch_bytes)
        yield from _read(source, file.at, begin, stop, skipped)
        begin = stop
    file.source.check_unchanged()


def _read(
    source: ArrayRecordDataSource, at: int, start: int, stop: int, skipped: SkippedRecords
) -> Iterator[tuple[int, list[bytes]]]:
    try:
        records = source.read(np.arange(start, stop, dtype=np.int64))
    except ReadError as error:
        if not skipped.limit or error.records is None:
            raise
        damaged, lost = error, error.records
    else:
        yield start, records
        return
    first, end = max(start, lost[0]), min(stop, lost[1])
    if first >= end:
        raise damaged  # it tells of other records, and would do so for ever
    if first > start:
        yield from _read(source, at, start, first, skipped)
    skipped.add(at, first, end, damaged)
    if end < stop:
        yield from _read(source, at, end, stop, skipped)


def cut(files: Sequence[RecordFile], bounds: Sequence[int]) -> list[tuple[Span, ...]]:
    """The records of all files, counted through, cut at `bounds`: spans of each part, in order."""
    return [
        tuple(Span(files[at], start, stop) for at, start, stop in part)
        for part in cut_records([file.records for file in files], bounds)
    ]
