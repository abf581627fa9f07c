"""Executor: the stages of a conversion on threads of this process, or on several processes.

A stage is worked by hands, functions that do one item, each on a thread of its own: those of a run on
processes have the item done by a worker process and wait for it.

Invariant: when an item fails, the others are stopped at their next report, none is begun any more,
and the first error is raised; worker processes end with the process that started them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

from windrow.converters.folder import OutputFolder
from windrow.converters.stages import Conversion, Report, Stage
from windrow.converters.worker import PROGRAM, Done, Failed, Item, Job, StoppedError, Told, packed
from windrow.errors import ArgumentError, ConversionError
from windrow.progress import Meter, ShowProgress
from windrow.sources.interpreter import in_words, started
from windrow.sources.process import cores

# How often a thread that waits for a worker looks whether it is still to wait.
_LOOK_S: Final = 0.1
# What a worker may take to leave the item at work, and to remove what it has begun. Killing it is
# safe at any moment, only less tidy.
_LEAVE_S: Final = 2.0

# Does an item, and gives its result.
Hand = Callable[[Any, Report], Any]


class WorkerTraceback(Exception):  # noqa: N818 - a text that stands for the cause of an error
    """The traceback of an error that a worker process raised."""


class _DiedError(Exception):
    """The other end of a worker's socket is closed."""


def run_here(
    conversion: Conversion, folder: OutputFolder, *, processes: int, show: ShowProgress
) -> None:
    """Carry out `conversion` on this machine.

    Args:
        conversion: What is to be done.
        folder: Ready to be written.
        processes: 1 to work on threads of this process, else the number of worker processes.
        show: As for `Meter`.

    Raises:
        WindrowError: What the work raised.
        ConversionError: If a worker process died.
        ArgumentError: If what the conversion does cannot be sent to worker processes.
    """
    with _Workers(processes) as workers:
        results: list[Any] = []
        for stage in conversion.stages:
            items = stage.items(folder, results)
            results = []  # no longer needed, and perhaps large
            with Meter(stage.name, sum(map(stage.weigh, items)) or None, show) as meter:
                if processes > 1:
                    hands = workers.hands(stage, folder, len(items))
                else:
                    hands = _hands_here(stage, folder, len(items))
                results = _done(items, hands, meter)
    conversion.finish(folder, results)


def _hands_here(stage: Stage, folder: OutputFolder, items: int) -> list[Hand]:
    def work(item: Any, report: Report) -> Any:
        return stage.work(folder, item, report)

    return [work] * min(stage.at_once or cores(), items)


def _done(items: Sequence[Any], hands: Sequence[Hand], meter: Meter) -> list[Any]:
    """The results for `items`, in their order."""
    line = _Line(items, meter)
    threads = [
        # Daemons, so that a second Ctrl-C need not wait for work that does not report.
        threading.Thread(target=line.work, args=(hand,), name="windrow-convert", daemon=True)
        for hand in hands
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # Ctrl-C
        line.stop.set()
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    return line.taken()


class _Line:
    """The items of a stage, from which hands take one after the other."""

    def __init__(self, items: Sequence[Any], meter: Meter) -> None:
        self.stop = threading.Event()
        self._items = enumerate(items)
        self._results: list[Any] = [None] * len(items)
        self._meter = meter
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def work(self, hand: Hand) -> None:
        """Do items by `hand` until there are no more, or one fails."""
        try:
            while not self.stop.is_set():
                with self._lock:
                    taken = next(self._items, None)
                if taken is None:
                    return
                number, item = taken
                self._results[number] = hand(item, self._report)
        except StoppedError:
            pass
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self.stop.set()

    def _report(self, records: int, done_bytes: int) -> None:
        if self.stop.is_set():
            raise StoppedError
        if records or done_bytes:
            self._meter.add(records, done_bytes)

    def taken(self) -> list[Any]:
        """The results, once all hands have ended; raises the first error if there is one."""
        error, self._error = self._error, None
        if error is None:
            return self._results
        # The error holds on to the frames that it passed, which hold on to this.
        self._results = []
        try:
            raise error
        finally:
            del error


class _Workers:
    """Worker processes, which are started when there is work for them and stay for all stages."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._workers: list[_Worker] = []

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.ask_to_end()
        until_s = time.monotonic() + _LEAVE_S
        for worker in self._workers:
            worker.end(max(0.0, until_s - time.monotonic()))

    def hands(self, stage: Stage, folder: OutputFolder, items: int) -> list[Hand]:
        """Hands that have the items of `stage` done, no more than there are items."""
        try:
            job = packed(Job(stage.work, folder))
        except Exception as error:  # whatever a type's own way of pickling raises
            raise ArgumentError(
                f"{stage.name}: cannot be sent to worker processes: {type(error).__name__}:"
                f" {error}; have functions open what cannot be pickled (files, locks, connections)"
                " themselves, or leave out processes"
            ) from error
        count = min(self._most, items)
        while len(self._workers) < count:
            self._workers.append(_Worker())
        return [worker.hand(stage.name, job) for worker in self._workers[:count]]


class _Worker:
    """A worker process as its parent has it."""

    def __init__(self) -> None:
        # All descriptors here are closed by exec, except in the one process that they are for.
        self._socket, theirs = socket.socketpair()
        watch, self._watched = os.pipe()
        try:
            descriptors = [theirs.fileno(), watch]
            self._process = started(PROGRAM, [*descriptors, os.getpid()], descriptors)
        except BaseException:
            self._socket.close()
            os.close(self._watched)
            raise
        finally:
            theirs.close()
            os.close(watch)
        self._end = Connection(os.dup(self._socket.fileno()))

    def hand(self, stage: str, job: bytes) -> Hand:
        """A function that has this process do an item of the stage whose job is given."""
        is_sent = False

        def work(item: Any, report: Report) -> Any:
            nonlocal is_sent
            try:
                self._send(packed(Item(packed(item), None if is_sent else job)))
                is_sent = True
                return self._answer(report)
            except _DiedError as error:
                raise ConversionError(
                    f"{stage}: a worker process died ({self.end()}), perhaps for want of memory;"
                    " run it again, with fewer processes if need be: what is finished is kept"
                ) from error

        return work

    def _answer(self, report: Report) -> Any:
        while True:
            while not self._end.poll(_LOOK_S):
                report(0, 0)
            match self._receive():
                case Told(records, done_bytes):
                    report(records, done_bytes)
                case Done(result, told):
                    report(told.records, told.done_bytes)
                    return result
                case Failed(error, text):
                    try:
                        raise error from WorkerTraceback("\n" + text)
                    finally:
                        del error  # it holds on to this frame

    def _send(self, message: bytes) -> None:
        try:
            self._end.send_bytes(message)
        except OSError as error:
            raise _DiedError from error

    def _receive(self) -> Any:
        try:
            message = self._end.recv_bytes()
        except (EOFError, OSError) as error:
            raise _DiedError from error
        return pickle.loads(message)

    def ask_to_end(self) -> None:
        """Have the process leave what it is doing; does not wait."""
        with contextlib.suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_WR)

    def end(self, limit_s: float = _LEAVE_S) -> str:
        """End the process, which was asked to or is ending; how it ended."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._end.closed:
            self._end.close()
            self._socket.close()
            os.close(self._watched)
        return in_words(self._process.returncode)
