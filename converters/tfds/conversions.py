"""A folder that tfds built to Zarr, a group for each split; or one split of it to ArrayRecord.

Neither TensorFlow nor the builder's code is needed: the folder's JSON describes its records. In
Zarr each feature is an array. In ArrayRecord the records stay serialised Examples, in their order
unless it is shuffled, without the metadata of tfds.

Invariant: row `i` of every array of a split's group is record `i` of the split; the groups of all
splits get their names when all of them are complete.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack

import numpy as np

from windrow.converters.job.declared import declared
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.inputs import find_inputs
from windrow.converters.job.job import MEMORY_BYTES, RunOptions, memory_of, planned
from windrow.converters.job.manifest import ConversionPlan, Manifest
from windrow.converters.job.stages import Conversion, ConversionStage, Expected, Report
from windrow.converters.job.targets import Target, target_of
from windrow.converters.records.array_record import file_to_file
from windrow.converters.records.record_files import files_of
from windrow.converters.records.record_writing import WRITER_OPTIONS
from windrow.converters.records.reshard import array_record_to_array_record
from windrow.converters.tfds.arrays import TfdsArrays
from windrow.converters.zarr.layout import METADATA, metadata_files
from windrow.converters.zarr.records_work import Group, RecordsWork
from windrow.converters.zarr.rows import (
    Described,
    Storage,
    check_names,
    stage_metadata,
)
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
from windrow.sources.base import Columns
from windrow.sources.ragged_column import RaggedColumn
from windrow.sources.remote.paths import options_for
from windrow.sources.tf_example.features import Column, Ragged, ragged_of
from windrow.sources.tfds.features import IMAGE, TfdsFeatures
from windrow.sources.tfds.folder import ARRAY_RECORD, TfdsFolder
from windrow.sources.tfds.images import check_images
from windrow.sources.tfds.splits import checked_names
from windrow.sources.zarr.ragged import RaggedDataSource
from windrow.sources.zarr.source import ZarrDataSource

# The attribute of a split's group: the dataset, the split, and its features as tfds has them.
ATTRIBUTE: Final = "windrow_tfds"
# Formats of tfds whose records are read.
FORMATS: Final = ("array_record", "tfrecord")

_WHAT: Final = "tfds_to_zarr"
_TO_RECORDS: Final = "tfds_to_array_record"


@declared
def tfds_to_zarr(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    splits: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    images: bool = False,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    **run: Unpack[RunOptions],
) -> Conversion:
    """Convert a folder that tfds built to Zarr v3 groups, `OUTPUT/train`, `OUTPUT/test`, ...

    An array has the name of its feature, and a row for every record of the split: numbers of one
    shape are an array, text, encoded images and sequences are ragged. docs/tfds.md lists what each
    type of feature becomes. Array attributes have the names of classes and all else that tfds says.
    All splits are one conversion, with one manifest, and appear together.

    Args:
        folder: As for `TFDSDataSource`: the folder of a version, one above it, or the name of a
            dataset. Its files are ArrayRecord or TFRecord.
        output: A folder or URL, new, empty, or of an earlier run.
        splits: Names of splits; by default all of them.
        names: Features at the top, by default all of them.
        images: Whether images are decoded, to numbers; else they stay encoded.
        chunk_rows: As for `array_record_to_zarr`, and so are the rest.
        shard_rows: Rows per shard.
        codecs: Such as 'zstd:1'.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in `output`.

    Raises:
        NotFoundError: If there is no such dataset, split or feature, or a file of it is missing.
        ArgumentError: If an argument is of the wrong kind, or no array can have a feature's name.
        SourceError: If a feature is of a type that is not known, or the files are of another format.
        ReadError: If a file is damaged, or has another number of records than tfds says.
        ConversionError: If tfds has not finished the folder, or as for `array_record_to_zarr`.
        MissingExtraError: If what is needed is not installed.
    """
    storage = Storage(chunk_rows, shard_rows, codecs)
    wanted = Wanted(splits, names, images, storage, memory_of(run))
    options = run.get("storage_options")
    found = one_folder(folder, options, what=_WHAT)
    return folder_conversion(found, wanted, storage_options=options)


def one_folder(inputs: Any, storage_options: Mapping[str, Any] | None, *, what: str) -> TfdsFolder:
    """Find the folder that a conversion is given.

    Raises:
        ArgumentError: If several are.
        WindrowError: As `TfdsFolder.found` raises it.
    """
    if not isinstance(inputs, str | os.PathLike):
        raise ArgumentError(
            f"{what}: one folder of tfds is converted at a time, got {inputs!r:.80}"
        )
    return TfdsFolder.found(inputs, storage_options=storage_options, what=what)


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """Arguments of `tfds_to_zarr`: which part of a dataset becomes Zarr, and how."""

    splits: Sequence[str] | None = None
    names: Sequence[str] | None = None
    images: bool = False
    storage: Storage = dataclasses.field(default_factory=Storage)
    memory_bytes: int = MEMORY_BYTES

    def __post_init__(self) -> None:
        if type(self.images) is not bool or type(self.memory_bytes) is not int:
            raise ArgumentError(
                f"{_WHAT}: images is a bool and memory_bytes an integer, got {self.images!r},"
                f" {self.memory_bytes!r}"
            )
        if self.splits is not None:
            checked_names(self.splits, "splits", what=_WHAT)

    def arrays(self, folder: TfdsFolder) -> TfdsArrays:
        """Return the arrays of the records, if they can be made; no file of records is read.

        Raises:
            ArgumentError, NotFoundError, SourceError, MissingExtraError: As for `tfds_to_zarr`.
        """
        arrays = TfdsArrays(folder.features_of(self.names), self.images)
        if not arrays.features:
            raise SourceError(f"{_WHAT}: {folder.shown} has no features to make arrays of")
        check_names(arrays.features, hint="leave it out by names= (--name)")
        if self.images and any(leaf.kind == IMAGE for leaf in arrays.tfds.leaves):
            check_images()
        return arrays


def folder_conversion(
    folder: TfdsFolder, wanted: Wanted, *, storage_options: Mapping[str, Any] | None = None
) -> Conversion:
    """Plan `tfds_to_zarr` for a folder that was found."""
    arrays, storage = wanted.arrays(folder), wanted.storage
    file_format = format_of(folder, what=_WHAT)
    parts = {}
    for split in _chosen(folder, wanted.splits, what=_WHAT):
        check_names({split: next(iter(arrays.features.values()))}, hint="leave it out by splits=")
        known = _described(folder, split, arrays)
        files = folder.files(split, file_format)
        found = find_inputs(files, storage_options=storage_options) if files else ()
        files_read = files_of(file_format)
        work = RecordsWork(files_read, found, known, None, storage, 0, wanted.memory_bytes, arrays)
        parts[split] = _Split(work, folder.splits[split].shard_lengths)
    settings = {
        "conversion": _WHAT,
        "dataset": folder.full_name,
        "splits": {split: len(part.work.found) for split, part in parts.items()},
        "features": arrays.tfds.to_json(),
        "images": wanted.images,
        **storage.to_json(),
    }
    inputs = [one for part in parts.values() for one in part.work.found]
    plan = planned("zarr", inputs, settings)
    return Conversion(
        name=_WHAT,
        plan=plan,
        stages=_stages(parts),
        finish=functools.partial(_finish, plan, parts),
        expected=_expected(parts),
        sources=(folder.path,),
    )


def _chosen(folder: TfdsFolder, splits: Sequence[str] | None, *, what: str) -> list[str]:
    splits = list(folder.splits) if splits is None else splits
    there = ", ".join(map(repr, folder.splits)) or "none"
    if not splits:
        raise NotFoundError(f"{what}: no split to convert; {folder.shown} has {there}")
    for split in splits:
        if split not in folder.splits:
            raise NotFoundError(
                f"{what}: {folder.shown} has no split {split!r:.80}; it has {there}, and parts of"
                " them are not converted"
            )
    return list(dict.fromkeys(splits))


def format_of(folder: TfdsFolder, *, what: str) -> str:
    """Return the format of the files that are read.

    Raises:
        SourceError: If the folder has no files of such a format.
    """
    for name in folder.formats:
        if name in FORMATS:
            return name
    raise SourceError(
        f"{what}: {folder.shown} is of format {', '.join(folder.formats)}; {' and '.join(FORMATS)}"
        " are read: build it again with --file_format=array_record"
    )


def _described(folder: TfdsFolder, split: str, arrays: TfdsArrays) -> Described:
    """Return the facts of a split's rows, for the attributes of its group and arrays."""
    attribute = {
        "name": folder.name,
        "config": folder.config,
        "version": folder.version,
        "split": split,
        "images": arrays.images,
        "features": arrays.tfds.to_json(),
        "labels": {name: list(names) for name, names in arrays.tfds.labels},
    }
    features, attributes = arrays.features, arrays.attributes
    plain = {"dimension_names": None, "fill_value": None}
    return Described(
        features,
        {
            name: {"attributes": attributes[name], **plain}
            for name in attributes
            if name in features and not features[name].ragged
        },
        {ATTRIBUTE: attribute},
        attributes,
    )


