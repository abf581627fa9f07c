"""Grain's operations of old: functions in a class, which a `DataLoader` takes like transforms."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from windrow.grain_api.records import Record
from windrow.transforms.arguments import at_least
from windrow.transforms.functions import Batch, Filter, Map, RandomMap


class Operation(Protocol):
    """Makes an iterator of records from one. `DataLoader` takes the four operations below only."""

    def __call__(self, input_iterator: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
        """The records after the operation."""
        ...


@dataclasses.dataclass
class MapOperation(Map):
    """A function of one element. Use `windrow.transforms.Map`, or `map` of the chain."""

    map_function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        _warn_deprecated(self, "Map")

    def map(self, element: Any) -> Any:
        """`map_function(element)`."""
        return self.map_function(element)


@dataclasses.dataclass
class RandomMapOperation(RandomMap):
    """A function of one element and a generator. Use `windrow.transforms.RandomMap`."""

    random_map_function: Callable[[Any, np.random.Generator], Any]

    def __post_init__(self) -> None:
        _warn_deprecated(self, "RandomMap")

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """`random_map_function(element, rng)`."""
        return self.random_map_function(element, rng)


@dataclasses.dataclass
class FilterOperation(Filter):
    """A condition on elements. Use `windrow.transforms.Filter`, or `filter` of the chain."""

    condition_function: Callable[[Any], bool]

    def __post_init__(self) -> None:
        _warn_deprecated(self, "Filter")

    def filter(self, element: Any) -> bool:
        """`condition_function(element)`."""
        return self.condition_function(element)


@dataclasses.dataclass
class BatchOperation:
    """Batches of elements. Use `windrow.transforms.Batch`, or `batch` of the chain."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None

    def __post_init__(self) -> None:
        at_least(1, self.batch_size, "BatchOperation: batch_size")
        _warn_deprecated(self, "Batch")

    def as_batch(self) -> Batch:
        """The transform that does the same."""
        return Batch(self.batch_size, self.drop_remainder, self.batch_fn)


def _warn_deprecated(operation: object, successor: str) -> None:
    warnings.warn(
        f"{type(operation).__name__} is deprecated: use windrow.transforms.{successor}",
        DeprecationWarning,
        stacklevel=4,
    )
