"""Codecs: from the stored bytes of one chunk to its values' bytes, in memory that the caller gives.

Invariants: the memory given is filled whole, or there is a `DamageError`: data that is cut off, too
long, of another size or of a wrong checksum never passes. Only bytes are decoded, never objects.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard

from windrow.sources.zarr_plain import Codec

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Stored: TypeAlias = bytes | memoryview

_CHECKSUM_BYTES: Final = 4
# The CRC-32C of any bytes that end with their own CRC-32C, little-endian.
_RIGHT: Final = 0x48674BC7
# numcodecs writes into the caller's memory and makes a context in every call; for less than this
# one that is kept, and a copy, are faster.
_SMALL_BYTES: Final = 64 * 2**10
# Per thread; larger chunks get memory of their own each time, so that none is kept for ever.
_KEPT_BYTES: Final = 16 * 2**20
_SLACK_BYTES: Final = 2**20
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS


class DamageError(Exception):
    """What is wrong with stored bytes, in words."""


class _OfThread(threading.local):
    """What each thread uses again: fresh memory costs a page fault for every 4 KiB."""

    def __init__(self) -> None:
        self.scratch: dict[str, ByteArray] = {}
        self.zstd = zstandard.ZstdDecompressor()


_of_thread = _OfThread()


def scratch(use: str, size: int) -> ByteArray:
    """Memory of `size` bytes that this thread may use until it asks for the same `use` again."""
    held = _of_thread.scratch.get(use)
    if held is None or len(held) < size:
        held = np.empty(max(size, 4096), np.uint8)
        if size <= _KEPT_BYTES:
            _of_thread.scratch[use] = held
    return held[:size]


def most_stored_bytes(decoded_bytes: int) -> int:
    """Stored bytes beyond which nothing can be a chunk of `decoded_bytes`: it is not even read."""
    return 4 * decoded_bytes + _SLACK_BYTES


class Decoder:
    """Decodes the chunks of one array."""

    def __init__(self, codecs: Sequence[Codec], decoded_bytes: int) -> None:
        """Prepare for chunks of `decoded_bytes`, encoded by `codecs` in this order.

        At most one of the codecs compresses.
        """
        self._steps: list[tuple[_Step | None, int]] = []  # None: a checksum
        size = decoded_bytes
        for codec in codecs:
            self._steps.append((_step(codec.name, size), size))
            size = size + _CHECKSUM_BYTES if codec.name == "crc32c" else size
        self._steps.reverse()
        self.takes_bytes = bool(codecs) and codecs[-1].name == "crc32c"
        """Whether stored data must come as `bytes`: the checksum library takes nothing else."""
        whole = all(codec.name == "crc32c" for codec in codecs)
        self.stored_bytes = size if whole else None
        """Stored bytes of a chunk, where they are always the same."""
        self.decoded_bytes = decoded_bytes

    def decode(self, data: Stored, out: ByteArray) -> None:
        """Fill `out`, of one dimension and `decoded_bytes` bytes, from the stored `data`.

        Raises:
            DamageError: If `data` is anything but a chunk of that size, whole.
        """
        steps = self._steps
        try:
            for k, (step, size) in enumerate(steps):
                if step is None:
                    data = _checked(data)
                elif k == len(steps) - 1:
                    step(data, out)
                    return
                else:
                    between = np.empty(size, np.uint8)
                    step(data, between)
                    data = between.tobytes()
        except DamageError:
            raise
        except (zstandard.ZstdError, zlib.error, RuntimeError, ValueError) as error:
            raise DamageError(str(error)) from error
        if len(data) != len(out):
            raise DamageError(f"it holds {len(data):,} bytes, not the {len(out):,} of a chunk")
        out[:] = np.frombuffer(data, np.uint8)


_Step: TypeAlias = Callable[[Stored, ByteArray], None]


def refuse_bools(values: ByteArray) -> None:
    """Refuse bytes that are no bool: NumPy would take them for true and give them out as they are.

    Raises:
        DamageError: If one of them is neither 0 nor 1.
    """
    most = int(values.max(initial=0))
    if most > 1:
        raise DamageError(f"a byte of it is {most}, which is no bool")


def _checked(data: Stored) -> memoryview:
    """`data` without the checksum at its end, which is right."""
    if len(data) < _CHECKSUM_BYTES:
        raise DamageError(f"it is cut off: {len(data)} bytes have no place for a checksum")
    if google_crc32c.value(data if isinstance(data, bytes) else bytes(data)) != _RIGHT:
        raise DamageError("its checksum (crc32c) is wrong")
    return memoryview(data)[:-_CHECKSUM_BYTES]


def _step(name: str, size: int) -> _Step | None:
    """What decodes to `size` bytes; None for a checksum."""
    if name == "zstd":
        return _zstd_small if size <= _SMALL_BYTES else _zstd_large()
    steps: dict[str, Callable[[], _Step | None]] = {
        "blosc": _blosc,
        "crc32c": lambda: None,
        "gzip": lambda: _gzip,
        "lz4": _lz4,
        "zlib": lambda: _zlib,
    }
    return steps[name]()


def _zstd_small(data: Stored, out: ByteArray) -> None:
    size = zstandard.frame_content_size(data)
    if size not in (len(out), -1):
        raise DamageError(_of_size(size, len(out)))
    found = _of_thread.zstd.decompress(data, max_output_size=len(out), allow_extra_data=False)
    if len(found) != len(out):
        raise DamageError(_of_size(len(found), len(out)))
    out[:] = np.frombuffer(found, np.uint8)


# numcodecs takes as long to import as half of TensorStore, so that is left to the arrays that it
# decodes.


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
            raise DamageError(f"it is cut off: {len(data)} bytes are no blosc chunk")
        size, stored = (int.from_bytes(data[at : at + 4], "little") for at in (4, 12))
        if size != len(out):
            raise DamageError(_of_size(size, len(out)))
        if stored != len(data):
            raise DamageError(f"it has {len(data):,} bytes and says that it has {stored:,}")
        blosc.decompress(data, out)

    return decode


def _lz4() -> _Step:
    from numcodecs import lz4

    def decode(data: Stored, out: ByteArray) -> None:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size != len(out):
            raise DamageError(_of_size(size, len(out)))
        lz4.decompress(data, out)

    return decode


def _gzip(data: Stored, out: ByteArray) -> None:
    _inflate(data, out, _GZIP_BITS)


def _zlib(data: Stored, out: ByteArray) -> None:
    _inflate(data, out, zlib.MAX_WBITS)


def _inflate(data: Stored, out: ByteArray, bits: int) -> None:
    inflater = zlib.decompressobj(bits)
    found = inflater.decompress(data, len(out) + 1)
    if len(found) != len(out):
        more = "more than " if len(found) > len(out) else ""
        raise DamageError(more + _of_size(min(len(found), len(out)), len(out)))
    if not inflater.eof:
        raise DamageError("it is cut off")
    if inflater.unused_data:
        raise DamageError(f"{len(inflater.unused_data):,} bytes follow its end")
    out[:] = np.frombuffer(found, np.uint8)


def _of_size(found: int, wanted: int) -> str:
    return f"it decodes to {found:,} bytes, not the {wanted:,} of a chunk"
