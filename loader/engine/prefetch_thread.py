"""Ahead: one thread that makes blocks before the consumer asks for them, within a byte budget.

Contract:
1. Blocks come out in the order the generator makes them, each once.
2. An error of the generator comes out after the blocks made before it; it ends the run.
3. `stop` ends the thread; so does the garbage collector when the consumer is gone, and the exit of
   the interpreter. In a forked child, where there is no such thread, it does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from windrow.engine.context import RunContext
from windrow.errors import ClosedError
from windrow.stats.profiler import ROOM, Made, doing
from windrow.transforms import tables
from windrow.transforms.row_blocks import Block, Blocks

# The longest waits for a read or a function in progress: of closing and of an interrupt, which leave it
# to its daemon thread then, and of what continues elsewhere, which would do it twice.
CLOSING_S: Final = 0.5
MOVING_S: Final = 10.0

_running: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def _join_all() -> None:
    until_s = time.monotonic() + CLOSING_S
    for thread in list(_running):
        thread.join(max(0.0, until_s - time.monotonic()))


# A thread that outlives the interpreter can crash it in native code. The finalizers that stop the
# threads are registered later, so they run before this.
atexit.register(_join_all)


# The size of the block, in bytes, whose release makes glibc keep freed memory.
_LESSON_BYTES = (32 << 20) - (64 << 10)

# A queue of so few blocks is filled at once, however much it may hold.
_FEW_BLOCKS = 2
# For so long a slow loop is left alone after it has taken a block. On 4 JAX devices that costs a step
# of 3 ms 16% in place of 25%, and one of 8 ms 8.5% in place of 16% (two cores, means of four runs).
_STEP_BEGINS_S = 1e-3


@functools.cache
def _teach_malloc() -> None:
    """Make glibc keep freed blocks for the next ones, and not give them back to the system.

    When an allocation of this size is freed for the first time, glibc raises its thresholds for
    giving memory back to the system, as a large array of the user's would make it do. The pages
    are never touched. Batches of ArrayRecord come some 10% faster; a process keeps some 40 MB more.
    """
    np.empty(_LESSON_BYTES, np.uint8)


class ReadyBlock(NamedTuple):
    """A block on its way to the loop."""

    block: Block
    size_bytes: int
    made: Made | None  # None if that was while the loop waited


class Inline:
    """Blocks of a generator, made when they are asked for."""

    is_ready: Final = False

    def __init__(self, blocks: Blocks, run: RunContext) -> None:
        self._blocks, self._maker = blocks, run.maker

    def __next__(self) -> ReadyBlock:
        begun = self._maker.begin()
        try:
            block = next(self._blocks)
        finally:
            self._maker.pause(begun)
        return ReadyBlock(block, tables.nbytes(block.table), None)

    def end(self) -> None:
        """Do nothing: no thread works."""

    def stop(self, wait_s: float) -> bool:
        """Drop the block in progress; True, since it has ended."""
        self._blocks.close()
        return True


class PrefetchThread:
    """Blocks of a generator, made on a thread of their own."""

    def __init__(self, blocks: Blocks, run: RunContext) -> None:
        _teach_malloc()
        self._shared = BlockQueue(run)
        run.maker.watch(self._shared)
        self._thread = threading.Thread(
            target=_make, args=(blocks, self._shared, run), name="windrow-ahead", daemon=True
        )
        self._end = weakref.finalize(self, self._shared.stop)
        self._thread.start()
        _running.add(self._thread)

    @property
    def is_ready(self) -> bool:
        """Whether a block is there."""
        return self._shared.is_ready

    def __next__(self) -> ReadyBlock:
        return self._shared.get()

    def end(self) -> None:
        """Let the thread end soon, and drop what it has made. Any thread may call this."""
        self._shared.stop()
        self._end.detach()  # an interrupt within it would be lost

    def stop(self, wait_s: float) -> bool:
        """End the thread and drop what it has made. Return whether it has ended within a time."""
        self.end()
        self._thread.join(wait_s)
        return not self._thread.is_alive()


class _StreamEnd:
    """Return the exception that comes after the last block: an error, or `StopIteration`.

    Each call makes a new one, since a raised exception holds the frames of the consumer, and so all
    blocks ahead.
    """

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self.error = error


class ReadyQueue:
    """A bounded queue of blocks from one thread to another, which knows neither of them."""

    def __init__(self, most_rows: int, most_bytes: int, stopped: threading.Event) -> None:
        """Start empty. One block always fits.

        Args:
            most_rows: The most rows that wait here.
            most_bytes: The most bytes that wait here.
            stopped: Set when no more blocks are wanted.
        """
        self._most_rows, self._most_bytes, self._stopped = most_rows, most_bytes, stopped
        # The consumer waits in native code: waking it costs a tenth of what a condition does.
        self._queue: queue.SimpleQueue[ReadyBlock | _StreamEnd] = queue.SimpleQueue()
        # Entered as it is: an interrupt within `Condition.__enter__` would leave it locked.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._count = self._rows = self.size_bytes = 0  # of the blocks in the queue

    def has_room(self, rows: int, size_bytes: int) -> bool:
        """Whether a block of this many rows and bytes fits, or no more are wanted."""
        if not self._count or self._stopped.is_set():
            return True
        return (
            self._rows + rows <= self._most_rows
            and self.size_bytes + size_bytes <= self._most_bytes
        )

    def wait_for_room(self, rows: int, size_bytes: int) -> None:
        """Wait until it fits into a queue that is half empty, or no more are wanted.

        Each time that this thread wakes, a loop of pure Python stops for it. So it makes several
        blocks then, and not one after each that is taken. The loop has just taken one: if it is slow
        and another block is ready, it may begin its step first.
        """
        with self._lock:
            begun = time.perf_counter()
            self._room.wait_for(lambda: self._is_low and self.has_room(rows, size_bytes))
            may_wait = self._count > 0 and time.perf_counter() - begun > 2 * _STEP_BEGINS_S
        if may_wait:
            self._stopped.wait(_STEP_BEGINS_S)

    @property
    def _is_low(self) -> bool:
        """Whether the other thread should make more blocks."""
        if self._count <= _FEW_BLOCKS or self._stopped.is_set():
            return True
        return 2 * self._rows <= self._most_rows and 2 * self.size_bytes <= self._most_bytes

    def put(self, ready: ReadyBlock) -> bool:
        """Hand a block over; False when the consumer has stopped."""
        with self._lock:
            if self._stopped.is_set():
                return False
            self._count += 1
            self._rows += len(ready.block)
            self.size_bytes += ready.size_bytes
            self._queue.put(ready)
            return True

    @property
    def is_ready(self) -> bool:
        """Whether a block is there."""
        return not self._queue.empty()

    def finish(self, error: Callable[[], BaseException]) -> None:
        """End the queue: the consumer then gets the exception that `error` makes."""
        with self._lock:
            if not self._stopped.is_set():
                self._queue.put(_StreamEnd(error))

    def get(self) -> ReadyBlock:
        """The next block; raises the exception that ended them."""
        found = self._queue.get()
        if isinstance(found, _StreamEnd):
            self._queue.put(found)  # the next caller gets it again
            raise found.error()
        with self._lock:
            self._count -= 1
            self._rows -= len(found.block)
            self.size_bytes -= found.size_bytes
            if self._is_low:
                self._room.notify_all()
        return found

    def stop(self) -> None:
        """Drop all blocks and wake both sides: no more blocks are wanted."""
        with self._lock:
            self._stopped.set()
            self._room.notify_all()
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(_StreamEnd(_closed))


class BlockQueue:
    """The queue of a prefetch thread, which counts what the thread does."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._owner, self._has_stopped = os.getpid(), False
        most_rows, most_bytes = run.options.prefetch_buffer_size, run.budget.queue_bytes
        self._ready = ReadyQueue(most_rows, most_bytes, run.stopped)
        self.get, self.finish = self._ready.get, self._ready.finish
        self._waiting_bytes = 0  # of a block that does not fit

    def put(self, block: Block) -> bool:
        """Hand a block over once there is room; False when the consumer has stopped."""
        size_bytes, maker = tables.nbytes(block.table), self._run.maker
        made = maker.made_block()
        maker.is_ahead = self._ready.is_ready
        self._waiting_bytes = size_bytes
        maker.weigh()
        if not self._ready.has_room(len(block), size_bytes):
            maker.weigh(always=True)
            with doing(ROOM):
                self._wait_for_room(len(block), size_bytes)
            maker.begin_block()
        if not self._ready.put(ReadyBlock(block, size_bytes, made)):
            return False
        self._waiting_bytes = 0
        return True

    def _wait_for_room(self, rows: int, size_bytes: int) -> None:
        self._ready.wait_for_room(rows, size_bytes)

    def bytes_by(self) -> dict[str, int]:
        """Bytes of the blocks that wait here."""
        return {"queue": self._ready.size_bytes, "rounds": self._waiting_bytes}

    @property
    def is_ready(self) -> bool:
        """Whether a block is there."""
        return self._ready.is_ready

    def stop(self) -> None:
        """Stop the thread: no more blocks are wanted."""
        if os.getpid() != self._owner:  # locks may be held by threads that are not here
            return
        if self._has_stopped:  # or it would interrupt the workers of their next user
            return
        self._run.stop()
        self._ready.stop()
        self._has_stopped = True  # last: a call after one that was interrupted does it all


def _same(error: BaseException) -> BaseException:
    return error


def _closed() -> BaseException:
    return ClosedError("this iterator was closed by another thread while it was waiting")


def _make(blocks: Blocks, shared: BlockQueue, run: RunContext) -> None:
    run.cancel_scope.enter()
    try:
        with run.maker.working():
            run.maker.begin_block()
            for block in blocks:
                if not shared.put(block):
                    break
        shared.finish(StopIteration)
    except BaseException as error:  # handed to the consumer, who raises it and then calls `stop`
        shared.finish(functools.partial(_same, error))
    finally:
        blocks.close()
        run.end_threads()
