"""Worker: what runs in a worker process of a conversion, one item after the other.

Contract:
1. A worker ends soon after the process that started it, however that ended and whatever it does.
2. Each item gets one answer, a result or an error of any type; counts come before it now and then,
   and the rest of them with it.
3. When the other end of its socket is shut for writing, the item at work stops at its next report,
   and the worker ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import cloudpickle

from windrow.converters.folder import OutputFolder
from windrow.converters.stages import Report
from windrow.errors import ConversionError
from windrow.sources.interpreter import end_with_parent, ignore_interrupts

# What a worker's interpreter runs. The parent's search path comes first, so that windrow and the
# user's modules are found as they are there.
PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[4:];"
    " from windrow.converters.worker import main; main(*map(int, sys.argv[1:4]))"
)

# Between two looks at the socket, and two tellings of counts, of one item.
_TELL_S: Final = 0.1


class StoppedError(BaseException):
    """Ends work that nobody waits for any more. Passes `except Exception`, as Ctrl-C does."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What to do with the items of a stage."""

    work: Callable[[OutputFolder, Any, Report], Any]
    folder: OutputFolder


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """A message to a worker: the next item, and its job where that is another than before.

    Both are `packed` by themselves: what cannot be loaded here is an error like others.
    """

    value: bytes
    job: bytes | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """A message from a worker: so much more is done of the item."""

    records: int
    done_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The answer to an item, and what had not been told of it."""

    result: Any
    told: Told


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The answer to an item whose work raised `error`; `text` is its traceback."""

    error: BaseException
    text: str


def packed(value: Any) -> bytes:
    """A message, or a part of one, as bytes; functions and classes of `__main__` go by value."""
    data: bytes = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return data


def main(socket_descriptor: int, watch_descriptor: int, parent: int) -> None:
    """Serve the parent until it shuts the socket or is gone; does not return.

    Args:
        socket_descriptor: The worker's end of the socket.
        watch_descriptor: A pipe that nobody writes to; its other end closes when the parent ends.
        parent: Process id of the parent.
    """
    end_with_parent(watch_descriptor, parent)
    ignore_interrupts()
    for descriptor in (socket_descriptor, watch_descriptor):
        os.set_inheritable(descriptor, False)
    with contextlib.suppress(EOFError, OSError, StoppedError):
        serve(Connection(socket_descriptor))
    os._exit(0)


def serve(end: Connection) -> None:
    """Answer items until there are no more; EOFError, OSError or StoppedError then."""
    bench = _Bench(end)
    while True:
        # Nothing here keeps an item: it may be large, and the next one may be long in coming.
        end.send_bytes(bench.answer(pickle.loads(end.recv_bytes())))


class _Bench:
    """The job that a worker is at."""

    def __init__(self, end: Connection) -> None:
        self._end = end
        self._job: Job | None = None

    def answer(self, item: Item) -> bytes:
        """The answer to an item."""
        counts = _Counts(self._end)
        try:
            if item.job is not None:
                self._job = None
                self._job = pickle.loads(item.job)
            if self._job is None:
                raise ConversionError("an item has come without its job")
            result = self._job.work(self._job.folder, pickle.loads(item.value), counts.report)
            return packed(Done(result, counts.taken()))
        except StoppedError:
            raise
        except BaseException as error:  # raised by the parent
            return packed(_failed(error))


class _Counts:
    """What an item reports, told now and then."""

    def __init__(self, end: Connection) -> None:
        self._end = end
        self._records = self._done_bytes = 0
        self._told_s = time.monotonic()

    def report(self, records: int, done_bytes: int) -> None:
        self._records += records
        self._done_bytes += done_bytes
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_S:
            self._told_s = now_s
            self._end.send_bytes(packed(self.taken()))
            if self._end.poll():  # the parent says nothing meanwhile: it has shut the socket
                raise StoppedError

    def taken(self) -> Told:
        told = Told(self._records, self._done_bytes)
        self._records = self._done_bytes = 0
        return told


def _failed(error: BaseException) -> Failed:
    text = "".join(traceback.format_exception(error))
    try:
        kept = pickle.loads(cloudpickle.dumps(error))
    except Exception:  # whatever its own way of pickling raises
        kept = None
    if type(kept) is not type(error):
        error = ConversionError(f"{type(error).__qualname__}: {error}")
    return Failed(error, text)
