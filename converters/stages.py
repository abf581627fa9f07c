"""Stages: a conversion as a value, planned and not begun.

A conversion is a line of stages. A stage makes its items from the results of the one before and
works on each by itself; how they run (threads, processes, a cluster) is no concern of theirs.

Invariant: work is idempotent: done twice for one item, even at the same time, it gives the same files.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from windrow.converters.folder import OutputFolder
from windrow.converters.manifest import Plan
from windrow.sources.secrets import shown_url

# Tells of so many records and bytes that are done; it may raise, to have the work stopped.
Report = Callable[[int, int], None]


def _no_weight(item: Any) -> int:
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a conversion: items, and the work on each. Picklable.

    Attributes:
        name: What it does, a word for progress bars.
        items: Makes the items, in the folder, from the results of the stage before (in any order; an
            empty list at first).
        work: Does the work for one item, and may be called again for the same one.
        weigh: The bytes that `work` reports for an item.
        at_once: Items that one process works on at a time; by default one per core.
    """

    name: str
    items: Callable[[OutputFolder, list[Any]], Sequence[Any]]
    work: Callable[[OutputFolder, Any, Report], Any]
    weigh: Callable[[Any], int] = _no_weight
    at_once: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """What a conversion is expected to read and to write, for `--dry-run`; None is not known yet.

    `output_bytes` are before compression; `lines` say anything else, for people.
    """

    records: int | None
    input_bytes: int
    files: int | None
    output_bytes: int | None
    lines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion that is planned and not begun. Picklable.

    Attributes:
        name: The function of `windrow.converters` that does it.
        plan: Names what is done; equal plans give equal files.
        stages: The work.
        finish: Writes the manifest, from the results of the last stage; it may run twice.
        expected: What it will read and write.
        sources: The inputs as the command line takes them.
        flags: The rest of the command line without the output, or None if a command can not say it.
        command: The command line that asked for it, without secrets; None if it was a call.
    """

    name: str
    plan: Plan
    stages: tuple[Stage, ...]
    finish: Callable[[OutputFolder, list[Any]], None]
    expected: Expected
    sources: tuple[str, ...]
    flags: tuple[str, ...] | None
    command: str | None = None

    def resume(self, output: str) -> str:
        """What goes on with this conversion: a command, or a call. It is stored, without secrets."""
        if self.command is not None:
            return self.command
        places = [*self.sources, output]
        if self.flags is None or places != [shown_url(place) for place in places]:
            return f"call windrow.converters.{self.name} with the same arguments again"
        return shlex.join(["windrow", "convert", *places, *self.flags])
