"""What files of records hold: those of ArrayRecord and of TFRecord.

Invariant: of ArrayRecord files the ends are read, and a few record groups; of TFRecord files the
first bytes of one, and, on a local disk and up to a limit, the lengths of all records.
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

import numpy as np

from windrow.converters.tfrecord import is_gzip
from windrow.errors import ReadError
from windrow.inspection_content import content_of
from windrow.inspection_facts import RecordFiles, SampleFacts
from windrow.inspection_place import Place
from windrow.sources.array_record import ArrayRecordDataSource
from windrow.sources.features import Feature
from windrow.sources.secrets import shown_url

# Of an ArrayRecord file so much is read to see what its records are, but one group always.
_SAMPLED_BYTES: Final = 4 << 20
_SAMPLED_GROUPS: Final = 16
_SAMPLED_RECORDS: Final = 64
# A group that is larger is not read only to be shown.
_LARGEST_GROUP_BYTES: Final = 64 << 20

# Of a TFRecord file so much is read to see what its records are.
HEAD_BYTES: Final = 1 << 20
# Files of a local disk are walked, record by record, up to so many bytes of them, and records.
_WALKED_BYTES: Final = 1 << 30
_WALKED_RECORDS: Final = 1_000_000
_LENGTH: Final = struct.Struct("<Q")
_CHECKSUM: Final = struct.Struct("<I")
_FRAME_BYTES: Final = 16


def array_record_files(
    paths: Any,
    *,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    features: Mapping[str, Feature] | None = None,
) -> RecordFiles:
    """What ArrayRecord files hold.

    Args:
        paths: As for `ArrayRecordDataSource`.
        split: As for `ArrayRecordDataSource`.
        storage_options: As for `ArrayRecordDataSource`.
        features: How features of the records become arrays, where that is known.

    Raises:
        WindrowError: As `ArrayRecordDataSource` raises it.
    """
    # By byte ranges, also on a local disk: so the whole index is read, options and sizes with it.
    source = ArrayRecordDataSource(paths, split=split, storage_options=storage_options, direct=True)
    files = {file.path: file for file in source.files}.values()
    records = _sampled(source)
    decoded = [file.facts.decoded_bytes or 0 for file in files]
    groups = [file.group for file in files]
    return RecordFiles(
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


def tfrecord_files(places: Sequence[Place], *, name: str = "") -> RecordFiles:
    """What TFRecord files hold.

    Args:
        places: The files, at least one.
        name: What they are called together.

    Raises:
        NotFoundError: If a file is not there.
        ReadError: If what is read of one is damaged; the message names file, record and byte.
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
    return RecordFiles(
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


def looks_like_tfrecord(head: bytes) -> bool:
    """Whether a file that begins like this is one of TFRecord: the length has a checksum."""
    try:
        return length_at("", head, 0, 0) is not None
    except ReadError:
        return False


def head_records(place: Place, size_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The records that lie whole in the first `HEAD_BYTES` of a TFRecord file, with their offsets.

    Raises:
        ReadError: If they are damaged, or the file ends within one.
    """
    raw, whole = _head(place, size_bytes)
    yield from framed_records(place.shown, raw, whole=whole)


def framed_records(shown: str, raw: bytes, *, whole: bool) -> Iterator[tuple[int, bytes]]:
    """The records in the beginning of a TFRecord file, or in all of it, with their offsets.

    Raises:
        ReadError: If a checksum is wrong, or a file that is there whole ends within a record.
    """
    at = number = 0
    while at < len(raw):
        length = length_at(shown, raw, at, number)
        stop = None if length is None else at + 12 + length + 4
        if length is None or stop is None or stop > len(raw):
            if whole:
                raise _damaged(shown, number, at, "the file ends within it")
            return
        data = raw[at + 12 : at + 12 + length]
        if _masked(data) != _CHECKSUM.unpack_from(raw, at + 12 + length)[0]:
            raise _damaged(shown, number, at, f"the checksum of its {length:,} bytes is wrong")
        yield at, bytes(data)
        at, number = stop, number + 1


def length_at(shown: str, raw: bytes | mmap.mmap, at: int, number: int) -> int | None:
    """The length of the record at a byte; None where there is less than a header.

    Raises:
        ReadError: If its checksum is wrong.
    """
    header = raw[at : at + 12]
    if len(header) < 12:
        return None
    if _masked(header[:8]) != _CHECKSUM.unpack_from(header, 8)[0]:
        raise _damaged(
            shown,
            number,
            at,
            "the checksum of its length is wrong: the file is damaged or is not TFRecord",
        )
    length: int = _LENGTH.unpack_from(header)[0]
    return length


def _sampled(source: ArrayRecordDataSource) -> list[bytes]:
    """Some records, the first of all first, from few groups."""
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
    """The number of records of plain TFRecord files on a local disk; None of very many."""
    count = 0
    for path in paths:
        for _ in itertools.islice(_lengths(path), _WALKED_RECORDS + 1 - count):
            count += 1
    return count if count <= _WALKED_RECORDS else None


def _lengths(path: str) -> Iterator[int]:
    """The length of each record of a plain TFRecord file on a local disk."""
    if not os.path.getsize(path):
        return
    at = number = 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        while at < len(raw):
            length = length_at(path, raw, at, number)
            if length is None or at + 16 + length > len(raw):
                raise _damaged(path, number, at, "the file ends within it")
            yield length
            at, number = at + 16 + length, number + 1


def _head(place: Place, size_bytes: int) -> tuple[bytes, bool]:
    """The first bytes of a TFRecord file, unpacked, and whether they are all of it."""
    raw = place.head(HEAD_BYTES)
    whole = size_bytes <= len(raw)
    return _unzipped(place, raw, whole) if is_gzip(place.name) else (raw, whole)


def _unzipped(place: Place, raw: bytes, whole: bool) -> tuple[bytes, bool]:
    unzip = zlib.decompressobj(wbits=31)
    try:
        # No more than the head of it: a few bytes may unpack to gigabytes.
        data = unzip.decompress(raw, HEAD_BYTES)
    except zlib.error as error:
        raise ReadError(f"{place.shown}: can not be unpacked as gzip: {error}") from error
    if whole and raw and not unzip.eof and not unzip.unconsumed_tail:
        raise ReadError(f"{place.shown}: is cut off: its gzip data do not end; copy it again")
    return data, whole and unzip.eof and not unzip.unused_data


def _masked(data: bytes) -> int:
    import google_crc32c

    checksum: int = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(shown: str, number: int, at: int, why: str) -> ReadError:
    return ReadError(
        f"{shown_url(shown)}: record {number} at byte {at}: {why}; write or copy the file anew",
        file=shown_url(shown),
        offset=at,
        records=(number, number + 1),
        why=why,
    )
