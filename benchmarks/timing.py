"""One measurement: what is timed, and the figures that come out, with units in their names.

Invariant: an epoch that ends before every record was delivered is an error, not a figure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import re
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil

from benchmarks import memory
from benchmarks.job import Job, Metrics, Work

_MB = 10**6
_GB = 10**9
_WATCH_S = 0.05
_WARM_BATCHES = 2
_ELEMENTS_AT_ONCE = 1_024
_CPU_TICK_S = 1e-6


class Resumable(Protocol):
    """An iterator with a state, ours or Grain's."""

    def __next__(self) -> Any: ...

    def get_state(self) -> Any: ...

    def set_state(self, state: Any) -> None: ...


def measure(work: Work, job: Job, *, limit_s: float) -> Metrics:
    """One epoch of `work`, read cold: a new source, a new iterator, and nothing decoded before.

    Two batches of an epoch of its own come first: they give the time to the first batch, and load
    what is loaded on first use. An epoch that takes longer than `limit_s` ends there, and its
    figures are those of what it has delivered.
    """
    if not job.small:
        # What the imports left is not looked at again, and its garbage is not counted.
        gc.collect()
        gc.freeze()
    watch = memory.Watch() if job.watched else None
    idle_bytes = now_bytes()
    first_s = _first_batch_s(work)
    if not job.small:
        gc.collect()
    children = _Children() if work.workers else None
    if work.server is not None:
        if not job.small:
            work.server.settle()
        work.server.reset()
    iterable = work.open()
    read_bytes, cpu_s, start_s = _read_bytes(), time.process_time(), time.perf_counter()
    iterator = iter(iterable)
    started = 0
    if children or work.warm:
        started = _warmed(iterator, job)
        if children:
            children.mark()
        read_bytes, cpu_s, start_s = _read_bytes(), time.process_time(), time.perf_counter()
    rows = started + _rows(iterator, work, until_s=start_s + limit_s)
    took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    read_bytes = _read_bytes() - read_bytes
    figures = {**({} if work.extra is None else work.extra()), **_served(work, job, rows)}
    found = children.stop() if children else []
    above_bytes = None if watch is None else watch.stop()
    _close(iterator)
    if rows != job.records and took_s < limit_s:
        raise RuntimeError(f"benchmark: {rows:,} of {job.records:,} records came")
    cpu_s += sum(child.cpu_s - child.marked_cpu_s for child in found)
    timed_bytes = (rows - started) * job.record_bytes
    if above_bytes is None:
        peaks = [peak_bytes(), *(child.peak_bytes for child in found)]
        above_bytes = sum(max(0, peak - idle_bytes) for peak in peaks)
    return {
        "records_per_s": (rows - started) / took_s,
        "batches_per_s": (rows - started) / job.batch_size / took_s,
        "mb_per_s": timed_bytes / took_s / _MB,
        "records_per_cpu_s": (rows - started) / max(cpu_s, _CPU_TICK_S),
        "cpu_s_per_gb": cpu_s / max(1, timed_bytes) * _GB,
        "memory_mb": above_bytes / _MB,
        "first_batch_ms": first_s * 1e3,
        "delivered": rows,
        **_reads(work, job, read_bytes, rows),
        **figures,
    }


def rate(work: Work, job: Job, *, limit_s: float) -> float:
    """Records per second over an epoch, or over its first `limit_s`: to choose a setting by."""
    iterator = iter(work.open())
    # Processes start until the first batch comes.
    first = _warmed(iterator, job) if work.workers or work.warm else 0
    start_s = time.perf_counter()
    rows = _rows(iterator, work, until_s=start_s + limit_s)
    took_s = time.perf_counter() - start_s
    _close(iterator)
    del iterator
    return (rows or first) / took_s


def of_starting(work: Work) -> Metrics:
    """From the making of an iterator to its first batch, in a process that has made none before."""
    iterable = work.open()
    start_s = time.perf_counter()
    iterator = iter(iterable)
    next(iterator)
    first_s = time.perf_counter() - start_s
    _close(iterator)
    return {"first_batch_ms": first_s * 1e3}


def _first_batch_s(work: Work) -> float:
    start_s = time.perf_counter()
    iterator = iter(work.open())
    next(iterator)
    first_s = time.perf_counter() - start_s
    for _ in itertools.islice(iterator, _WARM_BATCHES - 1):
        pass
    _close(iterator)
    return first_s


def _warmed(iterator: Iterator[Any], job: Job) -> int:
    """Records of the batches that come before the clock starts, taken."""
    return sum(len(batch) for batch in itertools.islice(iterator, job.warm_batches))


def _rows(iterator: Iterator[Any], work: Work, *, until_s: float) -> int:
    rows = 0
    if work.batched:
        for batch in iterator:
            rows += len(batch)
            if time.perf_counter() > until_s:
                break
        return rows
    while some := len(list(itertools.islice(iterator, _ELEMENTS_AT_ONCE))):
        rows += some
        if time.perf_counter() > until_s:
            break
    return rows


