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

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core.cancellation import fail_with_scope, settle
from windrow.errors import ReadError
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.zarr.presence import (
    FILES,
    change_since,
    gone_error,
    may_be_fill,
    metadata_in,
    spec_of,
)
from windrow.sources.zarr.stores import Access

LOOK_EVERY_S = 5.0
# At most this many chunks of one read are compared cell by cell with the fill value.
_MOST_COMPARED: Final = 16


class RemotePresence:
    """The metadata of a remote array, as they were when it was opened.

    Thread-safe. Concurrent checks wait for one answer.
    """

    def __init__(
        self, read: Callable[[], bytes | None], where: str, raw: bytes, fill: bytes
    ) -> None:
        """`read` reads the metadata again; `raw` are those at opening."""
        self._read, self._where, self._raw, self._fill = read, where, raw, fill
        self.metadata = metadata_in(raw)
        self._lock = threading.Lock()
        self._looked_s = self._tried_s = time.monotonic()  # when the last look, or try, began
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
        if time.monotonic() - self._tried_s > LOOK_EVERY_S and not self._is_looking:
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
        if missed or came_s - self._tried_s > LOOK_EVERY_S:
            with self._lock:
                if (self._looked_s if missed else self._tried_s) <= came_s:
                    began_s = self._tried_s = time.monotonic()
                    if self._look(missed):
                        self._looked_s = began_s
        self._refuse_failed(where)

    def _refuse_failed(self, where: str) -> None:
        if self._failed is not None:
            raise gone_error(where, self._where, self._failed)

    def _look(self, must: bool) -> bool:
        """Read the metadata again; False if that failed and need not succeed."""
        try:
            now = self._read()
        except (ValueError, RuntimeError, OSError):
            if must:
                raise
            return False  # the reads themselves will report the error
        if now != self._raw:
            self._failed = change_since(self.metadata, now) or self._failed
        return True


class RemoteArray:
    """Reads one array of TensorStore over a network."""

    def __init__(self, access: Access, store: Any, where: str) -> None:
        """Start to read the metadata of an open store of Zarr; `wait` returns when they are here."""
        self.access, self._store, self._where = access, store, where
        self._presence: RemotePresence | None = None
        self._metadata: Future[Any] | None = None
        spec = spec_of(store)
        if store.kvstore is not None and spec.get("driver") in FILES:
            self._key = spec.get("metadata_key", FILES[spec["driver"]])
            self._metadata = access.in_flight.start(lambda: store.kvstore.read(self._key))
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
        answer = None if self._metadata is None else self._metadata.result()
        if answer is None or answer.state != "value":
            return
        store, key = self._store.kvstore, self._key

        def read() -> bytes | None:
            return self.access.read(store, key)

        with contextlib.suppress(ValueError):  # it holds no metadata
            raw = bytes(answer.value)
            self._presence = RemotePresence(read, self._where + key, raw, b"")
            if self._store.fill_value is not None:
                self._fill = np.asarray(self._store.fill_value, self._fill.dtype)

    def start(self, view: Any, failed: Callable[[BaseException], ReadError]) -> Future[AnyArray]:
        """Start reading a view of the store; the future has the values, in memory of their own.

        Args:
            view: The store, with fewer cells.
            failed: Makes the error of the future from the error of the read.
        """
        answer: Future[AnyArray] = Future()
        answer.set_running_or_notify_cancel()
        fail_with_scope(answer)  # it may wait for the presence check, whose answer is for all reads
        if self._presence is not None:
            try:
                self._presence.look_sometimes(self.access.run, self._where)
            except ReadError as error:
                settle(answer, error=error)
                return answer
        size_bytes = math.prod(view.shape) * self._fill.dtype.itemsize
        edges = self._edges(self._chunk, view)
        # Cells of one stored object are one request.
        requests = math.prod(map(len, self._edges(self._object, view)))
        chunk_bytes = 0  # unknown
        if None not in self._chunk:
            chunk_bytes = math.prod(map(int, self._chunk)) * self._fill.dtype.itemsize
        weight = math.prod(map(len, edges)) * chunk_bytes
        read = self.access.in_flight.start(view.read, requests, size_bytes, weight_bytes=weight)
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
                return

            def looked(done: Future[None]) -> None:
                error = done.exception()
                if error is not None and not isinstance(error, ReadError):
                    error = failed(error)
                settle(answer, values, error)

            look = self.access.run(partial(presence.refuse_gone, self._where))
            look.add_done_callback(looked)
        except Exception as other:  # otherwise the caller would wait forever
            settle(answer, error=failed(other))

    def _edges(self, cells: Sequence[int | None], view: Any) -> list[Sequence[int]]:
        """Where chunks of `cells` begin along each axis of a view."""
        edges: list[Sequence[int]] = []
        axes = zip(cells, self._origin, view.shape, view.domain.inclusive_min, strict=True)
        for chunk, origin, size, first in axes:
            if chunk is None or origin is None:
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


def _same_bytes(values: AnyArray, fill: AnyArray) -> npt.NDArray[np.bool_]:
    """Whether each value is the fill value, bit for bit."""
    size = fill.dtype.itemsize
    cells = np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(-1, size)
    wanted = np.frombuffer(fill.tobytes(), np.uint8)
    same: npt.NDArray[np.bool_] = (cells == wanted).all(axis=1).reshape(values.shape)
    return same
