"""Delivery: batches on their way from the engine to the devices, a few ahead of the loop.

One thread takes blocks from the engine and makes a tree of global arrays of each batch in them. JAX
moves memory in the background, so what waits here is on its way.

Contract:
1. Batches come out in the order in which they go in, each as a block of its own, with its mark.
2. An error comes out after the batches before it, and ends the run.
3. A batch is made only when there is room for it: `prefetch` batches, and a budget of bytes.
4. `stop` ends both threads, the engine's and this one. So do the garbage collector when the consumer is
   gone, and the exit of the interpreter, before JAX ends.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from windrow.devices.agreement import Agreement
from windrow.devices.arrays import GlobalArrays
from windrow.engine.context import RunContext
from windrow.engine.prefetch_thread import (
    CLOSING_S,
    Inline,
    PrefetchThread,
    ReadyBlock,
    ReadyQueue,
)
from windrow.engine.record_names import records_of_row
from windrow.transforms import record_sizes, tables
from windrow.transforms.nodes import Node
from windrow.transforms.row_blocks import Block
from windrow.transforms.tables import Listed

RowsOf: TypeAlias = "Callable[[Sequence[int]], int]"

_running: Final[weakref.WeakSet[DeviceThread]] = weakref.WeakSet()


class Delivery:
    """Settings of one iterator, and what its processes have agreed on.

    Args:
        arrays: Makes global arrays of batches.
        prefetch: Batches on their way; 0 for none, and no thread.
        prefetch_bytes: The most bytes of this process's rows on their way; one batch is always allowed.
        new_agreement: Begins an agreement on the end, for streams that need one.
    """

    def __init__(
        self,
        arrays: GlobalArrays,
        prefetch: int,
        prefetch_bytes: int,
        new_agreement: Callable[[], Agreement] | None = None,
    ) -> None:
        self._arrays, self._prefetch, self._prefetch_bytes = arrays, prefetch, prefetch_bytes
        self._new_agreement, self._agreement = new_agreement, None
        if new_agreement is not None:
            self._agreement = new_agreement()

    def started(
        self,
        blocks: Inline | PrefetchThread,
        run: RunContext,
        node: Node,
        rows_of: RowsOf,
        position: Sequence[int],
    ) -> Delivered:
        """Begin to deliver the blocks of a run.

        Args:
            blocks: What the engine makes.
            run: The run.
            node: The chain that runs.
            rows_of: The number of rows of the whole stream before a position.
            position: Where the run begins.
        """
        transfer = _Transfer(self._arrays, self._agreement, node, rows_of, rows_of(position))
        if isinstance(blocks, Inline) or not self._prefetch:
            return DeviceInline(blocks, transfer)
        return DeviceThread(blocks, transfer, run, self._prefetch, self._prefetch_bytes)

    def moved(self) -> None:
        """Note that the iterator continues elsewhere."""
        if self._agreement is not None:
            self._agreement.moved()

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self._arrays, self._prefetch, self._prefetch_bytes, self._new_agreement)
        return Delivery, given


class _Transfer:
    """Makes blocks of global arrays of the batches of one run, in order."""

    def __init__(
        self,
        arrays: GlobalArrays,
        agreement: Agreement | None,
        node: Node,
        rows_of: RowsOf,
        rows: int,
    ) -> None:
        self._arrays, self._agreement, self._node = arrays, agreement, node
        self._rows_of, self._rows = rows_of, rows

    def may_come(self, has_batch: bool, stopped: Callable[[], bool]) -> bool:
        """Whether all processes have the next batch."""
        if self._agreement is None:
            return has_batch
        return self._agreement.has(self._rows, has_batch, stopped)

    def made(self, batch: Any, block: Block, size_bytes: int, made: Any) -> ReadyBlock:
        """The next batch as a block of its own.

        Args:
            batch: Its element.
            block: Its mark, and what it is made of.
            size_bytes: Its bytes.
            made: How the block was made that it comes from; None for other batches of that block.
        """
        records = functools.partial(records_of_row, self._node, block.made_of)
        tree = self._arrays.of(batch, records)
        self._rows = self._rows_of(block.marks[0].tolist())
        return ReadyBlock(Block(Listed([tree]), block.marks, block.made_of), size_bytes, made)


class _Batches:
    """The batches of a block, one after the other; each is the consumer's alone."""

    def __init__(self, ready: ReadyBlock) -> None:
        self._marks = ready.block.with_table(Listed([None] * len(ready.block)))
        self._made, self._given = ready.made, 0
        self._elements = list(tables.elements(ready.block.table))

    def take(self) -> tuple[Any, Block, int, Any] | None:
        """The next batch, for `_Transfer.made`; None if all were taken."""
        if self._given == len(self._elements):
            return None
        batch, self._elements[self._given] = self._elements[self._given], None
        made, self._made = self._made, None
        self._given += 1
        block = self._marks.sliced(self._given - 1, self._given)
        return batch, block, record_sizes.nbytes(batch), made