# The splits, as one conversion.


@dataclasses.dataclass(frozen=True, slots=True)
class _Split:
    """The work of one split, and the lengths of its shards according to tfds."""

    work: RecordsWork
    lengths: tuple[int, ...]

    def check(self, counted: Sequence[FinishedPart]) -> None:
        """Refuse files that have other numbers of records than tfds says."""
        there = [value["records"] for part in counted for value in part.details["files"]]
        for found, records, length in zip(self.work.found, there, self.lengths, strict=True):
            if records != length:
                raise ReadError(
                    f"{found.shown}: has {records} records, and dataset_info.json says {length}; copy"
                    " or build it again",
                    file=found.shown,
                )


def _stages(parts: Mapping[str, _Split]) -> tuple[ConversionStage, ...]:
    """Return the stages of all splits side by side; each item and result is of one split."""

    def stage(at: int, of_first: ConversionStage) -> ConversionStage:
        return ConversionStage(
            of_first.name,
            functools.partial(_items, parts, at),
            functools.partial(_worked, parts, at),
            functools.partial(_weight, of_first),
            of_first.at_once,
        )

    first = next(iter(parts.values())).work.stages
    return tuple(stage(at, one) for at, one in enumerate(first))


def _items(
    parts: Mapping[str, _Split], at: int, folder: OutputFolder, results: list[Any]
) -> list[tuple[str, Any]]:
    found = []
    for split, part in parts.items():
        own = _results_of(split, results)
        if at == 1:
            part.check(own)
        items = part.work.stages[at].items(folder.inside(split), own)
        found += [(split, item) for item in items]
    return found


