"""Codecs of chunks: those that the native core decodes, and the sizes of what zarr-python decompresses.

`PLAIN_CODECS` lists the codecs of plain arrays. `COMPRESSORS` bounds what zarr-python decompresses: 2 KB
of bz2 can hold 2 GiB, so the decompressed size is counted first, with little of it in memory at a time.
"""

from __future__ import annotations

import bz2
import dataclasses
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import zstandard

_MEASURE_BYTES: Final = 2**20
# The dictionary of a writer's highest preset has 64 MiB.
_LZMA_BYTES: Final = 2**28


class ChunkDamageError(Exception):
    """Stored bytes that are not a whole chunk; the message has the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    """One step from bytes to bytes, with its settings as they are in the metadata."""

    name: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class PlainCodec:
    """A codec of arrays that the native core reads.

    Args:
        settings: The settings that it may have. An unknown one could change what its bytes mean.
        versions: The versions of the Zarr format that have it.
    """

    settings: tuple[str, ...]
    versions: tuple[int, ...]


PLAIN_CODECS: Final[dict[str, PlainCodec]] = {
    "zstd": PlainCodec(("level", "checksum"), (2, 3)),
    "blosc": PlainCodec(("cname", "clevel", "shuffle", "typesize", "blocksize"), (2, 3)),
    "lz4": PlainCodec(("acceleration",), (2,)),
    "gzip": PlainCodec(("level",), (2, 3)),
    "zlib": PlainCodec(("level",), (2,)),
    "crc32c": PlainCodec((), (3,)),
}
"""By name, the codecs of arrays that the core decodes. A new codec is a row of this table."""


# --- the size of what zarr-python decompresses ---------------------------------------------------


def refuse_larger(codec: str, stored: bytes, most: int) -> None:
    """Refuse a chunk that decompresses to more than `most` bytes.

    The decompressor finds any other damage.

    Args:
        codec: One of `COMPRESSORS`.
        stored: The stored bytes of one chunk; bytes after its end are ignored.
        most: The most bytes that a chunk can have.

    Raises:
        ChunkDamageError: If it has more.
    """
    try:
        size = COMPRESSORS[codec](stored, most)
    except lzma.LZMAError as error:
        if "limit" in str(error):
            raise ChunkDamageError(
                "decompressing it takes far more memory than a chunk has"
            ) from error
        return
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError):
        return
    if size > most:
        raise ChunkDamageError(
            f"it decompresses to more than {most:,} bytes, far more than a chunk has"
        )


def _streamed(begin: Callable[[], Any]) -> Callable[[bytes, int], int]:
    """Counts the bytes that consecutive streams decompress to, up to `most`."""

    def count(stored: bytes, most: int) -> int:
        total = 0
        while stored and total <= most:
            stream = begin()
            while not stream.eof and total <= most:
                # Only the first call has input; the later ones return what that input still holds.
                got = stream.decompress(stored, _MEASURE_BYTES)
                stored = getattr(stream, "unconsumed_tail", b"")
                total += len(got)
                if not got and not stored:
                    return total
            stored = stream.unused_data
        return total

    return count


def _zstd_size(stored: bytes, most: int) -> int:
    known = zstandard.frame_content_size(stored)
    if known >= 0:
        return known
    total = 0
    reader = zstandard.ZstdDecompressor(max_window_size=_LZMA_BYTES).stream_reader(stored)
    while total <= most and (got := reader.read(_MEASURE_BYTES)):
        total += len(got)
    return total


COMPRESSORS: Final[dict[str, Callable[[bytes, int], int]]] = {
    "zlib": _streamed(lambda: zlib.decompressobj(15)),
    "gzip": _streamed(lambda: zlib.decompressobj(31)),
    "bz2": _streamed(bz2.BZ2Decompressor),
    "lzma": _streamed(lambda: lzma.LZMADecompressor(memlimit=_LZMA_BYTES)),
    "zstd": _zstd_size,
    # The first bytes of these give the size, and they decode to no more.
    "blosc": lambda stored, most: int.from_bytes(stored[4:8], "little"),
    "lz4": lambda stored, most: int.from_bytes(stored[:4], "little"),
}
"""By name, a function that counts decompressed bytes, up to a given number."""
