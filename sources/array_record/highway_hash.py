"""HighwayHash-64 of many messages at once, with the key that ArrayRecord files use.

A message is a row of the state. A step takes 32 bytes of every message that still has them, and all
rows share NumPy's cost of a step. On one core this hashes 4 MB/s of one message, 300 MB/s of 64 and
700 MB/s of 1,000. If llvmlite is installed (the extra `fast`), native code does the same at some
5 GB/s, once there is enough to hash. `seconds` estimates the cost.

Invariant: the hash of a message depends neither on the other messages nor on the code that computes
it. Little-endian machines only, like everything that reads these files here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from windrow.sources.array_record.highway_hash_native import NativeHash

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.uint64]

_PACKET: Final = 32
# This number of rows fits a core's cache; more rows are not faster.
_ROWS: Final = 1024
# The cost of a step on this kind of machine, and of each row in it.
_STEP_S: Final = 8e-6
_ROW_S: Final = 45e-9
_LAST_STEPS: Final = 5
# The cost of native code per call and per packet, and the bytes that NumPy hashes in the 0.1 s that
# compiling that code takes.
_NATIVE_CALL_S: Final = 20e-6
_NATIVE_PACKET_S: Final = 7e-9
_NATIVE_WORTH_BYTES: Final = 1 << 24
# The memory that it adds to a process: the library, mostly pages of its file.
NATIVE_BYTES: Final = 72 << 20
_U32: Final = np.uint64(32)
_START_0: Final[Lanes] = np.array(
    [0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3], np.uint64
)
_START_1: Final[Lanes] = np.array(
    [0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377], np.uint64
)
_KEY: Final[Lanes] = np.frombuffer(b"Riegeli/records\nRiegeli/records\n", np.uint64)
_KEY_SWAPPED: Final[Lanes] = _KEY >> _U32 | _KEY << _U32
_BEGIN: Final = (_START_0 ^ _KEY, _START_1 ^ _KEY_SWAPPED, _START_0, _START_1)
# The source of each byte of a pair of lanes when the lanes are mixed.
_ZIP: Final = np.array([3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7], np.intp)


def hashes(data: Bytes | bytes | bytearray | memoryview, starts: Ints, stops: Ints) -> Lanes:
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
    is_array = isinstance(data, np.ndarray)
    raw = np.ascontiguousarray(data) if is_array else np.frombuffer(data, np.uint8)
    if not len(starts):
        return np.empty(0, np.uint64)
    starts, stops = (np.ascontiguousarray(places, np.int64) for places in (starts, stops))
    lengths = stops - starts
    if min(int(starts.min()), int(lengths.min())) < 0 or int(stops.max()) > len(raw):
        raise IndexError(f"messages lie outside of the {len(raw):,} bytes given")
    native = native_code.worth(int(lengths.sum()))
    if native is not None:
        return native(raw, starts, stops)
    result = np.empty(len(starts), np.uint64)
    # The longest first, so that messages with a packet left are the first rows.
    equal = bool((lengths == lengths[0]).all())
    order = np.arange(len(starts)) if equal else np.argsort(-lengths, kind="stable")
    for at in range(0, len(order), _ROWS):
        rows = order[at : at + _ROWS]
        result[rows] = _hashed(raw, starts[rows], lengths[rows])
    return result


def hashes_of(messages: Sequence[bytes | bytearray | memoryview]) -> Lanes:
    """The hash of each message, which has its own buffer: uint64 `(messages,)`."""
    lengths = np.array([len(message) for message in messages], np.int64)
    stops = np.cumsum(lengths)
    return hashes(b"".join(messages), stops - lengths, stops)


def is_native() -> bool:
    """Whether there is native code for hashes, which is compiled now if it was not before."""
    return native_code.worth(_NATIVE_WORTH_BYTES) is not None


def seconds(lengths: Ints) -> float:
    """The estimated cost of hashing messages of these lengths on one core."""
    total = int(lengths.sum())
    if native_code.worth(total) is not None:
        last = len(lengths) * _LAST_STEPS
        return _NATIVE_CALL_S + (total // _PACKET + last) * _NATIVE_PACKET_S
    packets = np.sort(lengths)[::-1] // _PACKET + _LAST_STEPS
    steps = int(packets[::_ROWS].sum()) if len(packets) else 0
    return steps * _STEP_S + int(packets.sum()) * _ROW_S


class NativeCode:
    """The native code, which is compiled once, when there is enough to hash to be worth it."""

    def __init__(self) -> None:
        self._hashes: NativeHash | None = None
        self._until_bytes = _NATIVE_WORTH_BYTES
        self._lock = threading.Lock()

    @property
    def is_made(self) -> bool:
        """Whether it is compiled."""
        return self._hashes is not None

    def worth(self, size_bytes: int) -> NativeHash | None:
        """The code to hash `size_bytes`; None if NumPy does it."""
        if self._until_bytes <= 0:
            return self._hashes
        with self._lock:
            if self._until_bytes - size_bytes <= 0:
                # If llvmlite is absent, of another version or not for this processor, NumPy does it all.
                with contextlib.suppress(ImportError, AttributeError, OSError, RuntimeError):
                    from windrow.sources.array_record.highway_hash_native import NativeHash

                    self._hashes = NativeHash(np.stack(_BEGIN), _ZIP.tolist())
            self._until_bytes -= size_bytes
            return self._hashes

    def begin_anew(self) -> None:
        """Reset the lock in a forked child, where no thread compiles the code that one in the parent did."""
        self._lock = threading.Lock()


native_code: Final = NativeCode()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=native_code.begin_anew)


def _hashed(data: Bytes, starts: Ints, lengths: Ints) -> Lanes:
    """Hashes of messages whose lengths do not increase."""
    state = _State(len(starts))
    whole = lengths // _PACKET
    if whole[0]:
        # One item per byte of the data, since a message may begin anywhere.
        packets: Any = np.ndarray((len(data) - _PACKET + 1,), "V32", data, strides=(1,))
        at, step, equal = starts.copy(), 0, bool(whole[0] == whole[-1])
        while step < whole[0]:
            live = len(whole) if equal else int(np.searchsorted(-whole, -step, side="left"))
            state.keep(live)
            until = int(whole[live - 1])
            at = at[:live]
            for _ in range(step, until):
                state.add(packets[at].view(np.uint64).reshape(live, 4))
                at += _PACKET
            step = until
    rest = lengths % _PACKET
    if rest.any():
        rows = np.flatnonzero(rest)
        state.add_rest(rows, _rest_packets(data, starts + lengths - rest, rest, rows), rest[rows])
    return state.finished()


def _rest_packets(data: Bytes, begins: Ints, rest: Ints, rows: Ints) -> Lanes:
    """The last bytes of messages, 1 to 31, as the packets that stand for them."""
    begins, rest = begins[rows], rest[rows]
    packets = np.zeros((len(rows), _PACKET), np.uint8)
    even = rest & ~3
    columns = np.arange(28)
    filled = columns < even[:, None]
    packets[:, :28][filled] = data[(begins[:, None] + columns)[filled]]
    long = rest >= 16
    if long.any():
        # The last four bytes, which may overlap with those before.
        last = (begins + rest)[long, None] + np.arange(-4, 0)
        packets[long, 28:] = data[last]
    odd = rest & 3
    short = ~long & (odd > 0)
    if short.any():
        begin, odd = (begins + even)[short], odd[short]
        packets[short, 16] = data[begin]
        packets[short, 17] = data[begin + (odd >> 1)]
        packets[short, 18] = data[begin + odd - 1]
    return packets.view(np.uint64)


class _State:
    """The four vectors of each message: uint64 `(messages, 4)`."""

    def __init__(self, rows: int) -> None:
        self._all: list[Lanes] = [np.repeat(row[None], rows, axis=0) for row in _BEGIN]
        self._scratch = np.empty((rows, 4), np.uint64), np.empty((rows, 2, 16), np.uint8)
        self._live = -1
        self.keep(rows)

    def keep(self, rows: int) -> None:
        """Add the next packets to the first `rows` messages only."""
        if rows == self._live:
            return
        self._live = rows
        self._v0, self._v1, self._m0, self._m1 = (one[:rows] for one in self._all)
        halves = self._v0.view(np.uint32), self._v1.view(np.uint32)
        (self._low0, self._high0), (self._low1, self._high1) = (
            (one[:, 0::2], one[:, 1::2]) for one in halves
        )
        self._bytes0, self._bytes1 = (
            one.view(np.uint8).reshape(rows, 2, 16) for one in (self._v0, self._v1)
        )
        self._product, self._mixed = (one[:rows] for one in self._scratch)
        self._mixed_lanes = self._mixed.view(np.uint64).reshape(rows, 4)

    def add(self, packets: Lanes) -> None:
        """Add one packet, uint64 `(messages, 4)`, per message."""
        v0, v1, product = self._v0, self._v1, self._product
        v1 += self._m0
        v1 += packets
        np.multiply(self._low1, self._high0, out=product, dtype=np.uint64)
        self._m0 ^= product
        v0 += self._m1
        np.multiply(self._low0, self._high1, out=product, dtype=np.uint64)
        self._m1 ^= product
        # The indices are right; with `clip` NumPy makes no copy for undoing.
        np.take(self._bytes1, _ZIP, axis=2, out=self._mixed, mode="clip")
        v0 += self._mixed_lanes
        np.take(self._bytes0, _ZIP, axis=2, out=self._mixed, mode="clip")
        v1 += self._mixed_lanes

    def add_rest(self, rows: Ints, packets: Lanes, counts: Ints) -> None:
        """Add the last packet of the messages `rows`, which had `counts` bytes left."""
        part = _State(len(rows))
        for mine, whole in zip(part._all, self._all, strict=True):
            mine[:] = whole[rows]
        count = counts.astype(np.uint64)[:, None]
        part._v0 += count << _U32 | count
        half, turn = part._v1.view(np.uint32), counts.astype(np.uint32)[:, None]
        half[:] = half << turn | half >> (np.uint32(32) - turn)
        part.add(packets)
        for mine, whole in zip(part._all, self._all, strict=True):
            whole[rows] = mine

    def finished(self) -> Lanes:
        """The hash of every message."""
        self.keep(len(self._all[0]))
        for _ in range(4):
            turned = self._v0[:, [2, 3, 0, 1]]
            self.add(turned >> _U32 | turned << _U32)
        v0, v1, m0, m1 = self._all
        total: Lanes = v0[:, 0] + v1[:, 0] + m0[:, 0] + m1[:, 0]
        return total
