"""Compressed chunks that hold far more than a chunk: found before they are decompressed as a whole.

What zarr-python decompresses has no bound, and 2 KB of bz2 can be 2 GiB. So what is stored is
measured first, a little of it in memory at a time.

Invariant: what is damaged otherwise is left to the decompressor to find.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Final

import zstandard

from windrow.sources.zarr_codecs import DamageError

_STEP_BYTES: Final = 2**20
# The dictionary of a writer's highest preset has 64 MiB.
_LZMA_BYTES: Final = 2**28


def refuse_larger(codec: str, stored: bytes, most: int) -> None:
    """Refuse what decompresses to more than `most` bytes.

    Args:
        codec: One of `COMPRESSORS`.
        stored: What is stored of one chunk; bytes after its end are not looked at.
        most: The most that a chunk can have.

    Raises:
        DamageError: If it has more.
    """
    try:
        size = COMPRESSORS[codec](stored, most)
    except lzma.LZMAError as error:
        if "limit" in str(error):
            raise DamageError("to decompress it takes far more memory than a chunk has") from error
        return
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError):
        return
    if size > most:
        raise DamageError(f"it decompresses to more than {most:,} bytes, far more than a chunk has")


def _streamed(begin: Callable[[], Any]) -> Callable[[bytes, int], int]:
    """Counts what streams, one after the other, decompress to, as far as `most`."""

    def count(stored: bytes, most: int) -> int:
        total = 0
        while stored and total <= most:
            stream = begin()
            while not stream.eof and total <= most:
                # Only the first call has input; the rest is what that input still holds.
                got = stream.decompress(stored, _STEP_BYTES)
                stored = getattr(stream, "unconsumed_tail", b"")
                total += len(got)
                if not got and not stored:
                    return total
            stored = stream.unused_data
        return total

    return count


def _zstd(stored: bytes, most: int) -> int:
    known = zstandard.frame_content_size(stored)
    if known >= 0:
        return known
    total = 0
    reader = zstandard.ZstdDecompressor(max_window_size=_LZMA_BYTES).stream_reader(stored)
    while total <= most and (got := reader.read(_STEP_BYTES)):
        total += len(got)
    return total


COMPRESSORS: Final[dict[str, Callable[[bytes, int], int]]] = {
    "zlib": _streamed(lambda: zlib.decompressobj(15)),
    "gzip": _streamed(lambda: zlib.decompressobj(31)),
    "bz2": _streamed(bz2.BZ2Decompressor),
    "lzma": _streamed(lambda: lzma.LZMADecompressor(memlimit=_LZMA_BYTES)),
    "zstd": _zstd,
    # These say it in their first bytes, and decode to no more.
    "blosc": lambda stored, most: int.from_bytes(stored[4:8], "little"),
    "lz4": lambda stored, most: int.from_bytes(stored[:4], "little"),
}
"""By name, what counts the bytes that stored ones decompress to, as far as a given number."""
