"""Jobs: the steps that all conversions share, from the plan to the manifest.

Invariant: parts that an earlier run of the same plan has finished are not done again; a target has
the manifest of a plan only when all of its files are there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack

from windrow.converters.job.executor import run_here
from windrow.converters.job.folder import (
    FinishedPart,
    OutputFolder,
    UnfinishedPlan,
    begin,
    finished_before,
    is_finished,
    is_foreign,
    refuse_foreign,
)
from windrow.converters.job.inputs import Input, refuse_own_input
from windrow.converters.job.locks import locked
from windrow.converters.job.manifest import ConversionPlan, Manifest, Setting, is_own_name
from windrow.converters.job.pipeline import PURPOSE, run_pipeline
from windrow.converters.job.stages import Conversion, check_integer
from windrow.converters.job.targets import Target, target_of
from windrow.core.optional_imports import optional
from windrow.core.progress import ShowProgress
from windrow.errors import ArgumentError

MEMORY_BYTES: Final = 512 << 20


class RunOptions(TypedDict, total=False):
    """Options of all conversions for how they run; the output does not depend on them.

    Attributes:
        overwrite: Whether to remove what another conversion has left in the output. Files that no
            conversion wrote are never touched.
        take_over: Whether to end the lease that a killed run has left on an object store, or a
            failed pipeline of `windrow.converters.beam` on any output.
        processes: Worker processes; by default the work is done on threads of this one. More than 1
            starts new interpreters, to which functions of the main module travel by value.
        runner: A Beam runner or its name, to run there instead; needs `windrow-data[beam]`.
        pipeline_options: Beam's options, a list of flags such as `["--region=us-west1"]` or a
            `PipelineOptions`.
        progress: Whether to show progress (a bar on a terminal, log lines elsewhere; True by
            default), or a function that is called with a `windrow.progress.Progress`.
        storage_options: Settings of the inputs' file system, as in fsspec.
        output_options: Settings of the output's file system, as in fsspec.
        memory_bytes: The most memory that a process takes, its libraries included; 512 MiB by
            default. Copying records one by one takes less.
    """

    overwrite: bool
    take_over: bool
    processes: int
    runner: object | None
    pipeline_options: object | None
    progress: ShowProgress
    storage_options: Mapping[str, Any] | None
    output_options: Mapping[str, Any] | None
    memory_bytes: int


def memory_of(run: RunOptions, least: int | None = None, most: int | None = None) -> int:
    """Return the memory that each process may take.

    Raises:
        ArgumentError: If it is not an integer from `least` to `most`.
    """
    memory_bytes = run.get("memory_bytes", MEMORY_BYTES)
    check_integer("memory_bytes", memory_bytes, least, most)
    return memory_bytes


def planned(
    format_name: str,
    inputs: Sequence[Input],
    settings: Mapping[str, Setting],
    *,
    per_file: bool = False,
) -> ConversionPlan:
    """Return the plan of a conversion of files; arguments as for `ConversionPlan`."""
    return ConversionPlan(format_name, tuple(file.id for file in inputs), settings, per_file)


def carry_out(
    conversion: Conversion, output: str | os.PathLike[str], **run: Unpack[RunOptions]
) -> Manifest:
    """Carry out `conversion`, or its unfinished rest, in the folder `output`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        ConversionError: If the folder cannot be written, holds files that no conversion wrote, was
            begun or finished with another plan and `overwrite` is false, or is being written by
            another run; or if the work failed in a way that has no error of its own.
        ReadError: If its marker or its manifest is damaged.
        MissingExtraError: If what the runner needs is not installed.
    """
    _check(run)
    target = target_of(output, run.get("output_options"))
    plan, overwrite = conversion.plan, run.get("overwrite", False)
    refuse_own_input(conversion.sources, output)
    refuse_foreign(target)
    if not overwrite and is_finished(target):
        manifest = finished_before(target, plan)
        if manifest is not None:
            return manifest
    with locked(target, take_over=run.get("take_over", False)) as lease:
        # Seen from within the lock: another run may have finished it just before.
        manifest = None if overwrite else finished_before(target, plan)
        if manifest is not None:
            OutputFolder(target, plan.key).clear_up()
            return manifest
        resume = conversion.resume(os.fspath(output))
        folder = begin(target, plan, resume=resume, overwrite=overwrite, lease=lease)
        runner, options = run.get("runner"), run.get("pipeline_options")
        show = run.get("progress", True)
        if runner is not None or options is not None:
            run_pipeline(conversion, folder, runner=runner, options=options, show=show)
        else:
            run_here(conversion, folder, processes=run.get("processes", 1), show=show)
        return folder.written()


def describe(
    conversion: Conversion,
    output: str | os.PathLike[str],
    *,
    output_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe as JSON values what `carry_out` would do. Nothing is written.

    Returns:
        `conversion`, `output`, `format`, `settings`; `inputs`, `input_bytes`, and, where they are
        known, `records`, `files` and `output_bytes` (before compression); `lines` for people;
        `state`, which is `new`, `unfinished`, `finished`, `other` (the folder is of another
        conversion; `differences` names the differences, and `overwrite` is needed) or `foreign`
        (files that no conversion wrote); and `done`, how many parts of the work an earlier run has
        left, and files of the output with their bytes.

    Raises:
        ConversionError: If the output is a file, or its file system cannot be opened.
        ReadError: If its marker or its manifest is damaged.
    """
    target, plan, expected = target_of(output, output_options), conversion.plan, conversion.expected
    state, differences, done = _state(target, plan)
    return {
        "conversion": conversion.name,
        "output": target.shown(),
        "format": plan.format,
        "settings": dict(plan.settings),
        "inputs": len(plan.inputs),
        "input_bytes": expected.input_bytes,
        "records": expected.records,
        "files": expected.files,
        "output_bytes": expected.output_bytes,
        "lines": list(expected.lines),
        "state": state,
        "differences": differences,
        "done": done,
    }


