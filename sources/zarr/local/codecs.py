"""Codecs: from the stored bytes of one chunk to the bytes of its values.

`PLAIN_CODECS` lists the codecs that Windrow decodes itself; the caller provides the memory.
`COMPRESSORS` bounds what zarr-python decompresses: 2 KB of bz2 can hold 2 GiB, so the decompressed
size is counted first, with little of it in memory at a time.

Invariants: a decoder fills all of the memory that it is given, or raises `ChunkDamageError`. Data
that is cut off, too long, of another size or of a wrong checksum never passes. Codecs make bytes,
never objects.
"""

from __future__ import annotations

import bz2
import dataclasses
import lzma
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Stored: TypeAlias = bytes | bytearray | memoryview

CHECKSUM_BYTES: Final = 4
# The CRC-32C of any bytes that end with their own CRC-32C, little-endian.
_CRC32C_RESIDUE: Final = 0x48674BC7
# numcodecs writes into the caller's memory but makes a context in every call; below this size a
# context that is kept, and a copy, are faster.
_SMALL_BYTES: Final = 64 * 2**10
# Kept per thread. Larger chunks get new memory each time, so that threads do not keep it.
_KEPT_BYTES: Final = 16 * 2**20
_SLACK_BYTES: Final = 2**20
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
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


class _ThreadMemory(threading.local):
    """Memory that each thread reuses: fresh memory costs a page fault for every 4 KiB."""

    def __init__(self) -> None:
        self.scratch: dict[str, ByteArray] = {}
        self.zstd = zstandard.ZstdDecompressor()


_thread_memory = _ThreadMemory()


def scratch(use: str, size: int) -> ByteArray:
    """Memory of `size` bytes that this thread may use until it asks for the same `use` again."""
    held = _thread_memory.scratch.get(use)
    if held is None or len(held) < size:
        held = np.empty(max(size, 4096), np.uint8)
        if size <= _KEPT_BYTES:
            _thread_memory.scratch[use] = held
    return held[:size]


def most_stored_bytes(decoded_bytes: int) -> int:
    """Largest stored size of a chunk of `decoded_bytes`; larger objects are not even read."""
    return 4 * decoded_bytes + _SLACK_BYTES


class ChunkDecoder:
    """Decodes the chunks of one array."""

    def __init__(self, codecs: Sequence[Codec], decoded_bytes: int) -> None:
        """Prepare for chunks of `decoded_bytes`, encoded by `codecs` in this order.

        At most one of the codecs compresses.
        """
        self._steps: list[tuple[_Step | None, int]] = []  # None: a checksum
        size = decoded_bytes
        for codec in codecs:
            self._steps.append((PLAIN_CODECS[codec.name].decoder(size), size))
            size = size + CHECKSUM_BYTES if codec.name == "crc32c" else size
        self._steps.reverse()
        self.takes_bytes = bool(codecs) and codecs[-1].name == "crc32c"
        """Whether stored data should come as `bytes`: a checksum of these is fastest."""
        whole = all(codec.name == "crc32c" for codec in codecs)
        self.stored_bytes = size if whole else None
        """Stored bytes of a chunk, where they are always the same."""
        self.decoded_bytes = decoded_bytes

    def decode(self, data: Stored, out: ByteArray) -> None:
        """Fill `out`, of one dimension and `decoded_bytes` bytes, from the stored `data`.

        Raises:
            ChunkDamageError: If `data` is not one whole chunk of that size.
        """
        steps = self._steps
        try:
            for k, (step, size) in enumerate(steps):
                if step is None:
                    data = without_checksum(data)
                elif k == len(steps) - 1:
                    step(data, out)
                    return
                else:
                    between = np.empty(size, np.uint8)
                    step(data, between)
                    data = between.tobytes()
        except ChunkDamageError:
            raise
        except (zstandard.ZstdError, zlib.error, RuntimeError, ValueError) as error:
            raise ChunkDamageError(str(error)) from error
        if len(data) != len(out):
            raise ChunkDamageError(f"it holds {len(data):,} bytes, not the {len(out):,} of a chunk")
        out[:] = np.frombuffer(data, np.uint8)


_Step: TypeAlias = Callable[[Stored, ByteArray], None]


def refuse_bools(values: ByteArray) -> None:
    """Refuse bytes that are not bools: NumPy would take them for true and return them as they are.

    Raises:
        ChunkDamageError: If a byte is neither 0 nor 1.
    """
    most = int(values.max(initial=0))
    if most > 1:
        raise ChunkDamageError(f"one of its bytes is {most}, which is not a bool")


