"""The meaning of a stream: a generator for each lane, and a batch of the next rows of all lanes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.model import orders
from tests.model.base import (
    BAD,
    Dataset,
    Item,
    batching,
    called,
    choices,
    remainder_of,
)
from tests.model.trees import UnsureError, part_of, put_together, rows_of, tokens_of
from windrow.errors import ElementError, PlanError

Run = Callable[[int, bool], Iterator[Item]]  # of a lane, and whether bad elements are left out


class IterDataset(Dataset):
    """A stream. `whole` says that an element is a batch of rows of all lanes."""

    def __init__(self, lanes: int, run: Run, *parents: Any, whole: bool = False) -> None:
        self.lanes, self.run, self.parents, self.whole = lanes, run, parents, whole

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

    def _then(self, run: Run, **changes: Any) -> IterDataset:
        return IterDataset(self.lanes, run, self, **changes)

    # One element for each, or none.

    def _mapped(self, function: Callable[[int, Any], Any]) -> IterDataset:
        """`function` of the number of an element in the stream, and the element."""

        def run(lane: int, skip: bool) -> Iterator[Item]:
            number = lane
            for item in self.run(lane, skip):
                try:
                    made = item
                    if item.value is not None:
                        made = item.having(function(number, item.value))
                except BAD:
                    if not skip:
                        raise
                    continue
                number += self.lanes
                yield made

        return self._then(run)

    def map(self, function: Any, *, batched: bool = False) -> IterDataset:
        call = called(function, batched=batched)
        return self._mapped(lambda _, x: call(x))

    def map_with_index(self, function: Any) -> IterDataset:
        return self._mapped(function)

    def random_map(
        self, function: Any, *, seed: int | None = None, batched: bool = False
    ) -> IterDataset:
        number, call = self.seed_for("random_map", seed), called(function, batched=batched)
        return self._mapped(lambda i, x: call(x, orders.generator(number, i)))

    def filter(self, function: Any) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            for item in self.run(lane, skip):
                try:
                    if function(item.value):
                        yield item
                except BAD:
                    if not skip:
                        raise

        return self._then(run)

    def flat_map(self, function: Any) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            for item in self.run(lane, skip):
                try:
                    made = [] if item.value is None else list(function(item.value))
                except BAD:
                    if not skip:
                        raise
                    continue
                yield from (item.having(value) for value in made)

        return self._then(run)

    def seed(self, seed: int) -> IterDataset:
        found = self._then(self.run)
        found.own_seed = seed
        return found

    def on_bad(self, action: str) -> IterDataset:
        if action == "replace":
            raise PlanError("on_bad: replace needs random access")
        return self._then(lambda lane, _: self.run(lane, action == "skip"))

    def cache(self) -> IterDataset:
        return self._then(self.run)

    def mp_prefetch(self, workers: int) -> IterDataset:
        return self._then(self.run)

    def shard(self, index: int, count: int) -> IterDataset:
        if (index, count) != (0, 1):
            raise UnsureError("shards are compared with the whole")
        return self._then(self.run)

    # Order and length.

    def limit(self, count: int) -> IterDataset:
        if count < 1:
            raise PlanError("limit")

        def run(lane: int, skip: bool) -> Iterator[Item]:
            for owner, item in itertools.islice(self.merged(skip), count):
                if owner == lane:
                    yield item

        return self._then(run)

    def repeat(self, num_epochs: int | None = None) -> IterDataset:
        if num_epochs is not None and num_epochs < 1:
            raise PlanError("repeat")

        def run(lane: int, skip: bool) -> Iterator[Item]:
            for _ in range(num_epochs) if num_epochs else itertools.count():
                is_empty = True
                for item in self.run(lane, skip):
                    is_empty = False
                    yield item
                if is_empty and num_epochs is None:
                    raise PlanError("repeat: nothing to repeat")

        return self._then(run)

    def window_shuffle(self, size: int, seed: int | None = None) -> IterDataset:
        number = self.seed_for("window_shuffle", seed)

        def run(lane: int, skip: bool) -> Iterator[Item]:
            items = self.run(lane, skip)
            for window in itertools.count():
                held = list(itertools.islice(items, size))
                if not held:
                    return
                for i in orders.in_stream_window(
                    window * self.lanes + lane, len(held), size, number
                ):
                    yield held[i]

        return self._then(run)

    # Regrouping.

    def batch(
        self,
        size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Any = None,
        remainder: str | None = None,
        mask: str = "mask",
        pad_to: int | None = None,
        pad_value: float = 0,
    ) -> IterDataset:
        end = remainder_of(remainder, drop_remainder, size)
        if size % self.lanes:
            raise PlanError("batch: lanes divide it")
        make = batching(size, end, batch_fn, mask, pad_to, pad_value)
        each = size // self.lanes

        def run(_: int, skip: bool) -> Iterator[Item]:
            running = [self.run(lane, skip) for lane in range(self.lanes)]
            while True:
                slots: list[list[Item | None]] = [list(itertools.islice(r, each)) for r in running]
                missing = [each - len(lane) for lane in slots]
                if sum(missing) == size or (end == "drop" and any(missing)):
                    return
                yield make([[*s, *[None] * m] for s, m in zip(slots, missing, strict=True)])

        return IterDataset(1, run, self, whole=self.lanes > 1)

    def rebatch(self, size: int, *, drop_remainder: bool = False) -> IterDataset:
        if size < 1 or size % self.lanes:
            raise PlanError("rebatch")

        def run(_: int, skip: bool) -> Iterator[Item]:
            running = [single_rows(self.run(lane, skip)) for lane in range(self.lanes)]
            while True:
                found = [list(itertools.islice(r, size // self.lanes)) for r in running]
                held = [row for lane in found for row in lane]
                if not held or (drop_remainder and len(held) < size):
                    return
                yield joint(held)

        return IterDataset(1, run, self)

    def pack(self, cells: Mapping[str, int], method: str, **options: Any) -> IterDataset:
        if method == "concat_then_split":
            return self._then(lambda lane, skip: cut(self.run(lane, skip), cells["x"]))
        if method != "first_fit" or options.get("shuffle_bins", True):
            raise UnsureError("the product draws the rows")
        return self._then(
            lambda lane, skip: fitted(self.run(lane, skip), cells["x"], options["num_packing_bins"])
        )

    # Several streams.

    @staticmethod
    def _several(parts: Sequence[IterDataset]) -> int:
        if len({part.lanes for part in parts}) != 1:
            raise PlanError("as many lanes")
        return parts[0].lanes

    @staticmethod
    def zip(datasets: Sequence[IterDataset], *, strict: bool = True) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            running = [part.run(lane, skip) for part in datasets]
            while True:
                found = [next(each, None) for each in running]
                here = [item for item in found if item is not None]
                if len(here) < len(found):
                    if here and strict:
                        raise ElementError("zip: one stream ends before another")
                    return
                records = tuple(itertools.chain(*(item.records for item in here)))
                yield Item(tuple(item.value for item in here), records)

        return IterDataset(IterDataset._several(datasets), run, *datasets)

    @staticmethod
    def mix(
        datasets: Any,
        weights: Any = None,
        *,
        by: str = "elements",
        at_end: str = "stop",
    ) -> IterDataset:
        if isinstance(datasets, dict):
            weights = [weights[name] for name in datasets] if weights else None
            datasets = list(datasets.values())
        if at_end == "drop" and len(datasets) > 2:
            raise UnsureError("drop")
        lanes = IterDataset._several(datasets)

        def run(lane: int, skip: bool) -> Iterator[Item]:
            running = [part.run(lane, skip) for part in datasets]
            open_parts, tokens = set(range(len(datasets))), [0] * len(datasets)
            order = choices(weights, len(datasets), lane, lanes)
            shares = weights or [1] * len(datasets)
            for part in datasets if by == "tokens" else ():
                some = itertools.islice(part.run(lane, skip), 3)
                if len({tokens_of(item.value) for item in some}) < 2:
                    raise UnsureError("streams of one size have an order of their own")
            while open_parts:
                if by == "tokens":
                    place = min(open_parts, key=lambda i: (tokens[i] / shares[i], i))
                else:
                    place = next(order)[0]
                    place = place if place in open_parts else min(open_parts)
                item = next(running[place], None)
                if item is None and at_end == "repeat":
                    running[place] = datasets[place].run(lane, skip)
                    item = next(running[place], None)
                    if item is None:
                        raise PlanError("mix: nothing to repeat")
                if item is None and at_end == "drop":
                    open_parts.remove(place)
                    if not open_parts:
                        return
                    if by == "tokens":
                        continue
                    item = next(running[min(open_parts)], None)
                if item is None:
                    return
                tokens[place] += tokens_of(item.value) if by == "tokens" else 0
                yield item

        return IterDataset(lanes, run, *datasets)

    @staticmethod
    def interleave(datasets: Sequence[IterDataset], cycle_length: int) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            waiting = iter([part.run(lane, skip) for part in datasets])
            places: list[Iterator[Item] | None] = list(itertools.islice(waiting, cycle_length))
            while any(place is not None for place in places):
                for i, place in enumerate(places):
                    item = None if place is None else next(place, None)
                    # Where one has ended, the next one begins when its turn comes again.
                    if item is None:
                        places[i] = next(waiting, None) if place is not None else None
                    else:
                        yield item

        return IterDataset(IterDataset._several(datasets), run, *datasets)


def single_rows(items: Iterator[Item]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The rows of batches, each as a batch of one, with their records."""
    for item in items:
        if item.value is None:
            continue
        n = rows_of(item.value)
        if n is None:
            raise ElementError("rebatch: not a batch")
        own = item.rows if item.rows and len(item.rows) == n else [item.records] * n
        yield from ((part_of(item.value, slice(i, i + 1)), own[i]) for i in range(n))


