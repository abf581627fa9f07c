"""Converters: jobs that write the formats Windrow reads.

Each is a function over files that runs in this process, in several, or as a Beam pipeline. It can
be stopped at any moment and resumes when it is called again.

Invariant: a folder under conversion carries a marker until its manifest is complete, and a file
under a final name is complete.
"""

from __future__ import annotations

from windrow.converters.job.check import BadFile, CheckReport, check
from windrow.converters.job.manifest import Manifest
from windrow.converters.records.array_record import (
    convert_tf_to_arrayrecord_disk_match_shards,
    tfrecord_to_array_record,
)
from windrow.converters.records.reshard import array_record_to_array_record
from windrow.converters.records.tfrecord import read_records, write_records
from windrow.converters.texts.to_records import (
    json_lines_to_array_record,
    parquet_to_array_record,
)
from windrow.converters.texts.to_zarr import json_lines_to_zarr, parquet_to_zarr
from windrow.converters.tfds.conversions import tfds_to_zarr
from windrow.converters.zarr.example_encode import encode_examples
from windrow.converters.zarr.from_records import array_record_to_zarr, tfrecord_to_zarr
from windrow.converters.zarr.rechunk import zarr_to_zarr
from windrow.converters.zarr.to_records import zarr_to_array_record
from windrow.sources.tf_example.columns import decode_examples, infer_features
from windrow.sources.tf_example.features import Feature, Ragged
from windrow.sources.tf_example.message import decode_example, encode_example

__all__ = [
    "BadFile",
    "CheckReport",
    "Feature",
    "Manifest",
    "Ragged",
    "array_record_to_array_record",
    "array_record_to_zarr",
    "check",
    "convert_tf_to_arrayrecord_disk_match_shards",
    "decode_example",
    "decode_examples",
    "encode_example",
    "encode_examples",
    "infer_features",
    "json_lines_to_array_record",
    "json_lines_to_zarr",
    "parquet_to_array_record",
    "parquet_to_zarr",
    "read_records",
    "tfds_to_zarr",
    "tfrecord_to_array_record",
    "tfrecord_to_zarr",
    "write_records",
    "zarr_to_array_record",
    "zarr_to_zarr",
]
