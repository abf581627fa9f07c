"""The program in a worker process: it does the jobs of its pool, one after the other.

Contract:
1. A worker ends soon after its parent, however the parent ended and whatever a function does.
2. Each job gets one reply, in order; an exception of any type is a reply too. Reports on a job come
   before its reply.
3. If functions keep references to arrays of a request or a reply, those arrays do not change: the
   parent never uses that slot again, and later jobs get ordinary memory.
4. When the parent stops sending, the job at work ends at its next report, and then the worker.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import socket
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from windrow.core.child_process import end_with_parent, ignore_interrupts
from windrow.workers.messages import (
    HEADER,
    LOAD,
    UNSENT_RESULT,
    FrameKind,
    JobHeader,
    Message,
    MessageBuffer,
    ReplyHeader,
    failure_of,
    opened,
)
from windrow.workers.shared_memory import Bytes, SharedMemory

# What a worker's interpreter runs. The parent's search path comes first, so that windrow and the
# user's modules are found as they are there.
PROGRAM = (
    "import sys; sys.path[:] = sys.argv[6:];"
    f" from {__name__} import main; main(*map(int, sys.argv[1:6]))"
)

# Replies up to this size may consist of small arrays alone, which need no slot.
_SHORT_BYTES = 4 << 10
_BUFFER_BYTES = 64 << 10
# Garbage in cycles looks as if it were kept; collecting it before every reply would be slow.
_COLLECTIONS = 3

Handler = Callable[[Any, MessageBuffer], Any]
Init = Callable[[int, int], Any]


class StoppedError(BaseException):
    """Ends a job whose result is no longer needed. Passes `except Exception`, as Ctrl-C does."""


def main(
    socket_descriptor: int,
    watch_descriptor: int,
    memory_descriptor: int,
    memory_bytes: int,
    parent: int,
) -> None:
    """Serve the parent until it stops sending or ends; does not return.

    Args:
        socket_descriptor: The worker's end of the socket.
        watch_descriptor: A pipe without a writer, whose other end closes when the parent ends.
        memory_descriptor: The shared memory.
        memory_bytes: Its size.
        parent: Process id of the parent.
    """
    end_with_parent(watch_descriptor, parent)
    ignore_interrupts()
    for descriptor in (socket_descriptor, watch_descriptor, memory_descriptor):
        os.set_inheritable(descriptor, False)
    memory = SharedMemory.attach(memory_descriptor, memory_bytes)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, StoppedError):
        serve(socket.socket(fileno=socket_descriptor), memory)
    os._exit(0)


def serve(end: socket.socket, memory: SharedMemory) -> None:
    """Do jobs until the parent stops sending.

    Raises:
        StoppedError: If it stopped sending while a job was at work.
        OSError: If it closed its end.
    """
    global _parent
    _parent = end
    worker = _Worker(memory)
    # The descriptor is the socket's.
    with open(end.fileno(), "rb", buffering=_BUFFER_BYTES, closefd=False) as frames:
        while (frame := _next(frames)) is not None:
            header, body = frame
            reply, message = worker.load(body) if header.number == LOAD else worker.do(header, body)
            _send(end, reply, message)
            if reply.kind == FrameKind.UNUSABLE:
                return


def report(value: Any) -> None:
    """Send a report on the job at work; `Job.reports` has it in the parent.

    Raises:
        StoppedError: If the parent stopped sending: the job's result is no longer needed.
    """
    if _parent is None:
        raise RuntimeError("report: this process is not a worker at work")
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    try:
        _send(_parent, ReplyHeader(len(body), FrameKind.REPORT), body)
        is_open = bool(_parent.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:  # nothing has come
        is_open = True
    except ConnectionError:
        is_open = False
    if not is_open:
        raise StoppedError


# The worker's end of its socket: a process is a worker of one pool.
_parent: socket.socket | None = None


class _Worker:
    """A program at work, and whether its functions keep references to shared memory."""

    def __init__(self, memory: SharedMemory) -> None:
        self._handler: Handler | None = None
        self._memory = memory
        self._shares = True  # whether functions may see shared memory
        self._collections = 0

    def load(self, body: bytes) -> tuple[ReplyHeader, bytes]:
        """Load a program in place of the previous one.

        Args:
            body: Pickled: the number of the worker, the number of workers, the arguments of the parent's
                program, for modules that read `sys.argv`, and the pickled handler and `init`.
        """
        self._handler = None
        try:
            index, count, sys.argv[:], functions = pickle.loads(body)
            self._handler, init = pickle.loads(functions)
            if init is not None:
                init(index, count)
        except BaseException as error:  # the parent raises it
            error.add_note("windrow: raised when a worker started")
            failure = pickle.dumps(failure_of(error))
            return ReplyHeader(len(failure), FrameKind.UNUSABLE), failure
        return ReplyHeader(0, FrameKind.READY), b""

    def do(self, header: JobHeader, body: bytes) -> tuple[ReplyHeader, bytes]:
        """Do a job."""
        released: list[bool] = []
        reply, message = self._reply(header, body, released)
        if not self._shares or header.start == header.stop or self._is_released(released):
            return reply, message
        self._shares = False
        if reply.kind == FrameKind.REPLY:
            # Without the slot: functions may change the shared arrays.
            found = opened(message, self._memory.view(header.start, header.stop))
            message = Message.of(found).packed(None)
            reply = reply._replace(body_bytes=len(message), used_bytes=0)
        return reply._replace(kept=1), message

    def _reply(
        self, header: JobHeader, body: bytes, released: list[bool]
    ) -> tuple[ReplyHeader, bytes]:
        slot = self._slot(header, released)
        room = header.request - header.start
        buffer = MessageBuffer(slot, room)
        try:
            if self._handler is None:
                raise RuntimeError("a job came before its program")
            request, own = None if slot is None else slot[room:], buffer
            if not self._shares:
                request, own = None if request is None else request.copy(), MessageBuffer(None)
            value = self._handler(opened(body, request), own)
            message = value if isinstance(value, Message) else _message_of(value)
            packed = message.packed(buffer)
        except StoppedError:
            raise
        except BaseException as error:  # the parent raises it
            failure = pickle.dumps(failure_of(error))
            return ReplyHeader(len(failure), FrameKind.FAILURE), failure
        # A short message holds no arrays that did not fit.
        more = len(packed) if len(packed) > _SHORT_BYTES else 0
        needed = min(message.slot_bytes, buffer.used_bytes + more)
        return ReplyHeader(len(packed), FrameKind.REPLY, 0, buffer.kept_bytes, needed), packed

    def _slot(self, header: JobHeader, released: list[bool]) -> Bytes | None:
        """Return the slot; `released` gets an item when functions refer to it no longer."""
        if header.start == header.stop:
            return None
        if not self._shares:
            return self._memory.view(header.start, header.stop)
        return self._memory.lend(
            header.start, header.stop, functools.partial(released.append, True)
        )

    def _is_released(self, released: list[bool]) -> bool:
        """Whether functions refer to the slot no longer."""
        if not released and self._collections < _COLLECTIONS:
            self._collections += 1
            gc.collect()
        return bool(released)


def _message_of(reply: Any) -> Message:
    try:
        return Message.of(reply)
    except Exception as error:
        error.add_note(UNSENT_RESULT)
        raise


def _next(frames: BinaryIO) -> tuple[JobHeader, bytes] | None:
    start = frames.read(HEADER.size)
    if len(start) < HEADER.size:
        return None
    header = JobHeader._make(HEADER.unpack(start))
    body = frames.read(header.body_bytes)
    return None if len(body) < header.body_bytes else (header, body)


def _send(end: socket.socket, header: ReplyHeader, body: bytes) -> None:
    start = HEADER.pack(*header)
    if len(body) <= _BUFFER_BYTES:
        end.sendall(start + body)
    else:
        end.sendall(start)
        end.sendall(body)