def joint(held: Sequence[tuple[Any, tuple[Any, ...]]]) -> Item:
    rows = tuple(records for _, records in held)
    value = put_together([value for value, _ in held])
    return Item(value, tuple(itertools.chain(*rows)), rows)


# --- packed streams, of the feature "x" ----------------------------------------------------------


def sequences(items: Iterator[Item], cells: int | None) -> Iterator[tuple[Item, Any]]:
    for item in items:
        if not isinstance(item.value, dict) or "x" not in item.value:
            raise ElementError("pack: no feature 'x'")
        sequence = np.atleast_1d(item.value["x"])
        if cells is None and len(item.value) > 1:
            raise ElementError("pack: another feature")
        if cells is not None and len(sequence) > cells:
            raise ElementError("pack: longer than a row")
        yield item, sequence


def row_of(pieces: Sequence[tuple[Item, Any]], cells: int) -> Item:
    """A row of pieces, and zeros after them."""
    first = pieces[0][1]
    row = np.zeros((cells, *first.shape[1:]), first.dtype)
    ids, positions = np.zeros(cells, np.int32), np.zeros(cells, np.int32)
    start = 0
    for number, (_, piece) in enumerate(pieces, 1):
        part = slice(start, start + len(piece))
        row[part], ids[part], positions[part] = piece, number, np.arange(len(piece))
        start += len(piece)
    records = tuple(itertools.chain(*(item.records for item, _ in pieces)))
    return Item({"x": row, "x_segment_ids": ids, "x_positions": positions}, records, (records,))


def fitted(items: Iterator[Item], cells: int, bins: int) -> Iterator[Item]:
    """Each sequence goes into the first of the open rows that has room; none closes all."""
    rows: list[list[tuple[Item, Any]]] = [[] for _ in range(bins)]
    for item, sequence in sequences(items, cells):
        fits = [r for r in rows if sum(len(s) for _, s in r) + len(sequence) <= cells]
        if not fits:
            yield from (row_of(row, cells) for row in rows)
            rows = [[] for _ in range(bins)]
            fits = rows
        fits[0].append((item, sequence))
    yield from (row_of(row, cells) for row in rows if row)


def cut(items: Iterator[Item], cells: int) -> Iterator[Item]:
    """Sequences end to end, cut where a row is full."""
    row: list[tuple[Item, Any]] = []
    room = cells
    for item, sequence in sequences(items, None):
        is_new = True  # a sequence without items has a number, and no cells
        while is_new or len(sequence):
            piece, sequence, is_new = sequence[:room], sequence[room:], False
            row.append((item, piece))
            room -= len(piece)
            if not room:
                yield row_of(row, cells)
                row, room = [], cells
    if row:
        yield row_of(row, cells)
