"""The meaning of a stream: a generator for each lane, and a batch of the next rows of all lanes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.model import base
from tests.model.base import BAD, Dataset, Item
from tests.model.trees import UnsureError, part_of, put_together, rows_of
from windrow.errors import ElementError, PlanError

Run = Callable[[int, bool], Iterator[Item]]  # of a lane, and whether bad elements are left out


class IterDataset(Dataset):
    """A stream of lanes."""

    def __init__(self, lanes: int, run: Run, *parents: Any) -> None:
        self.lanes, self.run, self.parents = lanes, run, parents

    def merged(self, skip: bool = False) -> Iterator[tuple[int, Item]]:
        """The elements with their lanes: of each lane in turn, without lanes that have ended."""
        running = {lane: self.run(lane, skip) for lane in range(self.lanes)}
        while running:
            for lane in list(running):
                item = next(running[lane], None)
                if item is None:
                    del running[lane]
                else:
                    yield lane, item

    def items(self) -> Iterator[Item]:
        return (item for _, item in self.merged())

    def __iter__(self) -> Iterator[Any]:
        return (item.value for item in self.items())

    def _same(self) -> IterDataset:
        return IterDataset(self.lanes, self.run, self)

    cache = mp_prefetch = Dataset.unchanged

    def on_bad(self, action: str) -> IterDataset:
        return IterDataset(self.lanes, lambda lane, _: self.run(lane, action == "skip"), self)

    # Elements of each element.

    def _made(self, function: Callable[[int, Any], Sequence[Any]]) -> IterDataset:
        """The elements that a function makes of the number of an element in the stream, and itself."""

        def run(lane: int, skip: bool) -> Iterator[Item]:
            number = lane
            for item in self.run(lane, skip):
                try:
                    made = function(number, item.value)
                except BAD:
                    if not skip:
                        raise
                    continue
                number += self.lanes
                yield from (item.having(value) for value in made)

        return IterDataset(self.lanes, run, self)

    def _mapped(self, function: Callable[[int, Any], Any]) -> IterDataset:
        return self._made(lambda number, x: [None if x is None else function(number, x)])

    def filter(self, function: Any) -> IterDataset:
        return self._made(lambda _, x: [x] if function(x) else [])

    def flat_map(self, function: Any) -> IterDataset:
        return self._made(lambda _, x: [] if x is None else list(function(x)))

    # Order and length.

    def limit(self, count: int) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            return (x for owner, x in itertools.islice(self.merged(skip), count) if owner == lane)

        return IterDataset(self.lanes, run, self)

    def repeat(self, num_epochs: int | None = None) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            for _ in range(num_epochs) if num_epochs else itertools.count():
                is_empty = True
                for item in self.run(lane, skip):
                    is_empty = False
                    yield item
                if is_empty and num_epochs is None:
                    raise PlanError("nothing to repeat")

        return IterDataset(self.lanes, run, self)

    def window_shuffle(self, size: int, seed: int) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            items = self.run(lane, skip)
            for window in itertools.count(lane, self.lanes):
                held = list(itertools.islice(items, size))
                if not held:
                    return
                yield from (held[i] for i in base.stream_window(window, len(held), size, seed))

        return IterDataset(self.lanes, run, self)

    # Regrouping.

    def batch(self, size: int, **options: Any) -> IterDataset:
        each = self._of_each_lane(size)

        def run(_: int, skip: bool) -> Iterator[Item]:
            running = [self.run(lane, skip) for lane in range(self.lanes)]
            while True:
                slots: list[Item | None] = []
                for lane in running:
                    found = list(itertools.islice(lane, each))
                    slots += [*found, *[None] * (each - len(found))]
                if not any(slots) or (base.end_of(**options) == "drop" and not all(slots)):
                    return
                yield base.batch_of(slots, **options)

        return IterDataset(1, run, self)

    def _of_each_lane(self, size: int) -> int:
        if size % self.lanes:
            raise PlanError("lanes divide it")
        return size // self.lanes

    def rebatch(self, size: int, *, drop_remainder: bool = False) -> IterDataset:
        each = self._of_each_lane(size)

        def run(_: int, skip: bool) -> Iterator[Item]:
            running = [single_rows(self.run(lane, skip)) for lane in range(self.lanes)]
            while True:
                held = [row for lane in running for row in itertools.islice(lane, each)]
                if not held or (drop_remainder and len(held) < size):
                    return
                records = [row.records for row in held]
                yield base.item_of(put_together([row.value for row in held]), records)

        return IterDataset(1, run, self)

    def pack(self, cells: Any, method: str, num_packing_bins: int = 0, **_: Any) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            pack = fitted if method == "first_fit" else cut
            return pack(self.run(lane, skip), cells["x"], num_packing_bins)

        return IterDataset(self.lanes, run, self)

    # Several streams.

    @staticmethod
    def _several(parts: Sequence[IterDataset], run: Run) -> IterDataset:
        if len({part.lanes for part in parts}) != 1:
            raise PlanError("as many lanes")
        return IterDataset(parts[0].lanes, run, *parts)

    @staticmethod
    def zip(datasets: Sequence[IterDataset], *, strict: bool = True) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            running = [part.run(lane, skip) for part in datasets]
            while True:
                found = [next(each, None) for each in running]
                here = [item for item in found if item is not None]
                if len(here) < len(found):
                    if here and strict:
                        raise ElementError("one stream ends before another")
                    return
                yield base.tied(here)

        return IterDataset._several(datasets, run)

    @staticmethod
    def mix(
        datasets: Any, weights: Any = None, *, by: str = "elements", at_end: str = "stop"
    ) -> IterDataset:
        if isinstance(datasets, dict):
            weights = [weights[name] for name in datasets]
            datasets = list(datasets.values())
        if by == "tokens":
            raise UnsureError("the product counts tokens")
        shares = base.whole(weights, len(datasets))

        def run(lane: int, skip: bool) -> Iterator[Item]:
            running = [part.run(lane, skip) for part in datasets]
            for step in itertools.count():
                place, _ = base.choice(shares, step)
                item = next(running[place], None)
                if item is None and at_end == "repeat":
                    running[place] = datasets[place].run(lane, skip)
                    item = next(running[place], None)
                    if item is None:
                        raise PlanError("nothing to repeat")
                if item is None and at_end == "drop":  # of two
                    running[place] = running[1 - place]
                    item = next(running[place], None)
                if item is None:
                    return
                yield item

        return IterDataset._several(datasets, run)

    @staticmethod
    def interleave(datasets: Sequence[IterDataset], cycle_length: int) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            waiting = [part.run(lane, skip) for part in datasets]
            places, waiting = waiting[:cycle_length], waiting[cycle_length:]
            while places:
                for place in list(places):
                    item = next(place, None)
                    if item is not None:
                        yield item
                    elif waiting:  # the next one begins when the turn comes again
                        places[places.index(place)] = waiting.pop(0)
                    else:
                        places.remove(place)

        return IterDataset._several(datasets, run)


def single_rows(items: Iterator[Item]) -> Iterator[Item]:
    """The rows of batches, each as a batch of one."""
    for item in items:
        n = 0 if item.value is None else rows_of(item.value)
        if n is None:
            raise ElementError("not a batch")
        yield from (Item(part_of(item.value, slice(i, i + 1)), item.row(i, n)) for i in range(n))


Piece = tuple[Item, Any]  # of a packed row, which has the feature "x"


def sequence(item: Item) -> Any:
    if not isinstance(item.value, dict) or "x" not in item.value:
        raise ElementError("no feature 'x'")
    try:
        found = np.atleast_1d(item.value["x"])
    except ValueError as error:
        raise ElementError("no array") from error
    if found.dtype.kind not in "biufc":
        raise UnsureError("strings and objects in packed rows")
    return found


def row_of(pieces: Sequence[Piece], cells: int) -> Item:
    """A row of pieces, and zeros after them."""
    used = put_together([piece for _, piece in pieces])
    lengths = [len(piece) for _, piece in pieces]
    rest = cells - len(used)
    row = np.pad(used, [(0, rest), *[(0, 0)] * (used.ndim - 1)])
    ids = np.pad(np.repeat(np.arange(len(pieces)) + 1, lengths), (0, rest)).astype(np.int32)
    positions = np.pad(np.concatenate([*map(np.arange, lengths)]), (0, rest)).astype(np.int32)
    records = tuple(itertools.chain(*(item.records for item, _ in pieces)))
    return base.item_of({"x": row, "x_segment_ids": ids, "x_positions": positions}, [records])


def fitted(items: Iterator[Item], cells: int, bins: int) -> Iterator[Item]:
    """Each sequence goes into the first of the open rows that has room; none closes all."""
    rows: list[list[Piece]] = [[] for _ in range(bins)]

    def closed() -> Iterator[Item]:
        dtype = np.result_type(*(piece.dtype for row in rows for _, piece in row), np.bool_)
        return (row_of([(i, p.astype(dtype)) for i, p in row], cells) for row in rows if row)

    for item in items:
        piece = sequence(item)
        if len(piece) > cells:
            raise ElementError("longer than a row")
        fits = [r for r in rows if sum(len(s) for _, s in r) + len(piece) <= cells]
        if not fits:
            yield from closed()
            fits = rows = [[] for _ in range(bins)]
        fits[0].append((item, piece))
    yield from closed()


def cut(items: Iterator[Item], cells: int, _: int) -> Iterator[Item]:
    """Sequences end to end, cut where a row is full; one without items goes into a full row, too."""
    row: list[Piece] = []
    room = cells
    for item in items:
        rest = sequence(item)
        if len(item.value) > 1:
            raise ElementError("another feature")
        while len(rest) > room:
            if room:
                row.append((item, rest[:room]))
            yield row_of(row, cells)
            rest, row, room = rest[room:], [], cells
        row.append((item, rest))
        room -= len(rest)
    if row:
        yield row_of(row, cells)
