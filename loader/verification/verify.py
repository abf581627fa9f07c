"""Verification: reads everything that a source has once, and reports every bad chunk.

Invariants: each chunk that a record lies in is read once; the tasks under way take at most
`IN_FLIGHT_BYTES` of memory, or are one chunk; data that cannot be read become part of the report, and
any other error is raised.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, Literal

from windrow.converters.job.stages import check_integer
from windrow.core.machine import usable_cores
from windrow.core.progress import ProgressMeter, ShowProgress
from windrow.core.text import with_article
from windrow.core.threads import DaemonPool
from windrow.errors import ArgumentError
from windrow.iter_dataset import IterDataset
from windrow.map_dataset import MapDataset
from windrow.sources.adapt import as_source
from windrow.verification.report import Report
from windrow.verification.scan import Scan, ScanResult, ScanTask, scans_of

IN_FLIGHT_BYTES: Final = 256 * 2**20
# More threads than cores help only where tasks wait for a network.
_LEAST_THREADS: Final = 8

Missing = Literal["fill", "error"]


def verify(
    source: Any,
    *,
    missing: Missing = "fill",
    threads: int | None = None,
    progress: ShowProgress = True,
) -> Report:
    """Read everything that a source has once, and report every bad chunk.

    A chunk is what is stored and decoded as one: a chunk of an array, a record group of an
    ArrayRecord file, or a record if the source has no chunks. docs/verify.md lists which damage is
    found in which format.

    >>> import numpy as np, windrow
    >>> report = windrow.verify(np.arange(1000), progress=False)
    >>> report.ok, report.records
    (True, 1000)

    Args:
        source: Anything that `windrow.sources.as_source` takes.
        missing: How to treat a chunk that is not stored: 'fill' only counts it, since it reads as the
            fill value; 'error' reports it as bad.
        threads: Number of reading threads; None for one per core, and at least 8 if a read may wait
            for a network.
        progress: Whether to show a bar on a terminal, and elsewhere to log a line every 10 seconds;
            or a function that is called in this thread with a `windrow.progress.Progress`, which
            counts decoded bytes.

    Raises:
        ArgumentError: If an argument is of the wrong kind, or `source` is a path.
        SourceError: If `source` cannot be used as a source.
        ReadError: If this process was forked from one that had used the library that reads it.
    """
    if isinstance(source, MapDataset | IterDataset):
        raise ArgumentError(
            f"verify: got {with_article(type(source).__name__)}, whose functions would run; give the source"
            " that it was made from"
        )
    check_arguments(missing, threads)
    if not isinstance(progress, bool) and not callable(progress):
        raise ArgumentError(f"verify: progress must be a bool or a function, got {progress!r}")
    taken = as_source(source)
    begin = time.monotonic()
    scans = scans_of(taken, refuse_missing=missing == "error")
    run_scans(scans, threads=threads, progress=progress)
    return report_of(scans, records=len(taken), elapsed_s=time.monotonic() - begin)


def check_arguments(missing: Any, threads: Any) -> None:
    """Check the arguments `missing` and `threads` of `verify`.

    Raises:
        ArgumentError: If one of them is invalid.
    """
    if missing not in ("fill", "error"):
        raise ArgumentError(f"verify: missing must be 'fill' or 'error', got {missing!r}")
    if threads is not None:
        check_integer("verify: threads", threads, 1)


def run_scans(scans: Sequence[Scan], *, threads: int | None, progress: ShowProgress) -> None:
    """Run scans on threads, one after the other.

    Args:
        scans: The scans; afterwards each has its `result`.
        threads: Number of tasks that run side by side; None for a number that suits them.
        progress: As for `verify`.
    """
    totals = [scan.total_bytes for scan in scans]
    known = [total for total in totals if total is not None]
    total = sum(known) if len(known) == len(totals) else None
    waits = any(scan.waits for scan in scans)
    enough = max(_LEAST_THREADS, usable_cores()) if waits else usable_cores()
    tasks = ((task, scan.result) for scan in scans for task in scan.tasks())
    with ProgressMeter("verify", total, progress) as meter:
        run_tasks(tasks, threads=threads or enough, meter=meter)


def report_of(scans: Sequence[Scan], *, records: int | None, elapsed_s: float) -> Report:
    """Combine the results of scans into one report; if `records` is None, chunks are records."""
    whole = ScanResult()
    for scan in scans:
        whole.add(scan.result)
    bad = [chunk for scan in scans for chunk in scan.bad_chunks()]
    return Report(
        records=whole.chunks if records is None else records,
        chunks=whole.chunks,
        decoded_bytes=whole.decoded_bytes,
        missing=whole.missing,
        untold=whole.untold,
        bad=tuple(bad),
        elapsed_s=elapsed_s,
    )


def run_tasks(
    tasks: Iterator[tuple[ScanTask, ScanResult]],
    *,
    threads: int,
    meter: ProgressMeter | None = None,
) -> None:
    """Run tasks on threads, in order, and add what each finds to the result paired with it."""
    stop = threading.Event()
    waiting: dict[Future[ScanResult], tuple[ScanTask, ScanResult]] = {}

    def collect() -> None:
        done, _ = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
        for future in done:
            task, into = waiting.pop(future)
            into.add(future.result())
            if meter is not None:
                meter.add(0, task.done_bytes)

    pool = DaemonPool(threads, "windrow-verify")
    try:
        for task, into in tasks:
            held = sum(other.held_bytes for other, _ in waiting.values())
            while waiting and (
                len(waiting) >= 2 * threads or held + task.held_bytes > IN_FLIGHT_BYTES
            ):
                collect()
                held = sum(other.held_bytes for other, _ in waiting.values())
            waiting[pool.submit(task.run, stop.is_set)] = task, into
        while waiting:
            collect()
    except BaseException:
        stop.set()
        # Decoding under way ends by itself; a user who pressed Ctrl-C does not wait for it.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
