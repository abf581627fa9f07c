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

from windrow.converters.job.declared import ConversionFunction
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


def _transform(function: ConversionFunction[...]) -> type[ConversionTransform]:
    """Make the transform of a conversion, called as its function is."""
    name = function.__name__.replace("tfrecord", "TFRecord").replace("tfds", "TFDS")
    words = name.replace("_", " ").split()
    contents = {
        "__module__": __name__,
        "__doc__": f"`{function.__name__}` on a Beam pipeline.",
        "conversion_of": staticmethod(function.conversion),
    }
    return type("".join(w[0].upper() + w[1:] for w in words), (ConversionTransform,), contents)


TFRecordToArrayRecord = _transform(tfrecord_to_array_record)
TFRecordToZarr = _transform(tfrecord_to_zarr)
ArrayRecordToZarr = _transform(array_record_to_zarr)
ArrayRecordToArrayRecord = _transform(array_record_to_array_record)
ZarrToArrayRecord = _transform(zarr_to_array_record)
ZarrToZarr = _transform(zarr_to_zarr)
TFDSToZarr = _transform(tfds_to_zarr)
JsonLinesToArrayRecord = _transform(json_lines_to_array_record)
JsonLinesToZarr = _transform(json_lines_to_zarr)
ParquetToArrayRecord = _transform(parquet_to_array_record)
ParquetToZarr = _transform(parquet_to_zarr)


class FileToFile(ConversionTransform):
    """`convert_tf_to_arrayrecord_disk_match_shards` on a Beam pipeline; `prefix` names the files."""

    conversion_of = staticmethod(file_to_file)


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
