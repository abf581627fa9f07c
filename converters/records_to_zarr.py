"""TFRecord or ArrayRecord to a Zarr group: an array for each feature, a row for each record.

Invariant: row `i` of every array is record `i` of all inputs, those left out as bad not counted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any, Final, Literal, Unpack

from windrow.converters.decoding import Decode
from windrow.converters.inputs import Paths, find_inputs, source_texts
from windrow.converters.job import RunOptions, carry_out, planned
from windrow.converters.manifest import Manifest
from windrow.converters.record_writing import check_max_bad_records
from windrow.converters.records_work import RecordsWork, finish
from windrow.converters.row_features import Described, Features, asked_for, told_by_manifest
from windrow.converters.row_files import Storage
from windrow.converters.stages import Conversion
from windrow.errors import ArgumentError

MEMORY_BYTES: Final = 512 << 20

_FORMAT: Final = "zarr"
_MARKS: Final = {"tfrecord": (".tfrecord",), "array_record": (".array_record", ".arrayrecord")}


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
    memory_bytes: int = MEMORY_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Convert TFRecord files to one Zarr v3 group, an array for each feature.

    Row `i` of every array comes from record `i`, counted through all inputs in their order. What
    differs in length from record to record (text, encoded pictures, lists) becomes two arrays:
    `NAME/values`, all rows end to end, and `NAME/offsets` (int64, records + 1), so that row `i` is
    `values[offsets[i] : offsets[i + 1]]`; the group's attribute `windrow_ragged` names them. A `/` in
    a name makes groups. A run that was stopped goes on when it is called again with the same
    arguments; one that was finished is not done again.

    By default, records of 4 KiB and more are a chunk each, of smaller ones the power of two that
    makes 4 KiB is, and shards hold the rows that make about 128 MiB of all features together.

    Args:
        inputs: A path, glob, folder or URL, or a list of them; gzip if it ends in `.gz` or `.gzip`
            (which is slower: gzip has to be read from its beginning).
        output: A folder or URL, new, empty, or of an earlier run. The group has consolidated
            metadata.
        features: How the features of tf.train.Examples become arrays, by name: each a `Feature`, or
            what its `to_json` gives; others are left out. By default the first 256 records show it,
            and every other record has to have the same features, of the same kinds and sizes. With
            `decode`, what that gives.
        decode: From the bytes of a record, whatever they are, to a dict of arrays, numbers, texts or
            bytes by name. All records agree in names and dtypes, and in shapes but for the first
            axis of ragged ones. It is pickled by value, and must depend on the record alone.
        chunk_rows: Rows per chunk, the unit that is compressed.
        shard_rows: Rows per shard, a stored file of many chunks, a multiple of those of a chunk; 0
            for none, so that each chunk is a file.
        codecs: 'zstd:1' (level 1), 'gzip:5', 'blosc:lz4:5' or 'none', or JSON as in Zarr v3.
        max_bad_records: Records, of all inputs, that may be damaged or not decode: up to so many are
            left out, and listed in the manifest; later ones move up. All records are then read and
            decoded twice. A TFRecord of damaged length is always an error: nothing behind it can be
            found.
        memory_bytes: The most memory that a process takes, its libraries included.
        storage_options: Settings of the inputs' file system, as in fsspec.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        ArgumentError: If an argument is of the wrong kind, or no array can have a feature's name.
        ReadError: If an input is damaged, or a record no Example of the features; the message names
            file, record and offset.
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
    conversion = tfrecord_to_zarr_conversion(
        inputs,
        features=features,
        decode=decode,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        codecs=codecs,
        max_bad_records=max_bad_records,
        memory_bytes=memory_bytes,
        storage_options=storage_options,
    )
    return carry_out(conversion, output, **run)


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
    memory_bytes: int = MEMORY_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Convert ArrayRecord files to one Zarr v3 group, an array for each feature.

    All is as for `tfrecord_to_zarr`, but for this: of files that `zarr_to_array_record` wrote the
    features are known, so that dtypes and shapes are those it began with; and where a record group
    is damaged all of its records are bad.

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
    conversion = array_record_to_zarr_conversion(
        inputs,
        features=features,
        decode=decode,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        codecs=codecs,
        max_bad_records=max_bad_records,
        memory_bytes=memory_bytes,
        storage_options=storage_options,
    )
    return carry_out(conversion, output, **run)


def records_to_zarr_conversion(
    format: Literal["tfrecord", "array_record"],
    inputs: Paths,
    *,
    features: Features | None = None,
    decode: Decode | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    max_bad_records: int = 0,
    memory_bytes: int = MEMORY_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion of inputs of a format; the other arguments and errors as of `tfrecord_to_zarr`."""
    storage = Storage(chunk_rows, shard_rows, codecs)
    check_max_bad_records(max_bad_records)
    if decode is not None and not callable(decode):
        raise ArgumentError(f"decode must be a function of the bytes of a record, got {decode!r}")
    if type(memory_bytes) is not int:
        raise ArgumentError(f"memory_bytes must be an integer, got {memory_bytes!r}")
    found = find_inputs(inputs, storage_options=storage_options, marks=_MARKS[format])
    known = None if features is None else asked_for(features)
    if known is None and decode is None and format == "array_record":
        known = told_by_manifest(found)
    work = RecordsWork(format, found, known, decode, storage, max_bad_records, memory_bytes)
    name = getattr(decode, "__qualname__", type(decode).__qualname__)
    # How many bad records are allowed is no part of the plan: what is finished stays as it is.
    settings = {
        "conversion": f"{format}_to_zarr",
        **({"features": None} if known is None else known.to_json()),
        "decode": None if decode is None else name,
        **storage.to_json(),
    }
    plan = planned(_FORMAT, found, settings)
    flags: tuple[str, ...] | None = None
    if decode is None and features is None:
        flags = ("--to", "zarr", *_flags(work))
    return Conversion(
        name=f"{format}_to_zarr",
        plan=plan,
        stages=work.stages,
        finish=functools.partial(finish, plan, known or Described({})),
        expected=work.expected(),
        sources=source_texts(inputs),
        flags=flags,
    )


tfrecord_to_zarr_conversion: Final = functools.partial(records_to_zarr_conversion, "tfrecord")
array_record_to_zarr_conversion: Final = functools.partial(
    records_to_zarr_conversion, "array_record"
)


def _flags(work: RecordsWork) -> list[str]:
    storage, default = work.storage, Storage()
    given = {
        "--chunk-rows": (storage.chunk_rows, None),
        "--shard-rows": (storage.shard_rows, None),
        "--codecs": (storage.codecs, default.codecs),
        "--max-bad-records": (work.max_bad_records, 0),
    }
    return [
        text
        for flag, (value, usual) in given.items()
        if value != usual
        for text in (flag, str(value))
    ]
