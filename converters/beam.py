"""Conversions as PTransforms, for pipelines of your own.

    with beam.Pipeline() as pipeline:
        pipeline | TFRecordToArrayRecord("data/*.tfrecord", "gs://bucket/data") | beam.Map(print)

Each has the arguments of the function of `windrow.converters` that does the same, and gives one
element, the `Manifest`. It is planned when it is constructed: inputs have to be there, and wrong
arguments are errors. Nothing is written before the pipeline runs.

The first step of the pipeline takes a lease on the output, on local folders too, and the last one
gives it back. A pipeline that fails leaves its lease: construct it anew with `take_over=True`, and
it resumes. A step that a runner repeats finds the lease of its own pipeline.

Invariant: if several pipelines write into one folder, one writes and the others fail in their first
step.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from windrow.converters.job.folder import (
    OutputFolder,
    begin,
    finished_before,
    is_begun,
    refuse_foreign,
)
from windrow.converters.job.inputs import refuse_own_input
from windrow.converters.job.locks import has_lease, locked_here, release_lease, take_lease
from windrow.converters.job.manifest import Manifest
from windrow.converters.job.pipeline import NUMBERS, transform
from windrow.converters.job.stages import Conversion
from windrow.converters.job.targets import target_of
from windrow.converters.records.array_record import file_to_file, tfrecord_to_array_record
from windrow.converters.records.reshard import array_record_to_array_record
from windrow.converters.texts.conversions import (
    json_lines_to_array_record,
    json_lines_to_zarr,
    parquet_to_array_record,
    parquet_to_zarr,
)
from windrow.converters.tfds.conversions import tfds_to_zarr
from windrow.converters.zarr.from_records import array_record_to_zarr, tfrecord_to_zarr
from windrow.converters.zarr.rechunk import zarr_to_zarr
from windrow.converters.zarr.to_records import zarr_to_array_record
from windrow.errors import missing_extra

try:
    import apache_beam as beam
except ImportError as error:
    raise missing_extra("windrow.converters.beam", "beam") from error


class ConversionTransform(beam.PTransform[Any, Any]):
    """A conversion on a Beam pipeline; abstract. Yields one element, the `Manifest`.

    Args:
        inputs: The inputs of the conversion.
        output: A folder or URL that all workers see, new, empty, or of an earlier run.
        overwrite: Whether to remove what another conversion has left in the output.
        take_over: Whether to resume in the place of a pipeline that failed, and ended.
        output_options: Settings of the output's file system, as in fsspec.
        **settings: The other arguments of the function, except `RunOptions`.

    Raises:
        WindrowError: What the function raises for its arguments and inputs.
    """

    conversion_of: ClassVar[Callable[..., Conversion]]

    def __init_subclass__(cls, *, of: Callable[..., Conversion] | None = None) -> None:
        """A transform whose conversion `of` plans, from the inputs and the settings."""
        super().__init_subclass__()
        if of is not None:
            cls.conversion_of = staticmethod(of)

    def __init__(
        self,
        inputs: Any,
        output: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        take_over: bool = False,
        output_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        conversion = type(self).conversion_of(inputs, **settings)
        refuse_own_input(conversion.sources, output)
        target = target_of(output, output_options)
        token = uuid.uuid4().hex
        self._conversion = conversion
        self._folder = OutputFolder(target, conversion.plan.key, token, run=token)
        self._begin = functools.partial(_begin, conversion, os.fspath(output), overwrite, take_over)

    def expand(self, pipeline: Any) -> Any:
        """The manifest, after the last step."""
        create: Any = beam.Create  # it has no types
        numbers = pipeline | create(range(NUMBERS))
        return numbers | transform(self._conversion, self._folder, begin=self._begin, end=_end)


class TFRecordToArrayRecord(ConversionTransform, of=tfrecord_to_array_record.conversion):
    """`tfrecord_to_array_record` on a Beam pipeline."""


class TFRecordToZarr(ConversionTransform, of=tfrecord_to_zarr.conversion):
    """`tfrecord_to_zarr` on a Beam pipeline."""


class ArrayRecordToZarr(ConversionTransform, of=array_record_to_zarr.conversion):
    """`array_record_to_zarr` on a Beam pipeline."""


class ArrayRecordToArrayRecord(ConversionTransform, of=array_record_to_array_record.conversion):
    """`array_record_to_array_record` on a Beam pipeline."""


class ZarrToArrayRecord(ConversionTransform, of=zarr_to_array_record.conversion):
    """`zarr_to_array_record` on a Beam pipeline."""


class ZarrToZarr(ConversionTransform, of=zarr_to_zarr.conversion):
    """`zarr_to_zarr` on a Beam pipeline."""


class TFDSToZarr(ConversionTransform, of=tfds_to_zarr.conversion):
    """`tfds_to_zarr` on a Beam pipeline."""


class JsonLinesToArrayRecord(ConversionTransform, of=json_lines_to_array_record.conversion):
    """`json_lines_to_array_record` on a Beam pipeline."""


class JsonLinesToZarr(ConversionTransform, of=json_lines_to_zarr.conversion):
    """`json_lines_to_zarr` on a Beam pipeline."""


class ParquetToArrayRecord(ConversionTransform, of=parquet_to_array_record.conversion):
    """`parquet_to_array_record` on a Beam pipeline."""


class ParquetToZarr(ConversionTransform, of=parquet_to_zarr.conversion):
    """`parquet_to_zarr` on a Beam pipeline."""


class FileToFile(ConversionTransform, of=file_to_file):
    """`convert_tf_to_arrayrecord_disk_match_shards` on a Beam pipeline; `prefix` names the files."""


def _begin(
    conversion: Conversion, output: str, overwrite: bool, take_over: bool, folder: OutputFolder
) -> None:
    """Take the lease and make the folder ready, unless this pipeline has done so or has ended."""
    target, plan, token = folder.target, conversion.plan, folder.run
    refuse_foreign(target)
    with locked_here(target):
        if has_lease(target, token) and is_begun(target):
            return
        if not overwrite and finished_before(target, plan) is not None:
            return
        take_lease(target, token, take_over=take_over)
        resume = conversion.resume(output)
        begin(target, plan, resume=resume, overwrite=overwrite, lease=token)


def _end(folder: OutputFolder) -> None:
    release_lease(folder.target, folder.run)


__all__ = [
    "ArrayRecordToArrayRecord",
    "ArrayRecordToZarr",
    "ConversionTransform",
    "JsonLinesToArrayRecord",
    "JsonLinesToZarr",
    "Manifest",
    "ParquetToArrayRecord",
    "ParquetToZarr",
    "TFDSToZarr",
    "TFRecordToArrayRecord",
    "TFRecordToZarr",
    "ZarrToArrayRecord",
    "ZarrToZarr",
]
