"""One worker process as its parent has it: how it is started, what it was sent, how it ended."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pickle
import socket
import subprocess
import sys
import time

from windrow.channel import HEADER, Answer, Channel, Order
from windrow.handover import Parcel
from windrow.shared import SharedMemory
from windrow.sources.interpreter import in_words, started
from windrow.worker import PROGRAM, SetUp

# What a process that was told to end may take for it; beyond it hangs in the system.
_END_S = 5.0
# One that closed its socket by itself is on its way out.
_LEAVE_S = 1.0

Part = tuple[int, int]  # of the shared memory: start, stop


@dataclasses.dataclass(slots=True, eq=False)
class Ticket:
    """A request under way, from `submit` until its reply is taken."""

    number: int
    tries: int
    size_bytes: int
    # Kept until the answer is here: a worker that died may have written to the shared arrays.
    parcel: Parcel | None
    given: Part | None = None
    room: Part | None = None
    ends: list[str] = dataclasses.field(default_factory=list)  # of workers that it ended
    answer: Answer | None = None
    body: bytes | bytearray = b""
    error: BaseException | None = None
    is_sent: bool = False
    is_wanted: bool = True

    @property
    def is_done(self) -> bool:
        """Whether there is something to take."""
        return self.answer is not None or self.error is not None


class WorkerProcess:
    """A running worker.

    Attributes:
        index: Its number among the workers; its successor has the same.
        tickets: What it was sent and has not answered, in order; it works on the first.
        kept: Parts of the memory that its functions look at as long as it lives.
        is_ready: Whether it has loaded its functions.
        has_answered: Whether it ever finished a request.
        since_s: When it began with the first of `tickets`, at the earliest, or was heard of last.
        verdict: Why the parent ended it; empty where it did not.
    """

    def __init__(self, index: int, count: int, functions: bytes, memory: SharedMemory) -> None:
        self.index = index
        self.tickets: collections.deque[Ticket] = collections.deque()
        self.kept: list[Part] = []
        self.is_ready = self.has_answered = False
        self.since_s = 0.0
        self.verdict = ""
        # All descriptors here are closed by exec, except in the one process that they are for.
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
        self.channel = Channel(ours)
        set_up = SetUp(index, count, [str(argument) for argument in sys.argv], functions)
        body = pickle.dumps(set_up, pickle.HIGHEST_PROTOCOL)
        self.channel.send(HEADER.pack(*Order(len(body), -1, 0, 0, 0, 0)), body)

    def send(self, ticket: Ticket, memory: SharedMemory) -> None:
        """Send a request; its arrays go into the part of the memory that it has, if any."""
        if ticket.parcel is None:
            return
        given, room = ticket.given or (0, 0), ticket.room or (0, 0)
        message = ticket.parcel.message(memory.view(*given) if ticket.given else None)
        if not self.tickets:
            self.since_s = time.monotonic()
        ticket.is_sent = True
        self.tickets.append(ticket)
        order = HEADER.pack(len(message), ticket.number, *given, *room)
        self.channel.send(order, message)

    def kill(self, verdict: str = "") -> None:
        """Have the system end the process at once; does not wait for it."""
        self.verdict = self.verdict or verdict
        self._process.kill()

    @property
    def process_id(self) -> int:
        """Its id in the system."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is no more."""
        return self._process.poll() is not None

    def end(self) -> str:
        """Wait for the end of a process that is ending, close all of it, and say how it ended."""
        self.reap(_LEAVE_S)
        if self._process.returncode is None:
            self._process.kill()
            self.reap(_END_S)
        self.close()
        return self.verdict or in_words(self._process.returncode)

    def reap(self, limit_s: float = _END_S) -> None:
        """Wait until the process is no more, if it ends in time. Thread-safe."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)

    def close(self) -> None:
        """Close what this process has of it."""
        self.channel.close()
        watched, self._watched = self._watched, -1
        if watched >= 0:
            os.close(watched)
