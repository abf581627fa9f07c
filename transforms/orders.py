"""Orders: map steps to records, for whole arrays of steps at once.

An order is a pure function of epoch, offset and seed. It holds no data and no position, so any
part of any epoch can be computed directly. That is why a checkpoint is a few integers.

Invariant, for every order here: over one epoch each index comes exactly once, for any length. The
same seed gives the same order as Grain 0.2, except where Grain repeats one record and leaves out
another (see `shuffled`).

Method: a Feistel network permutes the numbers of an even number of bits. An offset walks along its
cycle until it is back below the length. Short lengths need long walks, so their whole order is made
at once and kept for the next call, in a store bounded in bytes. The native core walks; without it
NumPy does, at a small part of the speed.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.core import native
from windrow.errors import PlanError
from windrow.sources.base import IntArray

_Unsigned = npt.NDArray[np.unsignedinteger[Any]]
_States = npt.NDArray[np.uint64]

_SEEDS = 2**32
# Above this length the walk is short, and the table would cost more memory than it saves time.
TABLE_LENGTH = 2**18
_FEW_PASSES = 64
_TABLES_BYTES = 32 * 2**20
# Bytes of an entry without its numbers: key, array header, place in the dict.
_ENTRY_BYTES = 400


def shuffled(offsets: IntArray, length: int, seed: int) -> IntArray:
    """Index at each of `offsets` in the global shuffle of `[0, length)`.

    Equal to Grain's `index_shuffle(offset, max_index=length - 1, seed=seed, rounds=4)`, except
    where that is not a permutation: at lengths 2^k + 1 with k even and at least 16 (65537, 262145,
    ...), and just above them from 2^50 on, Grain's block is too narrow to hold the last offsets.
    Here the block has two more bits.

    Up to 262,144 records the whole order is made once per seed, in a few milliseconds, and kept in a
    store of at most 32 MiB for the process.

    Args:
        offsets: int64 `(n,)`, each in `[0, length)`.
        length: Records in one epoch, `1 <= length <= 2**63 - 1`.
        seed: An integer in `[0, 2**32)`.

    Returns:
        int64 `(n,)`, each in `[0, length)`; the caller's own.
    """
    if length == 1:
        return np.zeros(len(offsets), np.int64)
    network = network_of(length, seed)
    if length > TABLE_LENGTH:
        return _walked(network, offsets, length)
    table = _tables.find(length, seed)
    if table is None:
        # For a few offsets and a short walk, a table does not pay off.
        if len(offsets) * (network.states // length) <= _FEW_PASSES:
            return _walked(network, offsets, length)
        table = _whole_order(network, length)
        _tables.keep(length, seed, table=table)
    return table.take(offsets).astype(np.int64)


def epoch_shuffled(epochs: IntArray, offsets: IntArray, length: int, seed: int) -> IntArray:
    """Index at each of `offsets` in the global shuffle of its epoch.

    Epoch `e` is shuffled with the seed `(seed + e) % 2**32`, as in Grain; so epoch 1 of seed 1 has
    the order of epoch 0 of seed 2.

    Args:
        epochs: int64 `(n,)`; may be negative.
        offsets: int64 `(n,)`, each in `[0, length)`.
        length: Records in one epoch, `1 <= length <= 2**63 - 1`.
        seed: An integer in `[0, 2**32)`.

    Returns:
        int64 `(n,)`, each in `[0, length)`, without the epochs.
    """
    out = np.empty(len(offsets), np.int64)
    for epoch, rows in groups(epochs):
        out[rows] = shuffled(offsets[rows], length, (seed + epoch) % _SEEDS)
    return out


def window_shuffled(
    epochs: IntArray, offsets: IntArray, length: int, window: int, seed: int
) -> IntArray:
    """Index at each of `offsets`, shuffled inside windows of `window` consecutive offsets.

    The last window of an epoch is shorter where `window` does not divide `length`. Window `w` of
    epoch `e` is shuffled with the seed `(seed + e * ceil(length / window) + w) % 2**32`. If the
    window divides the length, this is the order of Grain's WindowShuffleMapDataset; otherwise Grain
    repeats some records and leaves others out.

    The definition walks over 65,536 states for any window, so even a small window costs about 1 ms:
    90 us per record in windows of 10 (Grain: 2 ms), 0.7 us in windows of 1,000. Prefer windows of
    at least hundreds of records.

    Args:
        epochs: int64 `(n,)`; may be negative.
        offsets: int64 `(n,)`, each in `[0, length)`.
        length: Records in one epoch, `1 <= length <= 2**63 - 1`.
        window: Records per window, at least 1; it need not divide `length`.
        seed: An integer in `[0, 2**64)`; only its remainder modulo 2**32 counts.

    Returns:
        int64 `(n,)`, each in `[0, length)`, without the epochs.
    """
    window = min(window, length)
    windows = -(-length // window)
    number = offsets // window
    # Unsigned, so that an overflow wraps around at a multiple of 2**32.
    seeds = epochs.view(np.uint64) * np.uint64(windows) + number.view(np.uint64)
    seeds = (seeds + np.uint64(seed % _SEEDS)) % np.uint64(_SEEDS)
    last = number == windows - 1
    out = number * window
    inside = offsets - out
    for key, rows in groups(seeds.astype(np.int64) * 2 + last):
        size = length - (windows - 1) * window if key % 2 else window
        out[rows] += shuffled(inside[rows], size, key // 2)
    return out


def window_order(size: int, seed: int) -> IntArray:
    """Return the order in which a stream yields a gathered window of `size` elements.

    This is the order of Grain's WindowShuffleIterDataset, which takes a shuffled window from its end.
    The seed of the stream's window `w` is `seed + w`.

    Args:
        size: Elements in the window, from 0 upwards.
        seed: An integer in `[0, 2**64)`; only its remainder modulo 2**32 counts.

    Returns:
        int64 `(size,)`: the stream gives `window[order[0]]`, `window[order[1]]`, and so on.
    """
    if size == 0:
        return np.empty(0, np.int64)
    return shuffled(np.arange(size), size, seed % _SEEDS)[::-1].copy()


def mix_weights(weights: Sequence[float]) -> list[int]:
    """Convert the weights of a mixture to the integers that decide its order.

    The smallest becomes 100 and the others keep their proportion to it, rounded down.

    Raises:
        PlanError: If one is not a positive finite number, or they are too far apart.
    """
    for at, weight in enumerate(weights):
        if not (weight > 0 and math.isfinite(weight)):
            raise PlanError(
                f"mix: weight {at} is {weight}; choose positive finite numbers, and leave out the"
                " datasets that should not take part"
            )
    scale = 100 / min(weights)
    scaled = [weight * scale for weight in weights]
    if not all(map(math.isfinite, scaled)):
        raise PlanError(f"mix: weights {list(weights)} are too far apart; choose nearer ones")
    return [int(weight) for weight in scaled]


def mix_length(lengths: Sequence[int], weights: Sequence[int]) -> int:
    """Elements in one epoch of a mixture: all before the first dataset runs out.

    Computed in floating point, as Grain does, so that chains have the same length.

    Args:
        lengths: Elements of each dataset, at least 1.
        weights: From `mix_weights`, or all 1.

    Returns:
        A length of at most `sys.maxsize`.
    """
    total = sum(weights)
    full = (length / (weight / total) for length, weight in zip(lengths, weights, strict=True))
    return min(sys.maxsize, int(min(full)))


def mix_choose(indices: IntArray, weights: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Return the dataset of each element of a mixture, and the index in that dataset.

    Args:
        indices: int64 `(n,)`, elements of the mixture; may be negative.
        weights: From `mix_weights`, or all 1.

    Returns:
        Two arrays, int64 `(n,)`: the number of the dataset, and the index in it. The index
        continues over the epochs of a dataset.
    """
    divisor = math.gcd(*weights)
    shares = [weight // divisor for weight in weights]
    total = sum(shares)
    if total == 1:
        return np.zeros(len(indices), np.int64), indices.copy()
    # One period suffices: after `total` steps, dataset i has advanced by `shares[i]`. The rest is
    # below `total`, so the products below fit unless `total` itself is beyond 31 bits.
    places: npt.NDArray[Any] = indices if total < 2**31 else indices.astype(object)
    periods = places // total
    place = places - periods * total
    which = np.zeros(len(indices), np.int64)
    key = np.zeros(len(indices), np.int64)
    rows = np.arange(len(indices))
    rest = total
    for number, share in enumerate(shares):
        # `others` of the first `place` elements belong to later datasets. This one takes the
        # next element when adding it does not add to `others`.
        product = place * (rest - share)
        others = product // rest
        mine = (product - others * rest < share).astype(bool)
        taken = rows[mine]
        which[taken] = number
        key[taken] = (place - others)[mine] + periods[taken] * share
        rows, place = rows[~mine], others[~mine]
        rest -= share
    return which, key


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """Feistel rounds over numbers of `2 * half_bits` bits, one for each key: a permutation of them."""

    half_bits: int
    keys: tuple[int, ...]

    @property
    def states(self) -> int:
        return 1 << 2 * self.half_bits

    def walk(self, state: int, length: int) -> int:
        """The next state below `length` on the cycle of `state`."""
        width = self.half_bits
        mask = (1 << width) - 1
        while True:
            left, right = state >> width, state & mask
            for even, odd in zip(self.keys[::2], self.keys[1::2], strict=True):
                twice = right | right << width
                mixed = twice >> width - 1 & twice >> width - 8 ^ twice >> width - 2
                left ^= (mixed ^ even) & mask
                twice = left | left << width
                mixed = twice >> width - 1 & twice >> width - 8 ^ twice >> width - 2
                right ^= (mixed ^ odd) & mask
            state = left << width | right
            if state < length:
                return state

    def following(self, states: _States) -> _States:
        """The next state on the cycle of each of `states`, uint64."""
        width = np.uint64(self.half_bits)
        left, right = states >> width, states & self._mask
        for even, odd in zip(self.keys[::2], self.keys[1::2], strict=True):
            left = left ^ self._mixed(right, even)
            right = right ^ self._mixed(left, odd)
        found: _States = left << width | right
        return found

    @property
    def _mask(self) -> np.uint64:
        return np.uint64((1 << self.half_bits) - 1)

    def _mixed(self, half: _States, key: int) -> _States:
        twice = half | half << np.uint64(self.half_bits)
        once, eight, two = (twice >> np.uint64(self.half_bits - by) for by in (1, 8, 2))
        mixed: _States = (once & eight ^ two ^ np.uint64(key)) & self._mask
        return mixed


class Sized(Protocol):
    """What takes a number of bytes."""

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        ...


T = TypeVar("T", bound=Sized)


class OrderTables(Generic[T]):
    """A store of orders, stretches or plans, by key; drops the least recently used first.

    The `least` that were used last are kept even if they are larger than `limit_bytes`. Thread-safe.
    """

    def __init__(self, limit_bytes: int, *, least: int = 0) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._least = least
        self._lock = threading.Lock()
        self._tables: collections.OrderedDict[tuple[int, ...], T] = collections.OrderedDict()

    def find(self, *name: int) -> T | None:
        with self._lock:
            table = self._tables.get(name)
            if table is not None:
                self._tables.move_to_end(name)
            return table

    def keep(self, *name: int, table: T) -> None:
        with self._lock:
            # Two threads may have made the same table; it counts once.
            if name in self._tables:
                return
            self._tables[name] = table
            self.held_bytes += table.nbytes + _ENTRY_BYTES
            while self.held_bytes > self._limit_bytes and len(self._tables) > self._least:
                _, oldest = self._tables.popitem(last=False)
                self.held_bytes -= oldest.nbytes + _ENTRY_BYTES


_tables = OrderTables[_Unsigned](_TABLES_BYTES)


def _walked(network: Network, offsets: IntArray, length: int) -> IntArray:
    """The next state below `length` on the cycle of each offset."""
    out = offsets.copy()
    core = native.native()
    if core is not None:
        core.shuffle(out, length, network.half_bits, network.keys)
        return out
    rows, states = np.arange(len(out)), offsets.astype(np.uint64)
    while len(rows):
        states = network.following(states)
        out[rows] = states
        beyond = np.flatnonzero(states >= length)
        rows, states = rows.take(beyond), states.take(beyond)
    return out


def _whole_order(network: Network, length: int) -> _Unsigned:
    """The shuffle of `[0, length)` as a read-only table."""
    found: Any
    if native.native() is not None:
        found = _walked(network, np.arange(length), length)
    else:
        # A walk over a list, since each state is passed once at most.
        follow = network.following(np.arange(network.states, dtype=np.uint64)).tolist()
        found = follow[:length]
        for row, state in enumerate(found):
            while state >= length:
                state = follow[state]
            found[row] = state
    table: _Unsigned = np.array(found, np.uint16 if network.half_bits == 8 else np.uint32)
    table.flags.writeable = False
    return table


def network_of(length: int, seed: int, rounds: int = 4) -> Network:
    """The network whose walks permute `[0, length)`: halves have at least 8 bits."""
    half_bits = max(8, ((length - 1).bit_length() + 1) // 2)
    return Network(half_bits, _seed_words(seed, rounds))


@functools.lru_cache(1024)  # every read batch of a shuffle needs them
def _seed_words(seed: int, count: int) -> tuple[int, ...]:
    """The first words of C++'s `std::seed_seq{seed}` ([rand.util.seedseq]), at least 4."""
    lags = ((11, 623), (7, 68), (5, 39), (3, 7), ((count - 1) // 2, 0))
    lag = next(lag for lag, least in lags if count >= least)
    near, far = (count - lag) // 2, (count - lag) // 2 + lag
    words = [0x8B8B8B8B] * count
    for k in range(count):
        mixed = words[k] ^ words[(k + near) % count] ^ words[k - 1]
        mixed = 1664525 * (mixed ^ mixed >> 27) % _SEEDS
        added = (mixed + (1 if k == 0 else k + (seed if k == 1 else 0))) % _SEEDS
        words[(k + near) % count] = (words[(k + near) % count] + mixed) % _SEEDS
        words[(k + far) % count] = (words[(k + far) % count] + added) % _SEEDS
        words[k] = added
    for k in range(count):
        mixed = (words[k] + words[(k + near) % count] + words[k - 1]) % _SEEDS
        mixed = 1566083941 * (mixed ^ mixed >> 27) % _SEEDS
        added = (mixed - k) % _SEEDS
        words[(k + near) % count] ^= mixed
        words[(k + far) % count] ^= added
        words[k] = added
    return tuple(words)


def groups(keys: IntArray) -> Iterator[tuple[int, IntArray | slice]]:
    """Yield each distinct key with its rows; a slice if these are all rows."""
    if not len(keys):
        return
    if keys.min() == keys.max():
        yield int(keys[0]), slice(None)
        return
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    starts = [0, *(np.flatnonzero(in_order[1:] != in_order[:-1]) + 1).tolist(), len(keys)]
    for start, stop in itertools.pairwise(starts):
        yield int(in_order[start]), order[start:stop]
