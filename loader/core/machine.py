"""The cores and the memory that this process may use, and the part that it shares with workers."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MIB = 1 << 20

# Files in which Linux gives the limit of a container, for both versions of control groups.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNKNOWN_BYTES = 4096 * MIB

# Where Linux has control groups, and the groups of this process.
_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_NO_LIMIT: Final = 1 << 20


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


def usable_cores() -> int:
    """Cores that this process may keep busy, at least 1: within its affinity and its control groups."""
    return min(_cores(), _own_limit())


@functools.cache
def _own_limit() -> int:
    return limit_of_groups(_GROUPS, _OWN)


def limit_of_groups(groups: Path, own: Path) -> int:
    """Cores that control groups leave a process, at least 1.

    Args:
        groups: Where the control groups are.
        own: The file that lists the groups of the process.
    """
    quotas = [_quota(folder) for folder in _folders(groups, own)]
    return max(1, min((int(quota) for quota in quotas if quota is not None), default=_NO_LIMIT))


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


def _quota(folder: Path) -> float | None:
    """Cores that a control group may use; None for no limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        found = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return None
    return found if found > 0 else None
