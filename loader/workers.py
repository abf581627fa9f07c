"""Workers: processes that answer requests, and are replaced when they die.

Contract:
1. Every request gets one answer: a reply, or an error. Any worker may make it; a worker that dies
   over it is replaced, and the request is made again, up to `tries` times.
2. No call waits for a worker but `wait`, and whichever finds a worker dead, until it has ended. There is no thread: what comes from the workers is taken
   within the calls.
3. `kill` leaves no process and no descriptor behind. It is called when the object is dropped and
   when the interpreter exits; when this process is killed, the workers end by themselves.
4. In a forked child every call is an error, and the parent's workers are not touched.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import select
import socket
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.channel import Frame, Kind
from windrow.errors import ClosedError, ElementError, PlanError, WorkerError
from windrow.handover import Failure, Parcel, opened, referred
from windrow.memory import shared_bytes_of
from windrow.multiprocessing import MultiprocessingOptions
from windrow.sending import functions_as_bytes
from windrow.shared import Blocks, SharedMemory
from windrow.worker import KEPT_REPLY, KEPT_REQUEST, Handler, Init
from windrow.worker_process import Part, Ticket, WorkerProcess

# One that the worker is at, and one that waits in its socket.
_REQUESTS_PER_WORKER = 2
# Processes in a row that end before they have done anything; then there is no use in more.
_MOST_FAILED_STARTS = 3
# A socket that a child of a worker holds open tells nothing: the processes are looked at.
_LOOK_S = 1.0


class Workers:
    """Worker processes that run `handler`.

    `kill`, `interrupt` and `drop` may be called from any thread. All other methods are for one thread
    at a time.

    Args:
        handler: Makes a reply from a request, in a worker. It gets a `Room` for the arrays of the
            reply.
        options: How many workers, and how they share memory; at least one worker.
        init: Called once in each worker, with its number and the number of workers.

    Raises:
        ArgumentError: If the functions cannot be sent.
        PlanError: If no worker is asked for.
    """

    def __init__(
        self, handler: Handler, options: MultiprocessingOptions, init: Init | None = None
    ) -> None:
        if options.num_workers < 1:
            raise PlanError(
                f"workers: num_workers must be at least 1, got {options.num_workers}; with 0 the"
                " functions run in this process, without workers"
            )
        self._team = _Team(functions_as_bytes((handler, init)), options)
        self._end = weakref.finalize(self, self._team.kill)

    def start(self) -> None:
        """Start the processes, if they are not started yet; does not wait for them.

        Raises:
            WorkerError: If they cannot be started.
            ClosedError: After `kill`.
        """
        with self._team as team:
            team.start()

    def submit(self, request: Any, tries: int = 3) -> Ticket:
        """Have a request answered; its arrays must stay as they are until then.

        Args:
            request: What the handler gets; anything that can be pickled.
            tries: Workers that may end over it.

        Raises:
            Exception: If the request cannot be pickled, or what a worker raised when it started.
            WorkerError: If the workers cannot be started.
            ClosedError: After `kill`.
        """
        with self._team as team:
            return team.submit(request, tries)

    def is_done(self, ticket: Ticket) -> bool:
        """Whether `wait` would return at once. Takes what has come from the workers."""
        with self._team as team:
            return team.is_done(ticket)

    def wait(self, ticket: Ticket) -> Any:
        """The reply, once. Its arrays may lie in shared memory, which they keep as long as they live.

        Raises:
            Exception: What the handler raised, with the worker's traceback as its cause.
            WorkerError: If workers ended over the request, or cannot be started.
            ClosedError: After `kill`, and after `interrupt` until `forget`.
        """
        with self._team as team:
            return team.wait(ticket)

    @property
    def has_room(self) -> bool:
        """Whether more requests are of use now: if not, those under way are enough for a while."""
        with self._team as team:
            return team.has_room

    @property
    def under_way_bytes(self) -> int:
        """Bytes of the arrays of requests that are not answered. From any thread."""
        return self._team.under_way_bytes

    def interrupt(self) -> None:
        """Have `wait` raise a ClosedError, now and until `forget` is called. From any thread."""
        self._team.interrupt()

    def drop(self, ticket: Ticket) -> None:
        """The reply to a request is not wanted any more.

        From any thread, also by the garbage collector: it waits for nothing.
        """
        self._team.drop(ticket)

    def forget(self) -> None:
        """The replies to all requests under way are not wanted any more."""
        with self._team as team:
            team.forget()

    def kill(self) -> None:
        """End all processes, at once and for good."""
        self._end()


class _Team:
    """The processes and all that is under way. As a context: one call of a method of `Workers`."""

    def __init__(self, functions: bytes, options: MultiprocessingOptions) -> None:
        self._functions = functions
        self._options = options
        self._owner = os.getpid()
        self._calling = threading.Lock()  # held by the call under way
        # A finalizer may come in between, within the same thread.
        self._closing = threading.RLock()
        self._is_killed = self._is_interrupted = self._is_closed = False
        self._fatal: Failure | str = ""  # why no worker can be had
        self._failed_starts = 0
        self._warnings: list[str] = []
        self._workers: list[WorkerProcess] = []
        self._by_descriptor: dict[int, WorkerProcess] = {}
        self._waiting: deque[Ticket] = deque()  # for a worker
        self._tickets: dict[int, Ticket] = {}  # all that are wanted and not taken
        self._dropped: deque[Ticket] = deque()  # not wanted any more, and not seen to yet
        self._number = 0
        self._reply_bytes = 0  # what a reply needs
        self.under_way_bytes = 0  # of the arrays of `_tickets`
        self._held_bytes = 0  # of parts of the memory that tickets have
        self._poll = select.poll()
        self._wake_up: socket.socket | None = None
        self._sleeper: socket.socket | None = None
        self._memory: SharedMemory | None = None
        self._blocks = Blocks(0)

    # --- calls ---

    def __enter__(self) -> _Team:
        if os.getpid() != self._owner:
            raise WorkerError(
                f"workers of process {self._owner} cannot be used in process {os.getpid()}, which"
                " was forked from it. Make the iterator in the process that uses it, and start"
                " processes by spawn or forkserver: multiprocessing.get_context('spawn'), or"
                " torch.utils.data.DataLoader(..., multiprocessing_context='spawn')"
            )
        self._calling.acquire()
        if self._is_killed:
            self._calling.release()
            self._close()  # `kill` may have met this call, and left it to us
            raise ClosedError("the workers were ended by close(); make a new iterator")
        while self._dropped:
            self._put_aside(self._dropped.popleft())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._calling.release()
        if self._is_killed:
            self._close()
        elif self._warnings:
            found, self._warnings = self._warnings, []
            for text in found:
                warnings.warn(text, RuntimeWarning, stacklevel=3)

    def start(self) -> None:
        self._check_usable()
        if self._memory is not None:
            return
        self._memory = SharedMemory.create(shared_bytes_of(self._options.shared_bytes))
        self._blocks = Blocks(self._memory.size_bytes)
        self._wake_up, self._sleeper = socket.socketpair()
        self._wake_up.setblocking(False)
        self._poll.register(self._sleeper, select.POLLIN)
        for index in range(self._options.num_workers):
            self._add(index)
        self._check_usable()

    def submit(self, request: Any, tries: int) -> Ticket:
        self.start()
        parcel = Parcel.of(request)
        self._number += 1
        ticket = Ticket(self._number, tries, parcel.outside_bytes, parcel)
        self._tickets[ticket.number] = ticket
        self.under_way_bytes += ticket.size_bytes
        self._waiting.append(ticket)
        self._hand_out()
        return ticket

    def is_done(self, ticket: Ticket) -> bool:
        if not self._is_decided(ticket):
            self._turn(0)
        return self._is_decided(ticket)

    def wait(self, ticket: Ticket) -> Any:
        while True:
            if self._is_killed or self._is_interrupted:
                raise ClosedError("the wait for a worker was ended by close() or a new state")
            if self._is_decided(ticket):
                return self._taken(ticket)
            self._turn(self._patience_s())
            self._end_slow()

    @property
    def has_room(self) -> bool:
        if len(self._tickets) < self._options.num_workers:
            return True  # what finds no place in the memory is sent without it, and nobody idles
        most = self._options.num_workers * (1 + self._options.per_worker_buffer_size)
        if len(self._tickets) >= most:
            return False
        room = self._blocks_bytes() // 2
        return not room or self.under_way_bytes + self._reply_bytes * len(self._tickets) < room

    def interrupt(self) -> None:
        if os.getpid() == self._owner:
            self._is_interrupted = True
            self._wake()

    def forget(self) -> None:
        self._is_interrupted = False
        for ticket in list(self._tickets.values()):
            self._put_aside(ticket)

    def drop(self, ticket: Ticket) -> None:
        self._dropped.append(ticket)

    def kill(self) -> None:
        """End everything. From any thread, and again without harm."""
        if os.getpid() != self._owner:
            return
        self._is_killed = True
        # A call under way sees this after it has started another process, and ends that itself.
        workers = list(self._workers)
        for worker in workers:
            worker.kill()
        self._wake()
        for worker in workers:
            worker.reap()
        self._close()

    def _wake(self) -> None:
        with self._closing:
            if self._wake_up is not None and not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # full: it wakes as well
                    self._wake_up.send(b"!")

    def _close(self) -> None:
        """Close everything, unless a call is under way, which does so at its end."""
        if not self._calling.acquire(blocking=False):
            return
        try:
            with self._closing:
                if self._is_closed:
                    return
                self._is_closed = True
                for worker in self._workers:
                    worker.kill()
                    worker.reap()
                    worker.close()
                for thing in (self._memory, self._wake_up, self._sleeper):
                    if thing is not None:
                        thing.close()
        finally:
            self._calling.release()

    # --- requests and answers ---

    def _is_decided(self, ticket: Ticket) -> bool:
        return ticket.is_done or not ticket.is_wanted or bool(self._fatal)

    def _check_usable(self) -> None:
        if isinstance(self._fatal, Failure):
            raise self._fatal.raised()
        if self._fatal:
            raise WorkerError(self._fatal)

    def _hand_out(self) -> None:
        """Send waiting requests to the workers that have the fewest."""
        # One that is about to be ready should find something to do.
        most = _REQUESTS_PER_WORKER if all(w.is_ready for w in self._workers) else 1
        while self._waiting:
            best: WorkerProcess | None = None
            for worker in self._workers:
                count = len(worker.tickets)
                if worker.is_ready and count < (len(best.tickets) if best is not None else most):
                    best = worker
            if best is None or self._memory is None:
                return
            ticket = self._waiting.popleft()
            ticket.given = ticket.given or self._part(ticket.size_bytes)
            ticket.room = ticket.room or self._part(self._reply_bytes + self._reply_bytes // 4)
            try:
                best.send(ticket, self._memory)
            except Exception as error:  # too little memory for the message
                ticket.error = error
                continue
            self._watch(best)

    def _part(self, size_bytes: int) -> Part | None:
        """A part of the memory; None if nothing is needed, or nothing is free."""
        if not size_bytes:
            return None
        offset = self._blocks.take(size_bytes)
        if offset is None:
            return None
        self._held_bytes += size_bytes
        return offset, offset + size_bytes

    def _put_aside(self, ticket: Ticket) -> None:
        """Nobody wants the reply: its memory comes back, if not now then with the answer."""
        if self._tickets.pop(ticket.number, None) is None:
            return
        self.under_way_bytes -= ticket.size_bytes
        ticket.is_wanted = False
        if ticket.is_done:
            self._give_back(ticket)
        elif not ticket.is_sent:
            self._waiting.remove(ticket)
            self._give_back(ticket)

    def _released(self, part: Part | None) -> None:
        """A part is no ticket's any more."""
        if part is not None:
            self._held_bytes -= part[1] - part[0]

    def _leave_to(self, worker: WorkerProcess, part: Part | None) -> None:
        self._released(part)
        if part is not None:
            worker.kept.append(part)

    def _give_back(self, ticket: Ticket) -> None:
        for part in (ticket.given, ticket.room):
            self._released(part)
            if part is not None:
                self._blocks.give(part[0])
        ticket.given = ticket.room = ticket.parcel = None

    def _answered(self, worker: WorkerProcess, frame: Frame) -> None:
        answer, body = frame
        if answer.kind == Kind.READY:
            worker.is_ready = True
            return
        if answer.kind == Kind.UNUSABLE:
            self._fatal = pickle.loads(body)
            return
        ticket = worker.tickets.popleft()
        worker.since_s = time.monotonic()
        worker.has_answered = True
        self._failed_starts = 0
        ticket.answer, ticket.body, ticket.parcel = answer, body, None
        self._reply_bytes = max(self._reply_bytes, answer.needed_bytes)
        # Not used again while the worker lives: its functions still look at it.
        if answer.kept & KEPT_REQUEST:
            self._leave_to(worker, ticket.given)
            ticket.given = None
        if answer.kept & KEPT_REPLY:
            self._leave_to(worker, ticket.room)
            ticket.room = None
        if not ticket.is_wanted:
            self._give_back(ticket)

    def _taken(self, ticket: Ticket) -> Any:
        if self._tickets.pop(ticket.number, None) is None:
            raise ClosedError("this reply was taken before, or is not wanted any more")
        self.under_way_bytes -= ticket.size_bytes
        if ticket.answer is None:
            self._give_back(ticket)
            if ticket.error is not None:
                raise ticket.error
            self._check_usable()
        if ticket.answer is None or ticket.answer.kind == Kind.FAILURE:
            self._give_back(ticket)
            failure: Failure = pickle.loads(ticket.body)
            raise failure.raised()
        to_room, to_given = referred(ticket.body)
        given = self._handed(ticket.given, to_given, math.inf)
        room = self._handed(ticket.room, to_room, ticket.answer.used_bytes)
        ticket.given = ticket.room = None
        try:
            return opened(ticket.body, room, given)
        except Exception as error:
            raise ElementError(
                "what a worker process returned cannot be made here from its pickle:"
                f" {type(error).__name__}: {error}"
            ) from error

    def _handed(
        self, part: Part | None, is_used: bool, stop_bytes: float
    ) -> npt.NDArray[np.uint8] | None:
        """A part of the memory for the arrays of a reply: lent, or as a copy."""
        if part is None or self._memory is None:
            return None
        lent_bytes = self._blocks.used_bytes - self._held_bytes
        self._released(part)
        start, stop = part
        give = functools.partial(self._blocks.give, start)
        if not is_used:
            give()
            return None
        stop = min(stop, start + int(min(stop_bytes, stop)))
        if lent_bytes <= self._blocks_bytes() // 2:
            return self._memory.lend(start, stop, give)
        # Else requests would find no room as long as the consumer keeps its arrays.
        copy = self._memory.view(start, stop).copy()
        give()
        return copy

    def _blocks_bytes(self) -> int:
        return self._memory.size_bytes if self._memory is not None else 0

    # --- processes ---

    def _add(self, index: int) -> None:
        if self._memory is None or self._fatal:
            return
        count = self._options.num_workers
        try:
            worker = WorkerProcess(index, count, self._functions, self._memory)
        except OSError as error:
            self._fatal = (
                f"worker {index} of {count} cannot be started: {error}; the limits on processes,"
                " open files or memory may be too low"
            )
            return
        self._workers.append(worker)
        if self._is_killed:  # `kill` may not have seen this one
            worker.kill()
            return
        self._by_descriptor[worker.channel.descriptor] = worker
        self._poll.register(worker.channel.descriptor, select.POLLIN)
        self._watch(worker)

    def _watch(self, worker: WorkerProcess) -> None:
        if not worker.channel.is_flushed:
            self._poll.modify(worker.channel.descriptor, select.POLLIN | select.POLLOUT)

    def _turn(self, limit_s: float) -> None:
        """Take what has come, after up to `limit_s` seconds of waiting for something."""
        heard = self._poll.poll(math.ceil(limit_s * 1000))
        if self._is_killed:
            return
        for descriptor, events in heard:
            worker = self._by_descriptor.get(descriptor)
            if worker is not None:
                self._hear(worker, events)
            elif self._sleeper is not None:
                self._sleeper.recv(4096)
        if limit_s and not heard:
            for worker in list(self._workers):
                if worker.has_ended:
                    self._hear(worker, select.POLLIN)
                    if worker in self._workers:
                        self._replace(worker)
        self._hand_out()

    def _hear(self, worker: WorkerProcess, events: int) -> None:
        if events & select.POLLOUT:
            worker.channel.flush()
            if worker.channel.is_flushed:
                worker.since_s = time.monotonic()
                self._poll.modify(worker.channel.descriptor, select.POLLIN)
        if events & ~select.POLLOUT:
            try:
                frames, is_open = worker.channel.receive()
            except MemoryError:
                worker.kill("its answer did not fit into memory here")
                frames, is_open = [], False
            worker.since_s = time.monotonic()
            for frame in frames:
                self._answered(worker, frame)
            if not is_open:
                self._replace(worker)

    def _patience_s(self) -> float:
        limit_s = self._options.timeout_s
        if limit_s is None:
            return _LOOK_S
        since = [worker.since_s for worker in self._workers if worker.tickets]
        return min(_LOOK_S, max(0.001, min(since, default=math.inf) + limit_s - time.monotonic()))

    def _end_slow(self) -> None:
        limit_s = self._options.timeout_s
        if limit_s is None or self._is_killed:
            return
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.tickets and now - worker.since_s > limit_s and worker.channel.is_flushed:
                worker.kill(f"ran longer than timeout_s={limit_s:g}")
                self._replace(worker)

    def _replace(self, worker: WorkerProcess) -> None:
        """Take a worker that has ended out, and start another one for its requests."""
        self._workers.remove(worker)
        del self._by_descriptor[worker.channel.descriptor]
        self._poll.unregister(worker.channel.descriptor)
        how = worker.end()
        for start, _ in worker.kept:
            self._blocks.give(start)
        again = list(self._left(worker, how))
        self._waiting.extendleft(reversed(again))
        if self._fatal or self._is_killed:
            return
        if not worker.tickets and not worker.has_answered:
            self._failed_starts += 1
            if self._failed_starts >= _MOST_FAILED_STARTS:
                self._fatal = (
                    f"{self._failed_starts} workers in a row ended before they could do anything;"
                    f" the last one: {how}. What they wrote is on the standard error stream"
                )
                return
        # The process makes each death a text of its own, of which the usual filter hides none.
        self._warnings.append(
            f"worker {worker.index} of {self._options.num_workers} (process {worker.process_id})"
            f" ended ({how});"
            f" {'its work is done again by a new one' if again else 'a new one takes its place'}"
        )
        self._add(worker.index)

    def _left(self, worker: WorkerProcess, how: str) -> Iterator[Ticket]:
        """The requests of a worker that ended, to be made again; that it was at counts an end."""
        for place, ticket in enumerate(worker.tickets):
            ticket.is_sent = False
            if not place:
                ticket.ends.append(how)
            if not ticket.is_wanted:
                self._give_back(ticket)
            elif len(ticket.ends) >= ticket.tries:
                self._give_back(ticket)
                ticket.error = _ended_by(ticket)
            else:
                yield ticket


def _ended_by(ticket: Ticket) -> WorkerError:
    ends = ", ".join(ticket.ends)
    if len(ticket.ends) == 1:
        text = f"a worker ended over its work ({ends})"
    else:
        text = f"{len(ticket.ends)} workers ended over the same work ({ends})"
    if "SIGKILL" in ends:
        text += "; the system does that to processes that take too much memory"
    if "timeout_s" in ends:
        text += "; if the work may take longer, set a larger MultiprocessingOptions(timeout_s=...)"
    return WorkerError(text)
