"""TFRecord files, read and written without TensorFlow.

A file is a run of frames: length (8 bytes), checksum of the length (4), data, checksum of the data
(4), all little-endian. The checksums are CRC-32C, rotated and shifted by a constant ("masked"), so
that a checksum of data which holds checksums stays a good one. Files whose names end in `.gz` or
`.gzip` are gzip.

Invariant: a record is yielded only after both of its checksums have been found right, and a file
that ends inside a frame is an error, never a shorter file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import mmap
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import fsspec

from windrow.core.native import native
from windrow.core.optional_imports import optional
from windrow.core.redaction import Redaction, shown_url
from windrow.errors import ArgumentError, NotFoundError, ReadError

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
# The bytes of a record in addition to its data.
FRAME_BYTES = _HEADER.size + _CHECKSUM.size
_MASK_DELTA = 0xA282EAD8
# Larger blocks are new pages each time, and do not stay in the processor's cache until they are cut.
_BLOCK_BYTES = 1 << 18
# A damaged or hostile length must not make us ask for that much memory at once.
_LARGEST_READ_BYTES = 1 << 26
_GZIP = re.compile(r"\.gz(ip)?\Z", re.IGNORECASE)
_GZIP_MAGIC = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive records of a file.

    Attributes:
        records: Their bytes, in order.
        bad: The errors of those among them that were left out, in order.
        start_record: The number of the first of them all.
        start_byte: Where it begins, in the decompressed data.
        stored_bytes: Where the file has been read to, as it is stored, gzip and all.
    """

    records: list[bytes]
    bad: list[ReadError]
    start_record: int
    start_byte: int
    stored_bytes: int

    def offset(self, at: int) -> int:
        """Where record number `at` of these begins; none before it may be bad."""
        return self.start_byte + sum(FRAME_BYTES + len(data) for data in self.records[:at])


