"""Opening: from a path or URL to what lies there, as sources or as files.

The one place that tells of what kind something is, by names and first bytes; all commands ask it.

Invariant: names come first, then listings, then first bytes: what a name tells is not asked for. No
record is read.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Sequence
from typing import Final, Literal

from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
from windrow.inspection_place import Place
from windrow.inspection_records import looks_like_tfrecord
from windrow.sources import ArrayRecordDataSource, LaidOutSource, ZarrDataSource
from windrow.sources.array_record_chunks import FIRST_CHUNK, SIGNATURE
from windrow.sources.paths import listing, parted, refuse_unfinished, what_is_there
from windrow.sources.tfds_folder import (
    ARRAY_RECORD,
    CONFIGS,
    FEATURES,
    INFO,
    TfdsFolder,
    dataset_in,
    is_version,
)

Kind = Literal["array_record", "tfrecord", "zarr"]

_ZARR: Final = frozenset(
    {"zarr.json", ".zarray", ".zgroup", ".zmetadata", "attributes.json", "info"}
)
_NAMES: Final = (
    ("array_record", r"(?i:.*\.array_?records?(-\d+-of-\d+)?(\[\d+:\d+\])?)"),
    ("tfrecord", r"(?i:.*\.tf_?rec(ord)?s?(-\d+-of-\d+)?(\.gz|\.gzip)?)"),
    ("netcdf", r"(?i:.*\.(nc|nc3|nc4|cdf|netcdf))"),
)
_RANGE: Final = r".\[\d+:\d+\]$"
_NETCDF_MAGIC: Final = (b"\x89HDF\r\n\x1a\n", b"CDF\x01", b"CDF\x02", b"CDF\x05")
_HEAD_BYTES: Final = 64 << 10
_READ: Final = "ArrayRecord, TFRecord, Zarr, N5, Neuroglancer's precomputed volumes and NetCDF"


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What lies at a place: a Zarr array or group, or files of records.

    `dataset` is what tfds told of the files that it wrote; None of others'. The place is its folder.
    """

    place: Place
    kind: Kind
    files: tuple[Place, ...] = ()
    dataset: TfdsFolder | None = None


