"""The ends of ArrayRecord files: telling a whole file from a broken one, reading no records.

The array_record package opens a missing or broken file without a word, so what a file of a local
disk is gets checked here first. What files lack, in words, is the same for files at URLs.

Invariant: of a local file only the first chunk's header, the last 64 KiB and the footer's header are
read, and no hash is computed: the package verifies them.
"""

from __future__ import annotations

import dataclasses
import os
import re
import struct
from typing import Final, NamedTuple

from windrow.errors import NotFoundError, SourceError
from windrow.sources.array_record_chunks import (
    BLOCK,
    BLOCK_HEADER,
    CHUNK_HEADER,
    FIRST_CHUNK,
    MAGIC,
    SIGNATURE,
    USABLE,
    Buffer,
    contiguous,
    leading_varint,
)
from windrow.sources.array_record_files import WHAT
from windrow.sources.array_record_simple import DamageError, parts
from windrow.sources.paths import what_is_there

# More than any postscript has.
POSTSCRIPT_BYTES: Final = 160
_NO_INDEX: Final = "the index at its end is missing"
_HEADER: Final = struct.Struct("<QQQcI3xQ")  # the counts of these files fit 32 bits


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FileFacts:
    """What the ends of a file say.

    Args:
        size_bytes: Its size.
        chunks: Number of its data chunks.
        data_bytes: Bytes before its index.
        first_stored_bytes: Bytes of its first data chunk, without padding; 0 without one.
        first_decoded_bytes: What that chunk says of the bytes of its records. Not verified.
        decoded_bytes: Bytes of all records in memory, where the index was read; else None.
        written_with: The options of its writer, where the index was read; else None.
    """

    size_bytes: int
    chunks: int
    data_bytes: int
    first_stored_bytes: int
    first_decoded_bytes: int
    decoded_bytes: int | None = None
    written_with: str | None = None


class _Chunk(NamedTuple):
    kind: bytes
    records: int
    data: Buffer
    data_bytes: int
    decoded_bytes: int


def why_no_index(shown: str, head: Buffer | None, size_bytes: int) -> str | None:
    """Why a file has no index at its end, in words that follow its name; None if it may have one.

    Args:
        shown: Its name.
        head: Its first bytes, 32 at least if it has them; None where they are not known.
        size_bytes: Its size.
    """
    if size_bytes == 0:
        return (
            "is empty (0 bytes): its writer was not closed, or a copy failed; write or copy it"
            " again"
        )
    if head is not None and bytes(head[BLOCK_HEADER:FIRST_CHUNK]) != SIGNATURE[BLOCK_HEADER:]:
        hint = (
            "it is named as a TFRecord file: convert it first, see windrow.converters"
            if "tfrecord" in os.path.basename(shown).lower()
            else "name ArrayRecord files only"
        )
        return f"is not an ArrayRecord file: it begins with {bytes(head[:8])!r}; {hint}"
    if size_bytes < 2 * BLOCK or size_bytes % BLOCK:
        why = f"its {size_bytes:,} bytes are not a multiple of {BLOCK:,}"
        return cut_off(why, known=head is not None)
    return None


def cut_off(why: str, *, known: bool) -> str:
    """That a file is cut off, in words that follow its name; `known` where it is of this format."""
    foreign = "" if known else ", or no ArrayRecord file"
    return (
        f"is cut off or damaged{foreign}: {why}. Its writer was not closed, is still writing, or a"
        " copy stopped early; write or copy it again"
    )


def footer_place(data: Buffer, decoded_bytes: int) -> int | None:
    """Where a file's footer begins, from the data of its postscript; None if it is none."""
    try:
        stops, values = parts(data, 3, decoded_bytes)
    except DamageError:
        return None
    found = fields(bytes(values[: int(stops[0])]))
    footer = found.get(1)
    return footer if isinstance(footer, int) and found.get(2) == MAGIC else None


def fields(message: bytes) -> dict[int, int | bytes]:
    """The fields of a protobuf message of integers and texts; those before what is damaged."""
    found: dict[int, int | bytes] = {}
    at = 0
    while (tag := leading_varint(message, at)) and (value := leading_varint(message, tag[1])):
        at = value[1]
        if tag[0] & 7 == 0:
            found[tag[0] >> 3] = value[0]
        elif tag[0] & 7 == 2 and value[0] <= len(message) - at:
            found[tag[0] >> 3] = message[at : at + value[0]]
            at += value[0]
        else:
            break
    return found