def read_records(
    path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Iterator[bytes]:
    """Yield the records of a TFRecord file, in order.

    Args:
        path: A path, or a URL that fsspec can open; gzip if it ends in `.gz` or `.gzip`.
        storage_options: Settings of its file system, as in fsspec.

    Raises:
        NotFoundError: If there is no such file.
        ReadError: If the file is damaged or ends inside a record; the message names the file, the
            number of the record (from 0) and its offset in bytes (in the decompressed data).
        MissingExtraError: If google-crc32c is not installed.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/a.tfrecord.gz"  # the name says that it is compressed
        >>> write_records(path, [b"one", b"two"])
        2
        >>> next(read_records(path))
        b'one'
    """
    for batch in read_batches(path, storage_options=storage_options):
        yield from batch.records


def read_batches(
    path: str | os.PathLike[str],
    *,
    start_byte: int = 0,
    start_record: int = 0,
    check_data: bool = True,
    skip_bad: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[RecordBatch]:
    """Yield the records of a TFRecord file, some MB of them at a time.

    Args:
        path: As for `read_records`.
        start_byte: Offset of the first record wanted, in the decompressed data.
        start_record: The number of that record; it only serves the error messages.
        check_data: Whether to check the checksum of the data too; the length's is always checked.
        skip_bad: Whether a record whose data has a wrong checksum is left out, and not raised. A
            wrong length is always raised, since nothing after it can be found, and so is a file
            that ends inside a record.
        storage_options: As for `read_records`.

    Raises:
        NotFoundError, ReadError, MissingExtraError: As for `read_records`. `offset` is the byte at
            which the record begins, `records` is `(number, number + 1)`, `why` what is wrong.
    """
    name = os.fspath(path)
    crc32c = optional("google_crc32c", "reading TFRecord").value
    cutter = _Cutter(shown_url(name), crc32c, check_data=check_data, skip_bad=skip_bad)
    cutter.offset, cutter.number = start_byte, start_record
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(open_to_read(name, storage_options))
        stream = stack.enter_context(gzip.GzipFile(fileobj=raw)) if is_gzip(name) else raw
        block = b""
        try:
            if start_byte:
                stream.seek(start_byte)
            while block := _filled(stream, block, cutter.wanted):
                if len(block) < cutter.wanted:
                    raise ValueError(_cut_off(len(block), cutter.wanted))
                first, at = cutter.number, cutter.offset
                records, bad = cutter.cut(block)
                block = block[cutter.offset - at :]
                yield RecordBatch(records, bad, first, at, raw.tell())
                if cutter.wrong is not None:
                    raise cutter.wrong
        except (EOFError, ValueError, zlib.error, OSError) as error:
            if isinstance(error, ReadError):
                raise
            raise cutter.error(error) from error


def write_records(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    """Write records to a TFRecord file.

    The file is written in place: if `records` raises, a shorter file remains.

    Args:
        path: A path, or a URL that fsspec can write; gzip if it ends in `.gz` or `.gzip`.
        records: The records, each a bytes object.

    Returns:
        The number of records written.

    Raises:
        ArgumentError: If a record is not bytes.
        MissingExtraError: If google-crc32c is not installed.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/a.tfrecord"
        >>> write_records(path, [b"one", b"two"])
        2
        >>> list(read_records(path))
        [b'one', b'two']
    """
    name = os.fspath(path)
    crc32c = optional("google_crc32c", "writing TFRecord").value
    count = 0
    compression = "gzip" if is_gzip(name) else None
    with fsspec.open(name, "wb", compression=compression) as stream:
        for record in records:
            if not isinstance(record, bytes):
                raise ArgumentError(
                    f"write_records: record {count} is {type(record).__name__}; a record is bytes"
                )
            length = _LENGTH.pack(len(record))
            header = length + _CHECKSUM.pack(masked(crc32c(length)))
            # One write per record: each has a price of its own, whatever its size.
            stream.write(header + record + _CHECKSUM.pack(masked(crc32c(record))))
            count += 1
    return count


def head_records(shown: str, data: bytes, *, whole: bool) -> list[bytes]:
    """Return the whole records that a file begins with.

    Args:
        shown: The file, for messages.
        data: Its first bytes, decompressed, or all of them.
        whole: Whether they are all.

    Raises:
        ReadError: If a record is damaged, or a whole file ends inside one.
    """
    crc32c = optional("google_crc32c", "reading TFRecord").value
    cutter = _Cutter(shown, crc32c, check_data=True, skip_bad=False)
    records, _ = cutter.cut(data)
    if cutter.wrong is None and whole and cutter.offset < len(data):
        raise cutter.error(_cut_off(len(data) - cutter.offset, cutter.wanted))
    if cutter.wrong is not None:
        raise cutter.wrong
    return records


def record_stops(path: str) -> Iterator[int]:
    """Yield where each record of a local file that is not gzip ends, by the lengths of records.

    Raises:
        ReadError: If a length is damaged, or the file ends inside a record. Data are not read.
    """
    crc32c = optional("google_crc32c", "reading TFRecord").value
    size, at, count = os.path.getsize(path), 0, 0
    if not size:
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        while at < size:
            header = raw[at : at + _HEADER.size]
            wanted = _HEADER.size
            if len(header) == _HEADER.size:
                length, checksum = _HEADER.unpack(header)
                if masked(crc32c(header[: _LENGTH.size])) != checksum:
                    raise damaged(path, count, at, _wrong_length(header))
                wanted = FRAME_BYTES + length
            if at + wanted > size:
                raise damaged(path, count, at, _cut_off(size - at, wanted))
            at, count = at + wanted, count + 1
            yield at


class _Cutter:
    """Cuts blocks of a file into records; `offset` and `number` are the next record's.

    `wanted` is how many bytes from `offset` it needs to continue. `wrong` is set once it cannot.
    """

    def __init__(
        self, shown: str, crc32c: Callable[[bytes], int], *, check_data: bool, skip_bad: bool
    ) -> None:
        self._shown, self._crc32c = shown, crc32c
        self._check_data, self._skip_bad = check_data, skip_bad
        self.offset = self.number = 0
        self.wanted = _HEADER.size
        self.wrong: ReadError | None = None

    def cut(self, block: bytes) -> tuple[list[bytes], list[ReadError]]:
        """The whole records that `block` begins with, and the errors of those left out."""
        bad: list[ReadError] = []
        base = self.offset
        records, at = self._good(block)
        self.number, self.offset = self.number + len(records), base + at
        while True:
            self.wanted = _HEADER.size
            header = block[at : at + _HEADER.size]
            if len(header) < _HEADER.size:
                break
            length, checksum = _HEADER.unpack(header)
            if masked(self._crc32c(header[: _LENGTH.size])) != checksum:
                self.wrong = self.error(_wrong_length(header))
                break
            self.wanted = FRAME_BYTES + length
            if at + self.wanted > len(block):
                break
            data = block[at + _HEADER.size : at + _HEADER.size + length]
            (checksum,) = _CHECKSUM.unpack_from(block, at + _HEADER.size + length)
            if self._check_data and masked(self._crc32c(data)) != checksum:
                why = f"the checksum of its {length} bytes is wrong: the file is damaged"
                if not self._skip_bad:
                    self.wrong = self.error(why)
                    break
                bad.append(self.error(why))
            else:
                records.append(data)
            at += self.wanted
            self.number, self.offset = self.number + 1, base + at
        return records, bad

    def _good(self, block: bytes) -> tuple[list[bytes], int]:
        """Return the good records that `block` begins with, if there is the core, and their end."""
        core = native()
        if core is None:
            return [], 0
        found: tuple[list[bytes], int] = core.tfrecord_records(block, self._check_data)
        return found

    def error(self, why: object) -> ReadError:
        """The error for the next record."""
        return damaged(self._shown, self.number, self.offset, str(why))


def damaged(shown: str, number: int, offset: int, why: str) -> ReadError:
    """The error for record `number` at a byte of the file `shown`."""
    return ReadError(
        f"{shown}: record {number} at byte {offset}: {why}; write or copy the file anew",
        file=shown,
        offset=offset,
        records=(number, number + 1),
        why=why,
    )


def _filled(stream: Any, rest: bytes, wanted: int) -> bytes:
    """Return `rest` and the next bytes: at least `wanted`, fewer only at the end of the stream."""
    parts = [rest]
    missing = wanted - len(rest)
    while missing > 0:
        part = stream.read(max(_BLOCK_BYTES, min(missing, _LARGEST_READ_BYTES)))
        if not part:
            break
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _wrong_length(header: bytes) -> str:
    hint = "; it looks like gzip: give it a name that ends in .gz"
    return "the checksum of the length is wrong: the file is damaged or is not TFRecord" + (
        hint if header.startswith(_GZIP_MAGIC) else ""
    )


def _cut_off(held: int, wanted: int) -> str:
    """Describe the fault of a file that ends with `held` bytes of a record of `wanted` bytes."""
    if held < _HEADER.size:
        return f"the file ends {held} bytes into the header of the record"
    return (
        f"the file is cut off: the record has {wanted - FRAME_BYTES} bytes and a checksum of 4, the"
        f" file holds {held - _HEADER.size} of them"
    )


def masked(checksum: int) -> int:
    """Return a masked CRC-32C, as TFRecord files store it."""
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF


def is_gzip(name: str) -> bool:
    """Return whether a file is read and written as gzip."""
    return without_gzip(name) != name


def without_gzip(name: str) -> str:
    """Return a name without the ending for gzip."""
    return _GZIP.sub("", name)


def open_to_read(name: str, storage_options: Mapping[str, Any] | None) -> Any:
    """Open the file of a path or URL; it is a context.

    Raises:
        NotFoundError: If there is no such file.
        ReadError: If it cannot be opened.
    """
    options = storage_options or {}
    shown = shown_url(name)
    try:
        return fsspec.open(name, "rb", **options).open()
    except FileNotFoundError as error:
        raise NotFoundError(f"{shown}: no such file; check the path") from error
    except OSError as error:
        why = Redaction(options).hide(str(error))
        raise ReadError(f"{shown}: cannot be opened: {why}") from error
