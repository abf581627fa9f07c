"""Verification: reading everything that a source has once, and telling every piece that is bad.

Invariants: each piece that a record lies in is read once; what is under way at a time takes at most
`IN_FLIGHT_BYTES` of memory, or is one piece; data that can not be read is part of the report, and
any other error is raised.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Literal

from windrow.dataset import IterDataset, MapDataset
from windrow.errors import ArgumentError
from windrow.findings import BadPiece, Report
from windrow.progress import Meter, ShowProgress
from windrow.sources.adapt import as_source
from windrow.sources.process import cores
from windrow.walks import Found, Task, Walk, walks_of

IN_FLIGHT_BYTES: Final = 256 * 2**20
# Where storage is not far away, more threads than cores only take turns.
_LEAST_THREADS: Final = 8

Missing = Literal["fill", "error"]


def verify(
    source: Any,
    *,
    missing: Missing = "fill",
    threads: int | None = None,
    progress: ShowProgress = True,
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
        progress: Whether to show a bar on a terminal, and to log a line every 10 seconds elsewhere;
            or what is called, in this thread, with a `windrow.progress.Progress`, whose bytes are
            decoded ones.

    Raises:
        ArgumentError: If an argument is of the wrong kind, or `source` is a path.
        SourceError: If `source` can not be taken for a source.
        ReadError: If this process was forked from one that had used the library that reads it.
    """
    if isinstance(source, MapDataset | IterDataset):
        raise ArgumentError(
            f"verify: got a {type(source).__name__}, whose functions would run; give the source"
            " that it was made from"
        )
    check_arguments(missing, threads)
    if not isinstance(progress, bool) and not callable(progress):
        raise ArgumentError(f"verify: progress must be a bool or a function, got {progress!r}")
    taken = as_source(source)
    begin = time.monotonic()
    walks = walks_of(taken, refuse_missing=missing == "error")
    found = run_walks([walks], threads=threads, progress=progress)
    return report_of(walks, found, records=len(taken), elapsed_s=time.monotonic() - begin)


def check_arguments(missing: Any, threads: Any) -> None:
    """Refuse what is neither a way to take missing chunks nor a number of threads.

    Raises:
        ArgumentError: If one is not.
    """
    if missing not in ("fill", "error"):
        raise ArgumentError(f"verify: missing must be 'fill' or 'error', got {missing!r}")
    if threads is not None and (
        isinstance(threads, bool) or not isinstance(threads, int) or threads < 1
    ):
        raise ArgumentError(f"verify: threads must be an integer of at least 1, got {threads!r}")


def run_walks(
    lanes: Sequence[Sequence[Walk]], *, threads: int | None, progress: ShowProgress
) -> list[Found]:
    """Go through walks on threads, those of a lane one after the other, and lanes abreast.

    Lanes that go over the same files abreast find them in the memory of the machine.

    Args:
        lanes: What to go through.
        threads: How many tasks run side by side; None for what suits them.
        progress: As for `verify`.

    Returns:
        What each walk found, lane by lane.
    """
    walks = [walk for lane in lanes for walk in lane]
    totals = [walk.total_bytes for walk in walks]
    known = [total for total in totals if total is not None]
    found = [Found() for _ in walks]
    into = iter(found)
    paired = [[(walk, next(into)) for walk in lane] for lane in lanes]
    total = sum(known) if len(known) == len(totals) else None
    with Meter("verify", total, progress) as meter:
        _run(_abreast(paired), threads or _enough(walks), meter)
    return found


def report_of(
    walks: Sequence[Walk], found: Sequence[Found], *, records: int | None, elapsed_s: float
) -> Report:
    """What walks found, together; `records` is None for as many as there were pieces."""
    whole = Found()
    for each in found:
        whole.add(each)
    bad = [piece for walk, each in zip(walks, found, strict=True) for piece in _told(walk, each)]
    return Report(
        records=whole.pieces if records is None else records,
        pieces=whole.pieces,
        decoded_bytes=whole.decoded_bytes,
        missing=whole.missing,
        untold=whole.untold,
        bad=tuple(bad),
        elapsed_s=elapsed_s,
    )


def _enough(walks: Sequence[Walk]) -> int:
    return max(_LEAST_THREADS, cores()) if any(walk.waits for walk in walks) else cores()


def _told(walk: Walk, found: Found) -> Iterator[BadPiece]:
    ordered = sorted(found.bad, key=lambda bad: bad.number)
    if not ordered:
        return
    for bad, at in zip(ordered, walk.places(ordered), strict=True):
        yield BadPiece(walk.name, bad.number, at.file, at.offset, at.first, at.stop, bad.error)


def _abreast(lanes: Sequence[Sequence[tuple[Walk, Found]]]) -> Iterator[tuple[Task, Found]]:
    """The tasks of all lanes: the next one is always of the lane that is least far."""
    left = [_tasks(lane) for lane in lanes]
    totals = [max(1, sum(walk.total_bytes or 0 for walk, _ in lane)) for lane in lanes]
    done = [0] * len(lanes)
    going = list(range(len(lanes)))
    while going:
        at = min(going, key=lambda k: done[k] / totals[k])
        item = next(left[at], None)
        if item is None:
            going.remove(at)
        else:
            done[at] += item[0].done_bytes
            yield item


def _tasks(lane: Sequence[tuple[Walk, Found]]) -> Iterator[tuple[Task, Found]]:
    for walk, into in lane:
        for task in walk.tasks():
            yield task, into


def _run(tasks: Iterator[tuple[Task, Found]], threads: int, meter: Meter) -> None:
    """Run tasks on threads, in order; what each finds goes where it says."""
    stop = threading.Event()
    waiting: dict[Future[Found], tuple[Task, Found]] = {}

    def collect() -> None:
        done, _ = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
        for future in done:
            task, into = waiting.pop(future)
            into.add(future.result())
            meter.add(0, task.done_bytes)

    pool = ThreadPoolExecutor(threads, thread_name_prefix="windrow-verify")
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
        # What is being decoded ends by itself; nobody who pressed a key waits for that.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
