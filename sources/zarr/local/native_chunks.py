"""Chunks of plain local arrays, read and decoded by the native core without the interpreter's lock.

The core reads what is well-formed. What it refuses is read again by the caller's own way, which decides
whether it is damaged and names file and records. So an error is the same with and without the core.

Invariant: a read fills all of the requested memory or has an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Protocol, TypeAlias

import numpy as np

from windrow.core import buffer_pool
from windrow.core.native import native
from windrow.core.threads import InlineExecutor
from windrow.sources.base import IntArray
from windrow.sources.chunks import (
    AnyArray,
    Box,
    BoxReader,
    RowReader,
    Scattered,
    Span,
    WindowRows,
)
from windrow.sources.scan import Checks
from windrow.sources.zarr.local.metadata import PlainArray

Failures: TypeAlias = list[int]


class CheckingReader(RowReader, Protocol):
    """A reader of rows that also checks the chunks of its array."""

    def checks(self) -> Checks:
        """The chunks of the array."""
        ...


class NativeRead(Future[None]):
    """A read in progress on the core's own threads. It cannot be cancelled.

    What follows a read runs in the thread that asks for its result, which one thread must do. So
    functions that wait for any of several futures do not work with it, nor does `add_done_callback`.
    """

    def __init__(
        self, reading: Any, finish: Callable[[Failures, bool], None], *, inline: bool = False
    ) -> None:
        """Wait for `reading`; then call `finish` with the failed items and whether one is missing.

        With `inline` this thread reads, now.
        """
        super().__init__()
        self._reading, self._finish = reading, finish
        if inline:
            reading.wait(help=True)

    def running(self) -> bool:
        """Whether it runs: from the start until it is done."""
        return not self.done()

    def done(self) -> bool:
        """Whether the result can be had without waiting for a read."""
        return super().done() or bool(self._reading.done())

    def result(self, timeout: float | None = None) -> None:
        """Wait for the reads; raises ReadError if one of them failed."""
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the reads; the ReadError if one of them failed."""
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout: float | None) -> None:
        if super().done():
            return
        if not self._reading.wait(timeout):
            raise TimeoutError
        self._end()

    def _end(self) -> None:
        failed = sorted({item for item, _ in self._reading.failures()})
        try:
            self._finish(failed, self._reading.missing())
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(None)
        self._finish = _nothing  # it holds the memory that was read into


def _nothing(failed: Failures, missing: bool) -> None:
    """Call the function that follows a finished read."""


class NativeChunks:
    """The chunks of a plain array, by the core."""

    def __init__(self, plain: PlainArray, core: Any) -> None:
        """Open nothing yet."""
        number_bytes = plain.dtype.itemsize // (2 if plain.dtype.kind == "c" else 1)
        swaps = plain.stored_dtype != plain.dtype
        indexed = plain.index_location == "start", bool(plain.index_codecs)
        self._core = core
        self._array = core.ZarrArray(
            base=os.fsencode(os.path.join(plain.folder, plain.prefix)),
            separator=ord(plain.separator),
            shape=plain.shape,
            chunk=plain.chunk_shape,
            axes=plain.axes,
            per_object=plain.shard_grid,
            index=indexed if plain.shard_shape is not None else None,
            codecs=[codec.name for codec in plain.codecs],
            itemsize=plain.dtype.itemsize,
            swap=number_bytes if swaps else 1,
            bools=plain.dtype == np.bool_,
            fill=np.asarray(plain.fill, plain.dtype).tobytes(),
        )

    def start(self, wanted: Sequence[Span | Scattered]) -> Any:
        """Start reading rows, each span in one row of chunks."""
        return self._array.start(
            [
                (item.first, item.stop, _memory(item.out))
                if isinstance(item, Span)
                else (item.chunk, item.outputs)
                for item in wanted
            ]
        )

    def output(self, out: AnyArray, *where: Any) -> Any:
        """As for `ScatterReader.output`."""
        return self._core.Batch(_memory(out), *where)

    def start_boxes(self, boxes: Sequence[Box], *, inline: bool) -> Any:
        """Start reading boxes, each in one chunk; neighbours in the list share its decoding.

        With `inline` the thread that waits reads them.
        """
        wanted = [(box.first, _memory(box.out)) for box in boxes]
        return self._array.start_boxes(wanted, inline=inline)

    def gather(self, first: IntArray, size: int, out: AnyArray) -> tuple[bool, bool]:
        """Read rows `[first[k], first[k] + size)` into `out`, one after the other, each chunk once.

        Returns whether all could be read, and whether some chunk is not stored.
        """
        reading = self._array.start_gather(
            np.ascontiguousarray(first, np.int64), size, _memory(out)
        )
        reading.wait(help=True)
        return not reading.failures(), reading.missing()