def contents_of(place: Place, *, what: str) -> Contents:
    """What lies at a place.

    Args:
        place: A file, a folder, a glob, a Zarr array or group; for a dataset of tfds its folder, or
            one above it, as `TfdsFolder.found` takes it.
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
    if is_range(place):
        return Contents(place, "array_record", (place,))
    if is_glob(place):
        kind, found = matched(place, what=what)
        return _of_files(place, found, what, kind)
    if place.is_local:
        raise NotFoundError(f"{what}: {place.path} does not exist; {what_is_there(place.path)}")
    if kind_of_name(place.name) is not None:
        return _of_files(place, [place], what)
    return _of_folder(place, what)


def open_source(
    place: Place, *, what: str, names: Sequence[str] = (), split: str | None = None
) -> LaidOutSource:
    """A source of the records at a place; of what tfds wrote, of the examples.

    Args:
        place: As for `contents_of`.
        what: Who asks, for messages.
        names: Arrays of a group, or features of a dataset, to take; none for all.
        split: Of a folder that tfds wrote: a name, or a part such as 'train[:80%]'.

    Raises:
        WindrowError: As `contents_of`, or the source itself, raises it.
    """
    contents = contents_of(place, what=what)
    options = place.storage_options
    if contents.kind == "zarr":
        if split is not None:
            raise ArgumentError(f"{what}: --split is for folders that tfds wrote")
        return ZarrDataSource(place.path, names=list(names) or None, storage_options=options)
    if contents.dataset is not None:
        from windrow.sources.tfds import TFDSDataSource

        return TFDSDataSource(
            contents.place.path, split=split, names=list(names) or None, storage_options=options
        )
    if contents.kind == "tfrecord":
        raise ArgumentError(
            f"{what}: {place.shown} is TFRecord, which has no random access; convert it first:"
            " windrow convert SRC DST --to array_record"
        )
    if names:
        raise ArgumentError(f"{what}: --array is for Zarr groups, and {place.shown} is none")
    return ArrayRecordDataSource(place.path, split=split, storage_options=options)


def dataset_at(place: Place, names: Sequence[str], *, what: str) -> TfdsFolder | None:
    """The dataset of tfds that a folder with these names is, or stands for; None if it is none.

    Raises:
        WindrowError: As `TfdsFolder.found` raises it.
    """
    path: str | None = place.path
    if not {INFO, FEATURES} <= set(names):
        inner = [name.rstrip("/") for name in names]
        above = CONFIGS in inner or any(map(is_version, inner))
        # With files of records it is their folder, whatever else is in it.
        above = above and INFO not in inner and not _by_kind(inner)
        path = dataset_in(place.path, place.names) if above else None
    if path is None:
        return None
    return TfdsFolder.found(path, storage_options=place.storage_options, what=what)


def is_range(place: Place) -> bool:
    """Whether it names records of a file, `x.array_record[10:20]`, as `ArrayRecordDataSource` does."""
    return re.search(_RANGE, place.name) is not None


def is_glob(place: Place) -> bool:
    """Whether it is a pattern of names."""
    return glob.has_magic(parted(place.path)[0]) and not is_range(place)


def matched(place: Place, *, what: str) -> tuple[str, list[Place]]:
    """The kind of the files that a glob matches, and the files.

    Raises:
        NotFoundError: If there are none.
        SourceError: If they are of more than one kind, or of none that is read.
    """
    files = [place.at(path) for path in place.names.glob(place.path)]
    if not files:
        raise NotFoundError(f"{what}: no file matches {place.shown}; check the pattern")
    kinds = {kind_of_name(file.name) for file in files}
    if len(kinds) > 1:
        raise SourceError(
            f"{what}: {place.shown} matches files of more than one kind:"
            f" {listing([file.name for file in files])}; name one kind, such as '*.array_record'"
        )
    return kinds.pop() or kind_of_head(files[0]), files


def held(place: Place, names: Sequence[str], *, what: str) -> tuple[str, list[str]]:
    """The kind of the files that a folder without arrays holds, by `names`, and their names.

    Raises:
        SourceError: If none is of a kind that is read.
    """
    by_kind = _by_kind(names)
    for kind, _ in _NAMES:
        if kind in by_kind:
            return kind, by_kind[kind]
    raise SourceError(
        f"{what}: {place.shown} holds nothing that Windrow reads ({_READ}); it holds"
        f" {listing(list(names))}; name files by a pattern if their names do not tell"
    )


def _by_kind(names: Sequence[str]) -> dict[str, list[str]]:
    """The names of files, by the kind that they tell."""
    found: dict[str, list[str]] = {}
    for name in names:
        # Hidden files are nobody's data, such as what a copy that was stopped has left.
        kind = None if name.startswith((".", "_")) else kind_of_name(name)
        if kind is not None:
            found.setdefault(kind, []).append(name)
    return found


def kind_of_name(name: str) -> str | None:
    """The kind of a file, by its name."""
    return next((kind for kind, pattern in _NAMES if re.fullmatch(pattern, name)), None)


def kind_of_head(file: Place) -> str:
    """The kind of a file, by its first bytes.

    Raises:
        SourceError: If it is none that is read.
    """
    head = file.head(_HEAD_BYTES)
    if head[:FIRST_CHUNK][-len(SIGNATURE[24:]) :] == SIGNATURE[24:]:
        return "array_record"
    if head.startswith(_NETCDF_MAGIC):
        return "netcdf"
    if looks_like_tfrecord(head):
        return "tfrecord"
    began = f"begins with {head[:8]!r}" if head else "is empty"
    raise SourceError(f"{file.shown} {began} and is of no format that Windrow reads ({_READ})")


def _of_files(place: Place, files: Sequence[Place], what: str, kind: str | None = None) -> Contents:
    kind = kind or kind_of_name(files[0].name) or kind_of_head(files[0])
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
    dataset = None if _ZARR & set(names) else dataset_at(place, names, what=what)
    if dataset is not None:
        return _of_dataset(place.at(dataset.path), dataset)
    # A store may be read and not listed: only of a folder that is, what it lacks is known.
    if not _ZARR & set(names) and (names or place.is_local):
        kind, found = held(place, names, what=what)
        if kind == "netcdf":
            raise SourceError(
                f"{what}: {place.shown} holds {len(found)} NetCDF files: {listing(found)}; name one"
            )
        return _of_files(place, [place.child(name) for name in found], what, kind)
    return Contents(place, "zarr")


def _of_dataset(place: Place, dataset: TfdsFolder) -> Contents:
    kind: Kind = "array_record" if ARRAY_RECORD in dataset.formats else "tfrecord"
    if kind not in dataset.formats:
        raise SourceError(
            f"{place.what}: {place.shown} is a dataset of format {dataset.formats[0]}, which Windrow"
            f" does not read; build it with --file_format={ARRAY_RECORD}"
        )
    files = [name for split in dataset.splits for name in dataset.names(split, kind)]
    return Contents(place, kind, tuple(map(place.child, files)), dataset)
