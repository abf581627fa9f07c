"""TFRecord or ArrayRecord to a Zarr group: an array for each feature, a row for each record.

Invariant: row `i` of every array is record `i` of all inputs, not counting bad ones left out.
"""

from __future__ import annotations

import os
from typing import Literal, Unpack

from windrow.converters.job.declared import declared
from windrow.converters.job.inputs import Paths, find_inputs
from windrow.converters.job.job import RunOptions, memory_of
from windrow.converters.job.stages import Conversion
from windrow.converters.records.record_files import files_of
from windrow.converters.zarr.decoding import Decode, function_name
from windrow.converters.zarr.records_work import RecordsWork
from windrow.converters.zarr.rows import (
    Features,
    Storage,
    asked_for,
    described_by_manifest,
)
from windrow.errors import ArgumentError
from windrow.sources import signatures


@declared
def tfrecord_to_zarr(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    features: Features | None = None,
    decode: Decode | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    max_bad_records: int = 0,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Convert TFRecord files to one Zarr v3 group, an array for each feature.

    Row `i` of every array comes from record `i`, counted through all inputs in their order. A feature
    that differs in length from record to record (text, encoded pictures, lists) becomes two arrays:
    `NAME/values`, all rows end to end, and `NAME/offsets` (int64, records + 1), so that row `i` is
    `values[offsets[i] : offsets[i + 1]]`. The group's attribute `windrow_ragged` names them. A `/` in
    a name makes groups. A run that was stopped resumes when it is called again with the same
    arguments; one that was finished is not done again.

    By default, records of 4 KiB and more are a chunk each. Smaller ones share a chunk: the smallest
    power of two of them that makes 4 KiB. Shards hold the rows that make about 128 MiB of all
    features together.

    Args:
        inputs: A path, glob, folder or URL, or a list of them; gzip if it ends in `.gz` or `.gzip`
            (which is slower: gzip has to be read from its beginning).
        output: A folder or URL, new, empty, or of an earlier run. The group has consolidated
            metadata.
        features: How the features of tf.train.Examples become arrays, by name: each a `Feature`, or
            what its `to_json` gives; others are left out. By default they are inferred from the
            first 256 records, and every other record must have the same features, of the same kinds
            and sizes. With `decode`, the features that it gives.
        decode: A function from the bytes of a record, whatever they are, to a dict of arrays,
            numbers, strings or bytes by name. All records agree in names and dtypes, and in shapes
            but for the first axis of ragged ones. It is pickled by value, and must depend on the
            record alone.
        chunk_rows: Rows per chunk, the unit that is compressed.
        shard_rows: Rows per shard, a stored file of many chunks; a multiple of `chunk_rows`. With 0,
            each chunk is a file.
        codecs: 'zstd:1' (level 1), 'gzip:5', 'blosc:lz4:5' or 'none', or JSON as in Zarr v3.
        max_bad_records: The most records, of all inputs, that may be damaged or not decode. They are
            left out, and listed in the manifest; later ones move up. All records are then read and
            decoded twice. A TFRecord of damaged length is always an error: nothing after it can be
            found.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        ArgumentError: If an argument is of the wrong kind, or no array can have a feature's name.
        ReadError: If an input is damaged, or a record is not an Example of the features; the
            message names file, record and offset.
        ConversionError: If `decode` fails, records do not agree, `memory_bytes` are too few, or
            `output` cannot be written or holds another conversion.
        MissingExtraError: If what is needed is not installed.

    Example:
        >>> import tempfile
        >>> from windrow.converters import encode_example, write_records
        >>> from windrow.sources import ZarrDataSource
        >>> folder = tempfile.mkdtemp()
        >>> records = [encode_example({"label": i, "weights": [0.5, i]}) for i in range(3)]
        >>> _ = write_records(f"{folder}/a.tfrecord", records)
        >>> _ = tfrecord_to_zarr(f"{folder}/a.tfrecord", f"{folder}/a.zarr")
        >>> ZarrDataSource(f"{folder}/a.zarr")[2]
        {'label': np.int64(2), 'weights': array([0.5, 2. ], dtype=float32)}
    """
    storage = Storage(chunk_rows, shard_rows, codecs)
    return _conversion("tfrecord", inputs, features, decode, storage, max_bad_records, run)


@declared
def array_record_to_zarr(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    features: Features | None = None,
    decode: Decode | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    max_bad_records: int = 0,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Convert ArrayRecord files to one Zarr v3 group, an array for each feature.

    All is as for `tfrecord_to_zarr`, with two exceptions. The features of files that
    `zarr_to_array_record` wrote are known, so that the arrays have their first dtypes and shapes. If
    a record group is damaged, all of its records are bad.

    Example:
        >>> import tempfile, numpy as np
        >>> from windrow.converters import tfrecord_to_array_record, write_records
        >>> from windrow.sources import ZarrDataSource
        >>> folder = tempfile.mkdtemp()
        >>> _ = write_records(f"{folder}/a.tfrecord", [bytes([i, 2 * i]) for i in range(3)])
        >>> _ = tfrecord_to_array_record(f"{folder}/a.tfrecord", f"{folder}/records")
        >>> _ = array_record_to_zarr(
        ...     f"{folder}/records",
        ...     f"{folder}/a.zarr",
        ...     decode=lambda record: {"pair": np.frombuffer(record, np.uint8)},
        ... )
        >>> ZarrDataSource(f"{folder}/a.zarr")[2]
        {'pair': array([2, 4], dtype=uint8)}
    """
    storage = Storage(chunk_rows, shard_rows, codecs)
    return _conversion("array_record", inputs, features, decode, storage, max_bad_records, run)


def _conversion(
    format: Literal["tfrecord", "array_record"],
    inputs: Paths,
    features: Features | None,
    decode: Decode | None,
    storage: Storage,
    max_bad_records: int,
    run: RunOptions,
) -> Conversion:
    """Plan the conversion of inputs of a format; arguments and errors as for `tfrecord_to_zarr`."""
    if decode is not None and not callable(decode):
        raise ArgumentError(f"decode must be a function of the bytes of a record, got {decode!r}")
    memory_bytes, options = memory_of(run), run.get("storage_options")
    found = find_inputs(inputs, storage_options=options, marks=signatures.named(format).marks)
    known = None if features is None else asked_for(features)
    if known is None and decode is None and format == "array_record":
        known = described_by_manifest(found)
    work = RecordsWork(
        files_of(format), found, known, decode, storage, max_bad_records, memory_bytes
    )
    settings = {
        **({"features": None} if known is None else known.to_json()),
        "decode": function_name(decode),
    }
    return work.conversion(f"{format}_to_zarr", settings)
