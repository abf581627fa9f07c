"""Channel: frames between the parent and one worker, over a socket.

A frame is a header of six integers and a body of bytes. Contract of the parent's end:

1. Sending never waits: what the socket does not take is kept and sent by `flush`.
2. Receiving never waits: it gives the frames that have come whole, in the order of sending.
3. The end of the other process is seen by receiving alone, after all that it sent; sending to a
   process that has ended is no error.
"""

from __future__ import annotations

import collections
import enum
import socket
import struct
from typing import NamedTuple

HEADER = struct.Struct("<6q")

# Bodies up to this size are sent with their header as one piece: a copy is cheaper than a call.
_JOINED_BYTES = 64 << 10
_BUFFER_BYTES = 64 << 10


class Order(NamedTuple):
    """Header of what a worker is sent: a request, whose arrays lie at `given` in shared memory."""

    body_bytes: int
    number: int
    given_start: int
    given_stop: int
    room_start: int
    room_stop: int


class Kind(enum.IntEnum):
    """What a worker says."""

    READY = 0
    UNUSABLE = 1  # the functions cannot be loaded, or the user's set-up failed
    REPLY = 2
    FAILURE = 3


class Answer(NamedTuple):
    """Header of what a worker sends.

    `kept` tells which parts of shared memory the functions still refer to: 1 for the request's, 2
    for the reply's. `used_bytes` are those of the reply's part, `needed_bytes` what would have been
    used had there been room.
    """

    body_bytes: int
    number: int
    kind: int
    kept: int
    used_bytes: int
    needed_bytes: int


Frame = tuple[Answer, bytes | bytearray]


class Channel:
    """The parent's end of a worker's socket."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self.descriptor = end.fileno()
        self._unsent: collections.deque[memoryview] = collections.deque()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0  # bytes of the buffer
        self._large: tuple[Answer, bytearray] | None = None  # a frame that the buffer cannot hold
        self._large_filled = 0

    @property
    def is_flushed(self) -> bool:
        """Whether all that was sent has left this process."""
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
        """Send more of what was left, as much as the socket takes now."""
        try:
            while self._unsent:
                piece = self._unsent[0]
                sent = self._socket.send(piece)
                if sent == len(piece):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = piece[sent:]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._unsent.clear()

    def receive(self) -> tuple[list[Frame], bool]:
        """The frames that have come, and whether the other end is still open."""
        frames: list[Frame] = []
        try:
            while True:
                if self._large is not None:
                    target = memoryview(self._large[1])[self._large_filled :]
                else:
                    target = self._view[self._filled :]
                count = self._socket.recv_into(target)
                if not count:
                    return frames, False
                self._sort(count, frames)
                if count < len(target):  # that was all
                    return frames, True
        except BlockingIOError:
            return frames, True
        except ConnectionResetError:
            return frames, False

    def close(self) -> None:
        """Close the socket."""
        self._unsent.clear()
        self._socket.close()

    def _sort(self, count: int, frames: list[Frame]) -> None:
        if self._large is not None:
            self._large_filled += count
            if self._large_filled == len(self._large[1]):
                frames.append(self._large)
                self._large = None
            return
        self._filled += count
        start, stop = 0, self._filled
        while stop - start >= HEADER.size:
            answer = Answer._make(HEADER.unpack_from(self._buffer, start))
            body_start = start + HEADER.size
            body_stop = body_start + answer.body_bytes
            if body_stop <= stop:
                frames.append((answer, bytes(self._view[body_start:body_stop])))
                start = body_stop
            elif HEADER.size + answer.body_bytes > _BUFFER_BYTES:
                body = bytearray(answer.body_bytes)
                self._large_filled = stop - body_start
                body[: self._large_filled] = self._view[body_start:stop]
                self._large = answer, body
                start = stop
            else:
                break
        if start:
            left = bytes(self._view[start:stop])
            self._view[: len(left)] = left
        self._filled = stop - start
