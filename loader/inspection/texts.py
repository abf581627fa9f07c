"""Describes JSON Lines and Parquet files.

Invariant: of JSON Lines the first bytes of one file are read, of Parquet the footers and no row.
Without pyarrow only the sizes of Parquet files are described.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
from collections.abc import Sequence
from typing import Any, Final

from windrow.converters.job.inputs import Input
from windrow.converters.texts.lines import is_compressed, read_lines
from windrow.converters.texts.parquet import opened, types_of
from windrow.inspection.content import content_of
from windrow.inspection.facts import Inspection, RecordFileFacts, SampleFacts
from windrow.inspection.records import inspection_of
from windrow.sources.detection import Contents
from windrow.sources.location import Location

_SAMPLED_RECORDS: Final = 64
# The most files whose footers are read; the records of more are not counted.
_MOST_FOOTERS: Final = 64


def inspect_json_lines(contents: Contents, sizes: bool | None = None) -> Inspection:
    """Describe JSON Lines files; `sizes` is not used, since the sizes of files are always known.

    Raises:
        NotFoundError: If a file does not exist.
        ReadError: If the beginning of the first file cannot be read.
    """
    places = contents.files
    sizes_bytes = [place.size_bytes() for place in places]
    records: list[bytes] = []
    first = next((place for place, size in zip(places, sizes_bytes, strict=True) if size), None)
    if first is not None:
        lines = next(read_lines(first.path, storage_options=first.storage_options), None)
        records = [] if lines is None else lines.records(0, _SAMPLED_RECORDS)
    lengths = [len(record) for record in records]
    packed = any(is_compressed(place.name) for place in places)
    facts = RecordFileFacts(
        name="",
        files=len(places),
        records=0 if first is None else None,
        estimated_records=None,
        stored_bytes=sum(sizes_bytes),
        decoded_bytes=None,
        group_records=None,
        options=("compressed",) if packed else (),
        sample=_sample(lengths),
        first=content_of(records[0]) if records else None,
    )
    return inspection_of(contents, [facts])


def _sample(lengths: Sequence[int]) -> SampleFacts | None:
    if not lengths:
        return None
    median = float(statistics.median(lengths))
    return SampleFacts(len(lengths), min(lengths), median, max(lengths))


def inspect_parquet(contents: Contents, sizes: bool | None = None) -> Inspection:
    """Describe Parquet files; `sizes` is not used, since the sizes of files are always known.

    Raises:
        NotFoundError: If a file does not exist.
        ReadError: If a footer is damaged.
    """
    places = contents.files
    stored = [place.size_bytes() for place in places]
    records: int | None = None
    groups: list[int] = []
    fields: dict[str, str] = {}
    if importlib.util.find_spec("pyarrow") and len(places) <= _MOST_FOOTERS:
        records = 0
        for place, size in zip(places, stored, strict=True):
            with opened(Input(place.path, place.name, size, options=_options(place))) as table:
                records += table.metadata.num_rows
                count = table.metadata.num_row_groups
                groups += [table.metadata.row_group(at).num_rows for at in range(count)]
                fields = fields or types_of(table)
    facts = RecordFileFacts(
        name="",
        files=len(places),
        records=records,
        estimated_records=None,
        stored_bytes=sum(stored),
        decoded_bytes=None,
        group_records=(min(groups), max(groups)) if groups else None,
        options=(),
        sample=None,
        first=None,
    )
    found = inspection_of(contents, [facts])
    return dataclasses.replace(found, attributes={"features": fields} if fields else {})


def _options(place: Location) -> dict[str, Any] | None:
    return None if place.storage_options is None else dict(place.storage_options)
