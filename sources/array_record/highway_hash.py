"""HighwayHash-64 of messages, with the key that ArrayRecord files use.

The native core hashes some 10 GB/s. Without it, Python hashes 2 MB/s: enough for the few hundred bytes
that are hashed then, since the array_record package verifies what is read.

Invariant: the hash of a message depends neither on the other messages nor on the code that computes
it. Little-endian machines only, like everything that reads these files here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.core.native import native

Ints = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.uint64]
Buffer = bytes | bytearray | memoryview

_PACKET: Final = 32
_MASK: Final = 2**64 - 1
_LOW: Final = 2**32 - 1
_START_0: Final = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_START_1: Final = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_KEY: Final[tuple[int, ...]] = struct.unpack("<4Q", b"Riegeli/records\n" * 2)
# The source of each byte of a pair of lanes when the lanes are mixed.
_ZIP: Final = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)


def hashes(data: npt.NDArray[np.uint8] | Buffer, starts: Ints, stops: Ints) -> Lanes:
    """The hash of each message `data[start:stop]`.

    Args:
        data: Bytes that hold all messages.
        starts: Where each message begins, int64 `(messages,)`.
        stops: Where each ends, neither before its begin nor behind the end of `data`.

    Returns:
        uint64 `(messages,)`.

    Raises:
        IndexError: If a message does not lie within `data`.
    """
    raw = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else memoryview(data)
    starts, stops = (np.ascontiguousarray(places, np.int64) for places in (starts, stops))
    core = native()
    if core is not None:
        try:
            return np.frombuffer(core.highway_hashes(raw, starts, stops), np.uint64)
        except IndexError:
            raise _outside(len(raw)) from None
    if len(starts) and (min(starts.min(), (stops - starts).min()) < 0 or stops.max() > len(raw)):
        raise _outside(len(raw))
    places = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.array([_hash(bytes(raw[start:stop])) for start, stop in places], np.uint64)


def hashes_of(messages: Sequence[Buffer]) -> Lanes:
    """The hash of each message, which has its own buffer: uint64 `(messages,)`."""
    lengths = np.array([len(message) for message in messages], np.int64)
    stops = np.cumsum(lengths)
    return hashes(b"".join(messages), stops - lengths, stops)


def _outside(size: int) -> IndexError:
    return IndexError(f"messages lie outside of the {size:,} bytes given")


def _hash(message: bytes) -> int:
    state = _State()
    whole = len(message) // _PACKET * _PACKET
    for at in range(0, whole, _PACKET):
        state.add(struct.unpack_from("<4Q", message, at))
    if whole < len(message):
        state.add_rest(message[whole:])
    return state.finished()


class _State:
    """The four vectors of a message, each of four lanes."""

    def __init__(self) -> None:
        self._v0 = [lane ^ key for lane, key in zip(_START_0, _KEY, strict=True)]
        self._v1 = [lane ^ _turned(key) for lane, key in zip(_START_1, _KEY, strict=True)]
        self._m0, self._m1 = list(_START_0), list(_START_1)

    def add(self, packet: Sequence[int]) -> None:
        """Add four lanes of a message."""
        v0, v1, m0, m1 = self._v0, self._v1, self._m0, self._m1
        for at, lane in enumerate(packet):
            v1[at] = (v1[at] + m0[at] + lane) & _MASK
            m0[at] ^= (v1[at] & _LOW) * (v0[at] >> 32)
            v0[at] = (v0[at] + m1[at]) & _MASK
            m1[at] ^= (v0[at] & _LOW) * (v1[at] >> 32)
        _mix(v0, v1)
        _mix(v1, v0)

    def add_rest(self, rest: bytes) -> None:
        """Add the last bytes of a message, 1 to 31."""
        count = len(rest)
        self._v0 = [(lane + (count << 32 | count)) & _MASK for lane in self._v0]
        self._v1 = [_rotated(lane >> 32, count) << 32 | _rotated(lane, count) for lane in self._v1]
        packet, odd = bytearray(_PACKET), count & 3
        packet[: count - odd] = rest[: count - odd]
        if count >= 16:
            packet[28:] = rest[-4:]
        elif odd:
            last = rest[-odd:]
            packet[16:19] = bytes((last[0], last[odd >> 1], last[-1]))
        self.add(struct.unpack("<4Q", packet))

    def finished(self) -> int:
        """The hash."""
        for _ in range(4):
            self.add([_turned(self._v0[at]) for at in (2, 3, 0, 1)])
        return (self._v0[0] + self._v1[0] + self._m0[0] + self._m1[0]) & _MASK


def _mix(into: list[int], lanes: list[int]) -> None:
    """Add to pairs of lanes the bytes of other pairs in another order."""
    for at in (0, 2):
        pair = struct.pack("<2Q", *lanes[at : at + 2])
        mixed = struct.unpack("<2Q", bytes(pair[byte] for byte in _ZIP))
        into[at : at + 2] = [(into[at + k] + mixed[k]) & _MASK for k in (0, 1)]


def _turned(lane: int) -> int:
    return lane >> 32 | (lane & _LOW) << 32


def _rotated(half: int, count: int) -> int:
    """The low 32 bits of `half`, rotated to the left."""
    half &= _LOW
    return (half << count | half >> (32 - count)) & _LOW
