"""Opening: from a path or URL to what lies there, as sources or as files.

Invariant: names come first, then listings, then first bytes: what a name tells is not asked for. No
record is read.
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Sequence
from typing import Final, Literal

from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
from windrow.inspection import kind_of_head, kind_of_name
from windrow.inspection_place import Place
from windrow.sources import ArrayRecordDataSource, ZarrDataSource
from windrow.sources.paths import parted, refuse_unfinished, what_is_there

Kind = Literal["array_record", "tfrecord", "zarr"]

_ZARR: Final = frozenset(
    {"zarr.json", ".zarray", ".zgroup", ".zmetadata", "attributes.json", "info"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What lies at a place: a Zarr array or group, or files of records."""

    place: Place
    kind: Kind
    files: tuple[Place, ...] = ()


def contents_of(place: Place, *, what: str) -> Contents:
    """What lies at a place.

    Args:
        place: A file, a folder, a glob, a Zarr array or group.
        what: Who asks, for messages.

    Raises:
        NotFoundError: If there is nothing.
        ArgumentError: If it is of a format that can not be read record by record.
        SourceError: If it is of no format that is read.
        ConversionError: If the conversion that writes it has not finished.
    """
    if place.is_local and os.path.exists(place.path):
        if os.path.isdir(place.path):
            return _of_folder(place, what)
        return _of_files(place, [place], what)
    if not place.name.endswith("]"):  # of [10:20], the records of a file
        if glob.has_magic(parted(place.path)[0]):
            found = [place.at(path) for path in place.names.glob(place.path)]
            if not found:
                raise NotFoundError(f"{what}: no file matches {place.shown}; check the pattern")
            return _of_files(place, found, what)
        if place.is_local:
            raise NotFoundError(f"{what}: {place.path} does not exist; {what_is_there(place.path)}")
    if kind_of_name(place.name) is not None:
        return _of_files(place, [place], what)
    return _of_folder(place, what)


def open_source(
    place: Place, *, what: str, names: Sequence[str] = (), split: str | None = None
) -> ArrayRecordDataSource | ZarrDataSource:
    """A source of the records at a place.

    Args:
        place: As for `contents_of`.
        what: Who asks, for messages.
        names: Arrays of a group to take; none for all that count records.
        split: Of a folder that tfds wrote.

    Raises:
        WindrowError: As `contents_of`, or the source itself, raises it.
    """
    contents = contents_of(place, what=what)
    options = place.storage_options
    if contents.kind == "zarr":
        if split is not None:
            raise ArgumentError(f"{what}: --split is for folders that tfds wrote")
        return ZarrDataSource(place.path, names=list(names) or None, storage_options=options)
    if contents.kind == "tfrecord":
        raise ArgumentError(
            f"{what}: {place.shown} is TFRecord, which has no random access; convert it first:"
            " windrow convert SRC DST --to array_record"
        )
    if names:
        raise ArgumentError(f"{what}: --array is for Zarr groups, and {place.shown} is none")
    return ArrayRecordDataSource(place.path, split=split, storage_options=options)


def _of_files(place: Place, files: Sequence[Place], what: str) -> Contents:
    kinds = {kind_of_name(file.name) for file in files}
    if len(kinds) > 1:
        raise SourceError(
            f"{what}: {place.shown} matches files of more than one kind; name one kind, such as"
            " '*.array_record'"
        )
    kind = kinds.pop() or kind_of_head(files[0])
    if kind not in ("array_record", "tfrecord"):
        raise ArgumentError(
            f"{what}: {place.shown} is of format {kind}, which is not read record by record;"
            " convert it first: windrow convert SRC DST --to zarr"
        )
    return Contents(place, "tfrecord" if kind == "tfrecord" else "array_record", tuple(files))


def _of_folder(place: Place, what: str) -> Contents:
    if place.is_local:  # elsewhere the sources ask; not every store answers
        refuse_unfinished(place.path, what=what)
    try:
        names = place.names.names_in(place.path)
    except (NotFoundError, ReadError):
        names = []  # a store may be read and not listed
    if not place.is_local and not names and place.names.is_file(place.path):
        return _of_files(place, [place], what)
    if not _ZARR & set(names):
        for kind in ("array_record", "tfrecord"):
            found = [place.child(name) for name in names if kind_of_name(name) == kind]
            if found:
                return Contents(place, kind, tuple(found))
    return Contents(place, "zarr")