def _memory(out: AnyArray) -> AnyArray:
    """The same memory with a dtype that has a buffer, which dtypes of small floats have not."""
    return out if out.dtype.isbuiltin == 1 else out.view(f"V{out.dtype.itemsize}")


def native_chunks(plain: PlainArray) -> NativeChunks | None:
    """The chunks of an array by the core; None without the core, or if it cannot read the array."""
    core = native()
    if core is None or not plain.dtype.itemsize:
        return None
    try:
        return NativeChunks(plain, core)
    except (ValueError, OverflowError):
        return None


class NativeRowReader:
    """Reads rows by the core, and once more by another reader if the core refuses them."""

    def __init__(self, plain: PlainArray, chunks: NativeChunks, other: CheckingReader) -> None:
        """Read `plain` by its `chunks`; `other` reads the same array, or reports what is wrong."""
        self._plain, self._chunks, self._other = plain, chunks, other
        # Shards stay open, and can still be read after the array was replaced.
        self._stays_open = plain.shard_shape is not None

    def checks(self) -> Checks:
        """The chunks of the array."""
        return self._other.checks()

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Start reading spans on the core's threads; the future has a ReadError if one fails."""
        return self.start_scattered(spans)

    def output(
        self,
        out: AnyArray,
        chunks: int,
        which: IntArray,
        sources: IntArray,
        targets: IntArray,
        lengths: IntArray | None,
    ) -> Any:
        """Describe where rows of chunks go in `out`; see `ScatterReader`."""
        return self._chunks.output(out, chunks, which, sources, targets, lengths)

    def start_scattered(self, wanted: Sequence[Span | Scattered]) -> Future[None]:
        """Start reading on the core's threads; the future has a ReadError if a chunk fails."""
        items = list(wanted)

        def finish(failed: Failures, missing: bool) -> None:
            for item in failed:
                self._read_again(items[item])
            self._check(missing)

        return NativeRead(self._chunks.start(items), finish)

    def _read_again(self, item: Span | Scattered) -> None:
        if isinstance(item, Span):
            self._other.start([item], InlineExecutor()).result()
            return
        size, rows = self._plain.chunk_shape[0], self._plain.shape[0]
        first = item.chunk * size
        item.put(self._other.read(np.arange(first, min(first + size, rows))))

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory, each chunk decoded once. Waits; raises ReadError."""
        found = self._gathered(rows, 1)
        return self._other.read(rows) if found is None else found

    def read_runs(self, first: IntArray, size: int) -> AnyArray:
        """Runs `(n, size, ...)` of rows in new memory. Waits; raises ReadError."""
        found = self._gathered(first, size)
        if found is not None:
            return found.reshape(len(first), size, *found.shape[1:])
        windows = WindowRows(first, size)
        return windows.taken_from(self._other.read(windows.rows))

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage; may be an estimate."""
        return self._other.stored_bytes(chunks)

    def _gathered(self, first: IntArray, size: int) -> AnyArray | None:
        plain = self._plain
        out = buffer_pool.empty((len(first) * size, *plain.shape[1:]), plain.dtype)
        if not out.size:
            return out
        are_read, missing = self._chunks.gather(first, size, out)
        if not are_read:
            return None
        self._check(missing)
        return out

    def _check(self, missing: bool) -> None:
        if missing or self._stays_open:
            self._plain.presence.refuse_gone(self._plain.folder)


class NativeBoxReader:
    """Reads boxes by the core, and once more by another reader if the core refuses them."""

    def __init__(self, plain: PlainArray, chunks: NativeChunks, other: BoxReader) -> None:
        """Read `plain` by its `chunks`; `other` reads the same array, or reports what is wrong."""
        self._plain, self._chunks, self._other = plain, chunks, other

    def checks(self) -> Checks:
        """The chunks of the array."""
        checks: Checks = self._other.checks()  # type: ignore[attr-defined]
        return checks

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Start reading boxes on the core's threads; the future has a ReadError if one fails."""
        wanted = [box for box in boxes if box.out.size]

        def finish(failed: Failures, missing: bool) -> None:
            if failed:
                self._other.start(wanted, InlineExecutor()).result()
            elif missing or self._plain.shard_shape is not None:
                self._plain.presence.refuse_gone(self._plain.folder)

        inline = isinstance(pool, InlineExecutor)
        return NativeRead(self._chunks.start_boxes(wanted, inline=inline), finish, inline=inline)

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage; may be an estimate."""
        return self._other.stored_bytes(chunks)
