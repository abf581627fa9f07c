"""Worker: what runs in a worker process, one request after the other.

Contract:
1. A worker ends soon after its parent, however the parent ended and whatever a function does.
2. Each request gets one answer, in order; an exception is an answer too, of any type.
3. What functions keep of a request or a reply stays as it is: the parent never uses that memory
   again, and from then on functions get memory of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import pickle
import socket
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from windrow.channel import HEADER, Answer, Kind, Order
from windrow.errors import ElementError
from windrow.handover import Parcel, Room, failure_of, opened
from windrow.shared import Bytes, SharedMemory
from windrow.sources.interpreter import end_with_parent, ignore_interrupts

# What a worker's interpreter runs. The parent's search path comes first, so that windrow and the
# user's modules are found as they are there.
PROGRAM = (
    "import sys; sys.path[:] = sys.argv[6:];"
    " from windrow.worker import main; main(*map(int, sys.argv[1:6]))"
)

KEPT_REQUEST, KEPT_REPLY = 1, 2

_SHORT_BYTES = 4 << 10
_BUFFER_BYTES = 64 << 10
# Garbage in cycles looks as if it were kept; collecting it before every answer would be slow.
_COLLECTIONS = 3

Handler = Callable[[Any, Room], Any]
Init = Callable[[int, int], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class SetUp:
    """The first message to a worker: who it is, and its functions as cloudpickle wrote them."""

    index: int
    count: int
    arguments: list[str]  # of the parent's program, for modules that look at them
    functions: bytes


def main(
    socket_descriptor: int,
    watch_descriptor: int,
    memory_descriptor: int,
    memory_bytes: int,
    parent: int,
) -> None:
    """Serve the parent until it is gone; does not return.

    Args:
        socket_descriptor: The worker's end of the socket for requests and answers.
        watch_descriptor: A pipe that nobody writes to; its other end closes when the parent ends.
        memory_descriptor: The shared memory.
        memory_bytes: Its size.
        parent: Process id of the parent.
    """
    end_with_parent(watch_descriptor, parent)
    ignore_interrupts()
    for descriptor in (socket_descriptor, watch_descriptor, memory_descriptor):
        os.set_inheritable(descriptor, False)
    end = socket.socket(fileno=socket_descriptor)
    memory = SharedMemory.attach(memory_descriptor, memory_bytes)
    with (
        contextlib.suppress(BrokenPipeError, ConnectionResetError),  # the parent closed
        # The descriptor is the socket's.
        open(socket_descriptor, "rb", buffering=_BUFFER_BYTES, closefd=False) as requests,
    ):
        serve(end, requests, memory)
    os._exit(0)


def serve(end: socket.socket, requests: BinaryIO, memory: SharedMemory) -> None:
    """Load the functions, then answer requests until there are no more."""
    order, body = _next(requests)
    if order is None:
        return
    set_up: SetUp = pickle.loads(body)
    sys.argv[:] = set_up.arguments
    try:
        handler, init = pickle.loads(set_up.functions)
        if init is not None:
            init(set_up.index, set_up.count)
    except BaseException as error:  # raised by the parent
        error.add_note("windrow: raised when a worker started")
        failure = _failure(error)
        _send(end, Answer(len(failure), order.number, Kind.UNUSABLE, 0, 0, 0), failure)
        return
    _send(end, Answer(0, order.number, Kind.READY, 0, 0, 0), b"")
    bench = _Bench(handler, memory)
    while True:
        order, body = _next(requests)
        if order is None:
            return
        _send(end, *bench.answer(order, body))


class _Bench:
    """The functions at work, and what has been seen of how they treat their memory."""

    def __init__(self, handler: Handler, memory: SharedMemory) -> None:
        self._handler = handler
        self._memory = memory
        self._shares = True  # whether functions may see shared memory
        self._collections = 0

    def answer(self, order: Order, body: bytes) -> tuple[Answer, bytes]:
        """The answer to a request."""
        ended: list[int] = []
        answer, message = self._made(order, body, ended)
        kept = 0
        if self._shares:
            kept = self._kept(order, ended)
        if kept:
            self._shares = False
            if answer.kind == Kind.REPLY:
                message = self._standing_alone(order, message)
                answer = answer._replace(body_bytes=len(message), kept=kept, used_bytes=0)
            else:
                answer = answer._replace(kept=kept)
        return answer, message

    def _made(self, order: Order, body: bytes, ended: list[int]) -> tuple[Answer, bytes]:
        given = self._part(order.given_start, order.given_stop, ended, KEPT_REQUEST)
        memory = self._part(order.room_start, order.room_stop, ended, KEPT_REPLY)
        room = Room(memory)
        try:
            reply = self._handler(opened(body, given), room if self._shares else Room(None))
            parcel = _packed(reply)
            message = parcel.message(room, given if self._shares else None)
        except BaseException as error:  # raised by the parent
            failure = _failure(error)
            return Answer(len(failure), order.number, Kind.FAILURE, 0, 0, 0), failure
        used = room.used_bytes
        # A short message holds no arrays that were left out.
        beside = len(message) if len(message) > _SHORT_BYTES else 0
        needed = min(parcel.outside_bytes, used + beside)
        return Answer(len(message), order.number, Kind.REPLY, 0, used, needed), message

    def _part(self, start: int, stop: int, ended: list[int], which: int) -> Bytes | None:
        if start == stop:
            return None
        if not self._shares:
            part = self._memory.view(start, stop)
            return part.copy() if which == KEPT_REQUEST else part
        return self._memory.lend(start, stop, functools.partial(ended.append, which))

    def _kept(self, order: Order, ended: list[int]) -> int:
        lent = 0
        if order.given_start != order.given_stop:
            lent |= KEPT_REQUEST
        if order.room_start != order.room_stop:
            lent |= KEPT_REPLY
        if lent == sum(ended):
            return 0
        if self._collections < _COLLECTIONS:
            self._collections += 1
            gc.collect()
        return lent - sum(ended)

    def _standing_alone(self, order: Order, message: bytes) -> bytes:
        """The same reply with its arrays in the message: others may change the shared ones."""
        reply = opened(
            message,
            self._memory.view(order.room_start, order.room_stop),
            self._memory.view(order.given_start, order.given_stop),
        )
        return Parcel.of(reply).message(None)


def _packed(reply: Any) -> Parcel:
    try:
        return Parcel.of(reply)
    except Exception as error:
        raise ElementError(
            f"what the functions returned cannot be sent from a worker process: {error}; return"
            " arrays, numbers, strings or objects that can be pickled"
        ) from error


def _failure(error: BaseException) -> bytes:
    return pickle.dumps(failure_of(error))


def _next(requests: BinaryIO) -> tuple[Order | None, bytes]:
    header = requests.read(HEADER.size)
    if len(header) < HEADER.size:
        return None, b""
    order = Order._make(HEADER.unpack(header))
    body = requests.read(order.body_bytes)
    return (None, b"") if len(body) < order.body_bytes else (order, body)


def _send(end: socket.socket, answer: Answer, message: bytes) -> None:
    header = HEADER.pack(*answer)
    if len(message) <= _BUFFER_BYTES:
        end.sendall(header + message)
    else:
        end.sendall(header)
        end.sendall(message)
