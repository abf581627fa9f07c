"""Detects the format and the files of the data at a location.

1. Names come first, then listings, then first bytes. A file is not read if its name shows the format.
2. A path that exists is never a glob, whatever its name contains.
3. Hidden files belong to no data set.

Invariant: no record is read; all commands and conversions get the same answer for a location.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Sequence
from typing import Final

from windrow.core.text import listing
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.sources import signatures
from windrow.sources.dataset_info import INFO
from windrow.sources.location import Location
from windrow.sources.remote.paths import parted, refuse_unfinished, what_is_there, zip_url
from windrow.sources.tfds.folder import (
    ARRAY_RECORD,
    CONFIGS,
    FEATURES,
    TfdsFolder,
    dataset_in,
    is_version,
)

TFDS: Final = "tfds"
"""Name of the format of a folder that tfds wrote."""
_HEAD_BYTES: Final = 64 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """The data at a location.

    Args:
        location: The location; for data that tfds wrote, the folder of the dataset.
        format: Name of the format, one of `windrow.formats`.
        files: The files; empty for a folder that is an array or group.
        names: Names in the folder `location`; None if `location` names the files.
        dataset: The dataset that tfds wrote; None for other data.
    """

    location: Location
    format: str
    files: tuple[Location, ...] = ()
    names: tuple[str, ...] | None = None
    dataset: TfdsFolder | None = None

    @property
    def stored_as(self) -> str:
        """The format of the files; for a tfds dataset, the format of its records.

        Raises:
            SourceError: If tfds stored them in a format that Windrow does not read.
        """
        if self.dataset is None:
            return self.format
        formats = self.dataset.formats
        for format in (ARRAY_RECORD, signatures.TFRECORD.name):
            if format in formats:
                return format
        raise SourceError(
            f"{self.location.caller}: {self.location.shown} is a dataset of format {formats[0]},"
            f" which Windrow does not read; build it with --file_format={ARRAY_RECORD}"
        )


def detect(location: Location) -> Contents:
    """Detects the data at a location.

    Args:
        location: A file, a folder, a glob, an array or group; for a dataset of tfds its folder, or
            a parent folder, as `TfdsFolder.found` takes it.

    Raises:
        NotFoundError: If the location does not exist.
        SourceError: If its format is unknown.
        ConversionError: If the conversion that writes it has not finished.
    """
    contents = files_at(location)
    return contents if contents is not None else _folder_at(location)


def files_at(location: Location) -> Contents | None:
    """The files that a location names directly; None if it is a folder, or may be one.

    Raises:
        NotFoundError: If no file exists there.
        SourceError: If the format of the files is unknown.
    """
    if location.is_local and os.path.exists(location.path):
        return None if os.path.isdir(location.path) else file_at(location)
    if is_range(location):
        return Contents(location, signatures.ARRAY_RECORD.name, (location,))
    if is_glob(location):
        return _matched(location)
    if location.is_local:
        raise NotFoundError(
            f"{location.caller}: {location.path} does not exist; {what_is_there(location.path)}"
        )
    signature = signatures.of_name(location.name)
    return None if signature is None else Contents(location, signature.read_as, (location,))


def file_at(location: Location) -> Contents:
    """The file at a location, in the format that its name or its first bytes show.

    Raises:
        SourceError: If its format is unknown.
    """
    return _files(location, [location])


def contents_of_names(location: Location, names: Sequence[str]) -> Contents:
    """The data in the folder `location` without arrays, by the names in it.

    Raises:
        SourceError: If the folder holds no known format.
        WindrowError: As `TfdsFolder.found` raises it.
    """
    dataset = _dataset_at(location, names)
    if dataset is not None:
        found = Contents(location.at(dataset.path), TFDS, names=tuple(names), dataset=dataset)
        shards = [
            name for split in dataset.splits for name in dataset.names(split, found.stored_as)
        ]
        return dataclasses.replace(found, files=tuple(map(found.location.child, shards)))
    signature = signatures.of_folder(names)
    if signature is not None and signature.read_as != signatures.ZARR.name:
        return Contents(location, signature.read_as, names=tuple(names))
    by_format = signatures.by_format(names)
    if not by_format:
        raise SourceError(
            f"{location.caller}: {location.shown} holds nothing that Windrow reads"
            f" ({signatures.titles()}); it holds {listing(list(names))}; name files by a pattern if"
            " their names do not show their format"
        )
    signature, held = next(iter(by_format.items()))
    files = tuple(map(location.child, held))
    return Contents(location, signature.read_as, files, names=tuple(names))


def _dataset_at(location: Location, names: Sequence[str]) -> TfdsFolder | None:
    """The dataset of tfds that a folder with these names is, or stands for; None without one.

    Raises:
        WindrowError: As `TfdsFolder.found` raises it.
    """
    path: str | None = location.path
    if not {INFO, FEATURES} <= set(names):
        inner = [name.rstrip("/") for name in names]
        holds_one = CONFIGS in inner or any(map(is_version, inner))
        # A folder with record files is read as record files, also if it has other files.
        holds_one = holds_one and INFO not in inner and not signatures.by_format(inner)
        path = dataset_in(location.path, location.names) if holds_one else None
    if path is None:
        return None
    options = location.storage_options
    return TfdsFolder.found(path, storage_options=options, what=location.caller)


def is_glob(location: Location) -> bool:
    """Whether a location is a pattern of names."""
    return glob.has_magic(parted(location.path)[0]) and not is_range(location)


def is_range(location: Location) -> bool:
    """Whether a location names records of a file, as `ArrayRecordDataSource` takes it."""
    return re.fullmatch(signatures.RANGE, location.name) is not None


def _matched(location: Location) -> Contents:
    """The files that a glob matches."""
    files = [location.at(path) for path in location.names.glob(location.path)]
    if not files:
        raise NotFoundError(
            f"{location.caller}: no file matches {location.shown}; check the pattern"
        )
    found = {signatures.of_name(file.name) for file in files}
    if len(found) > 1:
        raise SourceError(
            f"{location.caller}: {location.shown} matches files of more than one kind:"
            f" {listing([file.name for file in files])}; name one kind, such as '*.array_record'"
        )
    return _files(location, files)


def _files(location: Location, files: Sequence[Location]) -> Contents:
    """Files of one format, which the first of them shows."""
    signature = signatures.of_name(files[0].name) or _of_head(files[0])
    return Contents(location, signature.read_as, tuple(files))


def _of_head(file: Location) -> signatures.Signature:
    head = file.head(_HEAD_BYTES)
    found = signatures.of_head(head)
    if found is None:
        began = f"begins with {head[:8]!r}" if head else "is empty"
        if head.startswith(b"PK") and file.is_local:
            raise SourceError(
                f"{file.shown} is a zip file; if it holds a Zarr array or group, give"
                f" {zip_url(file.path)!r}"
            )
        raise SourceError(
            f"{file.shown} {began} and is of no format that Windrow reads ({signatures.titles()})"
        )
    return found


def _folder_at(location: Location) -> Contents:
    # Remote folders are checked by the code that opens them; not every store can be listed.
    if location.is_local:
        refuse_unfinished(location.path, what=location.caller)
    try:
        names = location.names.names_in(location.path)
    except (NotFoundError, ReadError):
        names = []  # some stores can be read but not listed
    if not location.is_local and not names and location.names.is_file(location.path):
        return file_at(location)
    signature = signatures.of_folder(names)
    if signature is not None:
        return Contents(location, signature.read_as, names=tuple(names))
    # Missing files are known only if the folder could be listed.
    if names or location.is_local:
        return contents_of_names(location, names)
    return Contents(location, signatures.ZARR.name, names=())