def _worked(
    parts: Mapping[str, _Split],
    at: int,
    folder: OutputFolder,
    item: tuple[str, Any],
    report: Report,
) -> tuple[str, Any]:
    split, own = item
    return split, parts[split].work.stages[at].work(folder.inside(split), own, report)


def _weight(stage: ConversionStage, item: tuple[str, Any]) -> int:
    return stage.weigh(item[1])


def _results_of(split: str, results: list[Any]) -> list[Any]:
    return [result for name, result in results if name == split]


def _expected(parts: Mapping[str, _Split]) -> Expected:
    records = sum(sum(part.lengths) for part in parts.values())
    size = sum(one.size_bytes for part in parts.values() for one in part.work.found)
    known = next(iter(parts.values())).work.known
    features = {} if known is None else known.features
    row_bytes = sum(feature.item_bytes for feature in features.values())
    is_ragged = any(feature.ragged for feature in features.values())
    lines = [f"{split}: {sum(part.lengths):,} records" for split, part in parts.items()]
    lines += [f"{name}: {feature}" for name, feature in features.items()]
    return Expected(records, size, None, None if is_ragged else records * row_bytes, tuple(lines))


def _finish(
    plan: ConversionPlan, parts: Mapping[str, _Split], folder: OutputFolder, results: list[Any]
) -> None:
    """Write all metadata, give the groups of all splits their names, and write the manifest."""
    groups = {
        split: part.work.group(folder.inside(split), _results_of(split, results))
        for split, part in parts.items()
    }
    heads = stage_metadata(folder, {METADATA: _metadata(groups)})
    folder.publish_store([*parts, METADATA])
    inputs = tuple(one for group in groups.values() for one in group.inputs)
    files = tuple(one for group in groups.values() for one in group.files)
    folder.finish(Manifest(plan.format, inputs, plan.settings, (*heads, *files)))


def _metadata(groups: Mapping[str, Group]) -> bytes:
    """Return the metadata of the group of all splits, with the metadata of all its arrays."""
    layouts = [
        dataclasses.replace(layout, name=f"{split}/{layout.name}")
        for split, group in groups.items()
        for layout in group.layouts
    ]
    attributes = {
        f"{split}/{name}" if name else split: own
        for split, group in groups.items()
        for name, own in group.attributes.items()
    }
    return metadata_files(layouts, group_attributes=attributes)[METADATA]


# The way back.


