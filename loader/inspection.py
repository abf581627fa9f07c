"""Inspection: finding out what is at a path or URL, and what it holds.

1. A folder that a conversion has begun and not finished is told as such, whatever lies in it.
2. Names come first, then small files that tell of others, then a listing, then the first bytes:
   what a name tells is not asked for.
3. Of the data so much is read as tells what they are: no chunk of an array, of files of records a
   few records.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windrow.converters.manifest import MANIFEST_NAME, Manifest
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
from windrow.inspection_arrays import (
    array_names,
    find_arrays,
    inspect_arrays,
    listed_sizes,
    sizes_by_array,
)
from windrow.inspection_facts import Inspection, ManifestFacts, RecordFiles
from windrow.inspection_netcdf import inspect_netcdf
from windrow.inspection_place import WHAT, Place, place_of
from windrow.inspection_records import array_record_files, tfrecord_files
from windrow.opening import dataset_at, held, is_glob, is_range, kind_of_head, kind_of_name, matched
from windrow.sources.features import Feature, features_from_json
from windrow.sources.paths import UNFINISHED_MARKER, listing, what_is_there
from windrow.sources.tfds_folder import ARRAY_RECORD, INFO, TfdsFolder, splits_of
from windrow.sources.zarr_names import FoundTree, arrays_of

_ZARR_NAME: Final = r"(?i:.*\.(zarr|n5|zip))"
_SPLIT: Final = r"(?P<name>.+)-(?P<split>[^-/]+)\.(?P<format>[a-z_]+)-\d{5,}-of-\d{5,}"


def inspect(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    sizes: bool | None = None,
) -> Inspection:
    """What is at a path or URL: format, records, shapes, chunks, compression, sizes.

    >>> import windrow
    >>> found = windrow.inspect("examples/data/era5_uk_t2m_2019_03.zarr")  # doctest: +SKIP
    >>> found.format, found.records  # doctest: +SKIP
    ('zarr', 744)

    Args:
        url: A path, a URL or a glob: of ArrayRecord or TFRecord files, a folder of them, a folder
            that tfds or a conversion wrote, a Zarr array or group, or a NetCDF file.
        storage_options: Credentials and settings for URLs, as fsspec takes them.
        sizes: Whether the bytes that arrays take as stored are counted. None does so on a local
            disk and where a conversion's manifest has them; True lists a store far away too, which
            takes a request per 1,000 chunks; False never does it.

    Returns:
        What is there; `print` shows it as tables, `to_json()` gives plain values. A folder whose
        conversion has not finished is one of format 'unfinished', and its `finished` is False.

    Raises:
        ArgumentError: If `url` is no path, or the storage options do not fit it.
        NotFoundError: If there is nothing.
        SourceError: If it is of no format that is read, or not whole.
        ReadError: If it can not be read, or what was read of it is damaged.
        MissingExtraError: If a protocol needs a package that is not installed.
    """
    if sizes not in (None, True, False):
        raise ArgumentError(f"{WHAT}: sizes must be True, False or None, got {sizes!r}")
    place = place_of(url, storage_options)
    # A path that exists is never a glob, whatever is in its name.
    if not (place.is_local and os.path.exists(place.path)):
        ranged = is_range(place)
        if is_glob(place):
            of, files = matched(place, what=WHAT)
            return _of_files(place, files, of)
        if place.is_local and not ranged:
            raise NotFoundError(f"{WHAT}: {place.path} does not exist; {what_is_there(place.path)}")
        kind = "array_record" if ranged else kind_of_name(place.name)
        return _of_folder(place, sizes) if kind is None else _of_files(place, [place], kind)
    if os.path.isdir(place.path):
        return _of_folder(place, sizes)
    return _of_files(place, [place], kind_of_name(place.name) or kind_of_head(place))


def _of_files(place: Place, files: Sequence[Place], kind: str) -> Inspection:
    """What files of one kind hold."""
    if kind == "netcdf":
        if len(files) > 1:
            raise SourceError(
                f"{WHAT}: {place.shown} matches {len(files)} NetCDF files; inspect them one by one"
            )
        return inspect_netcdf(files[0])
    if kind == "array_record":
        paths = [file.path for file in files]
        found = array_record_files(paths, storage_options=place.storage_options)
    else:
        found = tfrecord_files(files)
    variant = ("file" if len(files) == 1 else "files") if files[0].path == place.path else "files"
    return _of_records(place, kind, variant, [found])


def _of_records(
    place: Place, format: str, variant: str, files: Sequence[RecordFiles]
) -> Inspection:
    counts = [item.records for item in files]
    decoded = [item.decoded_bytes for item in files]
    return Inspection(
        url=place.shown,
        format=format,
        variant=variant,
        records=sum(n for n in counts if n is not None) if None not in counts else None,
        stored_bytes=sum(item.stored_bytes for item in files),
        decoded_bytes=sum(n for n in decoded if n is not None) if None not in decoded else None,
        files=tuple(files),
    )


def _of_folder(place: Place, sizes: bool | None) -> Inspection:
    if (marker := place.small_file(UNFINISHED_MARKER)) is not None:
        return _unfinished(place, marker)
    manifest = _manifest_of(place)
    if manifest is not None:
        found = _of_converted(place, manifest, sizes)
        return dataclasses.replace(found, manifest=_facts_of(manifest))
    tree = _arrays_at(place)
    if tree is not None:
        return inspect_arrays(place, tree, _stored(place, tree, sizes))
    return _of_listed(place)


def _of_converted(place: Place, manifest: Manifest, sizes: bool | None) -> Inspection:
    """What a conversion wrote: its manifest lists the files."""
    kinds = {kind_of_name(file.name.rpartition("/")[2]) for file in manifest.files}
    if kinds & {"array_record", "tfrecord"}:
        kind = (kinds & {"array_record", "tfrecord"}).pop()
        files = [place.child(f.name) for f in manifest.files if kind_of_name(f.name) == kind]
        features = _features(manifest)
        if kind == "array_record":
            paths = [file.path for file in files]
            options = place.storage_options
            found = array_record_files(paths, storage_options=options, features=features)
        else:
            found = tfrecord_files(files)
        return _of_records(place, str(kind), "folder", [found])
    tree = _arrays_at(place, array_names([file.name for file in manifest.files]))
    if tree is None:
        if manifest.files:
            raise SourceError(
                f"{WHAT}: {place.shown} has a manifest of {len(manifest.files)} files and holds no"
                f" arrays and no records; copy the folder again"
            )
        return Inspection(place.shown, manifest.format, "folder, empty", 0, 0, 0)
    listed = {file.name: file.size_bytes for file in manifest.files}
    held = sizes_by_array([found.name for found in arrays_of(tree)], listed)
    found_arrays = inspect_arrays(place, tree, {} if sizes is False else held)
    # The manifest knows how many records there are, also where ragged columns have other lengths.
    return dataclasses.replace(found_arrays, records=manifest.records)


def _of_listed(place: Place) -> Inspection:
    """What a folder holds that is no array, by the names in it."""
    try:
        names = place.names.names_in(place.path)
    except (NotFoundError, ReadError) as error:
        if not place.is_local and place.names.is_file(place.path):
            return _of_files(place, [place], kind_of_head(place))
        if isinstance(error, ReadError):
            raise
        raise NotFoundError(
            f"{WHAT}: there is nothing at {place.shown}, or it can not be listed; check the URL, or"
            " name files"
        ) from error
    if not place.is_local and not names and place.names.is_file(place.path):
        return _of_files(place, [place], kind_of_head(place))
    if not names and not place.is_local:
        raise NotFoundError(f"{WHAT}: there is nothing at {place.shown}; check the URL")
    dataset = dataset_at(place, names, what=WHAT)
    if dataset is not None:
        return _of_dataset(place.at(dataset.path), dataset)
    kind, found_names = held(place, names, what=WHAT)
    if INFO in names and kind != "netcdf":
        return _of_tfds(place, kind, found_names)
    if kind == "array_record":
        # By the folder, so that a missing shard is found.
        found = array_record_files(place.path, storage_options=place.storage_options)
        return _of_records(place, kind, "folder", [found])
    files = [place.child(name) for name in found_names]
    if kind == "netcdf" and len(files) > 1:
        raise SourceError(
            f"{WHAT}: {place.shown} holds {len(files)} NetCDF files: {listing(found_names)};"
            " inspect them one by one"
        )
    if kind == "netcdf":
        return inspect_netcdf(files[0])
    return _of_records(place, kind, "folder", [tfrecord_files(files)])


def _of_dataset(place: Place, dataset: TfdsFolder) -> Inspection:
    """A dataset of tfds: one entry per split, and its features."""
    found = []
    kind = ARRAY_RECORD if ARRAY_RECORD in dataset.formats else dataset.formats[0]
    if kind not in (ARRAY_RECORD, "tfrecord"):
        raise SourceError(
            f"{WHAT}: {place.shown} is a dataset of format {kind}, which is not read; build it with"
            f" --file_format={ARRAY_RECORD}"
        )
    for split in dataset.splits.values():
        if kind == ARRAY_RECORD:
            files: Any = dataset.instructions(split.name)
            one = array_record_files(files, storage_options=place.storage_options)
        else:
            one = tfrecord_files([place.at(path) for path in dataset.files(split.name, kind)])
            one = dataclasses.replace(one, records=split.records, estimated_records=None)
        found.append(dataclasses.replace(one, name=split.name))
    variant = "of ArrayRecord" if kind == ARRAY_RECORD else "of TFRecord"
    told: dict[str, Any] = {"name": dataset.name, "version": dataset.version}
    told |= {"config": dataset.config} if dataset.config else {}
    told |= {"description": dataset.description} if dataset.description else {}
    told["features"] = _features_of(dataset)
    return dataclasses.replace(_of_records(place, "tfds", variant, found), attributes=told)


def _features_of(dataset: TfdsFolder) -> Mapping[str, str] | str:
    """What the features of a dataset are, by name; why that is not told, where it can not be."""
    try:
        leaves = dataset.features.leaves
    except SourceError as error:
        return str(error)
    found = {}
    for leaf in leaves:
        told = [leaf.feature, *([leaf.dtype] if leaf.dtype != "bytes" else [])]
        shape = (*leaf.lengths, *leaf.shape)
        told += [f"({', '.join('?' if n is None else str(n) for n in shape)})"] if shape else []
        if leaf.names:
            told.append(f"{len(leaf.names)} classes: {listing(list(leaf.names))}")
        found[leaf.name] = " ".join(told)
    return found


def _of_tfds(place: Place, kind: str, names: Sequence[str]) -> Inspection:
    """A folder that tfds wrote: one entry per split."""
    info = _json_object(place.small_file(INFO))
    splits: dict[str, list[str]] = {}
    for name in names:
        if match := re.fullmatch(_SPLIT, name):
            splits.setdefault(match["split"], []).append(name)
    counted = _counts_of_tfds(info)
    found = []
    for split, files in sorted(splits.items()):
        if kind == "array_record":
            options = place.storage_options
            one = array_record_files(place.path, split=split, storage_options=options)
        else:
            one = tfrecord_files([place.child(name) for name in files], name=split)
            if one.records is None and split in counted:
                one = dataclasses.replace(one, records=counted[split], estimated_records=None)
        found.append(one)
    if not found:
        raise SourceError(
            f"{WHAT}: {place.shown} has a {INFO}, and no file in it is named as a shard of a"
            f" split; it holds {listing(list(names))}"
        )
    inspection = _of_records(
        place, "tfds", "of ArrayRecord" if kind == "array_record" else "of TFRecord", found
    )
    told = {key: info[key] for key in ("name", "version", "description") if info.get(key)}
    return dataclasses.replace(inspection, attributes=told)


def _counts_of_tfds(info: Mapping[str, Any]) -> dict[str, int]:
    try:
        return {split.name: split.records for split in splits_of(info)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _arrays_at(place: Place, names: Sequence[str] = ()) -> FoundTree | None:
    """The arrays at a place, of which `names` may be some; None where there are none."""
    try:
        return find_arrays(place, names)
    except NotFoundError:
        # What is named as one is not looked for otherwise.
        if re.fullmatch(_ZARR_NAME, place.name):
            raise
        return None


def _stored(place: Place, tree: FoundTree, sizes: bool | None) -> Mapping[str, int] | None:
    """Bytes of each array, where they are not to be counted on a local disk."""
    if sizes is False or (sizes is None and not place.is_local):
        return {}
    if place.is_local:
        return None
    return sizes_by_array([found.name for found in arrays_of(tree)], listed_sizes(place))


def _manifest_of(place: Place) -> Manifest | None:
    raw = place.small_file(MANIFEST_NAME)
    if raw is None:
        return None
    where = place.child(MANIFEST_NAME).shown
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ReadError(f"{where}: cannot be read: {error}; convert anew") from error
    return Manifest.from_json(value, where=where)


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


def _features(manifest: Manifest) -> Mapping[str, Feature]:
    """How the features of Examples become arrays, where the conversion says it."""
    told = manifest.settings.get("features")
    try:
        return features_from_json(told, where=MANIFEST_NAME) if isinstance(told, dict) else {}
    except ReadError:
        return {}  # of a later version, maybe: the records can be shown without


def _unfinished(place: Place, marker: bytes) -> Inspection:
    """A folder that a conversion has begun: what its marker says, which may be cut off."""
    told = _json_object(marker)
    inputs = told.get("inputs")
    inputs = inputs if isinstance(inputs, list) else None
    sizes = [item.get("size_bytes") for item in inputs or () if isinstance(item, dict)]
    settings = told.get("settings")
    format, resume = told.get("format"), told.get("resume")
    known = [size for size in sizes if isinstance(size, int)]
    facts = ManifestFacts(
        windrow=None,
        format=format if isinstance(format, str) else None,
        records=None,
        skipped_records=None,
        inputs=None if inputs is None else len(inputs),
        input_bytes=sum(known) if inputs is not None and len(known) == len(inputs) else None,
        files=None,
        file_bytes=None,
        settings=settings if isinstance(settings, dict) else {},
        resume=resume if isinstance(resume, str) else None,
    )
    return Inspection(
        place.shown, "unfinished", "", None, None, None, manifest=facts, finished=False
    )


def _json_object(raw: bytes | None) -> dict[str, Any]:
    """A JSON object; an empty one where `raw` holds none."""
    try:
        value = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
