"""The memory that this process may use, and the part that it shares with workers."""

from __future__ import annotations

import functools
import os
from pathlib import Path

MIB = 1 << 20

# Files in which Linux gives the limit of a container, for both versions of control groups.
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


def shared_bytes_of(given: int | None) -> int:
    """Bytes that a process shares with its workers: the given number, or part of the machine's."""
    return min(512 * MIB, machine_bytes() // 16) if given is None else given
