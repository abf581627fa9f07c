"""The meaning of both datasets, as lists and generators: what docs/ says, and nothing of the engine.

A program is evaluated with `MapDataset` of this module and `IterDataset` of `tests.model.streams` in
place of Windrow's. A `MapDataset` is a function of an index. Each element comes with its records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import windrow
from tests.model import elements, orders
from tests.model.base import (
    BAD,
    ENDLESS,
    Dataset,
    Item,
    Patience,
    Schedule,
    batching,
    called,
    choice,
    choices,
    ended,
    flat,
    remainder_of,
    whole_weights,
)
from tests.model.streams import IterDataset
from tests.model.trees import UnsureError
from windrow.errors import ElementError, PlanError, RecordIndexError

# --- random access -------------------------------------------------------------------------------


class MapDataset(Dataset):
    """An endless function of an integer; `length` elements make an epoch."""

    def __init__(
        self,
        length: int,
        at: Callable[[int], Item],
        *parents: Any,
        gaps: bool | None = None,
        blocks: Sequence[Sequence[int]] | str | None = None,
        sizes: bool | None = None,
    ) -> None:
        self.length = min(length, ENDLESS)
        self._at = at
        self.parents = parents
        self.gaps = any(p.gaps for p in parents) if gaps is None else gaps
        self.blocks = blocks  # elements of each block; a str if they are unknown, None if open
        self.sizes = sizes  # whether lengths are known: True, False, or None where pages are silent
        self.epochs = max([getattr(p, "epochs", 1) for p in parents], default=1)
        self.dealt = False  # whether lanes take blocks

    def at(self, index: int) -> Item:
        if not self.length:
            raise RecordIndexError("empty")
        if abs(index) >= 2**63:
            raise UnsureError("beyond 64 bits")
        return self._at(index)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self.at(index).value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_iter_dataset())

    def _same(self, at: Callable[[int], Item], **changes: Any) -> MapDataset:
        """One element for each of this dataset's, in its place."""
        found = MapDataset(self.length, at, self, blocks=self.blocks, **changes)
        found.dealt = self.dealt
        return found

    # Where elements come from.

    @staticmethod
    def source(source: elements.Records) -> MapDataset:
        blocks: Any = "no chunks"
        if source.blocks is None and hasattr(source.source, "read"):
            blocks = None
        elif source.blocks is not None:
            blocks = [range(*pair) for pair in itertools.pairwise(source.blocks)]
        found = MapDataset._leaf(source.records, blocks=blocks, sizes=source.ragged)
        if hasattr(source.source, "read"):  # what is in memory is a source each time it is given
            found.leaf = id(source)
        return found

    @staticmethod
    def _leaf(records: Sequence[Any], **options: Any) -> MapDataset:
        n = len(records)
        found = MapDataset(n, lambda i: Item(records[i % n], ((found.leaf, i % n),)), **options)
        found.leaf = id(found)
        return found

    @staticmethod
    def range(*bounds: int) -> MapDataset:
        return MapDataset._leaf(range(*bounds), blocks="no chunks", sizes=False)

    @staticmethod
    def concatenate(datasets: Sequence[MapDataset]) -> MapDataset:
        if any(d.length == ENDLESS for d in datasets):
            raise PlanError("concatenate: endless")
        bounds = [0, *itertools.accumulate(d.length for d in datasets)]

        def at(index: int) -> Item:
            epoch, i = divmod(index, bounds[-1])
            k = max(k for k, d in enumerate(datasets) if d.length and bounds[k] <= i)
            return datasets[k].at(i - bounds[k] + epoch * datasets[k].length)

        blocks: Any = []
        for start, d in zip(bounds, datasets, strict=False):
            if isinstance(d.blocks, (str, type(None))):
                blocks = d.blocks
                break
            blocks += [[i + start for i in block] for block in d.blocks]
        sizes = False if any(d.sizes is False for d in datasets) else None
        return MapDataset(bounds[-1], at, *datasets, blocks=blocks, sizes=sizes)

    @staticmethod
    def zip(datasets: Sequence[MapDataset]) -> MapDataset:
        if len({d.length for d in datasets}) != 1:
            raise PlanError("zip: lengths")

        def at(index: int) -> Item:
            found = [d.at(index) for d in datasets]
            records = tuple(itertools.chain(*(item.records for item in found)))
            return Item(tuple(item.value for item in found), records)

        return MapDataset(datasets[0].length, at, *datasets, blocks="zip", sizes=False)

    @staticmethod
    def mix(
        datasets: Sequence[MapDataset], weights: Any = None, *, at_end: str = "stop"
    ) -> MapDataset:
        lengths = [d.length for d in datasets]
        if not all(lengths):
            raise PlanError("mix: empty")
        changing = isinstance(weights, Schedule)
        shares = None if changing else whole_weights(weights or [1] * len(datasets))
        total = min(sum(lengths), ENDLESS)
        if at_end == "stop" and shares:
            total = min(n * sum(shares) // share for n, share in zip(lengths, shares, strict=True))
        elif at_end == "stop":
            if max(lengths) == ENDLESS:
                raise UnsureError("a schedule of endless datasets")
            taken = enumerate(choices(weights, len(datasets)))
            total = next(step for step, (place, k) in taken if k >= lengths[place])
        elif at_end == "repeat":
            total = ENDLESS
        if at_end == "drop" and (ENDLESS in lengths or len(datasets) > 2):
            raise UnsureError("drop")

        def at(index: int) -> Item:
            if at_end == "drop":
                epoch, step = divmod(index, total)
                order = choices(weights, len(datasets))
                place, k = next(itertools.islice(ended(order, lengths), step, None))
                return datasets[place].at(k + epoch * lengths[place])
            if shares:
                place, k = choice(shares, index)
            elif index < 0:
                raise UnsureError("a schedule before its first step")
            else:
                place, k = next(itertools.islice(choices(weights, len(datasets)), index, None))
            return datasets[place].at(k)

        return MapDataset(total, at, *datasets, blocks="mix", sizes=None)

    @staticmethod
    def select_from_datasets(datasets: Sequence[MapDataset], selection: Any) -> MapDataset:
        if not all(d.length for d in datasets):
            raise PlanError("select: empty")

        def at(index: int) -> Item:
            place, k = selection[index]
            return datasets[int(place)].at(k)

        return MapDataset(len(selection), at, *datasets, blocks="select", sizes=None)

    # Order.

    def _reordered(
        self, order: Callable[[int], Sequence[int]], length: int, **more: Any
    ) -> MapDataset:
        """Places of this dataset's epochs, in the order that a function of the epoch gives."""

        def at(index: int) -> Item:
            epoch, i = divmod(index, length)
            return self.at(order(epoch)[i] + epoch * self.length)

        return MapDataset(length, at, self, sizes=self.sizes, **more)

    def _finite(self) -> int:
        if self.length > 10**5:
            raise UnsureError("too long for a list")
        return self.length

    def shuffle(self, seed: int | None = None) -> MapDataset:
        number, n = self.seed_for("shuffle", seed), self._finite()
        return self._reordered(lambda epoch: orders.shuffled(n, epoch, number), n, blocks="shuffle")

    def window_shuffle(self, size: int, seed: int | None = None) -> MapDataset:
        number, n = self.seed_for("window_shuffle", seed), self._finite()
        return self._reordered(
            lambda epoch: orders.in_windows(n, epoch, size, number), n, blocks="shuffle"
        )

    def block_shuffle(
        self, seed: int | None = None, *, block: int | None = None, window_blocks: int = 16
    ) -> MapDataset:
        number = self.seed_for("block_shuffle", seed)
        if self.length == ENDLESS:
            raise PlanError("block_shuffle: endless")
        n, blocks = self._finite(), self.blocks
        if block is not None:
            blocks = [range(i, min(i + block, n)) for i in range(0, n, block)]
        if isinstance(blocks, str):
            raise PlanError(f"block_shuffle: {blocks}")
        if blocks is None:
            raise UnsureError("layout")
        fixed = tuple(tuple(each) for each in blocks if len(each))
        found = self._reordered(
            lambda epoch: orders.in_blocks(fixed, epoch, number, window_blocks), n, blocks="shuffle"
        )
        found.dealt = True
        return found

    def slice(self, part: Any) -> MapDataset:
        n = self.length
        if isinstance(part, list):
            if any(not -n <= i < n for i in part):
                raise PlanError("slice: index")
            places: Sequence[int] = [i % n for i in part]
        else:
            places = range(n)[part]
        blocks = self.blocks
        if not isinstance(blocks, (str, type(None))) and n < ENDLESS:
            where = {place: i for i, place in enumerate(places)}
            if len(where) < len(places):
                blocks = None
            else:
                # A block keeps the records that are left of it, in the order of the slice.
                kept = [sorted(where[i] for i in b if i in where) for b in blocks]
                blocks = sorted(block for block in kept if block)
        return self._reordered(lambda epoch: places, len(places), blocks=blocks)

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def repeat(
        self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True
    ) -> MapDataset:
        if (num_epochs is not None and num_epochs < 1) or self.length == ENDLESS:
            raise PlanError("repeat")
        n = self.length
        total = n * num_epochs if num_epochs else ENDLESS if n else 0
        blocks = self.blocks
        if not isinstance(blocks, (str, type(None))):
            repeats = range(num_epochs or 0)
            blocks = [[i + e * n for i in block] for e in repeats for block in blocks]
        found = MapDataset(
            total,
            lambda i: self.at(i if reseed_each_epoch else i % n),
            self,
            blocks=blocks if num_epochs else "endless",
            sizes=self.sizes,
        )
        found.epochs, found.dealt = self.epochs * (num_epochs or ENDLESS), self.dealt
        return found

    def sample(self, count: int, seed: int | None = None, *, weights: Any = None) -> MapDataset:
        number, n = self.seed_for("sample", seed), self.length
        if not n or n == ENDLESS or weights is not None:
            raise UnsureError("sample")
        return self._reordered(lambda epoch: orders.sampled(n, epoch, count, number), count)

    def seed(self, seed: int) -> MapDataset:
        found = self._same(self.at, sizes=self.sizes)
        found.own_seed = seed
        return found

    # Values.

    def _mapped(self, function: Callable[[int, Any], Any], **changes: Any) -> MapDataset:
        def at(index: int) -> Item:
            item = self.at(index)
            return item if item.value is None else item.having(function(index, item.value))

        return self._same(at, **{"sizes": False, **changes})

    def map(
        self, function: Any, *, batched: bool = False, keeps_length: bool = False
    ) -> MapDataset:
        call = called(function, batched=batched)
        return self._mapped(lambda _, x: call(x), sizes=keeps_length and self.sizes)

    def map_with_index(self, function: Any) -> MapDataset:
        return self._mapped(function)

    def random_map(
        self, function: Any, *, seed: int | None = None, batched: bool = False
    ) -> MapDataset:
        number, call = self.seed_for("random_map", seed), called(function, batched=batched)
        return self._mapped(lambda i, x: call(x, orders.generator(number, i)))

    def filter(self, function: Any) -> MapDataset:
        return self._mapped(lambda _, x: x if function(x) else None, gaps=True)

    def on_bad(self, action: str) -> MapDataset:
        if action == "replace":
            raise UnsureError("the product draws the replacements")

        def at(index: int) -> Item:
            try:
                return self.at(index)
            except (BAD, ElementError):
                if action == "raise":
                    raise
                return Item(None)

        return self._same(at, gaps=self.gaps or action == "skip", sizes=None)

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
    ) -> MapDataset:
        end, n = remainder_of(remainder, drop_remainder, size), self.length
        if self.gaps:
            raise PlanError("batch: gaps")
        count = n // size if end == "drop" else -(-n // size)
        make = batching(size, end, batch_fn, mask, pad_to, pad_value)

        def at(index: int) -> Item:
            epoch, k = divmod(index, count)
            places = range(k * size, min(n, (k + 1) * size))
            items = [self.at(i + epoch * n) for i in places]
            return make([[*items, *[None] * (size - len(items))]])

        blocks = self.blocks
        if not isinstance(blocks, (str, type(None))):
            blocks = [[i // size for i in b if i % size == 0 and i // size < count] for b in blocks]
        return MapDataset(count, at, self, blocks=blocks, sizes=False)

    def flat_map(self, function: Any, max_fan_out: int) -> MapDataset:
        def at(index: int) -> Item:
            place, k = divmod(index, max_fan_out)
            item = self.at(place)
            made = [] if item.value is None else list(function(item.value))
            if len(made) > max_fan_out:
                raise ElementError("flat_map: too many")
            return item.having(made[k] if k < len(made) else None)

        return MapDataset(self.length * max_fan_out, at, self, gaps=True, sizes=False)

    def _values(self) -> list[Item]:
        """The elements of the only epoch, for what is planned from lengths."""
        if self.gaps:
            raise PlanError("a filter comes before")
        if self.sizes is False and self.length:
            raise PlanError("lengths are not known")
        if self.epochs > 1 or self._finite() == 0:
            raise UnsureError("windows of later epochs")
        found = [self.at(i) for i in range(self.length)]
        if any(item.value is None for item in found):
            raise UnsureError("absent")
        return found

    def chunks_of(self, size: int) -> MapDataset:
        if self.length == ENDLESS or (self.sizes is False and self.length):
            raise PlanError("chunks_of")

        def pieces(epoch: int) -> list[Item]:
            items = [self.at(i + epoch * self.length) for i in range(self.length)]
            return [
                Item(item.value[k : k + size], item.records)
                for item in items
                for k in range(0, len(item.value), size)
            ]

        length = len(pieces(0))

        def at(index: int) -> Item:
            epoch, k = divmod(index, length)
            found = pieces(epoch)
            if len(found) != length:
                raise PlanError("chunks_of: another epoch has more or fewer pieces")
            return found[k]

        return MapDataset(length, at, self, sizes=None)

    def _planned(self, name: str, *args: Any, seed: int | None, **options: Any) -> IterDataset:
        items = self._values()
        if seed is None:
            try:
                seed = self.seed_for(name, None)
            except PlanError:
                seed = 0
        memory = windrow.MapDataset.source([item.value for item in items])
        stream = getattr(memory, name)(*args, seed=seed, **options)

        def run(lane: int, skip: bool) -> Iterator[Item]:
            for k, value in enumerate(stream):
                Patience.ask()
                of = [items[r.record].records for r in flat(stream.records_of(k))]
                yield Item(value, tuple(itertools.chain(*of)))

        return IterDataset(1, run, self)

    def pack(self, row_length: int, *, seed: int | None = None, **options: Any) -> IterDataset:
        return self._planned("pack", row_length, seed=seed, **options)

    def bucket(self, *args: Any, seed: int | None = None, **options: Any) -> IterDataset:
        return self._planned("bucket", *args, seed=seed, **options)

    def shard(self, index: int, count: int) -> MapDataset:
        if (index, count) != (0, 1):
            raise UnsureError("shards are compared with the whole")
        return self._same(self.at)

    def to_iter_dataset(self, *, allow_nones: bool = False, lanes: int = 1) -> IterDataset:
        if lanes > 1 and self.dealt:
            raise UnsureError("lanes of shuffled blocks")

        def run(lane: int, skip: bool) -> Iterator[Item]:
            for index in itertools.count(lane, lanes):
                if index >= self.length:
                    return
                Patience.ask()
                try:
                    item = self.at(index)
                except (BAD, ElementError):
                    if not skip:
                        raise
                    item = Item(None)
                if item.value is not None or allow_nones:
                    yield item

        return IterDataset(lanes, run, self)

    def mp_prefetch(self, workers: int) -> IterDataset:
        return self.to_iter_dataset()