class DeviceInline:
    """Batches that are put on devices when they are asked for."""

    is_ready: Final = False

    def __init__(self, blocks: Inline | PrefetchThread, transfer: _Transfer) -> None:
        self._blocks, self._transfer = blocks, transfer
        self._batches: _Batches | None = None

    def __next__(self) -> ReadyBlock:
        taken = None if self._batches is None else self._batches.take()
        while taken is None:
            ready = next(self._blocks, None)
            if ready is None:
                self._transfer.may_come(False, _never)
                raise StopIteration
            self._batches = _Batches(ready)
            taken = self._batches.take()
        if not self._transfer.may_come(True, _never):
            raise StopIteration
        return self._transfer.made(*taken)

    def stop(self, wait_s: float) -> bool:
        """Drop what was made ahead. Return whether everything has ended within a time."""
        return self._blocks.stop(wait_s)


def _never() -> bool:
    return False


class DeviceThread:
    """Batches that a thread of their own puts on devices."""

    def __init__(
        self,
        blocks: PrefetchThread,
        transfer: _Transfer,
        run: RunContext,
        prefetch: int,
        prefetch_bytes: int,
    ) -> None:
        stopped = threading.Event()
        self._waiting = _Waiting(prefetch, prefetch_bytes, stopped)
        run.maker.watch(self._waiting)
        self._blocks = blocks
        self._thread = threading.Thread(
            target=_work,
            args=(blocks, transfer, self._waiting.ready, stopped),
            name="windrow-devices",
            daemon=True,
        )
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _ended, self._waiting.ready, blocks, self._owner)
        _before_jax_ends()
        self._thread.start()
        _running.add(self)

    @property
    def is_ready(self) -> bool:
        """Whether a batch is there."""
        return self._waiting.ready.is_ready

    def __next__(self) -> ReadyBlock:
        return self._waiting.ready.get()

    def stop(self, wait_s: float) -> bool:
        """End both threads and drop what they have made. Return whether they have ended within a time."""
        _ended(self._waiting.ready, self._blocks, self._owner)
        self._end.detach()
        until_s = time.monotonic() + wait_s
        has_ended = self._blocks.stop(wait_s)
        self._thread.join(max(0.0, until_s - time.monotonic()))
        return has_ended and not self._thread.is_alive()


Delivered: TypeAlias = "DeviceInline | DeviceThread"


class _Waiting:
    """The queue of batches on their way, and its bytes for `stats()`."""

    def __init__(self, prefetch: int, prefetch_bytes: int, stopped: threading.Event) -> None:
        self.ready = ReadyQueue(prefetch, prefetch_bytes, stopped)

    def bytes_by(self) -> dict[str, int]:
        """Bytes of the batches that wait here."""
        return {"queue": self.ready.size_bytes}


def _ended(queue: ReadyQueue, blocks: PrefetchThread, owner: int) -> None:
    if os.getpid() == owner:  # locks may be held by threads that a forked child does not have
        queue.stop()
        blocks.end()


def _work(
    blocks: PrefetchThread, transfer: _Transfer, queue: ReadyQueue, stopped: threading.Event
) -> None:
    try:
        while _deliver(next(blocks, None), transfer, queue, stopped):
            pass
        queue.finish(StopIteration)
    except BaseException as error:  # the consumer raises it and then calls `stop`
        queue.finish(functools.partial(_same, error))


def _deliver(
    ready: ReadyBlock | None, transfer: _Transfer, queue: ReadyQueue, stopped: threading.Event
) -> bool:
    """Deliver the batches of a block; False if no more will come."""
    if ready is None:
        transfer.may_come(False, stopped.is_set)
        return False
    batches = _Batches(ready)
    del ready  # its columns go with the last batch
    while (taken := batches.take()) is not None:
        queue.wait_for_room(1, taken[2])
        if stopped.is_set() or not transfer.may_come(True, stopped.is_set):
            return False
        if not queue.put(transfer.made(*taken)):
            return False
        del taken
    return True


def _same(error: BaseException) -> BaseException:
    return error


@functools.cache
def _before_jax_ends() -> None:
    """Stop all threads at exit, before what JAX has registered until now."""
    atexit.register(_stop_all)


def _stop_all() -> None:
    until_s = time.monotonic() + CLOSING_S
    for thread in list(_running):
        thread.stop(max(0.0, until_s - time.monotonic()))
