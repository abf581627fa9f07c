"""Describes ArrayRecord and TFRecord files.

Invariant: it reads the ends of ArrayRecord files and a few record groups. It reads the first bytes of
one TFRecord file and, on a local disk and up to a limit, the lengths of all records.
"""

from __future__ import annotations

import itertools
import mmap
import os
import statistics
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import google_crc32c
import numpy as np

from windrow.converters.records.tfrecord import damaged, is_gzip, masked
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
# A larger group is not read just to show it.
_LARGEST_GROUP_BYTES: Final = 64 << 20

# Bytes of a TFRecord file that are read as a sample.
HEAD_BYTES: Final = 1 << 20
# Local files are walked record by record up to these limits in bytes and records.
_WALKED_BYTES: Final = 1 << 30
_WALKED_RECORDS: Final = 1_000_000
_LENGTH: Final = struct.Struct("<Q")
_CHECKSUM: Final = struct.Struct("<I")
_FRAME_BYTES: Final = 16


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
    # Read byte ranges also on a local disk, since this reads the whole index with options and sizes.
    source = ArrayRecordDataSource(paths, split=split, storage_options=storage_options, direct=True)
    files = {file.path: file for file in source.files}.values()
    records = _sampled(source)
    decoded = [file.facts.decoded_bytes or 0 for file in files]
    groups = [file.group for file in files]
    return RecordFileFacts(
        name=split or "",
        files=len(files),
        records=len(source),
        estimated_records=None,
        stored_bytes=sum(file.facts.size_bytes for file in files),
        decoded_bytes=sum(decoded),
        group_records=(min(groups), max(groups)),
        options=tuple(dict.fromkeys(file.facts.written_with or "" for file in files)),
        sample=_sample(records),
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
    records = [data for _, data in framed_records(first.shown, raw, whole=whole)]
    plain = not any(is_gzip(place.name) for place in places)
    counted = None
    if whole and len(places) == 1:
        counted = len(records)
    elif plain and all(place.is_local for place in places) and sum(sizes) <= _WALKED_BYTES:
        counted = _count([place.path for place in places])
    framed = sum(len(record) + _FRAME_BYTES for record in records)
    estimated = round(sum(sizes) * len(records) / framed) if records and plain else None
    decoded = sum(sizes) if plain else len(raw)
    return RecordFileFacts(
        name=name,
        files=len(places),
        records=counted,
        estimated_records=estimated if counted is None else None,
        stored_bytes=sum(sizes),
        decoded_bytes=None if counted is None else decoded - _FRAME_BYTES * counted,
        group_records=None,
        options=("gzip",) if not plain else (),
        sample=_sample(records),
        first=content_of(records[0]) if records else None,
    )


def head_records(place: Location, size_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the complete records in the first `HEAD_BYTES` of a TFRecord file, with their offsets.

    Raises:
        ReadError: If they are damaged, or the file ends within one.
    """
    raw, whole = _head(place, size_bytes)
    yield from framed_records(place.shown, raw, whole=whole)


def framed_records(shown: str, raw: bytes, *, whole: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the records in the beginning of a TFRecord file, or in all of it, with their offsets.

    Raises:
        ReadError: If a checksum is wrong, or a whole file ends within a record.
    """
    at = number = 0
    while at < len(raw):
        length = length_at(shown, raw, at, number)
        stop = None if length is None else at + 12 + length + 4
        if length is None or stop is None or stop > len(raw):
            if whole:
                raise damaged(shown, number, at, "the file ends within it")
            return
        data = raw[at + 12 : at + 12 + length]
        if masked(google_crc32c.value(data)) != _CHECKSUM.unpack_from(raw, at + 12 + length)[0]:
            raise damaged(shown, number, at, f"the checksum of its {length:,} bytes is wrong")
        yield at, bytes(data)
        at, number = stop, number + 1


def length_at(shown: str, raw: bytes | mmap.mmap, at: int, number: int) -> int | None:
    """Return the length of the record at a byte; None if less than a header is left.

    Raises:
        ReadError: If its checksum is wrong.
    """
    header = raw[at : at + 12]
    if len(header) < 12:
        return None
    if masked(google_crc32c.value(header[:8])) != _CHECKSUM.unpack_from(header, 8)[0]:
        raise damaged(
            shown,
            number,
            at,
            "the checksum of its length is wrong: the file is damaged or is not TFRecord",
        )
    length: int = _LENGTH.unpack_from(header)[0]
    return length


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


def _sample(records: Sequence[bytes]) -> SampleFacts | None:
    sizes = [len(record) for record in records]
    if not sizes:
        return None
    return SampleFacts(len(sizes), min(sizes), float(statistics.median(sizes)), max(sizes))


def _count(paths: Sequence[str]) -> int | None:
    """Count the records of plain TFRecord files on a local disk; None for very many."""
    count = 0
    for path in paths:
        for _ in itertools.islice(_lengths(path), _WALKED_RECORDS + 1 - count):
            count += 1
    return count if count <= _WALKED_RECORDS else None


def _lengths(path: str) -> Iterator[int]:
    """Yield the length of each record of a plain TFRecord file on a local disk."""
    if not os.path.getsize(path):
        return
    at = number = 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        while at < len(raw):
            length = length_at(path, raw, at, number)
            if length is None or at + 16 + length > len(raw):
                raise damaged(path, number, at, "the file ends within it")
            yield length
            at, number = at + 16 + length, number + 1


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
