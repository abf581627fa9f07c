"""Inspection: detects what is at a path or URL, and describes what it holds.

1. A folder whose conversion has not finished is reported as unfinished, whatever lies in it.
2. Detection uses names first, then small files that describe others, then a listing, then the first
   bytes. It does not read what a name already shows.
3. Inspection reads as little data as possible: no chunk of an array, and a few records of files of
   records.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from windrow.converters.job.manifest import MANIFEST_NAME, Manifest
from windrow.errors import ArgumentError, NotFoundError, SourceError
from windrow.formats.table import inspect_contents
from windrow.inspection.arrays import (
    array_names,
    find_arrays,
    inspect_arrays,
    sizes_by_array,
)
from windrow.inspection.facts import Inspection, ManifestFacts
from windrow.inspection.records import features_in, inspect_array_record
from windrow.inspection.tfds import RECORD_FORMATS, inspect_splits
from windrow.sources import signatures
from windrow.sources.dataset_info import INFO, json_object
from windrow.sources.detection import Contents, detect, files_at
from windrow.sources.location import Location, location_of
from windrow.sources.remote.paths import UNFINISHED_MARKER
from windrow.sources.zarr.names import arrays_of

CALLER: Final = "inspect"
T = TypeVar("T")


def inspect(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    sizes: bool | None = None,
) -> Inspection:
    """Describe the data at a path or URL: format, records, shapes, chunks, compression, sizes.

    >>> import windrow
    >>> found = windrow.inspect("examples/data/era5_uk_t2m_2019_03.zarr")  # doctest: +SKIP
    >>> found.format, found.records  # doctest: +SKIP
    ('zarr', 744)

    Args:
        url: A path, a URL or a glob of ArrayRecord or TFRecord files, a folder of them, a folder
            that tfds or a conversion wrote, a Zarr array or group, or a NetCDF file.
        storage_options: Credentials and settings for URLs, as fsspec takes them.
        sizes: Whether to count the stored bytes of arrays. None counts them on a local disk and
            where a conversion's manifest has them. True also lists a remote store, which takes a
            request per 1,000 chunks. False never counts.

    Returns:
        The inspection; `print` shows it as tables, `to_json()` returns plain values. A folder whose
        conversion has not finished has the format 'unfinished', and its `finished` is False.

    Raises:
        ArgumentError: If `url` is not a path, or the storage options do not fit it.
        NotFoundError: If nothing is there.
        SourceError: If Windrow does not read its format, or it is incomplete.
        ReadError: If it cannot be read, or a part that was read is damaged.
        MissingExtraError: If a protocol needs a package that is not installed.
    """
    if sizes not in (None, True, False):
        raise ArgumentError(f"{CALLER}: sizes must be True, False or None, got {sizes!r}")
    location = location_of(url, storage_options, caller=CALLER)
    contents = files_at(location)
    return (
        _inspect_folder(location, sizes) if contents is None else inspect_contents(contents, sizes)
    )


def _inspect_folder(location: Location, sizes: bool | None) -> Inspection:
    if (marker := location.small_file(UNFINISHED_MARKER)) is not None:
        return _unfinished(location, marker)
    manifest = _manifest_of(location)
    if manifest is not None:
        found = _of_converted(location, manifest, sizes)
        return dataclasses.replace(found, manifest=_facts_of(manifest))
    contents = _array_far_away(location) or detect(location)
    is_of_splits = contents.dataset is None and INFO in (contents.names or ())
    if is_of_splits and contents.format in RECORD_FORMATS:
        return inspect_splits(contents)
    try:
        return inspect_contents(contents, sizes)
    except NotFoundError as error:
        if contents.names != () or location.is_local:
            raise
        raise NotFoundError(
            f"{CALLER}: there is nothing at {location.shown}, or it cannot be listed; check the URL, or"
            " name files"
        ) from error


def _array_far_away(location: Location) -> Contents | None:
    """Return a remote array of Zarr v2, which is not listed: its metadata may lie among all its chunks."""
    if location.is_local or location.small_file(".zarray") is None:
        return None
    return Contents(location, signatures.ZARR.name)


def _of_converted(place: Location, manifest: Manifest, sizes: bool | None) -> Inspection:
    """Inspect the output of a conversion, whose manifest lists the files."""
    for signature, names in signatures.by_format(file.name for file in manifest.files).items():
        contents = Contents(place, signature.name, tuple(map(place.child, names)), names=())
        if signature is signatures.ARRAY_RECORD:
            return inspect_array_record(contents, sizes, features_in(manifest.settings))
        return inspect_contents(contents, sizes)
    if not manifest.files:
        return Inspection(place.shown, manifest.format, "folder, empty", 0, 0, 0)
    try:
        tree = find_arrays(place, array_names([file.name for file in manifest.files]))
    except NotFoundError as error:
        raise SourceError(
            f"{CALLER}: {place.shown} has a manifest of {len(manifest.files)} files and holds no"
            f" arrays and no records; copy the folder again"
        ) from error
    listed = [(file.name, file.size_bytes) for file in manifest.files]
    held = sizes_by_array([found.name for found in arrays_of(tree)], listed)
    found_arrays = inspect_arrays(place, tree, {} if sizes is False else held)
    # The manifest has the number of records, even if ragged columns have other lengths.
    return dataclasses.replace(found_arrays, records=manifest.records)


def _manifest_of(place: Location) -> Manifest | None:
    raw = place.small_file(MANIFEST_NAME)
    if raw is None:
        return None
    return Manifest.from_bytes(raw, where=place.child(MANIFEST_NAME).shown)


def _facts_of(manifest: Manifest) -> ManifestFacts:
    return ManifestFacts(
        windrow=manifest.versions.get("windrow"),
        format=manifest.format,
        records=manifest.records,
        skipped_records=len(manifest.skipped),
        inputs=len(manifest.inputs),
        input_bytes=sum(file.size_bytes for file in manifest.inputs),
        files=len(manifest.files),
        file_bytes=sum(file.size_bytes for file in manifest.files),
        settings=dict(manifest.settings),
    )


def _unfinished(place: Location, marker: bytes) -> Inspection:
    """Inspect an unfinished conversion by its marker, which may be cut off."""
    declared = json_object(marker)

    def of_type(name: str, kind: type[T]) -> T | None:
        value = declared.get(name)
        return value if isinstance(value, kind) else None

    inputs = of_type("inputs", list)
    sizes = [item.get("size_bytes") for item in inputs or () if isinstance(item, dict)]
    known = [size for size in sizes if isinstance(size, int)]
    facts = ManifestFacts(
        format=of_type("format", str),
        inputs=None if inputs is None else len(inputs),
        input_bytes=sum(known) if inputs is not None and len(known) == len(inputs) else None,
        settings=of_type("settings", dict) or {},
        resume=of_type("resume", str),
    )
    shown = place.shown
    return Inspection(shown, "unfinished", "", None, None, None, manifest=facts, finished=False)
