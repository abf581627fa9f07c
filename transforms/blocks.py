"""Orders of a block shuffle: whole blocks permuted over an epoch, then elements inside windows.

Blocks part the elements of a dataset. An epoch takes them in a random order; each `window_blocks`
of them in a row are a window, and all elements of a window come in a random order of their own. So
a reader that reads a window's blocks when the window begins reads each block once in an epoch.

With lanes, the shuffled list of an epoch's blocks is dealt as cards are: lane `l` of `L` gets the blocks at
places `l, l + L, ...`, and has windows of its own. In the order of the epoch the elements of lane 0 come
first, then the elements of lane 1, and so on.

Invariant: over one epoch each offset comes exactly once, whatever the sizes of the blocks, and no block is
in two lanes. An order is a function of bounds, elements, window, seed, lanes and epoch alone, written down
here to the last bit (see `permutation`), and stays as it is for ever.

How: the order of a stretch, some windows of a lane, is made at once and kept, in a store bounded in bytes.
One window alone costs some 50 us however small it is.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.sources.base import IntArray
from windrow.transforms.orders import OrderTables, groups
from windrow.transforms.positions import run_numbers, starts_of

Words = npt.NDArray[np.uint64]

# With more than these, a table and the space to sort it exceed a laptop's memory.
MOST_BLOCKS: Final = 2**28
MOST_IN_WINDOW: Final = 2**28

_SEEDS: Final = 2**32
GAMMA: Final = 0x9E3779B97F4A7C15
# Keys of up to this many items leave 12 bits free, so that one sort can order many windows.
_FEW_BITS: Final = 12
_FEW: Final = 1 << _FEW_BITS
# Elements of a stretch of each lane, together.
_STRETCH_ELEMENTS: Final = 16_384
# Enough for the current epochs and windows of several chains, however large they are.
_LEAST_TABLES: Final = 8
_epochs = OrderTables[npt.NDArray[Any]](32 * 2**20, least=_LEAST_TABLES)
_stretches = OrderTables[npt.NDArray[Any]](64 * 2**20, least=_LEAST_TABLES)


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
    numbers = np.arange(1, size + 1, dtype=np.uint64)
    numbers *= np.uint64(GAMMA)
    numbers += np.uint64(key)
    mixed(numbers)
    mask = np.uint64((1 << (size - 1).bit_length()) - 1)
    numbers &= ~mask
    numbers |= np.arange(size, dtype=np.uint64)
    numbers.sort()
    numbers &= mask
    return numbers.view(np.int64)


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


class Elements(abc.ABC):
    """Which element stands at each place."""

    @property
    @abc.abstractmethod
    def token(self) -> str:
        """Identifies the permutation, the same in every process and release."""

    @abc.abstractmethod
    def at(self, places: IntArray) -> IntArray:
        """The elements at `places`; int64 `(n,)`, both in `[0, length)`.

        Raises:
            PlanError: If a source's own function gives something else.
        """


class _Joined(NamedTuple):
    """Stretches end to end, as lanes take elements of many at a time."""

    numbers: IntArray  # (stretches,), ascending
    shifts: IntArray  # (stretches,), of the place in `table` from the offset in the epoch
    table: npt.NDArray[Any]  # offsets in the parent


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BlockOrder:
    """The order of a block shuffle, at any offsets of any epochs.

    The key of epoch `e` is `folded(folded(0, seed), e modulo 2**32)`. Folded with 0 it is the key
    for the permutation of the blocks; folded with `w * L + l + 1` it is the key for the permutation of window
    `w` of lane `l` of `L`, whose items are the elements of the window's blocks, end to end.

    Args:
        bounds: int64 `(blocks + 1,)`, from 0 to the length, increasing: block `k` is the places
            `[bounds[k], bounds[k + 1])`. `(1,)` where there is nothing. Not to be written to.
        window_blocks: Blocks in a window, at least 1; a lane's last window may have fewer.
        seed: An integer in `[0, 2**32)`.
        elements: Which offset stands at each place; None where places are offsets.
        lanes: Number of lanes, at most the number of blocks; 1 where blocks are not dealt.
    """

    bounds: IntArray
    window_blocks: int
    seed: int
    elements: Elements | None = None
    lanes: int = 1
    digest: str = dataclasses.field(init=False)
    """16 hex digits of a hash over the bounds and the token of the elements."""
    _name: tuple[int, ...] = dataclasses.field(init=False)
    _stretch_windows: int = dataclasses.field(init=False)
    _cuts: IntArray = dataclasses.field(init=False)
    """Where stretches begin in the list of blocks, lane after lane; and the number of blocks."""
    _firsts: IntArray = dataclasses.field(init=False)
    """The first stretch of each lane, and the number of stretches."""
    _last: dict[int, _Joined] = dataclasses.field(init=False, default_factory=dict, repr=False)
    """The stretches that were asked for last in an epoch."""

    def __post_init__(self) -> None:
        whole = hashlib.sha256(self.bounds.astype("<i8").tobytes())
        if self.elements is not None:
            whole.update(self.elements.token.encode())
        digest, blocks = whole.hexdigest()[:16], len(self.bounds) - 1
        window_blocks = max(1, min(self.window_blocks, blocks))
        largest = most_in_window(self.bounds, window_blocks)
        room = max(_STRETCH_ELEMENTS // self.lanes, _FEW)
        together = room // largest if 0 < largest <= _FEW else 1
        windows = max(1, min(_FEW, together))
        in_lane = (blocks - np.arange(self.lanes) - 1) // self.lanes + 1
        stretches = -(-in_lane // (window_blocks * windows))
        starts = run_numbers(stretches, starts_of(in_lane), window_blocks * windows)
        object.__setattr__(self, "window_blocks", window_blocks)
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "_name", (int(digest, 16), window_blocks, self.seed, self.lanes))
        object.__setattr__(self, "_stretch_windows", windows)
        object.__setattr__(self, "_cuts", np.append(starts, blocks))
        object.__setattr__(self, "_firsts", np.cumsum([0, *stretches.tolist()]))

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

    def lane_starts(self, epoch: int) -> IntArray:
        """The offset at which each lane begins, and the length: int64 `(lanes + 1,)`."""
        found: IntArray = self._starts(epoch % _SEEDS)[self._firsts]
        return found

    def _in_epoch(self, epoch: int, offsets: IntArray) -> IntArray:
        starts = self._starts(epoch)
        first = int(starts.searchsorted(offsets[0], side="right")) - 1
        places = offsets - starts[first]
        # As unsigned numbers, offsets before the stretch are beyond it. Streams mostly need one stretch.
        if places.view(np.uint64).max() < starts[first + 1] - starts[first]:
            whole: IntArray = self._stretch(epoch, first).take(places).astype(np.int64)
            return whole
        which = starts.searchsorted(offsets, side="right") - 1
        if self.lanes == 1:
            return self._of_each(epoch, which, offsets - starts[which])
        joined = self._last.get(epoch)
        at = np.zeros(0, np.int64) if joined is None else joined.numbers.searchsorted(which)
        if joined is None or not np.array_equal(joined.numbers.take(at, mode="clip"), which):
            numbers = np.unique(which)
            if len(numbers) > 2 * self.lanes:
                return self._of_each(epoch, which, offsets - starts[which])
            joined = self._joined(epoch, numbers)
            at = numbers.searchsorted(which)
        found: IntArray = joined.table.take(offsets + joined.shifts[at]).astype(np.int64)
        return found

    def _of_each(self, epoch: int, stretches: IntArray, places: IntArray) -> IntArray:
        """The offsets at some places of some stretches, one stretch after the other."""
        out = np.empty(len(places), np.int64)
        for number, rows in groups(stretches):
            out[rows] = self._stretch(epoch, number).take(places[rows])
        return out

    def _joined(self, epoch: int, numbers: IntArray) -> _Joined:
        """Stretches end to end, which are kept in place of earlier ones."""
        tables = [self._stretch(epoch, number) for number in numbers.tolist()]
        begins = np.cumsum([0, *map(len, tables[:-1])])
        joined = _Joined(numbers, begins - self._starts(epoch)[numbers], np.concatenate(tables))
        while len(self._last) > 1:  # lanes are in one epoch, or in two when some are ahead
            self._last.pop(next(iter(self._last), -1), None)
        self._last[epoch] = joined
        return joined

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockOrder, (self.bounds, self.window_blocks, self.seed, self.elements, self.lanes)

    def _starts(self, epoch: int) -> IntArray:
        """The offset at which each stretch begins, and the length."""
        found = _epochs.find(*self._name, epoch, 0)
        return self._epoch(epoch)[0] if found is None else found

    def _epoch(self, epoch: int) -> tuple[IntArray, npt.NDArray[Any]]:
        """The begins of the stretches of an epoch, and its blocks, lane after lane."""
        starts = _epochs.find(*self._name, epoch, 0)
        order = _epochs.find(*self._name, epoch, 1)
        if starts is None or order is None:
            key = folded(self._epoch_key(epoch), np.zeros(1, np.uint64))
            blocks = permutation(len(self.bounds) - 1, int(key[0]))
            if self.lanes > 1:
                blocks = np.concatenate([blocks[lane :: self.lanes] for lane in range(self.lanes)])
            ends = np.append(0, np.cumsum(np.diff(self.bounds)[blocks]))
            starts = ends[self._cuts]
            order = blocks.astype(np.uint32)  # there are at most MOST_BLOCKS
            _epochs.keep(*self._name, epoch, 0, table=starts)
            _epochs.keep(*self._name, epoch, 1, table=order)
        return starts, order

    def _stretch(self, epoch: int, number: int) -> npt.NDArray[Any]:
        """The order of the windows of a stretch, end to end: offsets in the parent."""
        table = _stretches.find(*self._name, epoch, number)
        if table is not None:
            return table
        start, stop = self._cuts[number : number + 2].tolist()
        blocks = self._epoch(epoch)[1][start:stop].astype(np.int64)
        firsts = self.bounds[blocks]
        sizes = self.bounds[blocks + 1] - firsts
        begins = np.append(0, np.cumsum(sizes))
        offsets = run_numbers(sizes, firsts)
        if self.elements is not None:
            offsets = self.elements.at(offsets)
        windows = np.append(begins[: -1 : self.window_blocks], begins[-1])
        keys = self._window_keys(epoch, number, len(windows) - 1)
        if len(keys) == 1:
            places = permutation(len(offsets), int(keys[0]))
        else:
            places = permutations(np.diff(windows), keys)
            places += np.repeat(windows[:-1], np.diff(windows))
        narrow = self.bounds[-1] <= 2**32
        table = offsets.take(places).astype(np.uint32 if narrow else np.int64)
        _stretches.keep(*self._name, epoch, number, table=table)
        return table

    def _window_keys(self, epoch: int, stretch: int, windows: int) -> Words:
        """The keys of the windows of a stretch."""
        lane = int(self._firsts.searchsorted(stretch, side="right")) - 1
        before = (stretch - int(self._firsts[lane])) * self._stretch_windows
        numbers = (np.arange(windows) + before) * self.lanes + lane + 1
        return folded(self._epoch_key(epoch), numbers.astype(np.uint64))

    def _epoch_key(self, epoch: int) -> Words:
        seed = folded(np.zeros(1, np.uint64), np.array([self.seed], np.uint64))
        return folded(seed, np.array([epoch], np.uint64))


def most_in_window(bounds: IntArray, window_blocks: int) -> int:
    """The most elements that a window can have, whichever blocks are in it."""
    if len(bounds) < 2:
        return 0
    return min(int(bounds[-1]), int(np.diff(bounds).max()) * window_blocks)
