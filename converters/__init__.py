"""Converters: jobs that write the formats Windrow reads.

Each is a function over files, run as a Beam pipeline, in this process unless told otherwise. It
can be stopped at any moment and goes on when it is called again.

Invariant: a folder under conversion carries a marker until its manifest is complete, and a file
under a final name is complete.
"""

from __future__ import annotations

from windrow.converters.array_record import tfrecord_to_array_record
from windrow.converters.checking import BadFile, CheckReport, check
from windrow.converters.example import decode_example, encode_example
from windrow.converters.manifest import Manifest
from windrow.converters.records_to_zarr import array_record_to_zarr, tfrecord_to_zarr
from windrow.converters.tfrecord import read_records, write_records

__all__ = [
    "BadFile",
    "CheckReport",
    "Manifest",
    "array_record_to_zarr",
    "check",
    "decode_example",
    "encode_example",
    "read_records",
    "tfrecord_to_array_record",
    "tfrecord_to_zarr",
    "write_records",
]
