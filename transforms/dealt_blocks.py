"""The order of a block shuffle whose blocks are dealt to lanes.

The shuffled list of an epoch's blocks is dealt as cards are: lane `l` of `L` gets the blocks at places
`l, l + L, ...`. Each lane shuffles windows of consecutive blocks of its own. In the order of the epoch
the elements of lane 0 come first, then the elements of lane 1, and so on.

Invariant: over one epoch each offset comes exactly once, and no block is in two lanes. With one lane it
is the order of `windrow.transforms.blocks`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.sources.base import IntArray
from windrow.transforms.blocks import BlockOrder, permutation, permutations
from windrow.transforms.orders import OrderTables, groups

T = TypeVar("T")

# Windows that `permutations` orders in one call, and the most elements of such a window.
_TOGETHER: Final = 4096
_EPOCHS: Final = 2**32
# All lanes' windows together have about as many elements as a window without lanes.
_windows = OrderTables(64 * 2**20, least=8)
# Epochs that are kept; lanes are in one, or in two when some are ahead, and the first is asked for.
_EPOCHS_KEPT: Final = 4


class _Epoch(NamedTuple):
    """One epoch: its blocks, dealt; and its windows, lane after lane."""

    blocks: IntArray  # lane after lane
    lane_starts: IntArray  # (lanes + 1,), offsets
    window_blocks: IntArray  # (windows + 1,), places in `blocks`
    window_starts: IntArray  # (windows + 1,), offsets
    window_numbers: IntArray  # (windows,), which are the same for any shard


class _Joined(NamedTuple):
    """Windows end to end, as lanes take elements of many windows at a time."""

    numbers: IntArray  # (windows,), ascending
    shifts: IntArray  # (windows,), of the place in `table` from the offset in the epoch
    table: npt.NDArray[Any]  # offsets in the parent


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DealtOrder:
    """The order of a block shuffle in lanes, at any offsets of any epochs.

    Window `w` of lane `l` has the key that `BlockOrder` gives window `w * L + l`.

    Args:
        whole: The bounds, seed and order of blocks.
        window_blocks: Blocks in a window of a lane, at least 1.
        lanes: Number of lanes, at least 2 and at most the number of blocks.
    """

    whole: BlockOrder
    window_blocks: int
    lanes: int
    _kept: dict[int, _Epoch] = dataclasses.field(init=False, default_factory=dict, repr=False)
    # The windows that were asked for last in each epoch.
    _last: dict[int, _Joined] = dataclasses.field(init=False, default_factory=dict, repr=False)

    @property
    def bounds(self) -> IntArray:
        """The bounds of blocks: see `BlockOrder`."""
        return self.whole.bounds

    @property
    def digest(self) -> str:
        """Names the blocks: see `BlockOrder`."""
        return self.whole.digest

    @property
    def _name(self) -> tuple[int, ...]:
        return int(self.digest, 16), self.window_blocks, self.lanes, self.whole.seed

    def lane_starts(self, epoch: int) -> IntArray:
        """The offset at which each lane begins, and the length: int64 `(lanes + 1,)`."""
        return self._epoch(epoch % _EPOCHS).lane_starts

    def at(self, epochs: IntArray, offsets: IntArray) -> IntArray:
        """Return the offset in the parent for each of `offsets`: see `BlockOrder.at`."""
        out = np.empty(len(offsets), np.int64)
        for epoch, rows in groups(epochs):
            out[rows] = self._in_epoch(epoch % _EPOCHS, offsets[rows])
        return out

    def _in_epoch(self, epoch: int, offsets: IntArray) -> IntArray:
        found = self._epoch(epoch)
        which = found.window_starts.searchsorted(offsets, side="right") - 1
        windows = self._last.get(epoch)
        places = np.zeros(0, np.int64) if windows is None else windows.numbers.searchsorted(which)
        if windows is None or not np.array_equal(windows.numbers.take(places, mode="clip"), which):
            windows = self._joined(epoch, found, np.unique(which))
            places = windows.numbers.searchsorted(which)
            if len(windows.numbers) <= 2 * self.lanes:
                _keep(self._last, epoch, windows)
        out: IntArray = windows.table.take(offsets + windows.shifts[places])
        return out

    def _joined(self, epoch: int, found: _Epoch, numbers: IntArray) -> _Joined:
        parts = self._tables(epoch, found, numbers.tolist())
        begins = np.cumsum([0, *map(len, parts)])[:-1]
        table = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return _Joined(numbers, begins - found.window_starts[numbers], table)

    def __reduce__(self) -> tuple[Any, ...]:
        return DealtOrder, (self.whole, self.window_blocks, self.lanes)

    def _epoch(self, epoch: int) -> _Epoch:
        found = self._kept.get(epoch)
        if found is None:
            found = self._dealt(epoch)
        _keep(self._kept, epoch, found)  # as the one that was asked for last
        return found

    def _dealt(self, epoch: int) -> _Epoch:
        order, lanes = self.whole.block_order(epoch), range(self.lanes)
        dealt = [order[lane :: self.lanes] for lane in lanes]
        blocks = np.concatenate(dealt)
        ends = np.concatenate([[0], np.cumsum(np.diff(self.bounds)[blocks])])
        firsts = np.cumsum([0, *map(len, dealt)])
        starts = [np.arange(0, len(own), self.window_blocks) for own in dealt]
        windows = np.concatenate([firsts[lane] + starts[lane] for lane in lanes])
        windows = np.append(windows, len(blocks))
        numbers = [np.arange(len(starts[lane])) * self.lanes + lane for lane in lanes]
        return _Epoch(blocks, ends[firsts], windows, ends[windows], np.concatenate(numbers))

    def _tables(self, epoch: int, found: _Epoch, windows: list[int]) -> list[npt.NDArray[Any]]:
        """The offsets in the parent of the elements of some windows, in their order."""
        held = {number: _windows.find(*self._name, epoch, number) for number in windows}
        missing = [number for number, table in held.items() if table is None]
        for number, made in zip(missing, self._made(epoch, found, missing), strict=True):
            held[number] = made
            _windows.keep(*self._name, epoch, number, table=made)
        return [table for number in windows if (table := held[number]) is not None]

    def _made(self, epoch: int, found: _Epoch, windows: list[int]) -> list[npt.NDArray[Any]]:
        keys = self.whole.window_keys(epoch, found.window_numbers[windows])
        sizes = np.diff(found.window_starts)[windows]
        made: list[npt.NDArray[Any]] = []
        small = bool(len(windows)) and int(sizes.max()) <= _TOGETHER
        for start in range(0, len(windows), _TOGETHER):
            stop = start + _TOGETHER
            if small:
                places = permutations(sizes[start:stop], keys[start:stop])
                cuts = np.cumsum(sizes[start:stop])[:-1]
                some = np.split(places, cuts)
            else:
                pairs = zip(sizes[start:stop].tolist(), keys[start:stop].tolist(), strict=True)
                some = [permutation(size, key) for size, key in pairs]
            made += [
                self._offsets(found, number).take(places)
                for number, places in zip(windows[start:stop], some, strict=True)
            ]
        return made

    def _offsets(self, found: _Epoch, window: int) -> npt.NDArray[Any]:
        """The offsets in the parent of the elements of a window's blocks, end to end."""
        first, stop = found.window_blocks[window : window + 2].tolist()
        blocks = found.blocks[first:stop]
        firsts = self.bounds[blocks]
        sizes = self.bounds[blocks + 1] - firsts
        begins = np.cumsum(sizes) - sizes
        offsets = np.repeat(firsts - begins, sizes) + np.arange(sizes.sum())
        if self.whole.elements is not None:
            offsets = self.whole.elements.at(offsets)
        return offsets.astype(np.uint32 if self.bounds[-1] <= 2**32 else np.int64)


def _keep(kept: dict[int, T], epoch: int, found: T) -> None:
    """Keep something of an epoch, in place of what was kept first."""
    kept.pop(epoch, None)
    while len(kept) >= _EPOCHS_KEPT:
        kept.pop(next(iter(kept), -1), None)
    kept[epoch] = found
