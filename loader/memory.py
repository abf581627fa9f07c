"""Memory: how much the machine has for this process, and the byte budgets that follow from it."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from windrow.budget import Budget
from windrow.transforms.options import MIB, ReadOptions

# Where Linux says what a container may use, in its two versions of control groups.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNKNOWN_BYTES = 4096 * MIB


@functools.cache
def machine_bytes() -> int:
    """Bytes of memory that this process may use: the machine's, or its container's if less."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        found = _UNKNOWN_BYTES
    for path in _LIMITS:
        try:
            found = min(found, int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found


def budget_of(options: ReadOptions, *, far: bool = False) -> Budget:
    """The budgets of an iterator: those given, else parts of the machine's memory.

    More is read at a time of what is `far` away, since most of that time is waiting.
    """
    resident, in_flight = options.resident_bytes, options.in_flight_bytes
    machine = machine_bytes()
    return Budget(
        min(1024 * MIB, machine // 16) if resident is None else resident,
        (4 if far else 1) * min(32 * MIB, machine // 256) if in_flight is None else in_flight,
    )


def shared_bytes_of(given: int | None) -> int:
    """Bytes that a process shares with its workers: those given, else part of the machine's."""
    return min(512 * MIB, machine_bytes() // 16) if given is None else given
