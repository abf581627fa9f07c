"""Types of transforms that are objects."""

from collections.abc import Iterable
from typing import Any, assert_type

import numpy as np

from windrow import IterDataset, MapDataset
from windrow.transforms import Batch, Filter, FlatMap, Map, MapWithIndex, RandomMap


class Shown(Map):
    def map(self, element: int) -> str:
        return str(element)


class Untold(Map):
    def map(self, element: Any) -> Any:
        return element


class Noisy(RandomMap):
    def random_map(self, element: int, rng: np.random.Generator) -> float:
        return element + float(rng.normal())


class Numbered(MapWithIndex):
    def map_with_index(self, index: int, element: int) -> tuple[int, int]:
        return index, element


class Even(Filter):
    def filter(self, element: int) -> bool:
        return element % 2 == 0


class Copies(FlatMap):
    max_fan_out = 3

    def flat_map(self, element: int) -> Iterable[str]:
        return [str(element)] * 3


class Chosen:
    """A selection map."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index % 2, index


numbers = MapDataset.range(10)
assert_type(numbers.map(Shown()), MapDataset[str])
assert_type(numbers.map(Untold()), MapDataset[Any])
assert_type(numbers.random_map(Noisy(), seed=1), MapDataset[float])
assert_type(numbers.map_with_index(Numbered()), MapDataset[tuple[int, int]])
assert_type(numbers.filter(Even()), MapDataset[int])
assert_type(numbers.flat_map(Copies()), MapDataset[str])
assert_type(numbers.to_iter_dataset().flat_map(Copies()), IterDataset[str])
assert_type(numbers.apply(Batch(4)), MapDataset[Any])
assert_type(numbers.apply([Even(), Shown(), Noisy(), Numbered(), Copies()]), MapDataset[Any])
assert_type(MapDataset.select_from_datasets([numbers, numbers], Chosen()), MapDataset[int])
