"""`tfrecord_to_array_record` by the name and the arguments that users of array_record know, on Apache Beam."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from windrow.converters.job.pipeline import new_pipeline
from windrow.converters.records.array_record import MATCH_SHARDS
from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError


def convert_tf_to_arrayrecord_disk_match_shards(
    args: Mapping[str, str],
    pipeline_options: object | None = None,
    *,
    overwrite: bool = False,
    take_over: bool = False,
) -> Any:
    """Return a Beam pipeline that converts each TFRecord file to one ArrayRecord file.

    `tfrecord_to_array_record` does the same at once, and needs no Beam.

    Args:
        args: `input`, a path, glob or URL; and `output`, the prefix of the files that are written:
            `out/train` gives `out/train-00000-of-00004.arrayrecord` and so on.
        pipeline_options: Beam's `PipelineOptions`, a list of flags, or a dict of options. Without a
            runner among them, the pipeline runs in this process.
        overwrite: Whether to remove what another conversion has left in the folder.
        take_over: Whether to resume in the place of a pipeline that failed, and ended.

    Returns:
        The pipeline; `.run().wait_until_finish()` runs it.

    Raises:
        ArgumentError: If an argument is of the wrong kind.
        NotFoundError: If `input` names no file.
        MissingExtraError: If Apache Beam is not installed.

    Example:
        >>> pipeline = convert_tf_to_arrayrecord_disk_match_shards(
        ...     args={"input": "data/*.tfrecord", "output": "converted/train"},
        ... )  # doctest: +SKIP
        >>> pipeline.run().wait_until_finish()  # doctest: +SKIP
        'DONE'
    """
    pattern, folder, prefix = _checked(args)
    transforms = optional("windrow.converters.beam", MATCH_SHARDS)
    transform = transforms.FileToFile(
        pattern, folder, prefix=prefix, overwrite=overwrite, take_over=take_over
    )
    if isinstance(pipeline_options, Mapping):
        options = optional("apache_beam.options.pipeline_options", MATCH_SHARDS)
        pipeline_options = options.PipelineOptions.from_dictionary(dict(pipeline_options))
    pipeline = new_pipeline(None, pipeline_options)
    _ = pipeline | transform
    return pipeline


def _checked(args: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the input, the folder of the output, and the prefix of its files."""
    wanted = {"input", "output"}
    missing = wanted - set(args) if isinstance(args, Mapping) else wanted
    if missing:
        raise ArgumentError(
            "args must be a dict with 'input' (a path, glob or URL) and 'output' (the prefix of the"
            f" files that are written); it lacks {min(missing)!r}"
        )
    output = os.fspath(args["output"])
    folder, slash, prefix = output.rpartition("/")
    if not prefix:
        raise ArgumentError(
            f"args['output']={output!r} must be the prefix of files, such as"
            f" {output.rstrip('/') + '/train'!r}"
        )
    return os.fspath(args["input"]), folder or (slash or "."), prefix
