"""The process: its cores, and whether it was forked.

Forked processes are told apart, so that a read in one is an error and neither a hang nor an abort:
TensorStore and the array_record package start threads, and a forked child has none of its parent's
threads, only their locks. TensorStore then aborts the process; array_record waits for ever or is
killed by a segmentation fault.

Invariant: a library counts as used from the first call that may start its threads, in the process
of that call alone.
"""

from __future__ import annotations

import functools
import os
from typing import Final

from windrow.errors import ReadError

# The process that used a library first. A forked child inherits the entry, a spawned one does not.
_used_in: Final[dict[str, int]] = {}


def refuse_forked(library: str, what: str) -> None:
    """Note that this process uses `library`; refuse where its parent did so before forking.

    Args:
        library: Name of a library that starts threads.
        what: What wants to use it, for the message.

    Raises:
        ReadError: If this process was forked from one that had used the library.
    """
    here = os.getpid()
    owner = _used_in.setdefault(library, here)
    if owner != here:
        raise ReadError(
            f"{what}: can not be read in process {here}, which was forked after process {owner}"
            f" had used {library}: its threads do not live in a forked process. Start processes"
            " by spawn or forkserver: multiprocessing.get_context('spawn'), or"
            " torch.utils.data.DataLoader(..., multiprocessing_context='spawn')"
        )


@functools.cache
def cores() -> int:
    """Cores that this process may use, at least 1."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
