"""Jobs: what all converters do alike, from the plan to the manifest.

Invariant: what an earlier run of the same plan has finished is not done again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windrow.converters.folder import OutputFolder, Part, begin, unwritable
from windrow.converters.inputs import Input
from windrow.converters.manifest import Manifest, Plan, Setting
from windrow.converters.pipeline import Progress, run_pipeline
from windrow.errors import WindrowError


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What to work on, the work, and what to do with the parts; all picklable."""

    items: Sequence[Any]
    work: Callable[[Any], Part]
    finish: Callable[[list[Part]], None]


def planned(format_name: str, inputs: Sequence[Input], settings: Mapping[str, Setting]) -> Plan:
    """The plan of a conversion of `inputs`."""
    return Plan(format_name, tuple((file.name, file.size_bytes) for file in inputs), settings)


def carry_out(
    plan: Plan,
    output: str | os.PathLike[str],
    prepare: Callable[[OutputFolder], Job],
    *,
    overwrite: bool,
    runner: object | None,
    progress: Progress | None,
) -> Manifest:
    """Do what `plan` says, or what is left of it, in the folder `output`.

    Args:
        plan: What is to be done; a folder of another one is refused.
        output: The folder.
        prepare: Makes the job, in the folder that is made ready for it; called in this process.
        overwrite: Whether to remove what another conversion has left.
        runner: As for `run_pipeline`.
        progress: As for `run_pipeline`.
    """
    folder, manifest = begin(output, plan, overwrite=overwrite)
    if manifest is not None:
        return manifest
    job = prepare(folder)
    run_pipeline(job.items, job.work, finish=job.finish, runner=runner, progress=progress)
    return Manifest.read(folder.root)


def finished_part(
    folder: OutputFolder, key: str, make: Callable[[], Part], *, where: str, at: str | None = None
) -> Part:
    """The part `key`, which `make` makes if no earlier run has.

    Args:
        folder: Remembers the part.
        key: The part's name.
        make: Writes the files of the part.
        where: The path to name if they cannot be written.
        at: As for `OutputFolder.kept`.

    Raises:
        ConversionError: If the files cannot be written.
    """
    kept = folder.kept(key, at=at)
    if kept is not None:
        return kept
    try:
        part = make()
        folder.finished(part)
    except WindrowError:  # some are OSErrors too
        raise
    except OSError as error:
        raise unwritable(where, error) from error
    return part
