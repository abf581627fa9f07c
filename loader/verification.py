"""Verification: reading everything that a source has once, and telling every piece that is bad.

Invariants: each piece that a record lies in is read once; what is under way at a time takes at most
`IN_FLIGHT_BYTES` of memory, or is one piece; data that can not be read is part of the report, and
any other error is raised.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Literal, TypeAlias

from windrow.dataset import IterDataset, MapDataset
from windrow.errors import ArgumentError
from windrow.report import BadPiece, Report
from windrow.sources.adapt import as_source
from windrow.sources.process import cores
from windrow.walks import Found, Task, Walk, walks_of

IN_FLIGHT_BYTES: Final = 256 * 2**20
# Where storage is not far away, more threads than cores only take turns.
_LEAST_THREADS: Final = 8
_LOGGED_EVERY_S: Final = 10.0

Progress: TypeAlias = Callable[[int, "int | None"], object]

_log = logging.getLogger(__name__)


def verify(
    source: Any,
    *,
    missing: Literal["fill", "error"] = "fill",
    threads: int | None = None,
    progress: bool | Progress = True,
) -> Report:
    """Read all that a source has, once, and report every bad piece.

    A piece is what is stored and decoded as one: a chunk of an array, a record group of an
    ArrayRecord file; a record where the source has no pieces. docs/verify.md says which damage is
    found in which format.

    >>> import numpy as np, windrow
    >>> report = windrow.verify(np.arange(1000), progress=False)
    >>> report.ok, report.records
    (True, 1000)

    Args:
        source: What `windrow.sources.as_source` takes.
        missing: What a chunk that is not stored is: 'fill' counts it, since it reads as the fill
            value; 'error' reports it as bad.
        threads: How many read side by side; None for as many as there are cores, and at least 8
            where a read may wait for a network.
        progress: Whether to show a bar on a terminal, which needs tqdm (`windrow[progress]`);
            without it, or where stderr is no terminal, a line is logged every 10 seconds. Or what
            is called, in this thread, with the bytes that are done and those of all; None where
            that is not known.

    Raises:
        ArgumentError: If an argument is of the wrong kind, or `source` is a path.
        SourceError: If `source` can not be taken for a source.
        ReadError: If this process was forked from one that had used the library that reads it.
    """
    count = _checked(source, missing, threads, progress)
    taken = as_source(source)
    begin = time.monotonic()
    walks = walks_of(taken, refuse_missing=missing == "error")
    found = [Found() for _ in walks]
    totals = [walk.total_bytes for walk in walks]
    known = [total for total in totals if total is not None]
    with _shown(progress, sum(known) if len(known) == len(totals) else None) as tell:
        _run(walks, found, count or _enough(walks), tell)
    bad = [piece for walk, each in zip(walks, found, strict=True) for piece in _told(walk, each)]
    whole = Found()
    for each in found:
        whole.add(each)
    return Report(
        records=len(taken),
        pieces=whole.pieces,
        decoded_bytes=whole.decoded_bytes,
        missing=whole.missing,
        untold=whole.untold,
        bad=tuple(bad),
        elapsed_s=time.monotonic() - begin,
    )


def _checked(source: Any, missing: Any, threads: Any, progress: Any) -> int | None:
    """The number of threads that is asked for, once the arguments are found right."""
    if isinstance(source, MapDataset | IterDataset):
        raise ArgumentError(
            f"verify: got a {type(source).__name__}, whose functions would run; give the source"
            " that it was made from"
        )
    if missing not in ("fill", "error"):
        raise ArgumentError(f"verify: missing must be 'fill' or 'error', got {missing!r}")
    if not isinstance(progress, bool) and not callable(progress):
        raise ArgumentError(f"verify: progress must be a bool or a function, got {progress!r}")
    if threads is None:
        return None
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ArgumentError(f"verify: threads must be an integer of at least 1, got {threads!r}")
    return threads


def _enough(walks: list[Walk]) -> int:
    return max(_LEAST_THREADS, cores()) if any(walk.waits for walk in walks) else cores()


def _told(walk: Walk, found: Found) -> Iterator[BadPiece]:
    ordered = sorted(found.bad, key=lambda bad: bad.number)
    if not ordered:
        return
    for bad, at in zip(ordered, walk.places(ordered), strict=True):
        yield BadPiece(walk.name, bad.number, at.file, at.offset, at.first, at.stop, bad.error)


def _run(walks: list[Walk], found: list[Found], threads: int, tell: Callable[[int], None]) -> None:
    """Run the tasks of all walks on threads; what they find goes to `found`, one per walk."""
    stop = threading.Event()
    waiting: dict[Future[Found], tuple[Found, Task]] = {}

    def collect() -> None:
        done, _ = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
        for future in done:
            into, task = waiting.pop(future)
            into.add(future.result())
            tell(task.done_bytes)

    pool = ThreadPoolExecutor(threads, thread_name_prefix="windrow-verify")
    try:
        for walk, into in zip(walks, found, strict=True):
            for task in walk.tasks():
                held = sum(other.held_bytes for _, other in waiting.values())
                while waiting and (
                    len(waiting) >= 2 * threads or held + task.held_bytes > IN_FLIGHT_BYTES
                ):
                    collect()
                    held = sum(other.held_bytes for _, other in waiting.values())
                waiting[pool.submit(task.run, stop.is_set)] = into, task
        while waiting:
            collect()
    except BaseException:
        stop.set()
        # What is being decoded ends by itself; nobody who pressed a key waits for that.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


@contextlib.contextmanager
def _shown(progress: bool | Progress, total: int | None) -> Iterator[Callable[[int], None]]:
    """What is told of each task's bytes, once they are done."""
    if callable(progress):
        yield _Counted(progress, total)
    elif not progress:
        yield lambda _: None
    elif sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None:
        bars = importlib.import_module("tqdm")
        with bars.tqdm(total=total, unit="B", unit_scale=True, desc="verify") as bar:
            yield lambda count: bar.update(count)
    else:
        yield _Counted(_Logged(), total)


class _Counted:
    """Adds up what is done, and tells somebody."""

    def __init__(self, tell: Progress, total: int | None) -> None:
        self._tell, self._total, self._done = tell, total, 0

    def __call__(self, count: int) -> None:
        self._done += count
        self._tell(self._done, self._total)


class _Logged:
    """Logs how far it is, now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._last >= _LOGGED_EVERY_S:
            self._last = now
            of = "" if total is None else f" of {total / 1e6:,.0f}"
            _log.info("verify: %s%s MB are read", f"{done / 1e6:,.0f}", of)
