"""The meaning of both datasets, as lists and generators: what docs/ says, and nothing of the engine.

A program is evaluated with these classes in place of Windrow's. A `MapDataset` is a function of an index.
Each element has its records. Orders of single shuffles and random numbers alone are taken from Windrow.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import windrow
from tests.model import base, elements
from tests.model.base import ENDLESS, Dataset, Item
from tests.model.streams import IterDataset
from tests.model.trees import UnsureError
from windrow.errors import ElementError, PlanError, RecordIndexError


class MapDataset(Dataset):
    """An endless function of an integer; `length` elements make an epoch."""

    def __init__(
        self, length: int, at: Callable[[int], Item], *parents: Any, gaps: bool = False
    ) -> None:
        self.length, self._at, self.parents = min(length, ENDLESS), at, parents
        self.gaps = gaps or any(p.gaps for p in parents)  # whether elements may be absent

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

    # Where elements come from.

    @staticmethod
    def source(source: elements.Records) -> MapDataset:
        found = MapDataset.range(len(source.records))
        made = found._mapped(lambda _, i: source.records[i])
        if hasattr(source.source, "read"):  # what is in memory is a source each time it is given
            found.leaf = id(source)
        return made

    @staticmethod
    def range(n: int) -> MapDataset:
        found = MapDataset(n, lambda i: Item(i % n, ((found.leaf, i % n),)))
        found.leaf = id(found)
        return found

    @staticmethod
    def concatenate(datasets: Sequence[MapDataset]) -> MapDataset:
        if any(d.length == ENDLESS for d in datasets):
            raise PlanError("endless")
        ends = list(itertools.accumulate(d.length for d in datasets))

        def at(index: int) -> Item:
            epoch, k = divmod(index, ends[-1])
            place = bisect.bisect_right(ends, k)
            dataset = datasets[place]
            return dataset.at(k - ends[place] + (epoch + 1) * dataset.length)

        return MapDataset(ends[-1], at, *datasets)

    @staticmethod
    def zip(datasets: Sequence[MapDataset]) -> MapDataset:
        n = datasets[0].length
        return MapDataset(n, lambda i: base.tied([d.at(i) for d in datasets]), *datasets)

    @staticmethod
    def mix(
        datasets: Sequence[MapDataset], weights: Any = None, *, at_end: str = "stop"
    ) -> MapDataset:
        lengths = [d.length for d in datasets]
        if not all(lengths):
            raise PlanError("empty")
        if at_end == "drop":
            raise UnsureError("drop")
        shares = base.whole(weights, len(datasets))
        total = min(n * sum(shares) // share for n, share in zip(lengths, shares, strict=True))

        def at(index: int) -> Item:
            place, k = base.choice(shares, index)
            return datasets[place].at(k)

        return MapDataset(ENDLESS if at_end == "repeat" else total, at, *datasets)

    @staticmethod
    def select_from_datasets(datasets: Sequence[MapDataset], selection: Any) -> MapDataset:
        def at(index: int) -> Item:
            place, k = selection[index]
            return datasets[int(place)].at(k)

        return MapDataset(len(selection), at, *datasets)

    # Order.

    def _reordered(self, order: Sequence[int]) -> MapDataset:
        """Places of this dataset; Windrow's orders are others in each epoch."""
        n, is_fixed = len(order), not isinstance(order, windrow.MapDataset)

        def at(index: int) -> Item:
            return self.at(int(order[index % n if is_fixed else index]) + index // n * self.length)

        return MapDataset(n, at, self)

    def _numbers(self) -> Any:
        if self.length == ENDLESS:
            raise UnsureError("endless")
        return windrow.MapDataset.range(self.length)

    def shuffle(self, seed: int | None = None) -> MapDataset:
        if seed is None:
            raise UnsureError("seeds of the chain")
        return self._reordered(self._numbers().shuffle(seed))

    def window_shuffle(self, size: int, seed: int) -> MapDataset:
        return self._reordered(self._numbers().window_shuffle(size, seed))

    def sample(self, count: int, seed: int) -> MapDataset:
        return self._reordered(self._numbers().sample(count, seed))

    block_shuffle = bucket = chunks_of = pack = Dataset.unsure

    def slice(self, part: Any) -> MapDataset:
        n = self.length
        if not isinstance(part, list):
            return self._reordered(range(n)[part])
        if any(not -n <= i < n for i in part):
            raise PlanError("index")
        return self._reordered([i % n for i in part])

    def repeat(
        self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True
    ) -> MapDataset:
        n = self.length
        if n == ENDLESS:
            raise PlanError("endless")

        def at(index: int) -> Item:
            return self.at(index if reseed_each_epoch else index % n)

        return MapDataset(n * (num_epochs or ENDLESS), at, self)

    # Values.

    def _same(self) -> MapDataset:
        return MapDataset(self.length, self.at, self)

    def _mapped(self, function: Callable[[int, Any], Any], *, gaps: bool = False) -> MapDataset:
        def at(index: int) -> Item:
            item = self.at(index)
            return item if item.value is None else item.having(function(index, item.value))

        return MapDataset(self.length, at, self, gaps=gaps)

    def filter(self, function: Any) -> MapDataset:
        return self._mapped(lambda _, x: x if function(x) else None, gaps=True)

    def on_bad(self, action: str) -> MapDataset:
        if action != "skip":
            raise UnsureError("the product draws the replacements")

        def at(index: int) -> Item:
            try:
                return self.at(index)
            except base.BAD:
                return Item(None)

        return MapDataset(self.length, at, self, gaps=True)

    # Regrouping.

    def batch(self, size: int, **options: Any) -> MapDataset:
        if self.gaps:
            raise PlanError("gaps")
        n = self.length
        count = n // size if base.end_of(**options) == "drop" else -(-n // size)

        def at(index: int) -> Item:
            epoch, k = divmod(index, count)
            places = range(k * size, (k + 1) * size)
            slots = [self.at(i + epoch * n) if i < n else None for i in places]
            return base.batch_of(slots, **options)

        return MapDataset(count, at, self)

    def flat_map(self, function: Any, max_fan_out: int) -> MapDataset:
        def at(index: int) -> Item:
            place, k = divmod(index, max_fan_out)
            item = self.at(place)
            made = [] if item.value is None else list(function(item.value))
            if len(made) > max_fan_out:
                raise ElementError("too many")
            return item.having(made[k] if k < len(made) else None)

        return MapDataset(self.length * max_fan_out, at, self, gaps=True)

    def to_iter_dataset(self, *, allow_nones: bool = False, lanes: int = 1) -> IterDataset:
        def run(lane: int, skip: bool) -> Iterator[Item]:
            chain = self.on_bad("skip") if skip else self
            for index in itertools.count(lane, lanes):
                if index >= self.length:
                    return
                base.Patience.ask()
                item = chain.at(index)
                if item.value is not None or allow_nones:
                    yield item

        return IterDataset(lanes, run, self)

    def mp_prefetch(self, workers: int) -> IterDataset:
        return self.to_iter_dataset()