def _reads(work: Work, job: Job, read_bytes: int, rows: int) -> Metrics:
    """Stored bytes read for each stored byte of the records delivered: 1 is each of them once."""
    if work.mapped or work.workers or read_bytes <= 0:
        return {}
    stored = job.data.stored_bytes(job.stored_layout) if Path(job.path).exists() else 0
    delivered = stored * job.epochs * rows / job.records
    return {"reads": read_bytes / delivered} if stored else {}


def _served(work: Work, job: Job, rows: int) -> Metrics:
    """What the server was asked for, also for batches that were asked for and have not come."""
    if work.server is None:
        return {}
    served = work.server.served()
    stored = job.data.stored_bytes(job.stored_layout) * rows / job.records
    return {
        "requests": served.requests,
        "requests_per_batch": served.requests / rows * job.batch_size,
        "reads": served.bytes / stored,
        "received_per_byte": served.bytes / (rows * job.record_bytes),
    }


def of_whole(work: Callable[[], int], job: Job) -> Metrics:
    """Work that returns how many records it has done, after a first time that loads everything."""
    idle_bytes = now_bytes()
    if work() != job.records:
        raise RuntimeError(f"benchmark: not all of {job.records:,} records were done")
    cpu_s, start_s = time.process_time(), time.perf_counter()
    records = work()
    took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    decoded_bytes = records * job.record_bytes
    return {
        "records_per_s": records / took_s,
        "mb_per_s": decoded_bytes / took_s / _MB,
        "records_per_cpu_s": records / max(cpu_s, _CPU_TICK_S),
        "cpu_s_per_gb": cpu_s / max(1, decoded_bytes) * _GB,
        "memory_mb": max(0, peak_bytes() - idle_bytes) / _MB,
        "delivered": records,
    }


def of_restoring(make: Callable[[], Any], batches: int, restores: int) -> Metrics:
    """Save in the middle of an epoch, restore in a new iterator, wait for its first batch."""
    iterator: Resumable = make()
    state: Any = None
    saves_s = []
    for _ in range(max(1, batches // 2)):
        next(iterator)
        start_s = time.perf_counter()
        state = iterator.get_state()
        saves_s.append(time.perf_counter() - start_s)
    _close(iterator)
    restored = [_restore(make, state) for _ in range(restores)]
    return {
        "get_state_us": statistics.median(saves_s) * 1e6,
        "set_state_us": statistics.median(set_s for set_s, _ in restored) * 1e6,
        "first_batch_ms": statistics.median(first_s for _, first_s in restored) * 1e3,
        "state_bytes": len(json.dumps(state)),
    }


def _restore(make: Callable[[], Any], state: Any) -> tuple[float, float]:
    """Seconds of `set_state`, and from the making of the iterator to its first batch."""
    start_s = time.perf_counter()
    iterator: Resumable = make()
    made_s = time.perf_counter()
    iterator.set_state(state)
    restored_s = time.perf_counter()
    next(iterator)
    first_s = time.perf_counter() - start_s
    _close(iterator)
    return restored_s - made_s, first_s


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


# --- what the kernel counts ----------------------------------------------------------------------


def peak_bytes(pid: int | None = None) -> int:
    """Most memory that a process has had resident so far, or since `now_bytes`.

    On Linux the kernel's mark of this program: `ru_maxrss` would begin with the memory of the
    process that started it.

    Args:
        pid: Another process than this one; where its mark cannot be had, the answer is 0.
    """
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
    except (FileNotFoundError, ProcessLookupError):
        found = None
    if found is not None:
        return int(found[1]) * 1024
    if pid is not None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def now_bytes() -> int:
    """Memory now; the kernel's mark of the peak is set back to it, where that can be done."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return int(psutil.Process().memory_info().rss)


def _read_bytes() -> int:
    """Bytes that this process has read from files by calls; 0 where nobody counts them."""
    try:
        counted = Path("/proc/self/io").read_text()
    except OSError:
        return 0
    return int(counted.split("rchar:")[1].split()[0])


@dataclasses.dataclass(slots=True)
class _Child:
    """What was last seen of a child."""

    peak_bytes: int = 0
    cpu_s: float = 0.0
    marked_cpu_s: float = 0.0


class _Children:
    """This process's children and theirs, looked at while they live, by a thread."""

    def __init__(self) -> None:
        self._seen: dict[int, _Child] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            self._look()

    def _look(self) -> None:
        with self._lock:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child = self._seen.setdefault(process.pid, _Child())
                    times = process.cpu_times()
                    child.cpu_s = times.user + times.system
                    child.peak_bytes = max(child.peak_bytes, peak_bytes(process.pid))

    def mark(self) -> None:
        """What they have used so far is not counted."""
        self._look()
        with self._lock:
            for child in self._seen.values():
                child.marked_cpu_s = child.cpu_s

    def stop(self) -> list[_Child]:
        """Each child seen; one that has ended, as it was when it was last looked at."""
        self._stop.set()
        self._thread.join()
        self._look()
        return list(self._seen.values())
