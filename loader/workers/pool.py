"""A pool of worker processes that run jobs; a worker that dies is replaced.

Contract:
1. Every job gets one reply, or an error. Any worker may do it; a worker that dies over it is
   replaced, and the job is done again, up to `tries` times.
2. Only `wait`, `wait_any` and `stop` wait for a worker; a call that finds a dead worker waits until
   its process has ended. The pool has no thread: calls receive what the workers have sent.
3. `kill` leaves no process and no descriptor behind. It is called when the object is dropped and
   when the interpreter exits; when this process is killed, the workers end by themselves.
4. In a forked child every call is an error, and the parent's workers are not touched.
"""

from __future__ import annotations

import functools
import math
import pickle
import select
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from windrow.core.machine import shared_bytes_of
from windrow.errors import ClosedError, ElementError, PlanError, WorkerError
from windrow.transforms.options import MultiprocessingOptions
from windrow.workers.by_value import functions_as_bytes
from windrow.workers.child import Handler, Init
from windrow.workers.messages import (
    ALIGNMENT_BYTES,
    Failure,
    FrameKind,
    Message,
    ReplyHeader,
    opened,
)
from windrow.workers.process import Job, Slot, WorkerProcess, WorkerProcesses, ended_by, log_debug
from windrow.workers.shared_memory import Bytes, SharedMemory, SlotAllocator

# One that the worker runs, and one that waits in its socket.
_JOBS_PER_WORKER = 2
# Processes in a row that end before they have done anything; others would do the same.
_MOST_FAILED_STARTS = 3
# If a child of a worker holds its socket open, the socket does not show the worker's end. So processes
# are polled this often.
_POLL_S = 1.0

P = ParamSpec("P")
R = TypeVar("R")


