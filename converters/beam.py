"""Conversions as PTransforms, for pipelines of your own.

    with beam.Pipeline() as pipeline:
        pipeline | TFRecordToArrayRecord("data/*.tfrecord", "gs://bucket/data") | beam.Map(print)

Each has the arguments of the function of `windrow.converters` that does the same, and gives one
element, the `Manifest`. It is planned when it is constructed: inputs have to be there, and wrong
arguments are errors. Nothing is written before the pipeline runs.

The first step of the pipeline takes a lease on the output, on local folders too, and the last one
gives it back. A pipeline that fails leaves its lease: then construct it anew with `take_over=True`,
and it goes on. A step that a runner repeats finds the lease of its own pipeline.

Invariant: of several pipelines into one folder one writes, the others fail in their first step.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from windrow.converters.array_record import tfrecord_to_array_record_conversion
from windrow.converters.folder import (
    OutputFolder,
    begin,
    finished_before,
    is_begun,
    refuse_foreign,
)
from windrow.converters.inputs import refuse_own_input
from windrow.converters.locks import has_lease, locked_here, release_lease, take_lease
from windrow.converters.manifest import Manifest
from windrow.converters.pipeline import NUMBERS, transform
from windrow.converters.rechunk import zarr_to_zarr_conversion
from windrow.converters.records_to_zarr import (
    array_record_to_zarr_conversion,
    tfrecord_to_zarr_conversion,
)
from windrow.converters.reshard import (
    array_record_to_array_record_conversion,
)
from windrow.converters.rows_to_records import zarr_to_array_record_conversion
from windrow.converters.stages import Conversion
from windrow.converters.targets import target_of
from windrow.converters.tfds_to_zarr import tfds_to_zarr_conversion
from windrow.errors import missing_extra

try:
    import apache_beam as beam
except ImportError as error:
    raise missing_extra("windrow.converters.beam", "beam") from error


class ConversionTransform(beam.PTransform[Any, Any]):
    """A conversion on a Beam pipeline; abstract. Yields one element, the `Manifest`.

    Args:
        inputs: What is converted.
        output: A folder or URL that all workers see, new, empty, or of an earlier run.
        overwrite: Whether to remove what another conversion has left in the output.
        take_over: Whether to go on in the place of a pipeline that failed, and ended.
        output_options: Settings of the output's file system, as in fsspec.
        **settings: The other arguments of the function, but for those that say how it runs.

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
        self._begin = functools.partial(
            _begin, conversion, conversion.resume(os.fspath(output)), overwrite, take_over
        )

    def expand(self, pipeline: Any) -> Any:
        """The manifest, once all is done."""
        create: Any = beam.Create  # it has no types
        numbers = pipeline | create(range(NUMBERS))
        return numbers | transform(self._conversion, self._folder, begin=self._begin, end=_end)


class TFRecordToArrayRecord(ConversionTransform):
    """`tfrecord_to_array_record` on a Beam pipeline."""

    conversion_of = staticmethod(tfrecord_to_array_record_conversion)


class TFRecordToZarr(ConversionTransform):
    """`tfrecord_to_zarr` on a Beam pipeline."""

    conversion_of = staticmethod(tfrecord_to_zarr_conversion)


class ArrayRecordToZarr(ConversionTransform):
    """`array_record_to_zarr` on a Beam pipeline."""

    conversion_of = staticmethod(array_record_to_zarr_conversion)


class ArrayRecordToArrayRecord(ConversionTransform):
    """`array_record_to_array_record` on a Beam pipeline."""

    conversion_of = staticmethod(array_record_to_array_record_conversion)


class ZarrToArrayRecord(ConversionTransform):
    """`zarr_to_array_record` on a Beam pipeline."""

    conversion_of = staticmethod(zarr_to_array_record_conversion)


class ZarrToZarr(ConversionTransform):
    """`zarr_to_zarr` on a Beam pipeline."""

    conversion_of = staticmethod(zarr_to_zarr_conversion)


class TFDSToZarr(ConversionTransform):
    """`tfds_to_zarr` on a Beam pipeline."""

    conversion_of = staticmethod(tfds_to_zarr_conversion)


def _begin(
    conversion: Conversion, resume: str, overwrite: bool, take_over: bool, folder: OutputFolder
) -> None:
    """Take the lease and make the folder ready, unless this pipeline has, or all of it is done."""
    target, plan, token = folder.target, conversion.plan, folder.run
    refuse_foreign(target)
    with locked_here(target):
        if has_lease(target, token) and is_begun(target):
            return
        if not overwrite and finished_before(target, plan) is not None:
            return
        take_lease(target, token, take_over=take_over)
        begin(target, plan, resume=resume, overwrite=overwrite, lease=token)


def _end(folder: OutputFolder) -> None:
    release_lease(folder.target, folder.run)


__all__ = [
    "ArrayRecordToArrayRecord",
    "ArrayRecordToZarr",
    "ConversionTransform",
    "Manifest",
    "TFDSToZarr",
    "TFRecordToArrayRecord",
    "TFRecordToZarr",
    "ZarrToArrayRecord",
    "ZarrToZarr",
]