def asked_group(written_with: str) -> int | None:
    """Records per chunk as a writer's options have them; None where they do not."""
    match = re.search(r"\bgroup_size:(\d{1,18})", written_with)
    return max(1, int(match[1])) if match else None


def inspect_file(path: str) -> FileFacts:
    """Check that `path` is a whole ArrayRecord file, by its two ends.

    Raises:
        NotFoundError: If it does not exist.
        SourceError: If it is empty, cut off, or no ArrayRecord file.
    """
    try:
        with open(path, "rb") as file:
            return _inspect(path, file.fileno())
    except FileNotFoundError as error:
        raise NotFoundError(f"{WHAT}: {path} does not exist; {what_is_there(path)}") from error
    except OSError as error:
        raise SourceError(f"{WHAT}: {path} can not be read: {error.strerror or error}") from error


def _inspect(path: str, fd: int) -> FileFacts:
    size = os.fstat(fd).st_size
    if why := why_no_index(path, os.pread(fd, FIRST_CHUNK, 0), size):
        raise SourceError(f"{WHAT}: {path} {why}")
    last = _chunk(fd, size - BLOCK, POSTSCRIPT_BYTES)
    found = (last.kind, last.records) == (b"r", 3)
    footer = footer_place(last.data, last.decoded_bytes) if found else None
    if footer is None or not 0 < footer < size - BLOCK:
        raise SourceError(f"{WHAT}: {path} {cut_off(_NO_INDEX, known=True)}")
    index = _chunk(fd, footer, 0)
    if index.kind != b"r" or index.records < 1:
        why = cut_off(f"there is no footer at byte {footer:,}", known=True)
        raise SourceError(f"{WHAT}: {path} {why}")
    first = _chunk(fd, FIRST_CHUNK, 0)
    found = index.records > 1 and first.kind in (b"r", b"t")
    return FileFacts(
        size_bytes=size,
        chunks=index.records - 1,
        data_bytes=footer - FIRST_CHUNK,
        first_stored_bytes=CHUNK_HEADER + first.data_bytes if found else 0,
        first_decoded_bytes=first.decoded_bytes if found else 0,
    )


def chunk_places(path: str, chunks: int) -> list[tuple[int, int, int]]:
    """Where the data chunks of a file begin, as their headers say, one after the other.

    Args:
        path: The file.
        chunks: Number of its data chunks.

    Returns:
        Of each chunk the byte at which it begins, its bytes in the file and its bytes in memory.
        Nothing from the first header on that makes no sense.

    Raises:
        OSError: If the file can not be read.
    """
    found: list[tuple[int, int, int]] = []
    with open(path, "rb") as file:
        size, begin = os.fstat(file.fileno()).st_size, FIRST_CHUNK
        while len(found) < chunks and begin < size:
            chunk = _chunk(file.fileno(), begin, 0)
            length = CHUNK_HEADER + chunk.data_bytes
            if chunk.kind in (b"r", b"t"):
                found.append((begin, length, chunk.decoded_bytes))
            elif chunk.kind != b"p":
                break
            # Block headers lie within a chunk, wherever a block begins in it.
            headers = (length + (begin + USABLE - 1) % BLOCK) // USABLE
            begin += length + headers * BLOCK_HEADER
    return found


def _chunk(fd: int, begin: int, data_bytes: int) -> _Chunk:
    """The header of the chunk at `begin`, and up to so many of its data bytes."""
    wanted = CHUNK_HEADER + data_bytes
    raw = contiguous(begin, os.pread(fd, wanted + 2 * BLOCK_HEADER, begin), 0, wanted)
    if len(raw) < CHUNK_HEADER:
        return _Chunk(b"", 0, b"", 0, 0)
    _, stored, _, kind, records, decoded = _HEADER.unpack_from(raw)
    return _Chunk(kind, records, raw[CHUNK_HEADER : CHUNK_HEADER + stored], stored, decoded)