def _call(
    method: Callable[Concatenate[WorkerPool, P], R],
) -> Callable[Concatenate[WorkerPool, P], R]:
    """Make a method a call: one at a time, in the process of the pool, before it is killed."""

    @functools.wraps(method)
    def call(self: WorkerPool, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._processes:
            while self._dropped:
                self._release(self._dropped.popleft())
            return method(self, *args, **kwargs)

    return call


class WorkerPool:
    """Worker processes that do jobs.

    `kill`, `interrupt` and `drop` may be called from any thread. All other methods are for one thread
    at a time.

    Args:
        handler: Makes a reply from a request, in a worker. It gets a `MessageBuffer` for the arrays of
            the reply. None if `load` comes before the first job.
        options: How many workers, and how they share memory; at least one worker.
        init: Called once in each worker, with its number and the number of workers.
        replaces: Whether a worker that ends is replaced. If not, its end is an error of every call.

    Attributes:
        death: How a worker ended that is not replaced; empty if none has ended.
        request_bytes: Bytes of the arrays of all requests without a reply. Any thread may read it.

    Raises:
        Exception: What pickling raised, of any type, if the functions cannot be sent.
        PlanError: If `options` has no workers.
    """

    def __init__(
        self,
        handler: Handler | None,
        options: MultiprocessingOptions,
        init: Init | None = None,
        *,
        replaces: bool = True,
    ) -> None:
        self._most = options.most_workers
        if self._most < 1:
            raise PlanError(
                f"workers: num_workers must be at least 1, got {self._most}; with 0 the"
                " functions run in this process, without workers"
            )
        self.death = ""
        self._program = functions_as_bytes((handler, init))
        self._options = options
        self._replaces = replaces
        self._processes = WorkerProcesses()
        self._is_interrupted = False
        self._fatal: Failure | str = ""  # why no worker is available
        self._failed_starts = 0
        self._number = 0
        self._jobs: dict[int, Job] = {}  # jobs whose replies are wanted and not taken
        self._queue: deque[Job] = deque()  # jobs that wait for a worker
        self._dropped: deque[Job] = deque()  # jobs to release at the next call
        self._memory: SharedMemory | None = None
        self._slots = SlotAllocator(0)
        self._job_slot_bytes = 0  # of slots that jobs have; arrays of replies have the rest
        self._reply_bytes = 0  # what the largest reply needs
        self.request_bytes = 0
        self._kill = weakref.finalize(self, self._processes.kill)

    # --- calls ---

    @_call
    def start(self, count: int | None = None) -> None:
        """Start processes until there are `count`, by default all; does not wait for them.

        Raises:
            WorkerError: If one cannot be started.
            ClosedError: After `kill`.
        """
        self._start(self._most if count is None else count)

    @_call
    def ready(self) -> int:
        """How many workers are ready. Receives what the workers have sent.

        Raises:
            Exception: If no job can be done any more; the reason.
        """
        if self._memory is not None:
            self._take(0)
        self._check_usable()
        return sum(worker.is_ready for worker in self._processes.workers)

    def load(self, program: bytes) -> None:
        """Use another program for all jobs from now on.

        Args:
            program: The handler and `init`, or None, as `pickled_by_value` pickles the pair.
        """
        self._program = program

    @_call
    def submit(self, request: Any, tries: int = 3) -> Job:
        """Queue a job; the arrays of its request must not change until it is done.

        Starts all processes if none is running.

        Args:
            request: Passed to the handler; any object that can be pickled.
            tries: Workers that may end while they do it.

        Raises:
            Exception: If the request cannot be pickled, or if a worker raised it when it started.
            WorkerError: If the workers cannot be started.
            ClosedError: After `kill`.
        """
        if self._memory is None:
            self._start(self._most)
        self._check_usable()
        message = Message.of(request)
        self._number += 1
        job = Job(self._number, self._program, tries, message.slot_bytes, message)
        self._jobs[job.number] = job
        self.request_bytes += job.size_bytes
        self._queue.append(job)
        self._hand_out()
        return job

    @_call
    def is_done(self, job: Job) -> bool:
        """Whether `wait` would return at once. Receives what the workers have sent."""
        if not self._is_decided(job):
            self._take(0)
        return self._is_decided(job)

    @_call
    def wait(self, job: Job) -> Any:
        """Return the reply, once. Its arrays may lie in shared memory, which lives as long as they do.

        Raises:
            Exception: The handler raised it; its cause has the worker's traceback.
            WorkerError: If workers ended over the job, or cannot be started.
            ClosedError: After `kill`, and after `interrupt` until `forget`.
        """
        self._wait_until(lambda: self._is_decided(job))
        return self._reply(job)

    @_call
    def wait_any(self, jobs: Collection[Job]) -> list[Job]:
        """Wait for news of `jobs`; return those that are done or have reported, at least one.

        Raises:
            ClosedError: As for `wait`.
        """
        found: list[Job] = []

        def is_any() -> bool:
            found[:] = (job for job in jobs if job.reports or self._is_decided(job))
            return bool(found)

        self._take(0)  # also where some job has reports already
        self._wait_until(is_any)
        return found

    @property
    @_call
    def wants_jobs(self) -> bool:
        """Whether more jobs are useful now; if not, the submitted ones suffice for a while."""
        workers = len(self._processes.workers) or self._most
        if len(self._jobs) < workers:
            return True  # requests are sent even without a slot, so that no worker idles
        most = workers * (1 + self._options.per_worker_buffer_size)
        if len(self._jobs) >= most:
            return False
        limit_bytes = self._memory_bytes() // 2
        used_bytes = self.request_bytes + self._reply_bytes * len(self._jobs)
        return not limit_bytes or used_bytes < limit_bytes

    def interrupt(self) -> None:
        """Make `wait` raise a ClosedError until `forget` is called. Any thread may call it."""
        if self._processes.is_own:
            self._is_interrupted = True
            self._processes.wake()

    def drop(self, job: Job) -> None:
        """Discard the reply of a job.

        Any thread may call it, also the garbage collector: it never waits.
        """
        self._dropped.append(job)

    @_call
    def forget(self) -> None:
        """Discard the replies of all jobs."""
        self._is_interrupted = False
        for job in list(self._jobs.values()):
            self._release(job)

    def stop(self, limit_s: float) -> None:
        """Make running jobs end at their next report; kill workers that take longer than `limit_s`.

        No other call may follow.
        """
        try:
            self._processes.stop(limit_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """End all processes, at once and for good."""
        self._kill()

    # --- jobs ---

    def _is_decided(self, job: Job) -> bool:
        return job.is_done or not job.is_wanted or bool(self._fatal)

    def _check_usable(self) -> None:
        if isinstance(self._fatal, Failure):
            raise self._fatal.raised()
        if self._fatal:
            raise WorkerError(self._fatal)

    def _wait_until(self, holds: Callable[[], bool]) -> None:
        while True:
            if self._processes.is_killed or self._is_interrupted:
                raise ClosedError("the wait for a worker was ended by close() or a new state")
            if holds():
                return
            self._take(self._patience_s())
            self._kill_slow()

    def _hand_out(self) -> None:
        """Send waiting jobs to the workers that have the fewest."""
        workers = self._processes.workers
        # A worker that is about to be ready should find something to do.
        most = _JOBS_PER_WORKER if all(w.is_ready for w in workers) else 1
        while self._queue:
            best: WorkerProcess | None = None
            for worker in workers:
                count = len(worker.jobs)
                if worker.is_ready and count < (len(best.jobs) if best is not None else most):
                    best = worker
            if best is None:
                return
            job = self._queue.popleft()
            job.slot = job.slot or self._slot(job.size_bytes)
            try:
                best.send(job)
            except Exception as error:  # too little memory for the message
                job.error = error
                continue
            if not best.connection.is_flushed:
                self._processes.watch(best)

    def _take_frame(self, worker: WorkerProcess, header: ReplyHeader, body: bytes) -> None:
        if header.kind in (FrameKind.REPLY, FrameKind.FAILURE):
            self._finish(worker, header, body)
        elif header.kind == FrameKind.READY:
            worker.is_ready = True
        elif header.kind == FrameKind.UNUSABLE:
            self._fatal = pickle.loads(body)
        elif worker.jobs:  # a report
            worker.jobs[0].reports.append(pickle.loads(body))

    def _finish(self, worker: WorkerProcess, header: ReplyHeader, body: bytes) -> None:
        """Take the reply of the job at work."""
        job = worker.jobs.popleft()
        worker.since_s = time.monotonic()
        worker.has_replied = True
        self._failed_starts = 0
        job.header, job.body, job.message = header, body, None
        self._reply_bytes = max(self._reply_bytes, header.needed_bytes)
        if header.kept and job.slot is not None:
            # Not used again while the worker lives: its functions refer to it.
            worker.kept.append(self._taken(job.slot))
            job.slot = None
        if not job.is_wanted:
            self._give_back(job)

    def _reply(self, job: Job) -> Any:
        if self._jobs.pop(job.number, None) is None:
            raise ClosedError("this reply was taken or discarded before")
        self.request_bytes -= job.size_bytes
        if job.header is None:
            self._give_back(job)
            if job.error is not None:
                raise job.error
            self._check_usable()
        if job.header is None or job.header.kind == FrameKind.FAILURE:
            self._give_back(job)
            failure: Failure = pickle.loads(job.body)
            raise failure.raised()
        try:
            return opened(job.body, self._lent(job, job.header.used_bytes))
        except Exception as error:
            raise ElementError(
                "the result of a worker process cannot be unpickled here:"
                f" {type(error).__name__}: {error}"
            ) from error

    def _release(self, job: Job) -> None:
        """Discard a reply; its slots become free now, or when the reply comes."""
        if self._jobs.pop(job.number, None) is None:
            return
        self.request_bytes -= job.size_bytes
        job.is_wanted = False
        if job.is_done:
            self._give_back(job)
        elif not job.is_sent:
            self._queue.remove(job)
            self._give_back(job)

    # --- slots ---

    def _memory_bytes(self) -> int:
        return self._memory.size_bytes if self._memory is not None else 0

    def _slot(self, request_bytes: int) -> Slot | None:
        """A slot for a job; None if it needs none, or memory is short."""
        reply_bytes = self._reply_bytes + self._reply_bytes // 4
        reply_bytes = -(-reply_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        size = reply_bytes + request_bytes
        start = self._slots.take(size) if size else None
        if start is None:
            return None
        self._job_slot_bytes += size
        return Slot(start, start + reply_bytes, start + size)

    def _taken(self, slot: Slot) -> int:
        """Count a slot as one that no job has any more; return its start."""
        self._job_slot_bytes -= slot.stop - slot.start
        return slot.start

    def _give_back(self, job: Job) -> None:
        if job.slot is not None:
            self._slots.give(self._taken(job.slot))
        job.slot = job.message = None

    def _lent(self, job: Job, used_bytes: int) -> Bytes | None:
        """The used part of a job's slot: lent as long as its arrays live, or as a copy."""
        slot, job.slot = job.slot, None
        if slot is None or self._memory is None:
            return None
        lent_bytes = self._slots.used_bytes - self._job_slot_bytes
        start = self._taken(slot)
        give = functools.partial(self._slots.give, start)
        if used_bytes and lent_bytes <= self._memory_bytes() // 2:
            self._slots.shrink(start, used_bytes)
            return self._memory.lend(start, start + used_bytes, give)
        # Otherwise requests would get no slots while the consumer keeps its arrays.
        copy = self._memory.view(start, start + used_bytes).copy()
        give()
        return copy

    # --- processes ---

    def _start(self, count: int) -> None:
        self._check_usable()
        if self._memory is None:
            self._memory = self._processes.open(shared_bytes_of(self._options.shared_bytes))
            self._slots = SlotAllocator(self._memory.size_bytes)
        here = {worker.index for worker in self._processes.workers}
        for index in range(count):
            if index not in here:
                self._add(index)
        self._check_usable()

    def _add(self, index: int) -> None:
        if self._memory is None or self._fatal:
            return
        count = self._most
        try:
            worker = WorkerProcess(index, count, self._program, self._memory)
        except OSError as error:
            self._fatal = (
                f"worker {index} of {count} cannot be started: {error}; the limits on processes,"
                " open files or memory may be too low"
            )
            return
        self._processes.add(worker)
        log_debug("worker %d of %d starts as process %d", index, count, worker.process_id)

    def _take(self, limit_s: float) -> None:
        """Receive what workers have sent, after waiting for it for up to `limit_s` seconds."""
        events = self._processes.poll(limit_s)
        if self._processes.is_killed:
            return
        for worker, event in events or ():
            self._serve(worker, event)
        if limit_s and events is None:
            for worker in list(self._processes.workers):
                if worker.has_ended:
                    self._serve(worker, select.POLLIN)
                    if worker in self._processes.workers:
                        self._replace(worker)
        self._hand_out()

    def _serve(self, worker: WorkerProcess, event: int) -> None:
        """Send to a worker, and receive what it sent."""
        if event & select.POLLOUT:
            worker.connection.flush()
            if worker.connection.is_flushed:
                worker.since_s = time.monotonic()
            self._processes.watch(worker)
        if event & ~select.POLLOUT:
            try:
                frames, is_open = worker.connection.receive()
            except MemoryError:
                worker.kill("its answer did not fit into memory here")
                frames, is_open = [], False
            worker.since_s = time.monotonic()
            for header, body in frames:
                self._take_frame(worker, header, body)
            if not is_open:
                self._replace(worker)

    def _patience_s(self) -> float:
        limit_s = self._options.timeout_s
        if limit_s is None:
            return _POLL_S
        since = [worker.since_s for worker in self._processes.workers if worker.jobs]
        left_s = min(since, default=math.inf) + limit_s - time.monotonic()
        return min(_POLL_S, max(0.001, left_s))

    def _kill_slow(self) -> None:
        limit_s = self._options.timeout_s
        if limit_s is None or self._processes.is_killed:
            return
        now = time.monotonic()
        for worker in list(self._processes.workers):
            if worker.jobs and now - worker.since_s > limit_s and worker.connection.is_flushed:
                worker.kill(f"ran longer than timeout_s={limit_s:g}")
                self._replace(worker)

    def _replace(self, worker: WorkerProcess) -> None:
        """Remove a worker that has ended, and start another one for its jobs."""
        self._processes.remove(worker)
        how = worker.end()
        log_debug("worker %d (process %d) ended: %s", worker.index, worker.process_id, how)
        for start in worker.kept:
            self._slots.give(start)
        again = list(self._jobs_left(worker, how))
        self._queue.extendleft(reversed(again))
        if self._fatal or self._processes.is_killed:
            return
        if not self._replaces:
            self.death = how
            self._fatal = f"a worker process ended ({how})"
            return
        if not worker.jobs and not worker.has_replied:
            self._failed_starts += 1
            if self._failed_starts >= _MOST_FAILED_STARTS:
                self._fatal = (
                    f"{self._failed_starts} workers in a row ended before they could do anything;"
                    f" the last one: {how}. What they wrote is on the standard error stream"
                )
                return
        then = "its work is done again by a new one" if again else "a new one takes its place"
        self._processes.warn_of(worker, how, then)
        self._add(worker.index)

    def _jobs_left(self, worker: WorkerProcess, how: str) -> Iterator[Job]:
        """The jobs of a worker that ended, to be done again; the one at work counts an end."""
        for number, job in enumerate(worker.jobs):
            job.is_sent = False
            job.reports.clear()
            if not number:
                job.ends.append(how)
            if not job.is_wanted:
                self._give_back(job)
            elif len(job.ends) >= job.tries:
                self._give_back(job)
                job.error = ended_by(job)
            else:
                yield job
