"""TFRecord files, read and written without TensorFlow.

A file is a run of frames: length (8 bytes), checksum of the length (4), data, checksum of the data
(4), all little-endian. The checksums are CRC-32C, rotated and shifted by a constant ("masked"), so
that a checksum of data which holds checksums stays a good one. Names that end in `.gz` are gzip.

Invariant: a record is yielded only after both of its checksums have been found right, and a file
that ends inside a frame is an error, never a shorter file.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fsspec

from windrow.converters.extras import optional
from windrow.errors import ArgumentError, NotFoundError, ReadError

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_BLOCK_BYTES = 1 << 20
# A damaged or hostile length must not make us ask for that much memory at once.
_LARGEST_READ_BYTES = 1 << 26
_GZIP_MAGIC = b"\x1f\x8b"


def read_records(
    path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Iterator[bytes]:
    """The records of a TFRecord file, in order.

    Args:
        path: A path, or a URL that fsspec can open; gzip if it ends in `.gz`.
        storage_options: Settings of its file system, as in fsspec.

    Raises:
        NotFoundError: If there is no such file.
        ReadError: If the file is damaged or ends inside a record; the message names the file, the
            number of the record (from 0) and its offset in bytes (in the decompressed data).
        MissingExtraError: If google-crc32c is not installed.
    """
    for _, data in scan(path, storage_options=storage_options):
        yield data


def scan(
    path: str | os.PathLike[str],
    *,
    start_byte: int = 0,
    start_record: int = 0,
    check_data: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """The records of a TFRecord file with the offset of each, from a known place onwards.

    Args:
        path: As for `read_records`.
        start_byte: Offset of the first record wanted, in the decompressed data.
        start_record: The number of that record; it only serves the error messages.
        check_data: Whether to check the checksum of the data too; that of the length always is.
        storage_options: As for `read_records`.

    Raises:
        NotFoundError, ReadError, MissingExtraError: As for `read_records`.
    """
    name = os.fspath(path)
    crc32c = optional("google_crc32c", "reading TFRecord").value
    number = start_record
    with _open_to_read(name, storage_options) as stream:
        blocks = _Blocks(stream, start_byte)
        while True:
            offset = blocks.position
            try:
                data = _next_record(blocks, crc32c if check_data else None, crc32c)
            except (OSError, EOFError, ValueError, zlib.error) as error:
                raise ReadError(
                    f"{name}: record {number} at byte {offset}: {error}; write or copy the file anew"
                ) from error
            if data is None:
                return
            yield offset, data
            number += 1


def write_records(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    """Write records to a TFRecord file.

    The file is written in place: if `records` raises, a shorter file remains.

    Args:
        path: A path, or a URL that fsspec can write; gzip if it ends in `.gz`.
        records: The records, each a bytes object.

    Returns:
        The number of records written.

    Raises:
        ArgumentError: If a record is not bytes.
        MissingExtraError: If google-crc32c is not installed.
    """
    name = os.fspath(path)
    crc32c = optional("google_crc32c", "writing TFRecord").value
    count = 0
    with fsspec.open(name, "wb", compression=_compression(name)) as stream:
        for record in records:
            if not isinstance(record, bytes):
                raise ArgumentError(
                    f"write_records: record {count} is {type(record).__name__}; a record is bytes"
                )
            length = _LENGTH.pack(len(record))
            header = length + _CHECKSUM.pack(_masked(crc32c(length)))
            # One write per record: each has a price of its own, whatever its size.
            stream.write(header + record + _CHECKSUM.pack(_masked(crc32c(record))))
            count += 1
    return count


class _Blocks:
    """A stream read in large blocks and handed out in small pieces."""

    def __init__(self, stream: Any, start_byte: int) -> None:
        self._stream = stream
        self._block = b""
        self._at = 0
        self.position = start_byte
        if start_byte:
            stream.seek(start_byte)

    def take(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end of the stream."""
        end = self._at + size
        if end > len(self._block):
            self._fill(size)
            end = self._at + size
        piece = self._block[self._at : end]
        self._at += len(piece)
        self.position += len(piece)
        return piece

    def _fill(self, size: int) -> None:
        parts = [self._block[self._at :]]
        missing = size - len(parts[0])
        while missing > 0:
            part = self._stream.read(max(_BLOCK_BYTES, min(missing, _LARGEST_READ_BYTES)))
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        self._block = b"".join(parts)
        self._at = 0


def _next_record(blocks: _Blocks, data_crc32c: Any, crc32c: Any) -> bytes | None:
    """The next record, or None at the end of the file; ValueError says what is damaged."""
    header = blocks.take(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise ValueError(f"the file ends {len(header)} bytes into the header of the record")
    length, length_checksum = _HEADER.unpack(header)
    if _masked(crc32c(header[: _LENGTH.size])) != length_checksum:
        hint = "; it looks like gzip: give it a name that ends in .gz"
        raise ValueError(
            "the checksum of the length is wrong: the file is damaged or is not TFRecord"
            + (hint if header.startswith(_GZIP_MAGIC) else "")
        )
    data = blocks.take(length)
    footer = blocks.take(_CHECKSUM.size)
    if len(footer) < _CHECKSUM.size:
        raise ValueError(
            f"the file is cut off: the record has {length} bytes and a checksum of 4, the file"
            f" holds {len(data) + len(footer)} of them"
        )
    if data_crc32c is not None and _masked(data_crc32c(data)) != _CHECKSUM.unpack(footer)[0]:
        raise ValueError(f"the checksum of its {length} bytes is wrong: the file is damaged")
    return data


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _compression(name: str) -> str | None:
    return "gzip" if name.endswith(".gz") else None


def _open_to_read(name: str, storage_options: Mapping[str, Any] | None) -> Any:
    options = storage_options or {}
    try:
        return fsspec.open(name, "rb", compression=_compression(name), **options).open()
    except FileNotFoundError as error:
        raise NotFoundError(f"{name}: no such file; check the path") from error
    except OSError as error:
        raise ReadError(f"{name}: cannot be opened: {error}") from error
