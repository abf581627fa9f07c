"""The process: its number among JAX processes, and whether it was forked.

A read in a forked process raises an error; otherwise it would hang or abort. TensorStore and the
array_record package start threads, and a forked child has their locks but not the threads. There
TensorStore aborts the process, and array_record waits for ever or dies of a segmentation fault.

Invariant: a library counts as used from the first call that may start its threads, in the process
of that call alone.
"""

from __future__ import annotations

import importlib
import os
from typing import Final

from windrow.errors import ReadError

# The process that used a library first. A forked child inherits the entry, a spawned one does not.
_used_in: Final[dict[str, int]] = {}


def refuse_forked(library: str, what: str) -> None:
    """Note that this process uses `library`; raise if its parent used it before forking.

    Args:
        library: Name of a library that starts threads.
        what: The caller that wants to use it, for the message.

    Raises:
        ReadError: If this process was forked from one that had used the library.
    """
    here = os.getpid()
    owner = _used_in.setdefault(library, here)
    if owner != here:
        raise ReadError(
            f"{what}: cannot be read in process {here}, which was forked after process {owner}"
            f" had used {library}: its threads do not live in a forked process. Start processes"
            " by spawn or forkserver: multiprocessing.get_context('spawn'), or"
            " torch.utils.data.DataLoader(..., multiprocessing_context='spawn')",
            is_unanswered=True,
        )


def jax_process() -> tuple[int, int]:
    """The number of this JAX process and how many there are; 0 and 1 without JAX.

    Starts JAX's backend if it has not started.
    """
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        return 0, 1
    return jax.process_index(), jax.process_count()
