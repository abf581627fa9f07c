"""The public names of `windrow.converters`: type checkers read this list, and `windrow.converters` imports by it."""

from windrow.converters.job.check import BadFile as BadFile
from windrow.converters.job.check import CheckReport as CheckReport
from windrow.converters.job.check import check as check
from windrow.converters.job.manifest import Manifest as Manifest
from windrow.converters.match_shards import (
    convert_tf_to_arrayrecord_disk_match_shards as convert_tf_to_arrayrecord_disk_match_shards,
)
from windrow.converters.records.array_record import (
    tfrecord_to_array_record as tfrecord_to_array_record,
)
from windrow.converters.records.reshard import (
    array_record_to_array_record as array_record_to_array_record,
)
from windrow.converters.records.tfrecord import read_records as read_records
from windrow.converters.records.tfrecord import write_records as write_records
from windrow.converters.texts.conversions import (
    json_lines_to_array_record as json_lines_to_array_record,
)
from windrow.converters.texts.conversions import json_lines_to_zarr as json_lines_to_zarr
from windrow.converters.texts.conversions import parquet_to_array_record as parquet_to_array_record
from windrow.converters.texts.conversions import parquet_to_zarr as parquet_to_zarr
from windrow.converters.tfds.conversions import tfds_to_zarr as tfds_to_zarr
from windrow.converters.zarr.example_encode import encode_examples as encode_examples
from windrow.converters.zarr.from_records import array_record_to_zarr as array_record_to_zarr
from windrow.converters.zarr.from_records import tfrecord_to_zarr as tfrecord_to_zarr
from windrow.converters.zarr.rechunk import zarr_to_zarr as zarr_to_zarr
from windrow.converters.zarr.to_records import zarr_to_array_record as zarr_to_array_record
from windrow.sources.tf_example.columns import decode_examples as decode_examples
from windrow.sources.tf_example.columns import infer_features as infer_features
from windrow.sources.tf_example.features import Feature as Feature
from windrow.sources.tf_example.features import Ragged as Ragged
from windrow.sources.tf_example.message import decode_example as decode_example
from windrow.sources.tf_example.message import encode_example as encode_example
