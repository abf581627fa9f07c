"""The cores and the memory that this process may use, and the part that it shares with workers."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MIB = 1 << 20

# Where Linux has control groups, and the groups of this process.
_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


@functools.cache
def machine_bytes() -> int:
    """Bytes of memory that this process may use: the machine's, or its container's if less."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        found = 4096 * MIB  # not known
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # control groups 2 and 1
        try:
            found = min(found, int((_GROUPS / name).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found


def shared_bytes_of(given: int | None) -> int:
    """Bytes that a process shares with its workers: the given number, or part of the machine's."""
    return min(512 * MIB, machine_bytes() // 16) if given is None else given


@functools.cache
def usable_cores(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Cores that this process may keep busy, at least 1: within its affinity and its control groups.

    Args:
        groups: Where the control groups are.
        own: The file that lists the groups of this process.
    """
    return max(1, int(min([_cores(), *map(_quota, _folders(groups, own))])))


def _cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _folders(groups: Path, own: Path) -> Sequence[Path]:
    """The folders of the control groups of this process and of the groups around them, of both versions."""
    found = [groups, groups / "cpu"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        # Version 2 names no controllers. A container may see names of its host, which are not there.
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        mounts = {controllers, *({"cpu"} & {*controllers.split(",")})}
        for mount in sorted(groups / each for each in mounts):
            group = mount / name.lstrip("/")
            while group != mount and mount in group.parents:
                found.append(group)
                group = group.parent
            found.append(mount)
    return found


def _quota(folder: Path) -> float:
    """Cores that a control group may use."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        found = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return float("inf")
    return found if found > 0 else float("inf")
