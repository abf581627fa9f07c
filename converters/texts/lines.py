"""JSON Lines files as runs of records: a record is a line, without its end.

Lines end with a line feed, before which a carriage return may stand; the last line needs no end. Lines
of white space alone are not records. A file whose name ends in `.gz`, `.gzip`, `.zst` or `.zstd` is
compressed: it has no places to begin at, and is read from its start.

Invariant: records are the bytes of the file between two ends of lines, in their order, and every one
of them comes once; a compressed file that is cut off is an error, never a shorter file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import itertools
import os
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import IO, Any, Final

import numpy as np
import zstandard

from windrow.converters.job.inputs import Input
from windrow.converters.job.stages import Report, dropped
from windrow.converters.records.record_files import (
    STRIDE_RECORDS,
    Counted,
    Lose,
    RecordRun,
    RecordSpan,
    StreamFormat,
    fewer,
)
from windrow.converters.records.tfrecord import is_gzip, open_to_read, without_gzip
from windrow.core.redaction import shown_url
from windrow.errors import ReadError
from windrow.sources.base import IntArray

# Bytes that are read and cut at a time.
_BLOCK_BYTES: Final = 1 << 20
# Compressed bytes that are unpacked at a time: a few bytes of zstd may unpack to very many.
_PACKED_BYTES: Final = 8 << 10
# A file without ends of lines is something else, and must not fill the memory.
LONGEST_LINE_BYTES: Final = 1 << 30
_ZSTD: Final = re.compile(r"\.zstd?\Z", re.IGNORECASE)
_MARK: Final = b"\xef\xbb\xbf"
_END: Final = 0x0A
_RETURN: Final = 0x0D
_SPACES: Final = np.frombuffer(b"\t\n\v\f\r ", np.uint8)


def is_compressed(name: str) -> bool:
    """Return whether a file is read through gzip or zstd."""
    return without_compression(name) != name


def without_compression(name: str) -> str:
    """Return a name without the ending for gzip or zstd."""
    return _ZSTD.sub("", without_gzip(name))


@dataclasses.dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive records of a file: some bytes of it, and where the records lie in them.

    Attributes:
        data: The bytes.
        starts: Where each record begins in `data`.
        stops: Where each one ends.
        start_record: The number of the first of them.
        start_byte: Where `data` begins in the unpacked file.
        stored_bytes: Where the file has been read to, as it is stored.
    """

    data: bytes
    starts: IntArray
    stops: IntArray
    start_record: int
    start_byte: int
    stored_bytes: int

    def __len__(self) -> int:
        return len(self.starts)

    def records(self, first: int, stop: int) -> list[bytes]:
        """Return some of the records."""
        data = self.data
        places = zip(self.starts[first:stop].tolist(), self.stops[first:stop].tolist(), strict=True)
        return [data[begin:end] for begin, end in places]


def read_lines(
    path: str | os.PathLike[str],
    *,
    start_byte: int = 0,
    start_record: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[Lines]:
    """Yield the records of a JSON Lines file, about a megabyte of them at a time.

    Args:
        path: A path or URL.
        start_byte: Where the first record wanted begins; 0 for a compressed file.
        start_record: The number of that record.
        storage_options: Settings of its file system, as in fsspec.

    Raises:
        NotFoundError: If there is no such file.
        ReadError: If it cannot be read or unpacked, or has a line of more than 1 GiB; the message
            names the file, and the byte at which reading ended.
    """
    name = os.fspath(path)
    at, number, held = start_byte, start_record, b""
    waiting: list[bytes] = []
    waiting_bytes = 0
    with contextlib.closing(_blocks(name, start_byte, storage_options)) as blocks:
        for block, stored_bytes in blocks:
            end = block.rfind(b"\n") + 1
            if not end:
                waiting.append(block)
                waiting_bytes += len(block)
                if waiting_bytes > LONGEST_LINE_BYTES:
                    most = f"{LONGEST_LINE_BYTES:,} bytes"
                    raise _unreadable(
                        name, at, f"a line has more than {most}, so this is not JSON Lines"
                    )
                continue
            held = b"".join([*waiting, block[:end]])
            waiting, waiting_bytes = [block[end:]], len(block) - end
            yield (found := _cut(held, number, at, stored_bytes))
            number += len(found)
            at += len(held)
        held = b"".join(waiting)
        if held:
            yield _cut(held, number, at, stored_bytes)


def _cut(data: bytes, number: int, at: int, stored_bytes: int) -> Lines:
    """Find the records of whole lines; the last one may have no end."""
    raw = np.frombuffer(data, np.uint8)
    stops = np.flatnonzero(raw == _END)
    if not len(stops) or stops[-1] != len(raw) - 1:
        stops = np.append(stops, len(raw))
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1] + 1])
    if at == 0 and data.startswith(_MARK):
        starts[0] = len(_MARK)
    full = stops > starts
    starts, stops = starts[full], stops[full]
    # A line may be white space alone only if it begins with some.
    spaced = np.flatnonzero(np.isin(raw[starts], _SPACES))
    empty = [one for one in spaced.tolist() if data[starts[one] : stops[one]].isspace()]
    starts, stops = np.delete(starts, empty), np.delete(stops, empty)
    stops = stops - (raw[stops - 1] == _RETURN)
    return Lines(data, starts, stops, number, at, stored_bytes)


