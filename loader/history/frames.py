"""The file of a history: frames end to end, each with its length and checksums.

A frame is a head and a payload. The head says which elements and rows the frame has, so that a reader
finds a step by heads alone. A payload is compressed: JSON of a start, or columns of integers.

Invariant: a file is only appended to. A torn or damaged frame is passed over, and those after it are
found by their mark.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from windrow.errors import ReadError, SourceError

IntArray = npt.NDArray[np.int64]

MARK: Final = b"WRh1"
START: Final = 0
ROWS: Final = 1

# Mark, kind, segment, bytes of the payload, number of the first element, elements, first row, row after
# the last, checksum of the payload; then the checksum of all of these.
_FIELDS: Final = struct.Struct("<4sBIIQIQQI")
_CHECK: Final = struct.Struct("<I")
HEAD_BYTES: Final = _FIELDS.size + _CHECK.size
_COLUMN: Final = struct.Struct("<BQ")  # bytes of each integer, and how many
# A damaged frame must not ask for more memory than any frame has.
_MOST_BYTES: Final = 1 << 30
_LEVEL: Final = 3
_BUFFER: Final = 1 << 20


class Frame(NamedTuple):
    """The head of a frame, and where its payload is.

    Args:
        kind: `START` or `ROWS`.
        segment: Names its segment: the checksum of the frame that begins it.
        element: The number of its first element, counted from the start of the segment.
        elements: The number of its elements.
        first: The row before which its first element begins.
        stop: The row after its last element.
        at: The byte at which its payload begins.
        size_bytes: The bytes of the payload.
        check: The checksum of the payload.
    """

    kind: int
    segment: int
    element: int
    elements: int
    first: int
    stop: int
    at: int
    size_bytes: int
    check: int


# --- writing ------------------------------------------------------------------------------------


def start_frame(facts: dict[str, Any]) -> tuple[bytes, int]:
    """A frame that begins a segment, and the name of the segment."""
    payload = _compressed(json.dumps(facts).encode())
    segment = zlib.crc32(payload)
    return _frame(START, segment, 0, 0, 0, 0, payload), segment


def rows_frame(segment: int, element: int, first: int, columns: Sequence[IntArray]) -> bytes:
    """A frame of elements.

    Args:
        segment: Their segment.
        element: The number of the first one.
        first: The row before it.
        columns: Columns of integers; the first has the row after each element.
    """
    stops, payload = columns[0], _compressed(packed(columns))
    return _frame(ROWS, segment, element, len(stops), first, int(stops[-1]), payload)


def _frame(
    kind: int, segment: int, element: int, elements: int, first: int, stop: int, payload: bytes
) -> bytes:
    check = zlib.crc32(payload)
    fields = _FIELDS.pack(MARK, kind, segment, len(payload), element, elements, first, stop, check)
    return fields + _CHECK.pack(zlib.crc32(fields)) + payload


def _compressed(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(plain)


def packed(columns: Sequence[IntArray]) -> bytes:
    """Columns of integers as bytes that compress well.

    Each integer is stored as its difference from the one before, with the sign in the lowest bit. The
    lowest bytes of all integers come first, then the next ones.

    Example:
        >>> import numpy as np
        >>> from windrow.history.frames import packed, unpacked
        >>> [column.tolist() for column in unpacked(packed([np.array([7, 5, 5]), np.array([2**60])]))]
        [[7, 5, 5], [1152921504606846976]]
    """
    found = []
    for column in columns:
        steps = np.diff(column, prepend=np.int64(0))
        folded = ((steps << 1) ^ (steps >> 63)).astype("<u8")
        width = max(1, (int(folded.max(initial=0)).bit_length() + 7) // 8)
        planes = folded.view(np.uint8).reshape(-1, 8)[:, :width].T
        found += [_COLUMN.pack(width, len(column)), planes.tobytes()]
    return b"".join(found)


def unpacked(plain: bytes) -> list[IntArray]:
    """The columns of `packed`."""
    found, at = [], 0
    while at < len(plain):
        width, count = _COLUMN.unpack_from(plain, at)
        at += _COLUMN.size
        planes = np.frombuffer(plain, np.uint8, width * count, at).reshape(width, count)
        at += width * count
        whole = np.zeros((count, 8), np.uint8)
        whole[:, :width] = planes.T
        folded = whole.view("<u8")[:, 0]
        steps = (folded >> np.uint64(1)).astype(np.int64) ^ -(folded & np.uint64(1)).astype(
            np.int64
        )
        found.append(np.cumsum(steps))
    return found


# --- reading ------------------------------------------------------------------------------------


class FrameFile:
    """The frames of one file.

    Args:
        path: Its path, for errors.
        file: The file, opened for reading bytes.

    Raises:
        SourceError: If it does not begin as a history does.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.path, self._file = path, file
        self.size_bytes = file.seek(0, os.SEEK_END)
        self.frames: list[Frame] = []
        self.torn: list[tuple[int, int]] = []
        """Bytes `[start, stop)` that are not whole frames."""
        if not MARK.startswith(self._read(0, len(MARK))):
            raise SourceError(
                f"{path} is not a history of Windrow: it does not begin with {MARK!r}; give a file"
                " that iterator.keep_history wrote"
            )
        for start, frame, stop in self._found():
            if frame is None:
                self.torn.append((start, stop))
            else:
                self.frames.append(frame)

    def _read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size)

    def _found(self) -> Iterator[tuple[int, Frame | None, int]]:
        at = 0
        while at < self.size_bytes:
            frame = self._head(at)
            stop = self._next_mark(at + 1) if frame is None else frame.at + frame.size_bytes
            yield at, frame, stop
            at = stop

    def _head(self, at: int) -> Frame | None:
        head = self._read(at, HEAD_BYTES)
        if len(head) < HEAD_BYTES or not head.startswith(MARK):
            return None
        fields = head[: _FIELDS.size]
        if _CHECK.unpack_from(head, _FIELDS.size) != (zlib.crc32(fields),):
            return None
        _, kind, segment, size_bytes, element, elements, first, stop, check = _FIELDS.unpack(fields)
        begin = at + HEAD_BYTES
        frame = Frame(kind, segment, element, elements, first, stop, begin, size_bytes, check)
        end = frame.at + size_bytes
        if end < self.size_bytes and self._read(end, len(MARK)) == MARK:
            return frame  # what follows was appended to it
        return frame if end <= self.size_bytes and self._is_whole(frame) else None

    def _next_mark(self, at: int) -> int:
        while at < self.size_bytes:
            block = self._read(at, _BUFFER)
            place = block.find(MARK)
            if place >= 0:
                return at + place
            at += max(1, len(block) - len(MARK) + 1)
        return self.size_bytes

    def _is_whole(self, frame: Frame) -> bool:
        return zlib.crc32(self._read(frame.at, frame.size_bytes)) == frame.check

    def payload(self, frame: Frame) -> bytes:
        """The payload of a frame, decompressed.

        Raises:
            ReadError: If it is damaged.
        """
        stored = self._read(frame.at, frame.size_bytes)
        if zlib.crc32(stored) == frame.check:
            size = zstandard.frame_content_size(stored)
            if 0 <= size <= _MOST_BYTES:
                return zstandard.ZstdDecompressor().decompress(stored)
        raise ReadError(
            f"{self.path}: the frame at byte {frame.at - HEAD_BYTES} is damaged; the records of rows"
            f" {frame.first} to {frame.stop - 1} are lost",
            file=self.path,
            offset=frame.at - HEAD_BYTES,
            why="its checksum is wrong",
        )

    def facts(self, frame: Frame) -> dict[str, Any]:
        """The JSON of a frame that begins a segment."""
        found: dict[str, Any] = json.loads(self.payload(frame))
        return found

    def close(self) -> None:
        """Close the file."""
        self._file.close()
