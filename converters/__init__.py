"""Converters: jobs that write the formats Windrow reads.

Each is a function over files that runs in this process, in several, or as a Beam pipeline. It can
be stopped at any moment and goes on when it is called again.

Invariant: a folder under conversion carries a marker until its manifest is complete, and a file
under a final name is complete.
"""

from __future__ import annotations

from windrow.converters.array_record import tfrecord_to_array_record
from windrow.converters.checking import BadFile, CheckReport, check
from windrow.converters.example_encode import encode_examples
from windrow.converters.manifest import Manifest
from windrow.converters.match_shards import convert_tf_to_arrayrecord_disk_match_shards
from windrow.converters.rechunk import zarr_to_zarr
from windrow.converters.records_to_zarr import array_record_to_zarr, tfrecord_to_zarr
from windrow.converters.reshard import array_record_to_array_record
from windrow.converters.rows_to_records import zarr_to_array_record
from windrow.converters.tfds_to_zarr import tfds_to_zarr
from windrow.converters.tfrecord import read_records, write_records
from windrow.sources.example import decode_example, encode_example
from windrow.sources.example_columns import decode_examples, infer_features
from windrow.sources.features import Feature, Ragged

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
    "read_records",
    "tfds_to_zarr",
    "tfrecord_to_array_record",
    "tfrecord_to_zarr",
    "write_records",
    "zarr_to_array_record",
    "zarr_to_zarr",
]