def _blocks(
    name: str, start_byte: int, storage_options: Mapping[str, Any] | None
) -> Generator[tuple[bytes, int], None, None]:
    """Yield the unpacked bytes of a file, and where the file has been read to."""
    at = start_byte
    with open_to_read(name, storage_options) as raw:
        try:
            if _ZSTD.search(name):
                read = _zstd_reader(raw)
            elif is_gzip(name):
                read = gzip.GzipFile(fileobj=raw).read
            else:
                raw.seek(start_byte)
                read = raw.read
            while block := read(_BLOCK_BYTES):
                yield block, raw.tell()
                at += len(block)
        except (EOFError, ValueError, zlib.error, zstandard.ZstdError, OSError) as error:
            if isinstance(error, ReadError):
                raise
            raise _unreadable(name, at, str(error)) from error


def _zstd_reader(raw: IO[bytes]) -> Callable[[int], bytes]:
    """Return a function that reads unpacked bytes: about as many as asked for, none at the end.

    `zstandard`'s own reader ends without an error where the file is cut off.
    """
    unpacker = zstandard.ZstdDecompressor()
    frame: Any = None
    packed = b""

    def read(size: int) -> bytes:
        nonlocal frame, packed
        found: list[bytes] = []
        missing = size
        while missing > 0:
            packed = packed or raw.read(_PACKED_BYTES)
            if not packed:
                if frame is not None:
                    raise EOFError("the file is cut off: its zstd data do not end")
                break
            frame = frame or unpacker.decompressobj()
            part = frame.decompress(packed)
            packed = frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = None
            found.append(part)
            missing -= len(part)
        return b"".join(found)

    return read


def _unreadable(name: str, offset: int, why: str) -> ReadError:
    shown = shown_url(name)
    return ReadError(
        f"{shown}: cannot be read after byte {offset}: {why}; write or copy the file anew",
        file=shown,
        offset=offset,
        why=why,
    )


class JsonLinesFiles(StreamFormat):
    """JSON Lines files. Counting looks for the ends of lines."""

    def count(self, files: Sequence[Input], progress: Report = dropped) -> list[Counted]:
        (file,) = files
        whole = is_compressed(file.name)
        offsets: list[int] = []
        records = data_bytes = 0
        for lines in read_lines(file.url, storage_options=file.options):
            begins = lines.start_byte + lines.starts
            offsets += begins[-lines.start_record % STRIDE_RECORDS :: STRIDE_RECORDS].tolist()
            records += len(lines)
            data_bytes += int((lines.stops - lines.starts).sum())
            progress(records, lines.stored_bytes)
        mean = -(-data_bytes // max(1, records))
        if whole:
            return [Counted(file, records, record_bytes=mean, cuts=(0,))]
        return [Counted(file, records, tuple(offsets), mean)]

    def runs(
        self, span: RecordSpan, lose: Lose | None, *, whole: bool = True
    ) -> Iterator[tuple[RecordRun, list[bytes]]]:
        number = span.start_record
        if span.stop <= span.start:
            return
        for lines in read_lines(
            span.source.url,
            start_byte=span.start_byte,
            start_record=span.start_record,
            storage_options=span.source.options,
        ):
            first = max(span.start - number, 0)
            stop = min(span.stop - number, len(lines))
            if first < stop:
                numbers = np.arange(number + first, number + stop)
                offsets = lines.start_byte + lines.starts[first:stop]
                records = lines.records(first, stop)
                if span.skipped:
                    kept = ~np.isin(numbers, span.skipped)
                    records = list(itertools.compress(records, kept.tolist()))
                    numbers, offsets = numbers[kept], offsets[kept]
                if records:
                    yield (
                        RecordRun(span.source, numbers, lines.stored_bytes, offsets=offsets),
                        records,
                    )
            number += len(lines)
            if number >= span.stop:
                return
        if whole:
            raise fewer(span, number)