def _state(target: Target, plan: ConversionPlan) -> tuple[str, list[str], dict[str, int]]:
    """Return the state of a folder for `describe`, its plan's differences, and what is done."""
    begun = UnfinishedPlan.read_in(target)
    manifest = Manifest.read_in(target) if begun is None else None
    there = begun or manifest
    if there is None:
        return "foreign" if is_foreign(target) else "new", [], _done([])
    differences = there.plan.differences(plan)
    if differences and (manifest is not None or there.plan.key != plan.key):
        return "other", differences, _done([])
    if manifest is not None:
        return "finished", [], _done([FinishedPart("", 0, manifest.files)])
    folder = OutputFolder(target, plan.key)
    return "unfinished", differences, _done(folder.whole_parts())


def _done(parts: Sequence[FinishedPart]) -> dict[str, int]:
    files = [file for part in parts for file in part.files if is_own_name(file.name)]
    return {
        "parts": len(parts),
        "files": len(files),
        "bytes": sum(file.size_bytes for file in files),
    }


def _check(run: RunOptions) -> None:
    unknown = sorted(set(run) - set(RunOptions.__annotations__))
    if unknown:
        raise ArgumentError(
            f"{unknown[0]!r} is not an argument of a conversion; there are"
            f" {', '.join(RunOptions.__annotations__)}"
        )
    for name in ("overwrite", "take_over"):
        if not isinstance(run.get(name, False), bool):
            raise ArgumentError(f"{name} must be a bool, got {run.get(name)!r}")
    options = run.get("output_options")
    if options is not None and not isinstance(options, Mapping):
        raise ArgumentError(
            f"output_options must be a dict of settings, as in fsspec, got {type(options).__name__}"
        )
    processes = run.get("processes", 1)
    check_integer("processes", processes, 1)
    if processes > 1 and run.get("runner") is not None:
        raise ArgumentError(
            f"processes={processes} is for runs without a runner; give the runner its own option"
        )
    if run.get("runner") is not None or run.get("pipeline_options") is not None:
        optional("apache_beam", PURPOSE)  # before anything is written
    show = run.get("progress", True)
    if not isinstance(show, bool) and not callable(show):
        raise ArgumentError(f"progress must be a bool or a function, got {show!r}")
