"""A split of a folder that tfds built to ArrayRecord: from TFRecord, or ArrayRecord written anew.

Records stay as they are, serialised Examples, and so does their order, unless it is shuffled. The
folder that comes out is one of ArrayRecord files, and none of tfds.

Invariant: the records of one split, and of no other, are converted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windrow.converters.array_record import tfrecord_to_array_record_conversion
from windrow.converters.record_writing import WRITER_OPTIONS
from windrow.converters.reshard import MEMORY_BYTES, array_record_to_array_record_conversion
from windrow.converters.stages import Conversion
from windrow.converters.tfds_to_zarr import format_of, one_folder
from windrow.errors import ArgumentError, NotFoundError
from windrow.sources.tfds_folder import ARRAY_RECORD, TfdsFolder
from windrow.sources.tfds_splits import checked_names

_WHAT: Final = "tfds_to_array_record"


def tfds_to_array_record_conversion(
    inputs: str | os.PathLike[str],
    *,
    splits: Sequence[str] | None = None,
    writer_options: str = WRITER_OPTIONS,
    files: int | None = None,
    shuffle_seed: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
    max_bad_records: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion of one split, as `array_record_to_array_record` and from TFRecord are.

    Args:
        inputs: As for `tfds_to_zarr`.
        splits: The name of one split; None where there is no other.
        writer_options: As for `array_record_to_array_record`.
        files: As there; for datasets in ArrayRecord form alone.
        shuffle_seed: As there; for datasets in ArrayRecord form alone.
        memory_bytes: As there.
        max_bad_records: As there.
        storage_options: Settings of the folder's file system, as in fsspec.

    Raises:
        NotFoundError: If there is no such dataset or split, or a file of it is missing.
        ArgumentError: If an argument is of the wrong kind, several splits are named, or TFRecord is
            to be shuffled.
        SourceError: If the files are of another format.
        ConversionError: If tfds has not finished the folder.
    """
    folder = one_folder(inputs, storage_options, what=_WHAT)
    file_format = format_of(folder, what=_WHAT)
    found = folder.files(_split(folder, splits), file_format)
    if file_format == ARRAY_RECORD:
        return array_record_to_array_record_conversion(
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
                f"{_WHAT}: {name} is for ArrayRecord, and {folder.shown} is of format {file_format};"
                " convert it without, and what comes out once more"
            )
    return tfrecord_to_array_record_conversion(
        found,
        writer_options=writer_options,
        max_bad_records=max_bad_records,
        storage_options=storage_options,
    )


def _split(folder: TfdsFolder, splits: Sequence[str] | None) -> str:
    there = ", ".join(folder.splits) or "none"
    named = list(folder.splits) if splits is None else checked_names(splits, "splits", what=_WHAT)
    if len(named) != 1:
        raise ArgumentError(
            f"{_WHAT}: {folder.shown} has the splits {there}, and one is converted at a time, since"
            f" ArrayRecord files do not tell of them; name it with --split {there.split(', ')[0]}"
        )
    if named[0] not in folder.splits:
        raise NotFoundError(
            f"{_WHAT}: {folder.shown} has no split {named[0]!r:.80}; it has {there}, and parts of"
            " them are not converted"
        )
    return named[0]
