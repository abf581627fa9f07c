"""Describes files of records: ArrayRecord, TFRecord, JSON Lines and Parquet.

Invariant: it reads the ends of ArrayRecord files and a few record groups. It reads the first bytes of
one TFRecord file and, on a local disk and up to a limit, the lengths of all records. It reads the first
bytes of one file of JSON Lines, and the footers of Parquet files; without pyarrow only their sizes are
described.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.job.inputs import Input
from windrow.converters.records.tfrecord import FRAME_BYTES, head_records, is_gzip, record_stops
from windrow.converters.texts.lines import is_compressed, read_lines
from windrow.converters.texts.parquet import opened, types_of
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.inspection.content import content_of
from windrow.inspection.facts import Inspection, RecordFileFacts, SampleFacts
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.detection import Contents
from windrow.sources.location import Location
from windrow.sources.tf_example.features import Feature, features_from_json

# Bytes of an ArrayRecord file that are read as a sample; one group is always read.
_SAMPLED_BYTES: Final = 4 << 20
_SAMPLED_GROUPS: Final = 16
_SAMPLED_RECORDS: Final = 64
# The most Parquet files whose footers are read; the records of more are not counted.
_MOST_FOOTERS: Final = 64
# A larger group is not read just to show it.
_LARGEST_GROUP_BYTES: Final = 64 << 20

# Bytes of a TFRecord file that are read as a sample.
HEAD_BYTES: Final = 1 << 20
# Local files are walked record by record up to these limits in bytes and records.
_WALKED_BYTES: Final = 1 << 30
_WALKED_RECORDS: Final = 1_000_000


def inspect_array_record(
    contents: Contents, sizes: bool | None = None, features: Mapping[str, Feature] | None = None
) -> Inspection:
    """Describe ArrayRecord files.

    Args:
        contents: The files, or the folder in which they were found.
        sizes: Not used, since the sizes of files are always known.
        features: How features of the records become arrays; None if unknown.

    Raises:
        WindrowError: As `ArrayRecordDataSource` raises it.
    """
    place = contents.location
    # Open a listed folder as a folder, so that a missing shard is found.
    paths = place.path if contents.names else [file.path for file in contents.files]
    found = array_record_files(paths, storage_options=place.storage_options, features=features)
    return inspection_of(contents, [found])


def inspect_tfrecord(contents: Contents, sizes: bool | None = None) -> Inspection:
    """Describe TFRecord files; `sizes` is not used, since the sizes of files are always known.

    Raises:
        WindrowError: As `tfrecord_files` raises it.
    """
    return inspection_of(contents, [tfrecord_files(contents.files)])


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
    packed = any(is_compressed(place.name) for place in places)
    facts = RecordFileFacts(
        files=len(places),
        records=0 if first is None else None,
        stored_bytes=sum(sizes_bytes),
        options=("compressed",) if packed else (),
        sample=SampleFacts.of(records),
        first=content_of(records[0]) if records else None,
    )
    return inspection_of(contents, [facts])


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
            options = None if place.storage_options is None else dict(place.storage_options)
            with opened(Input(place.path, place.name, size, options=options)) as table:
                records += table.metadata.num_rows
                count = table.metadata.num_row_groups
                groups += [table.metadata.row_group(at).num_rows for at in range(count)]
                fields = fields or types_of(table)
    facts = RecordFileFacts(
        files=len(places),
        records=records,
        stored_bytes=sum(stored),
        group_records=(min(groups), max(groups)) if groups else None,
    )
    found = inspection_of(contents, [facts])
    return dataclasses.replace(found, attributes={"features": fields} if fields else {})


def inspection_of(
    contents: Contents, files: Sequence[RecordFileFacts], variant: str | None = None
) -> Inspection:
    """Make the inspection of files of records, with one entry of `files` per split."""
    if variant is None and contents.names is not None:
        variant = "folder"
    elif variant is None:
        is_single = [file.path for file in contents.files] == [contents.location.path]
        variant = "file" if is_single else "files"
    counts = [item.records for item in files]
    decoded = [item.decoded_bytes for item in files]
    return Inspection(
        url=contents.location.shown,
        format=contents.format,
        variant=variant,
        records=sum(n for n in counts if n is not None) if None not in counts else None,
        stored_bytes=sum(item.stored_bytes for item in files),
        decoded_bytes=sum(n for n in decoded if n is not None) if None not in decoded else None,
        files=tuple(files),
    )


def features_in(settings: Mapping[str, Any]) -> Mapping[str, Feature]:
    """Return how the features of Examples become arrays, from the settings of a conversion."""
    declared = settings.get("features")
    try:
        return features_from_json(declared, where="manifest") if isinstance(declared, dict) else {}
    except ReadError:
        return {}  # perhaps of a later version; the records can be shown without it


def array_record_files(
    paths: Any,
    *,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    features: Mapping[str, Feature] | None = None,
) -> RecordFileFacts:
    """Describe ArrayRecord files.

    Args:
        paths: As for `ArrayRecordDataSource`.
        split: As for `ArrayRecordDataSource`.
        storage_options: As for `ArrayRecordDataSource`.
        features: How features of the records become arrays, if known.

    Raises:
        WindrowError: As `ArrayRecordDataSource` raises it.
    """
    # The core reads the whole index, with options and sizes.
    direct = native() is not None or None
    source = ArrayRecordDataSource(
        paths, split=split, storage_options=storage_options, direct=direct
    )
    files = {file.path: file for file in source.files}.values()
    records = _sampled(source)
    decoded = [file.facts.decoded_bytes for file in files]
    return RecordFileFacts(
        name=split or "",
        files=len(files),
        records=len(source),
        stored_bytes=sum(file.facts.size_bytes for file in files),
        decoded_bytes=sum(n for n in decoded if n is not None) if None not in decoded else None,
        group_records=(min(file.group for file in files), max(file.group for file in files)),
        options=tuple(dict.fromkeys(file.facts.written_with or "" for file in files)),
        sample=SampleFacts.of(records),
        first=content_of(records[0], features) if records else None,
    )


def tfrecord_files(places: Sequence[Location], *, name: str = "") -> RecordFileFacts:
    """Describe TFRecord files.

    Args:
        places: The files, at least one.
        name: Their name as a split.

    Raises:
        NotFoundError: If a file does not exist.
        ReadError: If a part that is read is damaged; the message names file, record and byte.
    """
    sizes = [place.size_bytes() for place in places]
    first, size = next(
        ((place, size) for place, size in zip(places, sizes, strict=True) if size), (places[0], 0)
    )
    raw, whole = _head(first, size)
    records = head_records(first.shown, raw, whole=whole)
    plain = not any(is_gzip(place.name) for place in places)
    counted = None
    if whole and len(places) == 1:
        counted = len(records)
    elif plain and all(place.is_local for place in places) and sum(sizes) <= _WALKED_BYTES:
        counted = _count([place.path for place in places])
    framed = sum(len(record) + FRAME_BYTES for record in records)
    estimated = round(sum(sizes) * len(records) / framed) if records and plain else None
    decoded = sum(sizes) if plain else len(raw)
    return RecordFileFacts(
        name=name,
        files=len(places),
        records=counted,
        estimated_records=estimated if counted is None else None,
        stored_bytes=sum(sizes),
        decoded_bytes=None if counted is None else decoded - FRAME_BYTES * counted,
        options=("gzip",) if not plain else (),
        sample=SampleFacts.of(records),
        first=content_of(records[0]) if records else None,
    )


def first_records(place: Location, size_bytes: int) -> list[bytes]:
    """Return the complete records in the first `HEAD_BYTES` of a TFRecord file.

    Raises:
        ReadError: If they are damaged, or the file ends within one.
    """
    raw, whole = _head(place, size_bytes)
    return head_records(place.shown, raw, whole=whole)


def _sampled(source: ArrayRecordDataSource) -> list[bytes]:
    """Read some records from a few groups, beginning with the first record."""
    records = len(source)
    if not records:
        return []
    bounds = source.blocks()
    groups = len(bounds) - 1
    stored = sum(file.facts.data_bytes for file in source.files)
    of_group = max(1, stored // groups)
    if of_group > _LARGEST_GROUP_BYTES:
        return []
    count = int(min(groups, _SAMPLED_GROUPS, max(1, _SAMPLED_BYTES // of_group)))
    chosen = np.linspace(0, groups - 1, count).astype(np.int64)
    each = max(1, _SAMPLED_RECORDS // count)
    spread = [np.linspace(bounds[g], bounds[g + 1] - 1, each).astype(np.int64) for g in chosen]
    return source.read(np.unique(np.concatenate(spread)))


def _count(paths: Sequence[str]) -> int | None:
    """Count the records of plain TFRecord files on a local disk; None for very many."""
    stops = itertools.chain.from_iterable(map(record_stops, paths))
    count = sum(1 for _ in itertools.islice(stops, _WALKED_RECORDS + 1))
    return count if count <= _WALKED_RECORDS else None


def _head(place: Location, size_bytes: int) -> tuple[bytes, bool]:
    """Return the first bytes of a TFRecord file, unpacked, and whether they are the whole file."""
    raw = place.head(HEAD_BYTES)
    whole = size_bytes <= len(raw)
    return _unzipped(place, raw, whole) if is_gzip(place.name) else (raw, whole)


def _unzipped(place: Location, raw: bytes, whole: bool) -> tuple[bytes, bool]:
    unzip = zlib.decompressobj(wbits=31)
    try:
        # Unpack only the head, since a few bytes may unpack to gigabytes.
        data = unzip.decompress(raw, HEAD_BYTES)
    except zlib.error as error:
        raise ReadError(f"{place.shown}: cannot be unpacked as gzip: {error}") from error
    if whole and raw and not unzip.eof and not unzip.unconsumed_tail:
        raise ReadError(f"{place.shown}: is cut off: its gzip data do not end; copy it again")
    return data, whole and unzip.eof and not unzip.unused_data
