"""Reading an array far away: each read has an end, and tells when the array is not the one opened.

An object that is not there is the fill value to Zarr, and a server that answers "not found" for all
of a store that was removed gives an array of fill values. So where a chunk that came looks like one
that is not stored, the array's metadata object is asked for again.

Invariants:
1. A chunk that is all fill value is given out only after the metadata was seen to be there still,
   and to be that of this array, at a time after the chunk had come.
2. While reads go on, the metadata is asked for every `LOOK_EVERY_S` seconds at most, beside the
   reads. Once it was another, every read fails.
3. Memory of the caller is never handed to TensorStore: what comes late is dropped.

Not noticed: a chunk, or all of them, written again in place under the same metadata. Shards are
noticed while one of them is being read: each part of it is asked for by the version of its index.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import ReadError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.halts import fail_with_halt, settle
from windrow.sources.zarr_access import Access, is_far
from windrow.sources.zarr_guard import FILES, may_be_fill, metadata_in, same_array, spec_of

AnyArray = npt.NDArray[Any]

LOOK_EVERY_S = 5.0
# Chunks of one read that are looked at cell by cell.
_MOST_LOOKED_AT: Final = 16


class FarGuard:
    """The metadata object of an array, as it was when the array was opened. Thread-safe."""

    def __init__(self, access: Access, store: Any, key: str, where: str) -> None:
        """Ask for the object; `wait` for it."""
        self._access, self._store, self._key, self._where = access, store, key, where
        self._begun = access.flight.start(lambda: store.read(key))
        self._generation: bytes = b""
        self._metadata: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._looking = False
        self._next: list[Callable[[ReadError | None], None]] = []
        self._looked_s = math.inf
        self.failed: ReadError | None = None
        """What is wrong, once the array was seen to be another one."""

    def wait(self) -> bool:
        """Whether the object is there, and tells an array.

        Raises:
            ValueError, OSError, RuntimeError: If it can not be read.
        """
        found = self._begun.result()
        if found.state != "value":
            return False
        try:
            self._metadata = metadata_in(bytes(found.value))
        except ValueError:
            return False
        self._generation = found.stamp.generation
        self._looked_s = time.monotonic()
        return True

    def look_sometimes(self) -> None:
        """Look whether the array is the same, if that was long ago. Does not wait."""
        now = time.monotonic()
        if now - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now
            self.look(lambda _: None)

    def look(self, then: Callable[[ReadError | None], None]) -> None:
        """Call `then` with None if the array is the same from now on, else with the error."""
        with self._lock:
            self._next.append(then)
            if self._looking:
                return  # who looks now began before
            self._looking = True
        self._ask()

    def _ask(self) -> None:
        with self._lock:
            asked, self._next = self._next, []
            if not asked:
                self._looking = False
                return
        generation = self._generation
        found = self._access.flight.start(
            lambda: self._store.read(self._key, if_not_equal=generation), for_all=True
        )
        found.add_done_callback(lambda ended: self._told(asked, ended))

    def _told(
        self, asked: Sequence[Callable[[ReadError | None], None]], ended: Future[Any]
    ) -> None:
        error = self._verdict(ended)
        self._looked_s = time.monotonic()
        for then in asked:
            then(error)
        self._ask()

    def _verdict(self, ended: Future[Any]) -> ReadError | None:
        error = ended.exception()
        if error is not None:
            return self._error(f"can not be read any more ({self._access.reason(error)})")
        found = ended.result()
        if found.state == "missing":
            self.failed = self._error("is gone")
        elif found.state == "value":
            try:
                now = metadata_in(bytes(found.value))
            except ValueError as error:
                self.failed = self._error(f"can not be read any more ({error})")
            else:
                if same_array(self._metadata, now):
                    self._generation = found.stamp.generation
                else:
                    self.failed = self._error("says that the array is another one")
        return self.failed

    def _error(self, what: str) -> ReadError:
        return _gone(self._where, self._where + self._key, what)


class FetchedGuard:
    """The metadata of an array that zarr-python reads, as they were when it was opened.

    Thread-safe. Who checks at the same time waits for one answer.
    """

    def __init__(
        self, read: Callable[[], bytes | None], where: str, raw: bytes, fill: bytes
    ) -> None:
        """`read` asks for the metadata again; `raw` are those at opening."""
        self._read, self._where, self._raw, self._fill = read, where, raw, fill
        self._metadata = metadata_in(raw)
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()  # when who looked last began
        self._failed: str | None = None

    def check(self, rows: AnyArray, places: Sequence[int] | IntArray, where: str) -> None:
        """Check that the array is the same, if a row looks like the fill value, or from time to time.

        Args:
            rows: Rows that were read, in C order.
            places: Which of them to look at: one of every chunk that they lie in.
            where: Place of the array, for the message.

        Raises:
            ReadError: If its metadata are gone, or say that the array is another one.
        """
        came_s = time.monotonic()
        missed = may_be_fill(rows, places, self._fill)
        if missed or came_s - self._looked_s > LOOK_EVERY_S:
            with self._lock:
                if self._looked_s <= came_s:
                    began_s = time.monotonic()
                    self._look(missed)
                    self._looked_s = began_s
        if self._failed is not None:
            raise _gone(where, self._where, self._failed)

    def _look(self, must: bool) -> None:
        try:
            now = self._read()
        except (ReadError, SourceError):
            if must:
                raise
            return  # the reads themselves will tell what is wrong
        if now is None:
            self._failed = "is gone"
        elif now != self._raw:
            try:
                if not same_array(self._metadata, metadata_in(now)):
                    self._failed = "says that the array is another one"
            except ValueError as error:
                self._failed = f"can not be read any more ({error})"


class FarArray:
    """Reads of one array of TensorStore over a network."""

    def __init__(self, access: Access, store: Any, guard: FarGuard | None) -> None:
        """Of an open store."""
        self.access, self._store, self._guard = access, store, guard
        unknown = (None,) * store.rank
        self._chunk = tuple(store.chunk_layout.read_chunk.shape or unknown)
        self._object = tuple(store.chunk_layout.write_chunk.shape or self._chunk)
        self._origin = tuple(store.chunk_layout.grid_origin or unknown)
        dtype = np.dtype(store.dtype.numpy_dtype)
        fill = store.fill_value if guard is not None else None
        self._fill = np.zeros((), dtype) if fill is None else np.asarray(fill, dtype)

    def start(
        self,
        view: Any,
        failed: Callable[[BaseException], ReadError],
        *,
        scattered: int | None = None,
    ) -> Future[AnyArray]:
        """Start reading a view of the store; the future has the values, in memory of their own.

        Args:
            view: The store, with fewer cells.
            failed: Makes the error that the future has, from what went wrong.
            scattered: Chunks along the first axis, where the view is of rows one by one.
        """
        answer: Future[AnyArray] = Future()
        answer.set_running_or_notify_cancel()
        fail_with_halt(answer)  # it may have to wait for the guard, whose answer is for all
        guard = self._guard
        if guard is not None:
            if guard.failed is not None:
                settle(answer, error=_again(guard.failed))
                return answer
            guard.look_sometimes()
        size_bytes = math.prod(view.shape) * self._fill.dtype.itemsize
        edges = self._edges(view, scattered is not None)
        requests = self._requests(view, scattered)
        weight = self._weight_bytes(edges, scattered)
        read = self.access.flight.start(view.read, requests, size_bytes, weight_bytes=weight)
        read.add_done_callback(lambda ended: self._came(edges, ended, answer, failed))
        return answer

    def _came(
        self,
        edges: Sequence[Sequence[int]],
        ended: Future[AnyArray],
        answer: Future[AnyArray],
        failed: Callable[[BaseException], ReadError],
    ) -> None:
        try:
            error = ended.exception()
            if error is not None:
                settle(answer, error=failed(error))
                return
            values = ended.result()
            guard = self._guard
            if guard is None or not self._may_be_fill(edges, values):
                settle(answer, values)
            else:
                guard.look(lambda gone: _set(answer, values, gone))
        except Exception as other:  # else who waits would wait for ever
            settle(answer, error=failed(other))

    def _requests(self, view: Any, scattered: int | None) -> int:
        """Stored objects that a view lies in: neighbours in one of them are one request."""
        count = 1
        axes = zip(self._object, self._origin, view.shape, view.domain.inclusive_min, strict=True)
        for axis, (cells, origin, size, first) in enumerate(axes):
            if scattered is not None and axis == 0:
                count *= scattered
            elif cells is not None and origin is not None:
                count *= (first - origin + size - 1) // cells - (first - origin) // cells + 1
        return max(1, count)

    def _weight_bytes(self, edges: Sequence[Sequence[int]], scattered: int | None) -> int:
        """Bytes of the chunks that a view lies in; 0 where some of their sizes are not known."""
        if None in self._chunk:
            return 0
        counts = [len(edge) for edge in edges]
        if scattered is not None:
            counts[0] = scattered
        cells = math.prod(counts) * math.prod(map(int, self._chunk))
        return cells * self._fill.dtype.itemsize

    def _edges(self, view: Any, scattered: bool) -> list[Sequence[int]]:
        """Where chunks begin along each axis of a view; any row is taken for one if `scattered`."""
        found: list[Sequence[int]] = []
        axes = zip(self._chunk, self._origin, view.shape, view.domain.inclusive_min, strict=True)
        for axis, (chunk, origin, size, first) in enumerate(axes):
            if scattered and axis == 0:
                found.append(range(size))
            elif chunk is None or origin is None:
                found.append((0,))
            else:
                found.append((0, *range(chunk - (first - origin) % chunk, size, chunk)))
        return found

    def _may_be_fill(self, edges: Sequence[Sequence[int]], values: AnyArray) -> bool:
        """Whether all that was read of some chunk is the fill value."""
        if self._fill.ndim or not values.size:
            return False
        corners = _same_bytes(np.asarray(values[np.ix_(*edges)]), self._fill)
        places = np.argwhere(corners)
        if len(places) > _MOST_LOOKED_AT:
            return True
        for place in places.tolist():
            block = values[
                tuple(
                    slice(edge[at], edge[at + 1] if at + 1 < len(edge) else None)
                    for edge, at in zip(edges, place, strict=True)
                )
            ]
            if bool(_same_bytes(np.ascontiguousarray(block), self._fill).all()):
                return True
        return False


def _same_bytes(values: AnyArray, fill: AnyArray) -> npt.NDArray[np.bool_]:
    """Which values are the fill value, bit for bit."""
    size = fill.dtype.itemsize
    cells = np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(-1, size)
    wanted = np.frombuffer(fill.tobytes(), np.uint8)
    found: npt.NDArray[np.bool_] = (cells == wanted).all(axis=1).reshape(values.shape)
    return found


def _set(answer: Future[AnyArray], values: AnyArray, gone: ReadError | None) -> None:
    settle(answer, values, None if gone is None else _again(gone))


def unreachable(
    name: str, where: str, held: str, why: str, records: tuple[int, int] | None = None
) -> ReadError:
    """The error for a chunk that did not come.

    Args:
        name: Name of the array in the source.
        where: Place of the array.
        held: The records in the chunk, as `held_records` says it.
        why: What went wrong, and what was tried.
        records: The rows `[first, stop)` that it holds.
    """
    named = f"array {name!r}" if name else "the array"
    return ReadError(
        f"{named} in {where}: the chunk that holds {held} can not be read: {why}. If it may come"
        " later, go on from a checkpoint, or let RemoteOptions try for longer; leave these records"
        " out of the order to go on without them",
        records=records,
        why=why,
    )


def _gone(where: str, place: str, what: str) -> ReadError:
    return ReadError(
        f"the array in {where} was removed or replaced since the source was made: {place} {what},"
        " and records that are not there read as the fill value. Restore it, or make the source"
        " again"
    )


def _again(error: ReadError) -> ReadError:
    """The same error, for another who raises it: else tracebacks would grow together."""
    return ReadError(*error.args)


def guard_begun(access: Access, store: Any, where: str) -> FarGuard | None:
    """A guard of an open store, that has asked; None where it is no array of Zarr far away."""
    if store.kvstore is None:
        return None
    spec = spec_of(store)
    if spec.get("driver") not in FILES or not is_far(spec):
        return None
    key = spec.get("metadata_key", FILES[spec["driver"]])
    return FarGuard(access, store.kvstore, key, where)
