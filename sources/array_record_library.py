"""The reader of the array_record package, opened.

Invariant: the package is imported only when a file is opened by it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

from windrow.errors import ArgumentError
from windrow.sources.array_record_files import WHAT

LIBRARY: Final = "array_record"


def open_reader(path: str, options: str) -> Any:
    """The package's reader of a file; it may be one that is not `ok()`.

    Raises:
        ArgumentError: If the package refuses the options.
    """
    # Imported where it is used: many chains never read this format.
    from array_record.python import array_record_module

    try:
        with _starting_patient_threads():
            return array_record_module.ArrayRecordReader(path, options)
    except (ValueError, RuntimeError) as error:
        raise ArgumentError(f"{WHAT}: reader_options {options!r} were refused: {error}") from error


@contextlib.contextmanager
def _starting_patient_threads() -> Iterator[None]:
    """Have threads that are started here wait for their turn, and push no other off its core.

    The package starts 64 threads with its first reader, and wakes all of them for each read. As
    ordinary threads they interrupt one another and those that run Python: on two cores with
    nothing else to do, reading and the chain behind it are then 6% to 11% slower.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield  # with a policy of its own the process knows better
        return
    _schedule_as(os.SCHED_BATCH)
    try:
        yield
    finally:
        _schedule_as(os.SCHED_OTHER)


def _schedule_as(policy: int) -> None:
    # A sandbox may forbid it; it is a matter of speed alone.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, os.sched_param(0))


def why_broken(reader: Any) -> str:
    """What is wrong with a reader that did not open; only a read tells."""
    try:
        reader.read([0])
    except (RuntimeError, IndexError) as error:
        return str(error)
    return "the array_record package could not open it and gives no reason"
