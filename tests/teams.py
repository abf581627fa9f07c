"""Workers for tests, and what to ask them and the system."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from windrow.multiprocessing import MultiprocessingOptions
from windrow.workers.pool import WorkerPool

MIB = 1 << 20
LIMIT_S = 30


@contextlib.contextmanager
def workers(
    handler: Any, init: Any = None, *, count: int = 2, ahead: int = 1, **options: Any
) -> Iterator[WorkerPool]:
    made = WorkerPool(handler, MultiprocessingOptions(count, ahead, **options), init)
    try:
        yield made
    finally:
        made.kill()


def ask(team: WorkerPool, request: Any, tries: int = 3) -> Any:
    return team.wait(team.submit(request, tries))


def until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Whether it holds within the limit."""
    end = time.monotonic() + limit_s
    pause = threading.Event()
    while not holds():
        if time.monotonic() > end:
            return False
        pause.wait(0.005)
    return True


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def descriptors() -> int:
    return int(psutil.Process().num_fds())


def script(text: str, *flags: str, standard_input: bool = False) -> tuple[int, str, str]:
    """Exit code and streams of a program, run as a user would."""
    text = (
        "import numpy as np, os, signal, sys, threading\n"
        "from windrow.workers.pool import WorkerPool\n"
        "from windrow.multiprocessing import MultiprocessingOptions\n" + text
    )
    source = ["-"] if standard_input else ["-c", text]
    done = subprocess.run(
        [sys.executable, *flags, *source],
        input=text if standard_input else None,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout, done.stderr
