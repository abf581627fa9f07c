"""Describes a folder that tfds wrote, with one entry per split.

Invariant: it reads the small files of the folder, and only as much of the records as
`windrow.inspection.records` reads.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from windrow.core.text import listing
from windrow.errors import SourceError
from windrow.inspection.facts import Inspection, RecordFileFacts
from windrow.inspection.records import array_record_files, inspection_of, tfrecord_files
from windrow.sources import signatures
from windrow.sources.dataset_info import INFO, json_object, splits_of
from windrow.sources.detection import TFDS, Contents
from windrow.sources.tfds.folder import ARRAY_RECORD, TfdsFolder

RECORD_FORMATS: Final = frozenset({ARRAY_RECORD, signatures.TFRECORD.name})
"""Formats of the files of a folder that `inspect_splits` takes."""


def inspect_tfds(contents: Contents, sizes: bool | None = None) -> Inspection:
    """Describe a dataset of tfds; `sizes` is not used, since the sizes of files are always known.

    Raises:
        SourceError: If its records are stored in a format that Windrow does not read.
        WindrowError: If its files cannot be read.
    """
    place, dataset = contents.location, contents.dataset
    if dataset is None:
        return inspect_splits(contents)
    found = []
    for split in dataset.splits.values():
        if contents.stored_as == ARRAY_RECORD:
            files = dataset.instructions(split.name)
            one = array_record_files(files, storage_options=place.storage_options)
        else:
            paths = dataset.files(split.name, contents.stored_as)
            one = _with_count(tfrecord_files([place.at(path) for path in paths]), split.records)
        found.append(dataclasses.replace(one, name=split.name))
    described: dict[str, Any] = {"name": dataset.name, "version": dataset.version}
    described |= {"config": dataset.config} if dataset.config else {}
    described |= {"description": dataset.description} if dataset.description else {}
    described["features"] = _features_of(dataset)
    return _inspection(contents, found, described)


def inspect_splits(contents: Contents) -> Inspection:
    """Describe a folder that has `dataset_info.json` but no `features.json`.

    Raises:
        SourceError: If no file is named as a shard of a split.
        WindrowError: If its files cannot be read.
    """
    place = contents.location
    info = json_object(place.small_file(INFO))
    splits: dict[str, list[str]] = {}
    for file in contents.files:
        if match := re.fullmatch(signatures.SPLIT_SHARD, file.name):
            splits.setdefault(match["split"], []).append(file.name)
    if not splits:
        raise SourceError(
            f"{place.caller}: {place.shown} has a {INFO}, and no file in it is named as a shard of a"
            f" split; it holds {listing([file.name for file in contents.files])}"
        )
    counts = _counts_in(info)
    found = []
    for split, files in sorted(splits.items()):
        if contents.stored_as == ARRAY_RECORD:
            options = place.storage_options
            one = array_record_files(place.path, split=split, storage_options=options)
        else:
            one = tfrecord_files([place.child(name) for name in files], name=split)
            if one.records is None and split in counts:
                one = _with_count(one, counts[split])
        found.append(one)
    described = {key: info[key] for key in ("name", "version", "description") if info.get(key)}
    return _inspection(contents, found, described)


def _inspection(
    contents: Contents, files: list[RecordFileFacts], described: Mapping[str, Any]
) -> Inspection:
    variant = "of ArrayRecord" if contents.stored_as == ARRAY_RECORD else "of TFRecord"
    found = inspection_of(contents, files, variant)
    return dataclasses.replace(found, format=TFDS, attributes=described)


def _with_count(files: RecordFileFacts, records: int) -> RecordFileFacts:
    return dataclasses.replace(files, records=records, estimated_records=None)


def _features_of(dataset: TfdsFolder) -> Mapping[str, str] | str:
    """Return the features of a dataset by name, or the reason why they cannot be described."""
    try:
        leaves = dataset.features.leaves
    except SourceError as error:
        return str(error)
    found = {}
    for leaf in leaves:
        words = [leaf.feature, *([leaf.dtype] if leaf.dtype != "bytes" else [])]
        shape = (*leaf.lengths, *leaf.shape)
        words += [f"({', '.join('?' if n is None else str(n) for n in shape)})"] if shape else []
        if leaf.names:
            words.append(f"{len(leaf.names)} classes: {listing(list(leaf.names))}")
        found[leaf.name] = " ".join(words)
    return found


def _counts_in(info: Mapping[str, Any]) -> dict[str, int]:
    """Return the records by split; empty if `info` is not as tfds writes it."""
    try:
        return {split.name: split.records for split in splits_of(info)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