def read_split(
    group: str | os.PathLike[str],
    start: int = 0,
    stop: int | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Columns:
    """Return the values of records `[start, stop)` of a split, as `decode_records` gives them.

    Args:
        group: `OUTPUT/train`, a group that `tfds_to_zarr` wrote: a path or URL.
        start: The first record.
        stop: The record after the last one; None for all.
        storage_options: As in fsspec.

    Raises:
        NotFoundError: If there is no such group.
        SourceError: If `tfds_to_zarr` did not write it.
        ReadError: If what it holds is damaged.
        ArgumentError: If the records are not in it.
    """
    target = target_of(group, storage_options)
    arrays = _arrays_of(target)

    ragged = any(feature.ragged for feature in arrays.features.values())
    open_group = RaggedDataSource if ragged else ZarrDataSource
    source = open_group(group, storage_options=options_for([os.fspath(group)], storage_options))
    end = len(source) if stop is None else stop
    if not 0 <= start <= end <= len(source):
        raise ArgumentError(
            f"{_WHAT}: records [{start}, {end}) of {target.shown()}, which has {len(source)}"
        )
    found = source.read(np.arange(start, end))
    columns: dict[str, Column] = {}
    for name, feature in arrays.features.items():
        column = functools.reduce(operator.getitem, name.split("/"), found)
        if isinstance(column, RaggedColumn):
            column = Ragged(column.values, column.bounds)
        columns[name] = ragged_of(column, feature) if isinstance(column, list) else column
    return arrays.values(columns)


def _arrays_of(target: Target) -> TfdsArrays:
    """Return the arrays that the attributes of a split's group describe."""
    where = target.shown(METADATA)
    data = target.read(METADATA)
    if data is None:
        raise NotFoundError(f"{where} does not exist; name the group of a split, OUTPUT/train")
    try:
        stored = json.loads(data)["attributes"][ATTRIBUTE]
        features, labels, images = (stored[name] for name in ("features", "labels", "images"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{where}: has no attribute {ATTRIBUTE!r} as tfds_to_zarr writes it; name the group of a"
            " split, OUTPUT/train"
        ) from error
    return TfdsArrays(TfdsFeatures.from_json(features, where=where, labels=labels), images is True)


# One split to ArrayRecord.


@declared
def tfds_to_array_record(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    splits: Sequence[str] | None = None,
    writer_options: str = WRITER_OPTIONS,
    files: int | None = None,
    shuffle_seed: int | None = None,
    max_bad_records: int = 0,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Convert one split, as `array_record_to_array_record` and `tfrecord_to_array_record` do.

    Args:
        folder: As for `tfds_to_zarr`.
        output: A folder or URL, new, empty, or of an earlier run.
        splits: The name of one split; None if the dataset has only one.
        writer_options: As for `array_record_to_array_record`.
        files: As there; for datasets in ArrayRecord form alone.
        shuffle_seed: As there; for datasets in ArrayRecord form alone.
        max_bad_records: As there.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If there is no such dataset or split, or a file of it is missing.
        ArgumentError: If an argument is of the wrong kind, several splits are named, or TFRecord is
            to be shuffled.
        SourceError: If the files are of another format.
        ConversionError: If tfds has not finished the folder.
    """
    options, memory_bytes = run.get("storage_options"), memory_of(run)
    dataset = one_folder(folder, options, what=_TO_RECORDS)
    file_format = format_of(dataset, what=_TO_RECORDS)
    found = dataset.files(_split(dataset, splits), file_format)
    if file_format == ARRAY_RECORD:
        return array_record_to_array_record.conversion(
            found,
            writer_options=writer_options,
            files=files,
            shuffle_seed=shuffle_seed,
            memory_bytes=memory_bytes,
            max_bad_records=max_bad_records,
            storage_options=options,
        )
    for name, value in (("files", files), ("shuffle_seed", shuffle_seed)):
        if value is not None:
            raise ArgumentError(
                f"{_TO_RECORDS}: {name} is for ArrayRecord, and {dataset.shown} is of format {file_format};"
                " convert it without, and what comes out once more"
            )
    return file_to_file(found, writer_options, max_bad_records, options)


def _split(folder: TfdsFolder, splits: Sequence[str] | None) -> str:
    there = ", ".join(folder.splits) or "none"
    named = (
        list(folder.splits) if splits is None else checked_names(splits, "splits", what=_TO_RECORDS)
    )
    if len(named) != 1:
        raise ArgumentError(
            f"{_TO_RECORDS}: {folder.shown} has the splits {there}, and one is converted at a time,"
            f" since ArrayRecord files have no splits; name it with --split {there.split(', ')[0]}"
        )
    return _chosen(folder, named, what=_TO_RECORDS)[0]