def without_checksum(data: Stored) -> memoryview:
    """`data` without the CRC-32C at its end.

    Raises:
        ChunkDamageError: If the checksum is wrong.
    """
    if len(data) < CHECKSUM_BYTES:
        raise ChunkDamageError(f"it is cut off: {len(data)} bytes cannot hold a checksum")
    # The checksum library takes no memoryview.
    bytes_like = data if isinstance(data, bytes) else np.frombuffer(data, np.uint8)
    if google_crc32c.value(bytes_like) != _CRC32C_RESIDUE:
        raise ChunkDamageError("its checksum (crc32c) is wrong")
    return memoryview(data)[:-CHECKSUM_BYTES]


def _zstd_small(data: Stored, out: ByteArray) -> None:
    size = zstandard.frame_content_size(data)
    if size not in (len(out), -1):
        raise ChunkDamageError(_other_size(size, len(out)))
    found = _thread_memory.zstd.decompress(data, max_output_size=len(out), allow_extra_data=False)
    if len(found) != len(out):
        raise ChunkDamageError(_other_size(len(found), len(out)))
    out[:] = np.frombuffer(found, np.uint8)


# Importing numcodecs takes half as long as importing TensorStore, so only arrays that it decodes
# import it.


def _zstd_large() -> _Step:
    from numcodecs import zstd

    def decode(data: Stored, out: ByteArray) -> None:
        if zstandard.frame_content_size(data) == len(out):
            zstd.decompress(data, out)
        else:
            _zstd_small(data, out)

    return decode


def _blosc() -> _Step:
    from numcodecs import blosc

    def decode(data: Stored, out: ByteArray) -> None:
        if len(data) < 16:
            raise ChunkDamageError(f"it is cut off: {len(data)} bytes are not a blosc chunk")
        size, stored = (int.from_bytes(data[at : at + 4], "little") for at in (4, 12))
        if size != len(out):
            raise ChunkDamageError(_other_size(size, len(out)))
        if stored != len(data):
            raise ChunkDamageError(f"it has {len(data):,} bytes, but its header says {stored:,}")
        blosc.decompress(data, out)

    return decode


def _lz4() -> _Step:
    from numcodecs import lz4

    def decode(data: Stored, out: ByteArray) -> None:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size != len(out):
            raise ChunkDamageError(_other_size(size, len(out)))
        lz4.decompress(data, out)

    return decode


def _inflate(bits: int) -> _Step:
    def decode(data: Stored, out: ByteArray) -> None:
        inflater = zlib.decompressobj(bits)
        found = inflater.decompress(data, len(out) + 1)
        if len(found) != len(out):
            more = "more than " if len(found) > len(out) else ""
            size = min(len(found), len(out))
            raise ChunkDamageError(
                f"it decodes to {more}{size:,} bytes, not the {len(out):,} of a chunk"
            )
        if not inflater.eof:
            raise ChunkDamageError("it is cut off")
        if inflater.unused_data:
            raise ChunkDamageError(f"{len(inflater.unused_data):,} bytes follow its end")
        out[:] = np.frombuffer(found, np.uint8)

    return decode


def _other_size(found: int, wanted: int) -> str:
    return f"it decodes to {found:,} bytes, not the {wanted:,} of a chunk"


@dataclasses.dataclass(frozen=True, slots=True)
class PlainCodec:
    """A codec that Windrow decodes without TensorStore or zarr-python.

    Args:
        settings: The settings that it may have. An unknown one could change what its bytes mean.
        versions: The versions of the Zarr format that have it.
        decoder: Makes what decodes to a given number of bytes; None for a checksum.
    """

    settings: tuple[str, ...]
    versions: tuple[int, ...]
    decoder: Callable[[int], _Step | None]


PLAIN_CODECS: Final[dict[str, PlainCodec]] = {
    "zstd": PlainCodec(
        ("level", "checksum"),
        (2, 3),
        lambda size: _zstd_small if size <= _SMALL_BYTES else _zstd_large(),
    ),
    "blosc": PlainCodec(
        ("cname", "clevel", "shuffle", "typesize", "blocksize"), (2, 3), lambda size: _blosc()
    ),
    "lz4": PlainCodec(("acceleration",), (2,), lambda size: _lz4()),
    "gzip": PlainCodec(("level",), (2, 3), lambda size: _inflate(_GZIP_BITS)),
    "zlib": PlainCodec(("level",), (2,), lambda size: _inflate(zlib.MAX_WBITS)),
    "crc32c": PlainCodec((), (3,), lambda size: None),
}
"""By name, the codecs of arrays that are decoded directly. A new codec is a row of this table."""


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
