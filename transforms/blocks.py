"""Orders of a block shuffle: whole blocks permuted over an epoch, then elements inside windows.

Blocks part the elements of a dataset. An epoch takes them in a random order; each `window_blocks`
of them in a row are a window, and all elements of a window come in a random order of their own. So
a reader that reads a window's blocks when the window begins reads each block once in an epoch.

Invariant: over one epoch each offset comes exactly once, whatever the sizes of the blocks. An order
is a function of bounds, elements, window, seed and epoch alone, written down here to the last bit (see
`permutation`), and stays as it is for ever.

How: a window's order is made at once and kept, in a store bounded in bytes. Windows of a few
elements are made many at a time, since one alone costs some 50 us however small it is. A process of
many takes a few elements of each window and does not come back: the first time that a window is asked
for a few elements, these alone are picked, without a sort of the window.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from windrow.sources.base import IntArray
from windrow.transforms.orders import OrderTables, groups
from windrow.transforms.positions import run_numbers

Words = npt.NDArray[np.uint64]

# With more than these, a table and the space to sort it exceed a laptop's memory.
MOST_BLOCKS: Final = 2**28
MOST_IN_WINDOW: Final = 2**28

_SEEDS: Final = 2**32
GAMMA: Final = 0x9E3779B97F4A7C15
# Keys of up to this many items leave 12 bits free, so that one sort can order many windows.
_FEW_BITS: Final = 12
_FEW: Final = 1 << _FEW_BITS
_STRETCH_ELEMENTS: Final = 16_384
# Elements within this share of a window are picked; for others it is sorted.
_PICKED_SHARE: Final = 1 / 16
# Standard deviations of a rank among random numbers that a pick allows for. Beyond them it sorts.
_DEVIATIONS: Final = 6
# Enough for the current epochs and windows of several chains, however large they are.
_LEAST_TABLES: Final = 8
_epochs = OrderTables(32 * 2**20, least=_LEAST_TABLES)
_stretches = OrderTables(32 * 2**20, least=_LEAST_TABLES)
_NOTHING: Final = np.zeros(0, np.uint8)
_picked = OrderTables(2**16)  # names of stretches that elements were picked from


# --- permutations --------------------------------------------------------------------------------


def mixed(words: Words) -> Words:
    """The 64-bit numbers that SplitMix64's last step makes of `words`, which it overwrites.

    The step is the one that Steele, Lea and Flood give in "Fast splittable pseudorandom number
    generators" (OOPSLA 2014), with the constants of David Stafford's variant 13:
    `z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31`.
    """
    room = words >> np.uint64(30)
    words ^= room
    words *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(words, np.uint64(27), out=room)
    words ^= room
    words *= np.uint64(0x94D049BB133111EB)
    np.right_shift(words, np.uint64(31), out=room)
    words ^= room
    return words


def folded(key: Words, word: Words) -> Words:
    """The key that is derived from a key and a number: `mixed((key ^ word) + gamma)`.

    `gamma` is 2**64 divided by the golden ratio, 0x9E3779B97F4A7C15, as in SplitMix64.
    """
    return mixed((key ^ word) + np.uint64(GAMMA))


def permutation(size: int, key: int) -> IntArray:
    """A permutation of `[0, size)`; `key` is an integer in `[0, 2**64)`.

    Item `i` gets the number that SplitMix64 gives at its `i`-th draw from the state `key`:
    `mixed(key + (i + 1) * gamma)`. For up to 4,096 items it is shifted to the right by 12 bits and
    its lowest 12 bits are replaced by `i`; for more items its lowest `b` bits are, where `b` is the
    bits that `size - 1` takes. The permutation is the items in the order of these numbers. As no
    two are equal, it depends on no sort and on no generator of NumPy.

    Returns:
        int64 `(size,)`; place `k` has the item that comes at `k`.
    """
    if size <= _FEW:
        return permutations(np.array([size], np.int64), np.array([key], np.uint64))
    numbers, mask = _drawn(size, key)
    numbers.sort()
    numbers &= mask
    return numbers.view(np.int64)


def picked(size: int, key: int, places: IntArray) -> IntArray:
    """`permutation(size, key)[places]`, at a fraction of the time if the places are near each other.

    The numbers are even, so those at a few places lie in a narrow range, and only these are sorted.
    """
    if size <= _FEW:
        return permutation(size, key)[places]
    numbers, mask = _drawn(size, key)
    first, last = int(places.min()), int(places.max())
    margin = int(_DEVIATIONS / 2 * size**0.5) + 1
    low = max(0, first - margin) * 2**64 // size
    high = min(size, last + margin) * 2**64 // size
    before = int(np.count_nonzero(numbers < np.uint64(low)))
    near = numbers[(numbers - np.uint64(low)) <= np.uint64(min(high, 2**64 - 1) - low)]
    if not before <= first <= last < before + len(near):
        before, near = 0, numbers
    near.sort()
    near &= mask
    found: IntArray = near.view(np.int64)[places - before]
    return found


def _drawn(size: int, key: int) -> tuple[Words, np.uint64]:
    """The number of each of more than 4,096 items, and the mask of the item in it."""
    numbers = np.arange(1, size + 1, dtype=np.uint64)
    numbers *= np.uint64(GAMMA)
    numbers += np.uint64(key)
    mixed(numbers)
    mask = np.uint64((1 << (size - 1).bit_length()) - 1)
    numbers &= ~mask
    numbers |= np.arange(size, dtype=np.uint64)
    return numbers, mask


def permutations(sizes: IntArray, keys: Words) -> IntArray:
    """`permutation(size, key)` for up to 4,096 sizes of at most 4,096 and keys, end to end.

    Returns:
        int64 `(sum(sizes),)`.
    """
    inside = run_numbers(sizes).view(np.uint64)
    numbers = inside + np.uint64(1)
    numbers *= np.uint64(GAMMA)
    numbers += np.repeat(keys, sizes)
    mixed(numbers)
    numbers >>= np.uint64(_FEW_BITS)
    mask = np.uint64(_FEW - 1)
    numbers &= ~mask
    numbers |= inside
    # The number of the window in the top bits keeps windows apart in one sort.
    window = np.arange(len(sizes), dtype=np.uint64) << np.uint64(64 - _FEW_BITS)
    numbers |= np.repeat(window, sizes)
    numbers.sort()
    numbers &= mask
    return numbers.view(np.int64)


# --- the order -----------------------------------------------------------------------------------


class OffsetsByPlace(Protocol):
    """Maps places to offsets, for blocks whose offsets are not consecutive."""

    @property
    def token(self) -> str:
        """Names the permutation."""
        ...

    def at(self, places: IntArray) -> IntArray:
        """The offsets at `places`, a permutation of `[0, length)`."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BlockOrder:
    """The order of a block shuffle, at any offsets of any epochs.

    The key of epoch `e` is `folded(folded(0, seed), e modulo 2**32)`. Folded with 0 it is the key
    for the permutation of the blocks; folded with `w + 1` it is the key for the permutation of window `w`,
    whose items are the elements of the window's blocks, end to end.

    Args:
        bounds: int64 `(blocks + 1,)`, from 0 to the length, increasing: block `k` is the places
            `[bounds[k], bounds[k + 1])`. `(1,)` where there is nothing. Not to be written to.
        window_blocks: Blocks in a window, at least 1; an epoch's last window may have fewer.
        seed: An integer in `[0, 2**32)`.
        elements: Which offset stands at each place; None where places are offsets.
    """

    bounds: IntArray
    window_blocks: int
    seed: int
    elements: OffsetsByPlace | None = None
    digest: str = dataclasses.field(init=False)
    """16 hex digits of a hash over the bounds and the token of the elements."""
    _name: tuple[int, ...] = dataclasses.field(init=False)
    _stretch_windows: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        whole = hashlib.sha256(self.bounds.astype("<i8").tobytes())
        if self.elements is not None:
            whole.update(self.elements.token.encode())
        digest = whole.hexdigest()[:16]
        window_blocks = max(1, min(self.window_blocks, len(self.bounds) - 1))
        largest = most_in_window(self.bounds, window_blocks)
        windows = min(_FEW, _STRETCH_ELEMENTS // largest) if 0 < largest <= _FEW else 1
        object.__setattr__(self, "window_blocks", window_blocks)
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "_name", (int(digest, 16), window_blocks, self.seed))
        object.__setattr__(self, "_stretch_windows", windows)

    def at(self, epochs: IntArray, offsets: IntArray) -> IntArray:
        """Return the offset in the parent for each of `offsets`.

        Args:
            epochs: int64 `(n,)`; any integers that are equal to the epochs modulo 2**32.
            offsets: int64 `(n,)`, each in `[0, length)`.

        Returns:
            int64 `(n,)`, each in `[0, length)`; the caller's own.
        """
        out = np.empty(len(offsets), np.int64)
        for epoch, rows in groups(epochs):
            found = self._in_epoch(epoch % _SEEDS, offsets[rows])
            if len(found) == len(out):
                return found
            out[rows] = found
        return out

    def _in_epoch(self, epoch: int, offsets: IntArray) -> IntArray:
        starts = self._starts(epoch)
        first = int(starts.searchsorted(offsets[0], side="right")) - 1
        places = offsets - starts[first]
        end = starts[first + 1] if first + 1 < len(starts) else self.bounds[-1]
        # As unsigned numbers, offsets before the stretch are beyond it. Streams mostly need one stretch.
        if places.view(np.uint64).max() < end - starts[first]:
            return self._of_stretch(epoch, first, places)
        which = starts.searchsorted(offsets, side="right") - 1
        out = np.empty(len(offsets), np.int64)
        for number, rows in groups(which):
            out[rows] = self._of_stretch(epoch, number, offsets[rows] - starts[number])
        return out

    def _of_stretch(self, epoch: int, number: int, places: IntArray) -> IntArray:
        """The offsets in the parent at some places of a stretch of windows."""
        table = _stretches.find(*self._name, epoch, number)
        if table is None and self._may_pick(epoch, number, places):
            return self._picked(epoch, number, places)
        if table is None:
            table = self._stretch(epoch, number)
        found: IntArray = table.take(places).astype(np.int64)
        return found

    def _may_pick(self, epoch: int, number: int, places: IntArray) -> bool:
        """Whether this is the first time, for a few neighbours, and not by a stream along the stretches."""
        name = *self._name, epoch, number
        if _picked.find(*name) is not None:
            return False
        if number and _stretches.find(*self._name, epoch, number - 1) is not None:
            return False
        _picked.keep(*name, table=_NOTHING)
        starts = self._starts(epoch)
        end = starts[number + 1] if number + 1 < len(starts) else self.bounds[-1]
        return int(places.max() - places.min()) < _PICKED_SHARE * int(end - starts[number])

    def block_order(self, epoch: int) -> IntArray:
        """The blocks of an epoch in their order."""
        return self._epoch(epoch % _SEEDS)[1].astype(np.int64)

    def window_keys(self, epoch: int, windows: IntArray) -> Words:
        """The keys of the permutations of windows of an epoch, given by their numbers."""
        return folded(self._epoch_key(epoch % _SEEDS), (windows + 1).astype(np.uint64))

    def _starts(self, epoch: int) -> IntArray:
        """The offset at which each stretch of windows begins."""
        found = _epochs.find(*self._name, epoch, 0)
        return self._epoch(epoch)[0] if found is None else found

    def _epoch(self, epoch: int) -> tuple[IntArray, npt.NDArray[Any]]:
        """The begins of the stretches of an epoch, and the order of its blocks."""
        starts = _epochs.find(*self._name, epoch, 0)
        order = _epochs.find(*self._name, epoch, 1)
        if starts is None or order is None:
            key = folded(self._epoch_key(epoch), np.zeros(1, np.uint64))
            blocks = permutation(len(self.bounds) - 1, int(key[0]))
            before = np.cumsum(np.diff(self.bounds)[blocks])
            step = self.window_blocks * self._stretch_windows
            starts = np.concatenate([[0], before[step - 1 : -1 : step]])
            order = blocks.astype(np.uint32)  # there are at most MOST_BLOCKS
            _epochs.keep(*self._name, epoch, 0, table=starts)
            _epochs.keep(*self._name, epoch, 1, table=order)
        return starts, order

    def _stretch(self, epoch: int, number: int) -> npt.NDArray[Any]:
        """Make and keep the order of the windows of a stretch, end to end: offsets in the parent."""
        firsts, begins, windows, keys = self._windows_of(epoch, number)
        sizes = np.diff(begins)
        offsets = np.repeat(firsts - begins[:-1], sizes) + np.arange(begins[-1])
        if self.elements is not None:
            offsets = self.elements.at(offsets)
        if len(keys) == 1:
            places = permutation(len(offsets), int(keys[0]))
        else:
            places = permutations(np.diff(windows), keys)
            places += np.repeat(windows[:-1], np.diff(windows))
        narrow = self.bounds[-1] <= 2**32
        table = offsets.take(places).astype(np.uint32 if narrow else np.int64)
        _stretches.keep(*self._name, epoch, number, table=table)
        return table

    def _picked(self, epoch: int, number: int, places: IntArray) -> IntArray:
        """`_stretch(epoch, number).take(places)` without the order of all elements."""
        firsts, begins, windows, keys = self._windows_of(epoch, number)
        inside = np.empty(len(places), np.int64)
        for window, rows in groups(windows.searchsorted(places, side="right") - 1):
            start, stop = windows[window : window + 2].tolist()
            inside[rows] = picked(stop - start, int(keys[window]), places[rows] - start) + start
        block = begins.searchsorted(inside, side="right") - 1
        offsets: IntArray = inside + (firsts - begins[:-1])[block]
        return offsets if self.elements is None else self.elements.at(offsets)

    def _windows_of(self, epoch: int, number: int) -> tuple[IntArray, IntArray, IntArray, Words]:
        """The windows of a stretch.

        Returns:
            The first place of each block, the bounds of blocks and of windows in the stretch, and the
            key of each window.
        """
        _, order = self._epoch(epoch)
        step = self.window_blocks * self._stretch_windows
        blocks = order[number * step : (number + 1) * step].astype(np.int64)
        firsts = self.bounds[blocks]
        begins = np.zeros(len(blocks) + 1, np.int64)
        np.cumsum(self.bounds[blocks + 1] - firsts, out=begins[1:])
        windows = np.append(begins[: -1 : self.window_blocks], begins[-1])
        numbers = np.arange(len(windows) - 1) + (number * self._stretch_windows + 1)
        return firsts, begins, windows, folded(self._epoch_key(epoch), numbers.astype(np.uint64))

    def _epoch_key(self, epoch: int) -> Words:
        seed = folded(np.zeros(1, np.uint64), np.array([self.seed], np.uint64))
        return folded(seed, np.array([epoch], np.uint64))


def most_in_window(bounds: IntArray, window_blocks: int) -> int:
    """The most elements that a window can have, whichever blocks are in it."""
    if len(bounds) < 2:
        return 0
    return min(int(bounds[-1]), int(np.diff(bounds).max()) * window_blocks)
