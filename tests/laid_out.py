"""A source in memory that is read in chunks and counts what is read: a fake for the prefetcher."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.errors import ReadError
from windrow.sources import ArrayPart, Columns, LaidOutSource, Span
from windrow.sources.base import IntArray

AnyArray = npt.NDArray[Any]


class CountingRows:
    """Rows of an array in memory, read as a store is; `started` lists the first rows of chunks."""

    def __init__(self, array: AnyArray, *, name: str = "", broken: int | None = None) -> None:
        self.array = array
        self.name = name
        self.broken = broken
        self.started: list[int] = []
        self.into: list[AnyArray] = []
        self.alone = 0
        self._lock = threading.Lock()

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        with self._lock:
            self.started.extend(span.first for span in spans)
            self.into.extend(span.out for span in spans)
        # At once, so that what a prefetcher does next does not depend on the machine.
        done: Future[None] = Future()
        try:
            self._fill(spans)
        except ReadError as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def _fill(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._check(np.arange(span.first, span.stop))
            span.out[:] = self.array[span.first : span.stop]

    def read(self, rows: IntArray) -> AnyArray:
        self._check(rows)
        with self._lock:
            self.alone += len(rows)
        found: AnyArray = self.array[rows]
        return found

    def _check(self, rows: IntArray) -> None:
        if self.broken is not None and self.broken in rows:
            raise ReadError(f"array {self.name!r}, record {self.broken} is broken")

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        return np.full(len(chunks), 100)


class PiecedSource(LaidOutSource):
    """Arrays by name, each in chunks of its own size; a single array has the name ''."""

    def __init__(
        self,
        arrays: dict[str, AnyArray],
        chunk_rows: dict[str, int],
        *,
        shift: int = 0,
        broken: int | None = None,
        size: int | None = None,
        stride: int = 1,
    ) -> None:
        self.readers = {n: CountingRows(a, name=n, broken=broken) for n, a in arrays.items()}
        self._parts = [
            ArrayPart(
                name=name,
                rows=len(array),
                row_shape=array.shape[1:],
                dtype=array.dtype,
                chunk_rows=chunk_rows[name],
                reader=self.readers[name],
                shift=shift % chunk_rows[name],
                size=size,
                starts=None if stride == 1 else lambda indices: indices * stride,
            )
            for name, array in arrays.items()
        ]
        rows = len(next(iter(arrays.values())))
        self._length = rows if size is None else max(0, (rows - size) // stride + 1)

    def __len__(self) -> int:
        return self._length

    @property
    def parts(self) -> Sequence[ArrayPart]:
        return self._parts

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        if list(self.readers) == [""]:
            return columns[0]
        return dict(zip(self.readers, columns, strict=True))

    def read(self, indices: IntArray) -> Columns:
        return self.assembled([part.read(indices) for part in self._parts], indices)

    def blocks(self) -> IntArray:
        part = self._parts[0]
        inner = np.arange(part.chunk_rows - part.shift, self._length, part.chunk_rows)
        return np.array([0, *inner, self._length])

    @property
    def fingerprint(self) -> str:
        return f"pieced({self._length})"

    @property
    def started(self) -> list[int]:
        """First rows of the chunks read so far, of the only array."""
        return self.readers[""].started


def pieced(records: int, chunk_rows: int, *, width: int = 4, **more: Any) -> PiecedSource:
    """A source of one int64 array: row `i` is `width` times the number `i`."""
    array = np.repeat(np.arange(records)[:, None], width, axis=1)
    return PiecedSource({"": array}, {"": chunk_rows}, **more)
