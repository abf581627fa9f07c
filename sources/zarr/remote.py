"""One remote array of TensorStore: its reads, and the check that it is still the array at opening.

Zarr reads an object that is not there as the fill value, and a server that answers "not found" for
a store that was removed gives an array of fill values. So if a chunk looks as if it were not
stored, the array's metadata object is read again.

Invariants:
1. A chunk of fill values is returned only after the metadata were read again, later than the chunk
   arrived, and still described this array.
2. While reads run, the metadata are read every `LOOK_EVERY_S` seconds at most, concurrently. Once
   they describe another array, every read fails.
3. TensorStore never gets the caller's memory: values that arrive too late are dropped.

A chunk that is written again under the same metadata is not noticed. A shard that changes is
noticed while it is being read, since each part of it is requested by the version of its index.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core.cancellation import fail_with_scope, settle
from windrow.core.threads import Ends
from windrow.errors import ReadError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.chunks import Box, groups_read
from windrow.sources.zarr.local.presence import (
    FILES,
    change_since,
    gone_error,
    may_be_fill,
    metadata_in,
    spec_of,
)
from windrow.sources.zarr.stores import Access

AnyArray = npt.NDArray[Any]

LOOK_EVERY_S = 5.0
# At most this many chunks of one read are compared cell by cell with the fill value.
_MOST_COMPARED: Final = 16


class RemotePresence:
    """The metadata object of an array, as it was when the array was opened. Thread-safe."""

    def __init__(self, access: Access, store: Any, key: str, where: str) -> None:
        """Start reading the object; `wait` returns when it has arrived."""
        self._access, self._store, self._key, self._where = access, store, key, where
        self._first = access.in_flight.start(lambda: store.read(key), where=where)
        self._generation: bytes = b""
        self._metadata: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._looking = False
        self._waiting: list[Callable[[ReadError | None], None] | None] = []
        self._looked_s = math.inf
        self.failed: ReadError | None = None
        """The error, once the metadata were gone or described another array."""

    def wait(self) -> bool:
        """Whether the object is there and holds metadata.

        Raises:
            ValueError, OSError, RuntimeError: If it cannot be read.
        """
        answer = self._first.result()
        if answer.state != "value":
            return False
        try:
            self._metadata = metadata_in(bytes(answer.value))
        except ValueError:
            return False
        self._generation = answer.stamp.generation
        self._looked_s = time.monotonic()
        return True

    def look_sometimes(self) -> None:
        """Check the metadata again if the last check was long ago. Does not wait."""
        now = time.monotonic()
        if now - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now
            self.look(None)

    def look(self, then: Callable[[ReadError | None], None] | None) -> None:
        """Check the metadata again, and call `then`, if given, with the error, or None without one."""
        with self._lock:
            self._waiting.append(then)
            if self._looking:
                return  # the check that runs now began earlier, and another one follows it
            self._looking = True
        self._ask()

    def _ask(self) -> None:
        with self._lock:
            callbacks, self._waiting = self._waiting, []
            if not callbacks:
                self._looking = False
                return
        generation, wanted = self._generation, [each for each in callbacks if each is not None]
        answer = self._access.in_flight.start(
            lambda: self._store.read(self._key, if_not_equal=generation),
            where=self._where,
            for_all=True,
            outlasts=bool(wanted),  # without a caller it ends with its first error
        )
        answer.add_done_callback(lambda ended: self._answered(wanted, ended))

    def _answered(
        self, callbacks: Sequence[Callable[[ReadError | None], None]], ended: Future[Any]
    ) -> None:
        error = self._verdict(ended)
        self._looked_s = time.monotonic()
        for then in callbacks:
            then(error)
        self._ask()

    def _verdict(self, ended: Future[Any]) -> ReadError | None:
        error = ended.exception()
        if error is not None:
            return self._error(f"can no longer be read ({self._access.reason(error)})")
        answer = ended.result()
        if answer.state in ("missing", "value"):
            raw = bytes(answer.value) if answer.state == "value" else None
            change = change_since(self._metadata, raw)
            if change:
                self.failed = self._error(change)
            else:
                self._generation = answer.stamp.generation
        return self.failed

    def _error(self, what: str) -> ReadError:
        return gone_error(self._where, self._where + self._key, what)


class FetchedPresence:
    """The metadata of an array that zarr-python reads, as they were when it was opened.

    Thread-safe. Concurrent checks wait for one answer.
    """

    def __init__(
        self, read: Callable[[], bytes | None], where: str, raw: bytes, fill: bytes
    ) -> None:
        """`read` reads the metadata again; `raw` are the metadata at opening."""
        self._read, self._where, self._raw, self._fill = read, where, raw, fill
        self._metadata = metadata_in(raw)
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()  # when the last look began
        self._is_looking = False  # by `look_sometimes`
        self._failed: str | None = None

    def check(self, rows: AnyArray, places: Sequence[int] | IntArray, where: str) -> None:
        """Check that the array is the same, if a row looks like the fill value or at intervals.

        Args:
            rows: Rows that were read, in C order.
            places: The rows to compare: one of every chunk that they lie in.
            where: Place of the array, for the message.

        Raises:
            ReadError: If its metadata are gone or describe another array.
        """
        self._check(may_be_fill(rows, places, self._fill), where)

    def refuse_gone(self, where: str) -> None:
        """Check that the array is the same, since a chunk is not stored. Raises as `check`."""
        self._check(True, where)

    def look_sometimes(self, run: Callable[[Callable[[], None]], object], where: str) -> None:
        """Check by `run`, which does not wait, if the last check was long ago.

        Raises:
            ReadError: If an earlier check found that its metadata are gone or describe another array.
        """
        if time.monotonic() - self._looked_s > LOOK_EVERY_S and not self._is_looking:
            self._is_looking = True
            try:
                run(self._look_later)
            except BaseException:  # no thread can begin, or the pool is closed
                self._is_looking = False
                raise
        self._refuse_failed(where)

    def _look_later(self) -> None:
        try:
            self._check(False, "")
        finally:
            self._is_looking = False

    def _check(self, missed: bool, where: str) -> None:
        came_s = time.monotonic()
        if missed or came_s - self._looked_s > LOOK_EVERY_S:
            with self._lock:
                if self._looked_s <= came_s:
                    began_s = time.monotonic()
                    self._look(missed)
                    self._looked_s = began_s
        self._refuse_failed(where)

    def _refuse_failed(self, where: str) -> None:
        if self._failed is not None:
            raise gone_error(where, self._where, self._failed)

    def _look(self, must: bool) -> None:
        try:
            now = self._read()
        except (ReadError, SourceError):
            if must:
                raise
            return  # the reads themselves will report the error
        if now != self._raw:
            self._failed = change_since(self._metadata, now) or self._failed


class RemoteArray:
    """Reads one array of TensorStore over a network."""

    def __init__(self, access: Access, store: Any, where: str) -> None:
        """Start to read the metadata of an open store of Zarr; `wait` returns when they are here."""
        self.access, self._store, self._where = access, store, where
        spec = spec_of(store)
        self._presence: RemotePresence | None = None
        if store.kvstore is not None and spec.get("driver") in FILES:
            key = spec.get("metadata_key", FILES[spec["driver"]])
            self._presence = RemotePresence(access, store.kvstore, key, where)
        unknown = (None,) * store.rank
        self._chunk = tuple(store.chunk_layout.read_chunk.shape or unknown)
        self._object = tuple(store.chunk_layout.write_chunk.shape or self._chunk)
        self._origin = tuple(store.chunk_layout.grid_origin or unknown)
        self._fill: AnyArray = np.zeros((), np.dtype(store.dtype.numpy_dtype))

    def wait(self) -> None:
        """Wait for the metadata; without them, the array is not checked later.

        Raises:
            ValueError, OSError, RuntimeError: If they cannot be read.
        """
        if self._presence is not None and not self._presence.wait():
            self._presence = None
        if self._presence is not None and self._store.fill_value is not None:
            self._fill = np.asarray(self._store.fill_value, self._fill.dtype)

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
            failed: Makes the error of the future from the error of the read.
            scattered: Chunks along the first axis, if the view picks single rows.
        """
        answer: Future[AnyArray] = Future()
        answer.set_running_or_notify_cancel()
        fail_with_scope(answer)  # it may wait for the presence check, whose answer is for all reads
        presence = self._presence
        if presence is not None:
            if presence.failed is not None:
                settle(answer, error=_again(presence.failed))
                return answer
            presence.look_sometimes()
        size_bytes = math.prod(view.shape) * self._fill.dtype.itemsize
        edges = self._edges(self._chunk, view, scattered is not None)
        # Cells of one stored object are one request.
        requests = _count(self._edges(self._object, view, scattered is not None), scattered)
        chunk_bytes = 0  # unknown
        if None not in self._chunk:
            chunk_bytes = math.prod(map(int, self._chunk)) * self._fill.dtype.itemsize
        weight = _count(edges, scattered) * chunk_bytes
        read = self.access.in_flight.start(
            view.read, requests, size_bytes, weight_bytes=weight, where=self._where
        )
        read.add_done_callback(lambda ended: self._arrived(edges, ended, answer, failed))
        return answer

    def _arrived(
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
            presence = self._presence
            if presence is None or not self._may_be_fill(edges, values):
                settle(answer, values)
            else:
                presence.look(lambda gone: _set(answer, values, gone))
        except Exception as other:  # otherwise the caller would wait forever
            settle(answer, error=failed(other))

    def _edges(
        self, cells: Sequence[int | None], view: Any, scattered: bool
    ) -> list[Sequence[int]]:
        """Where chunks of `cells` begin along each axis of a view; if `scattered`, each row is one."""
        edges: list[Sequence[int]] = []
        axes = zip(cells, self._origin, view.shape, view.domain.inclusive_min, strict=True)
        for axis, (chunk, origin, size, first) in enumerate(axes):
            if scattered and axis == 0:
                edges.append(range(size))
            elif chunk is None or origin is None:
                edges.append((0,))
            else:
                edges.append((0, *range(chunk - (first - origin) % chunk, size, chunk)))
        return edges

    def _may_be_fill(self, edges: Sequence[Sequence[int]], values: AnyArray) -> bool:
        """Whether all cells that were read from some chunk are the fill value."""
        if self._fill.ndim or not values.size:
            return False
        corners = _same_bytes(np.asarray(values[np.ix_(*edges)]), self._fill)
        places = np.argwhere(corners)
        if len(places) > _MOST_COMPARED:
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


def _count(edges: Sequence[Sequence[int]], scattered: int | None) -> int:
    """The number of chunks that begin at `edges`; `scattered` along the first axis if it is given."""
    counts = [len(edge) for edge in edges]
    return math.prod(counts if scattered is None else [scattered, *counts[1:]])


Begin = Callable[[Sequence[Box]], "tuple[Sequence[int], Future[AnyArray]]"]
"""Starts reading boxes together; returns their first cell, and a future of values in new memory."""


def filled(
    groups: Sequence[Sequence[Box]],
    begin: Begin,
    *,
    apart: bool = False,
    exact: bool = True,
    again: bool = True,
) -> Future[None]:
    """Read groups of boxes, each group together; done when all boxes are filled.

    Args:
        groups: The boxes, in the order of the call.
        begin: Starts the read of a group.
        apart: Whether the boxes of a group lie in different chunks.
        exact: As for `groups_read`.
        again: Whether a group that comes damaged is read once more, its boxes alone if they are `apart`.
    """
    ends, context = Ends(len(groups), partial(groups_read, groups, exact=exact)), copy_context()

    def arrived(number: int, first: Sequence[int], read: Future[AnyArray]) -> None:
        try:
            # The values have memory of their own, since a late read must not write to boxes.
            for box in groups[number]:
                box.fill(read.result(), first)
        except ReadError as error:
            if again and not error.is_unanswered:
                read_again(number)
            else:
                ends.end(number, error)
        except Exception as error:
            ends.end(number, error)
        else:
            ends.end(number, None)

    def read_again(number: int) -> None:
        boxes = groups[number]
        some = [[box] for box in boxes] if apart else [boxes]
        try:
            read = context.copy().run(filled, some, begin, exact=exact, again=False)
            read.add_done_callback(lambda done: ends.end(number, done.exception()))
        except Exception as error:
            ends.end(number, error)

    for number, boxes in enumerate(groups):
        first, read = begin(boxes)
        read.add_done_callback(partial(arrived, number, first))
    return ends.done


def _same_bytes(values: AnyArray, fill: AnyArray) -> npt.NDArray[np.bool_]:
    """Whether each value is the fill value, bit for bit."""
    size = fill.dtype.itemsize
    cells = np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(-1, size)
    wanted = np.frombuffer(fill.tobytes(), np.uint8)
    same: npt.NDArray[np.bool_] = (cells == wanted).all(axis=1).reshape(values.shape)
    return same


def _set(answer: Future[AnyArray], values: AnyArray, gone: ReadError | None) -> None:
    settle(answer, values, None if gone is None else _again(gone))


def unreachable(
    name: str, where: str, held: str, why: str, records: tuple[int, int] | None = None
) -> ReadError:
    """The error for a chunk that did not arrive.

    Args:
        name: Name of the array in the source.
        where: Place of the array.
        held: The records in the chunk, as `held_records` writes them.
        why: The reason, and the attempts.
        records: The rows `[first, stop)` in the chunk.
    """
    named = f"array {name!r}" if name else "the array"
    return ReadError(
        f"{named} in {where}: the chunk that holds {held} cannot be read: {why}. If it may arrive"
        " later, resume from a checkpoint, or let RemoteOptions try for longer; to continue without"
        " these records, leave them out by .slice([...])",
        records=records,
        why=why,
        is_unanswered=True,
    )


def _again(error: ReadError) -> ReadError:
    """A copy of the error for another caller, so that their tracebacks stay apart."""
    return ReadError(*error.args, is_unanswered=error.is_unanswered)
