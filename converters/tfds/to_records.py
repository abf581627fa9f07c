"""A split of a folder that tfds built to ArrayRecord: from TFRecord, or ArrayRecord written anew.

Records stay as they are, serialised Examples, and so does their order, unless it is shuffled. The
output is a folder of ArrayRecord files, without the metadata of tfds.

Invariant: the records of one split, and of no other, are converted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack

from windrow.converters.job.declared import declared
from windrow.converters.job.job import RunOptions
from windrow.converters.job.stages import Conversion
from windrow.converters.records.array_record import file_to_file
from windrow.converters.records.record_writing import WRITER_OPTIONS
from windrow.converters.records.reshard import MEMORY_BYTES, array_record_to_array_record
from windrow.converters.tfds.to_zarr import format_of, one_folder
from windrow.errors import ArgumentError, NotFoundError
from windrow.sources.tfds.folder import ARRAY_RECORD, TfdsFolder
from windrow.sources.tfds.splits import checked_names

_WHAT: Final = "tfds_to_array_record"


@declared
def tfds_to_array_record(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    splits: Sequence[str] | None = None,
    writer_options: str = WRITER_OPTIONS,
    files: int | None = None,
    shuffle_seed: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
    max_bad_records: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Convert one split, as `array_record_to_array_record` and `tfrecord_to_array_record` do.

    Args:
        folder: As for `tfds_to_zarr`.
        output: A folder or URL, new, empty, or of an earlier run.
        splits: The name of one split; None where there is no other.
        writer_options: As for `array_record_to_array_record`.
        files: As there; for datasets in ArrayRecord form alone.
        shuffle_seed: As there; for datasets in ArrayRecord form alone.
        memory_bytes: As there.
        max_bad_records: As there.
        storage_options: Settings of the folder's file system, as in fsspec.
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
    dataset = one_folder(folder, storage_options, what=_WHAT)
    file_format = format_of(dataset, what=_WHAT)
    found = dataset.files(_split(dataset, splits), file_format)
    if file_format == ARRAY_RECORD:
        return array_record_to_array_record.conversion(
            found,
            writer_options=writer_options,
            files=files,
            shuffle_seed=shuffle_seed,
            memory_bytes=memory_bytes,
            max_bad_records=max_bad_records,
            storage_options=storage_options,
        )
    for name, value in (("files", files), ("shuffle_seed", shuffle_seed)):
        if value is not None:
            raise ArgumentError(
                f"{_WHAT}: {name} is for ArrayRecord, and {dataset.shown} is of format {file_format};"
                " convert it without, and what comes out once more"
            )
    return file_to_file(found, writer_options, max_bad_records, storage_options)


def _split(folder: TfdsFolder, splits: Sequence[str] | None) -> str:
    there = ", ".join(folder.splits) or "none"
    named = list(folder.splits) if splits is None else checked_names(splits, "splits", what=_WHAT)
    if len(named) != 1:
        raise ArgumentError(
            f"{_WHAT}: {folder.shown} has the splits {there}, and one is converted at a time, since"
            f" ArrayRecord files have no splits; name it with --split {there.split(', ')[0]}"
        )
    if named[0] not in folder.splits:
        raise NotFoundError(
            f"{_WHAT}: {folder.shown} has no split {named[0]!r:.80}; it has {there}, and parts of"
            " them are not converted"
        )
    return named[0]
