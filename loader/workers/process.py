"""The parent's side of worker processes: starts them, sends them jobs and ends them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import math
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

from windrow.core.child_process import apart_from_streams, exit_text, started
from windrow.errors import ClosedError, WorkerError
from windrow.workers.child import PROGRAM
from windrow.workers.messages import HEADER, LOAD, JobHeader, Message, ReplyHeader
from windrow.workers.shared_memory import SharedMemory

_log = logging.getLogger("windrow.workers")

# A killed process that lives longer than this hangs in the system.
_END_S = 5.0
# A process that closed its socket is about to end.
_LEAVE_S = 1.0
# Bodies up to this size are sent together with their header: a copy is cheaper than a call.
_JOINED_BYTES = 64 << 10
_BUFFER_BYTES = 64 << 10


class Slot(NamedTuple):
    """A part of the shared memory: room for arrays of the reply, then arrays of the request."""

    start: int
    request: int
    stop: int


Frame = tuple[ReplyHeader, bytes]


def log_debug(text: str, *parts: object) -> None:
    """Log what became of a worker, if DEBUG is on."""
    if _log.isEnabledFor(logging.DEBUG):
        from windrow.core.debug_log import debug

        debug(_log, text, *parts)


@dataclasses.dataclass(slots=True, eq=False)
class Job:
    """A request from `submit` until its reply is taken.

    Attributes:
        number: Its number in the pool.
        program: The program that does it.
        tries: Workers that may end while they do it.
        size_bytes: Bytes of the arrays of the request.
        message: The request, kept until the reply is here: a worker that died may have written to
            the shared arrays.
        slot: Where these arrays are, and where the reply's go; None if they are in the messages.
        ends: How workers ended while they did it.
        reports: Reports of the worker on it.
        header: The header of the reply.
        body: The body of the reply.
        error: The error, if there is no reply.
    """

    number: int
    program: bytes
    tries: int
    size_bytes: int
    message: Message | None
    slot: Slot | None = None
    ends: list[str] = dataclasses.field(default_factory=list)
    reports: collections.deque[Any] = dataclasses.field(default_factory=collections.deque)
    header: ReplyHeader | None = None
    body: bytes = b""
    error: BaseException | None = None
    is_sent: bool = False
    is_wanted: bool = True

    @property
    def is_done(self) -> bool:
        """Whether there is a reply or an error."""
        return self.header is not None or self.error is not None


def ended_by(job: Job) -> WorkerError:
    """The error of a job over which too many workers ended."""
    ends = ", ".join(job.ends)
    if len(job.ends) == 1:
        text = f"a worker ended over its work ({ends})"
    else:
        text = f"{len(job.ends)} workers ended over the same work ({ends})"
    if "SIGKILL" in ends:
        text += "; the system does that to processes that take too much memory"
    if "timeout_s" in ends:
        text += "; if the work may take longer, set a larger MultiprocessingOptions(timeout_s=...)"
    return WorkerError(text)


class WorkerProcess:
    """A running worker.

    Attributes:
        index: Its number in the pool; the process that replaces it has the same.
        count: The number of workers of the pool at most.
        jobs: The jobs that it was sent and has not replied to, in order; it works on the first.
        kept: Starts of the slots to which its functions refer as long as it lives.
        connection: The parent's end of its socket.
        is_ready: Whether it has loaded its first program.
        has_replied: Whether it ever finished a job.
        since_s: When it began with the first of `jobs`, at the earliest, or last sent something.
        verdict: Why the parent killed it; empty if it did not.
    """

    def __init__(self, index: int, count: int, program: bytes, memory: SharedMemory) -> None:
        self.index = index
        self.jobs: collections.deque[Job] = collections.deque()
        self.kept: list[int] = []
        self.is_ready = self.has_replied = False
        self.since_s = 0.0
        self.verdict = ""
        self.count = count
        self._memory = memory
        # exec closes all descriptors of this process, except those that are passed on.
        with apart_from_streams():
            ours, theirs = socket.socketpair()
            watch, self._watched = os.pipe()
        try:
            descriptors = [theirs.fileno(), watch, memory.descriptor]
            numbers = [*descriptors, memory.size_bytes, os.getpid()]
            self._process = started(PROGRAM, numbers, descriptors)
        except BaseException:
            ours.close()
            os.close(self._watched)
            raise
        finally:
            theirs.close()
            os.close(watch)
        self.connection = Connection(ours)
        self._load(program)

    def _load(self, functions: bytes) -> None:
        self._program = functions
        arguments = [str(argument) for argument in sys.argv]
        program = (self.index, self.count, arguments, functions)
        body = pickle.dumps(program, pickle.HIGHEST_PROTOCOL)
        self.connection.send(HEADER.pack(*JobHeader(len(body), LOAD, 0, 0, 0)), body)

    def send(self, job: Job) -> None:
        """Send a job, and before it its program if that is not loaded; its arrays go into its slot."""
        if job.message is None:
            return
        slot = job.slot or Slot(0, 0, 0)
        has_room = slot.request < slot.stop
        packed = job.message.packed(self._memory.view(*slot[1:]) if has_room else None)
        if job.program is not self._program:
            self._load(job.program)
        if not self.jobs:
            self.since_s = time.monotonic()
        job.is_sent = True
        self.jobs.append(job)
        self.connection.send(HEADER.pack(len(packed), job.number, *slot), packed)

    def kill(self, verdict: str = "") -> None:
        """Kill the process, without waiting for its end."""
        self.verdict = self.verdict or verdict
        self._process.kill()

    @property
    def process_id(self) -> int:
        """Its id in the system."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def end(self) -> str:
        """Wait until an ending process has ended, close everything, and say how it ended."""
        self.reap(_LEAVE_S)
        if self._process.returncode is None:
            self._process.kill()
            self.reap()
        self.close()
        return self.verdict or exit_text(self._process.returncode)

    def reap(self, limit_s: float = _END_S) -> None:
        """Wait at most `limit_s` seconds for the end of the process. Thread-safe."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)

    def close(self) -> None:
        """Close the descriptors that this process has for the worker."""
        self.connection.close()
        watched, self._watched = self._watched, -1
        if watched >= 0:
            os.close(watched)


class WorkerProcesses:
    """The workers of a pool and its descriptors. As a context it guards one method call of the pool.

    Attributes:
        workers: The running workers.
        warnings: Warnings to show at the end of the call.
        is_killed: Whether all workers have been ended for good.
    """

    def __init__(self) -> None:
        self.workers: list[WorkerProcess] = []
        self.warnings: list[str] = []
        self.is_killed = self._is_closed = False
        self._owner = os.getpid()
        self._calling = threading.Lock()  # held by the call at work
        # A finalizer may interrupt its holder, in the same thread.
        self._closing = threading.RLock()
        self._by_descriptor: dict[int, WorkerProcess] = {}
        self._poll = select.poll()
        self._wake_up: socket.socket | None = None
        self._sleeper: socket.socket | None = None
        self._memory: SharedMemory | None = None

    @property
    def is_own(self) -> bool:
        """Whether this process is the one that made the pool, not a fork of it."""
        return os.getpid() == self._owner

    def __enter__(self) -> None:
        if os.getpid() != self._owner:
            raise WorkerError(
                f"workers of process {self._owner} cannot be used in process {os.getpid()}, which"
                " was forked from it. Make the iterator in the process that uses it, and start"
                " processes by spawn or forkserver: multiprocessing.get_context('spawn'), or"
                " torch.utils.data.DataLoader(..., multiprocessing_context='spawn')"
            )
        self._calling.acquire()
        if self.is_killed:
            self._calling.release()
            self._close()  # `kill` may have met this call, and left it to us
            raise ClosedError("the workers were ended by close(); make a new iterator")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._calling.release()
        if self.is_killed:
            self._close()
        elif self.warnings:
            found, self.warnings = self.warnings, []
            for text in found:
                warnings.warn(text, RuntimeWarning, stacklevel=3)

    def open(self, shared_bytes: int) -> SharedMemory:
        """Make the shared memory, and the sockets that wake a waiting call."""
        with apart_from_streams():
            self._memory = SharedMemory.create(shared_bytes)
            self._wake_up, self._sleeper = socket.socketpair()
        self._wake_up.setblocking(False)
        self._poll.register(self._sleeper, select.POLLIN)
        return self._memory

    def add(self, worker: WorkerProcess) -> None:
        """Add a worker that was started."""
        self.workers.append(worker)
        if self.is_killed:  # `kill` may not have seen this one
            worker.kill()
            return
        self._by_descriptor[worker.connection.descriptor] = worker
        self._poll.register(worker.connection.descriptor, select.POLLIN)
        self.watch(worker)

    def remove(self, worker: WorkerProcess) -> None:
        """Remove a worker that has ended."""
        self.workers.remove(worker)
        del self._by_descriptor[worker.connection.descriptor]
        self._poll.unregister(worker.connection.descriptor)

    def warn_of(self, worker: WorkerProcess, how: str, then: str) -> None:
        """Warn, at the end of the call, of a worker that has ended, and say what follows."""
        # The process id makes each warning unique: the usual filter shows the same one only once.
        self.warnings.append(
            f"worker {worker.index} of {worker.count} (process {worker.process_id}) ended ({how}); {then}"
        )

    def watch(self, worker: WorkerProcess) -> None:
        """Poll for replies, and for sending if bytes are unsent."""
        kept = 0 if worker.connection.is_flushed else select.POLLOUT
        self._poll.modify(worker.connection.descriptor, select.POLLIN | kept)

    def poll(self, limit_s: float) -> list[tuple[WorkerProcess, int]] | None:
        """Wait for workers, up to `limit_s`; return them and their events, None after the limit."""
        ready = self._poll.poll(math.ceil(limit_s * 1000))
        found = []
        for descriptor, event in ready:
            worker = self._by_descriptor.get(descriptor)
            if worker is not None:
                found.append((worker, event))
            elif self._sleeper is not None and not self.is_killed:
                self._sleeper.recv(4096)
        return found if ready else None

    def wake(self) -> None:
        """Make a waiting call check its conditions again."""
        with self._closing:
            if self._wake_up is not None and not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # full: it wakes all the same
                    self._wake_up.send(b"!")

    def stop(self, limit_s: float) -> None:
        """Stop sending, and wait up to `limit_s` for the workers to end."""
        if self.is_own:
            until_s = time.monotonic() + limit_s
            for worker in self.workers:
                worker.connection.stop_sending()
            for worker in self.workers:
                worker.reap(max(0.0, until_s - time.monotonic()))

    def kill(self) -> None:
        """End everything. Any thread may call it, also repeatedly."""
        if not self.is_own:
            return
        self.is_killed = True
        # A call at work sees this after it has started another process, and ends that itself.
        workers = list(self.workers)
        for worker in workers:
            worker.kill()
        self.wake()
        for worker in workers:
            worker.reap()
        self._close()

    def _close(self) -> None:
        """Close everything, unless a call is at work, which does so at its end."""
        if not self._calling.acquire(blocking=False):
            return
        try:
            with self._closing:
                if self._is_closed:
                    return
                self._is_closed = True
                for worker in self.workers:
                    worker.kill()
                    worker.reap()
                    worker.close()
                for thing in (self._memory, self._wake_up, self._sleeper):
                    if thing is not None:
                        thing.close()
        finally:
            self._calling.release()


class Connection:
    """The parent's end of a worker's socket.

    Contract:
    1. Sending never waits: bytes that the socket does not take are kept, and sent by `flush`.
    2. Receiving never waits: it returns the frames that have arrived whole, in order.
    3. Only receiving shows the end of the other process, after all that it sent; sending to a
       process that has ended is not an error.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self.descriptor = end.fileno()
        self._unsent: collections.deque[memoryview] = collections.deque()
        self._arrived = bytearray()

    @property
    def is_flushed(self) -> bool:
        """Whether all sent bytes have left this process."""
        return not self._unsent

    def send(self, header: bytes, body: bytes) -> None:
        """Send a frame, as much of it as the socket takes now."""
        if len(body) <= _JOINED_BYTES:
            self._unsent.append(memoryview(header + body))
        else:
            self._unsent.append(memoryview(header))
            self._unsent.append(memoryview(body))
        self.flush()

    def flush(self) -> None:
        """Send kept bytes, as many as the socket takes now."""
        try:
            while self._unsent:
                part = self._unsent[0]
                sent = self._socket.send(part)
                if sent == len(part):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = part[sent:]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._unsent.clear()

    def stop_sending(self) -> None:
        """Close the sending side, so that the worker ends."""
        self._unsent.clear()
        with contextlib.suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_WR)

    def receive(self) -> tuple[list[Frame], bool]:
        """The frames that have arrived, and whether the other end is still open."""
        frames: list[Frame] = []
        try:
            while data := self._socket.recv(_BUFFER_BYTES):
                self._arrived += data
                frames += self._frames()
                if len(data) < _BUFFER_BYTES:  # that was all
                    return frames, True
            return frames, False
        except BlockingIOError:
            return frames, True
        except ConnectionResetError:
            return frames, False

    def _frames(self) -> Iterator[Frame]:
        """Cut off the frames that have arrived whole."""
        while len(self._arrived) >= HEADER.size:
            header = ReplyHeader._make(HEADER.unpack_from(self._arrived))
            stop = HEADER.size + header.body_bytes
            if stop > len(self._arrived):
                return
            yield header, bytes(memoryview(self._arrived)[HEADER.size : stop])
            del self._arrived[:stop]

    def close(self) -> None:
        """Close the socket."""
        self._unsent.clear()
        self._socket.close()
