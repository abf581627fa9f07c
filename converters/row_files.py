"""Row files: the stored files of an array, made from its rows as they come, block by block.

A shard is put together from its chunks, and written as it grows, so that no more of the rows is in
memory than a block; for an object store all that is encoded of it is.

Invariant: the files are those that `zarr_layout.encode_each` makes of all rows at once, whatever the
blocks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import google_crc32c
import numpy as np

from windrow.converters.folder import BUFFER_BYTES, OutputFolder, StagedFile
from windrow.converters.manifest import OutputFile
from windrow.converters.zarr_layout import (
    AnyArray,
    ArrayLayout,
    codecs_of,
    encode_each,
    encode_rows,
    rows_layout,
    training_rows,
)
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.features import Feature

# Rows that are decoded, or read, at a time.
BLOCK_BYTES: Final = 8 << 20
# What the interpreter, the libraries and the memory between them take, beside what is counted.
PROCESS_BYTES: Final = 176 << 20
# A block as records, decoded, put in line and encoded.
_COPIES: Final = 4
_SHARD_BYTES: Final = 128 << 20
_LARGEST_CHUNK_BYTES: Final = 1 << 20
_NOT_STORED: Final = 2**64 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """How arrays are to be stored, as was asked for.

    Args:
        chunk_rows: Rows per chunk; None for the rule.
        shard_rows: Rows per shard; None for the rule, 0 for no shards.
        codecs: As `codecs_of` takes them.
    """

    chunk_rows: int | None = None
    shard_rows: int | None = None
    codecs: str = "zstd:1"

    def __post_init__(self) -> None:
        codecs_of(self.codecs)
        for name, least in (("chunk_rows", 1), ("shard_rows", 0)):
            rows = getattr(self, name)
            if rows is not None and (type(rows) is not int or rows < least):
                raise ArgumentError(f"{name} must be an integer of at least {least}, got {rows!r}")
        if self.chunk_rows is not None:
            _check_multiple(self.shard_rows, self.chunk_rows)

    def to_json(self) -> dict[str, Any]:
        """As manifests have it."""
        return dataclasses.asdict(self)

    def layouts(
        self, features: Mapping[str, Feature], ragged_bytes: float, records: int
    ) -> tuple[ArrayLayout, ...]:
        """The arrays of the features of one shape, their shards of the same rows.

        Args:
            features: All features.
            ragged_bytes: Bytes of a row of all ragged ones together, about.
            records: The number of rows.
        """
        fixed = {name: feature for name, feature in features.items() if not feature.ragged}
        sizes = [feature.item_bytes for feature in fixed.values()]
        rule, shard_rows = training_rows([*sizes, math.ceil(ragged_bytes)], records)
        chunks = rule[:-1] if self.chunk_rows is None else (self.chunk_rows,) * len(fixed)
        shards = self._shard_rows(chunks, shard_rows, sum(sizes) + ragged_bytes, records)
        return tuple(
            rows_layout(
                name,
                feature.dtype,
                (records, *feature.item_shape),
                chunk_rows=chunk,
                shard_rows=shards,
                codecs=codecs_of(self.codecs, itemsize=feature.numpy_dtype.itemsize),
            )
            for (name, feature), chunk in zip(fixed.items(), chunks, strict=True)
        )

    def _shard_rows(
        self, chunks: Sequence[int], rule: int, row_bytes: float, records: int
    ) -> int | None:
        if self.shard_rows == 0:
            return None
        unit = max(chunks, default=1)
        if self.shard_rows is not None:
            _check_multiple(self.shard_rows, unit)
            return self.shard_rows
        if self.chunk_rows is None and chunks:
            # The rule knows no chunks of ragged features, which are no rows.
            return max(unit, rule // unit * unit)
        wanted = int(_SHARD_BYTES // max(1.0, row_bytes)) // unit * unit
        return max(unit, min(wanted, -(-records // unit) * unit))

    def values_layout(self, name: str, feature: Feature, items: int, rows: int) -> ArrayLayout:
        """The array of the values of a ragged feature: `items` of them in `rows` rows.

        A chunk has about as many as a row: a power of two that makes 4 KiB to 1 MiB.
        """
        (chunk,), _ = training_rows([feature.item_bytes], items)
        mean = items // max(1, rows)
        most = max(1, _LARGEST_CHUNK_BYTES // max(1, feature.item_bytes))
        while chunk < mean and 2 * chunk <= most:
            chunk *= 2
        return self._line(name, feature.numpy_dtype.name, (items, *feature.item_shape), chunk)

    def offsets_layout(self, name: str, rows: int) -> ArrayLayout:
        """The array of the offsets of a ragged feature."""
        (chunk,), _ = training_rows([8], rows + 1)
        return self._line(name, "int64", (rows + 1,), self.chunk_rows or chunk)

    def _line(self, name: str, dtype: str, shape: tuple[int, ...], chunk: int) -> ArrayLayout:
        """An array of which any runs of items are read."""
        whole = rows_layout(name, dtype, shape, chunk_rows=chunk, shard_rows=None)
        most = max(1, min(_SHARD_BYTES // whole.chunk_bytes, -(-shape[0] // chunk)))
        return dataclasses.replace(
            rows_layout(
                name,
                dtype,
                shape,
                chunk_rows=chunk,
                shard_rows=None if self.shard_rows == 0 else most * chunk,
            ),
            codecs=codecs_of(self.codecs, itemsize=whole.numpy_dtype.itemsize),
        )


def _check_multiple(shard_rows: int | None, chunk_rows: int) -> None:
    if shard_rows and shard_rows % chunk_rows:
        raise ArgumentError(
            f"shard_rows={shard_rows} must be a multiple of the {chunk_rows} rows of a chunk, such"
            f" as {-(-shard_rows // chunk_rows) * chunk_rows}, or 0 for no shards"
        )


class RowFiles:
    """Writes the files of rows `[start, stop)` of an array, which come in order. A context manager.

    Args:
        folder: Where to.
        layout: Of the array.
        start: Where a file begins.
        stop: Where one ends, or the array.
        counted: Whether its rows count as records in the manifest.
    """

    def __init__(
        self, folder: OutputFolder, layout: ArrayLayout, start: int, stop: int, *, counted: bool
    ) -> None:
        self._folder, self._layout, self._stop = folder, layout, stop
        self._counted = counted
        self._at = start
        self._waiting: list[AnyArray] = []
        self._shard: StagedFile | None = None
        self._lengths: list[int] = []  # of the chunks that are in it
        self._unfinished = contextlib.ExitStack()
        self.files: list[OutputFile] = []
        """Those that are written."""

    def __enter__(self) -> RowFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._unfinished.close()

    def add(self, rows: AnyArray) -> None:
        """The next rows."""
        if 0 in self._layout.shape[1:]:
            return  # without values there are no files
        chunk, file = self._layout.chunk_shape[0], self._layout.file_shape[0]
        self._waiting.append(rows)
        ready = sum(map(len, self._waiting))
        if self._at + ready < self._stop:
            ready -= ready % chunk
        if not ready:
            return
        rows = np.concatenate(self._waiting) if len(self._waiting) > 1 else rows
        self._waiting = []
        done = 0
        while done < ready:
            size = min(ready - done, file - self._at % file)
            self._encode(rows[done : done + size])
            done += size
        if done < len(rows):
            self._waiting = [rows[done:].copy()]  # a view would keep all of it

    def _encode(self, rows: AnyArray) -> None:
        """Rows of one file, from a chunk's beginning on."""
        layout, file = self._layout, self._layout.file_shape[0]
        chunk, beside = layout.chunk_shape[0], (0,) * (len(layout.shape) - 1)
        if layout.shard_shape is None:
            for name, data in encode_each(layout, (self._at, *beside), rows):
                size = min(chunk, self._stop - self._at)
                records = size if self._counted else 0
                self.files.append(self._folder.write_staged(name, data, records=records))
                self._at += size
            return
        first = self._at // file
        if self._shard is None:
            name = layout.key((first, *beside))
            self._shard = self._unfinished.enter_context(self._folder.staged(name))
        for lengths, data in encode_rows(layout, rows):
            self._shard.write(data)
            self._lengths += lengths
        self._at += len(rows)
        if self._at == self._stop or self._at % file == 0:
            self._shard.write(shard_index(self._lengths, file // chunk))
            records = self._at - first * file if self._counted else 0
            self.files.append(self._shard.finished(records=records))
            self._unfinished.close()
            self._shard, self._lengths = None, []


def shard_index(lengths: Sequence[int], chunks: int) -> bytes:
    """The end of a shard: offset and length of each of its chunks, and their checksum."""
    index = np.full((chunks, 2), _NOT_STORED, "<u8")
    stored = np.asarray(lengths, np.uint64)
    index[: len(stored), 0] = np.cumsum(stored) - stored
    index[: len(stored), 1] = stored
    head = index.tobytes()
    return head + int(google_crc32c.value(head)).to_bytes(4, "little")


def writing_bytes(layouts: Sequence[ArrayLayout], *, far: bool) -> int:
    """Memory that it takes to write files of these arrays side by side, the blocks included."""
    shards = [layout.file_bytes for layout in layouts if layout.shard_shape is not None]
    chunks = sum(layout.chunk_bytes for layout in layouts)
    if not far:
        shards = [min(size, BUFFER_BYTES) for size in shards]
    # What goes to an object store is copied once more.
    copied = max(shards, default=0) if far else 0
    return sum(shards) + copied + _COPIES * (BLOCK_BYTES + chunks)


class Room:
    """Bytes of memory that the threads of a process share; each takes its part before it works."""

    def __init__(self, size_bytes: int) -> None:
        self._left = self._size = size_bytes
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size_bytes: int) -> Iterator[None]:
        """Wait for so many bytes, and have them; all there are, if they are fewer."""
        size_bytes = min(size_bytes, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size_bytes)
            self._left -= size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._left += size_bytes
                self._changed.notify_all()


_rooms: Final[dict[int, Room]] = {}
_lock: Final = threading.Lock()


def room(memory_bytes: int) -> Room:
    """The room that all work of this process with this limit has."""
    with _lock:
        return _rooms.setdefault(memory_bytes, Room(max(1, memory_bytes - PROCESS_BYTES)))


def check_room(memory_bytes: int, needed: int, what: str) -> None:
    """Refuse work that takes more than there is.

    Raises:
        ConversionError: If it does.
    """
    if needed + PROCESS_BYTES > memory_bytes:
        raise ConversionError(
            f"memory_bytes={memory_bytes:,} are too few for {what}; give at least"
            f" {needed + PROCESS_BYTES:,}, or choose smaller shards by shard_rows"
        )


def ranges(start: int, stop: int, step: int) -> list[tuple[int, int]]:
    """`[start, stop)` in parts of `step`, the last one shorter."""
    bounds = [*range(start, stop, step), stop]
    return list(itertools.pairwise(bounds))
