"""Stages: a conversion as a value, planned and not begun.

A conversion is a line of stages. A stage makes its items from the results of the stage before and
works on each by itself. It does not know how items run (threads, processes, a cluster).

Invariant: work is idempotent: done twice for one item, even at the same time, it gives the same files.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import shlex
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.manifest import ConversionPlan
from windrow.core.redaction import shown_url
from windrow.errors import ArgumentError

# Called with the numbers of records and bytes that are done; it may raise, to stop the work.
Report = Callable[[int, int], None]


def dropped(records: int, done_bytes: int) -> None:
    """Do nothing: a `Report` where no progress is shown."""


Item = TypeVar("Item")


def check_integer(what: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Refuse an argument that is not an integer from `least` to `most`, both allowed.

    Raises:
        ArgumentError: If it is not.
    """
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and (least is None or value >= least) and (most is None or value <= most):
        return
    bounds = "" if least is None else f" of at least {least:,}"
    if most is not None:
        bounds = f" from {least:,} to {most:,}"
    raise ArgumentError(f"{what} must be an integer{bounds}, got {value!r}")


def _no_weight(item: Any) -> int:
    return 0


def known(items: Sequence[Item]) -> Callable[[OutputFolder, list[Any]], Sequence[Item]]:
    """A `ConversionStage.items` for items that are known beforehand."""
    return functools.partial(_known, items)


def _known(items: Sequence[Item], folder: OutputFolder, results: list[Any]) -> Sequence[Item]:
    return items


@dataclasses.dataclass(frozen=True, slots=True)
class ConversionStage:
    """One stage of a conversion: items, and the work on each. Picklable.

    Attributes:
        name: What it does, a word for progress bars.
        items: Makes the items, in the folder, from the results of the stage before, in the order of
            its items; an empty list at first.
        work: Does the work for one item, and may be called again for the same one.
        weigh: The bytes that `work` reports for an item.
        at_once: Items that one process works on at a time; by default one per core.
    """

    name: str
    items: Callable[[OutputFolder, list[Any]], Sequence[Any]]
    work: Callable[[OutputFolder, Any, Report], Any]
    weigh: Callable[[Any], int] = _no_weight
    at_once: int | None = None


class Steps:
    """Reports the progress of an item, in bytes that only grow and end at its total."""

    def __init__(self, report: Report, total_bytes: int) -> None:
        self._report, self._total_bytes = report, total_bytes
        self._records = self._done_bytes = 0

    def reach(self, records: int, done_bytes: int) -> None:
        """Report that this number of the item's records and bytes are done."""
        done_bytes = max(self._done_bytes, min(done_bytes, self._total_bytes))
        more = records - self._records, done_bytes - self._done_bytes
        self._records, self._done_bytes = records, done_bytes
        self._report(*more)

    def add(self, records: int, done_bytes: int) -> None:
        """Report that this many more records and bytes are done."""
        self.reach(self._records + records, self._done_bytes + done_bytes)

    def end(self, records: int) -> None:
        """Report that all of the item's records are done, now or by an earlier run."""
        self.reach(records, self._total_bytes)


def part_stage(
    name: str,
    items: Callable[[OutputFolder, list[Any]], Sequence[Any]],
    make: Callable[[OutputFolder, Any, Steps], FinishedPart],
    *,
    at_once: int | None = None,
) -> ConversionStage:
    """Return a stage whose results are parts, each made once, whatever runs were stopped.

    Args:
        name: As for `ConversionStage`.
        items: As for `ConversionStage`. An item has the `key` of its part, and `size_bytes`, the bytes
            that are reported for it.
        make: Makes the part of an item, unless an earlier run has.
        at_once: As for `ConversionStage`.
    """
    work = functools.partial(_made_once, make)
    return ConversionStage(name, items, work, operator.attrgetter("size_bytes"), at_once)


def _made_once(
    make: Callable[[OutputFolder, Any, Steps], FinishedPart],
    folder: OutputFolder,
    item: Any,
    report: Report,
) -> FinishedPart:
    steps = Steps(report, item.size_bytes)
    part = folder.part(item.key, lambda: make(folder, item, steps))
    steps.end(part.records)
    return part


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """The expected input and output of a conversion, for `--dry-run`; None if unknown.

    `output_bytes` are before compression; `lines` has everything else, as text for people.
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
        plan: The plan; equal plans give equal files.
        stages: The work.
        finish: Writes the manifest, from the results of the last stage; it may run twice.
        expected: What it will read and write.
        sources: The inputs as the command line takes them; `declared` adds them if they are missing.
        flags: The rest of the command line without the output, or None if a command cannot say it.
        command: The command line that asked for it, without secrets; None if it was a call.
    """

    name: str
    plan: ConversionPlan
    stages: tuple[ConversionStage, ...]
    finish: Callable[[OutputFolder, list[Any]], None]
    expected: Expected
    sources: tuple[str, ...] = ()
    flags: tuple[str, ...] | None = None
    command: str | None = None

    def resume(self, output: str) -> str:
        """Return the command, or the call, that resumes this conversion, without secrets."""
        if self.command is not None:
            return self.command
        places = [*self.sources, output]
        if self.flags is None or places != [shown_url(place) for place in places]:
            return f"call windrow.converters.{self.name} with the same arguments again"
        return shlex.join(["windrow", "convert", *places, *self.flags])
