"""`windrow.lengths` as a PTransform, for pipelines of your own.

    with beam.Pipeline() as pipeline:
        pipeline | CountLengths(dataset, path="lengths.npz") | steps.Map(print)

The steps have the one shape that all runners know: numbers, spread by `GroupByKey`, worked on, and
collected (`windrow.converters.job.pipeline`).

Invariant: the result equals the result of `windrow.lengths`, however often a runner repeats a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np

from windrow.errors import missing_extra
from windrow.map_dataset import MapDataset
from windrow.record_lengths import Counting
from windrow.sources.base import IntArray

try:
    import apache_beam as beam
except ImportError as error:
    raise missing_extra("windrow.lengths_beam", "beam") from error


# Elements that a pipeline begins with: see `windrow.converters.job.pipeline`.
_NUMBERS: Final = 4096
# Records that a worker counts at a time, unless there are more than `_NUMBERS` times as many.
_RECORDS: Final = 1 << 14
# The key of an extra item, since Beam drops a group without elements.
_NO_ITEM: Final = -1


class CountLengths(beam.PTransform[Any, Any]):
    """`windrow.lengths` on a Beam pipeline. Yields one element: a list of int64 arrays.

    The sources must be readable by all workers. Nothing is read before the pipeline runs. A failed
    pipeline leaves no file.

    Args:
        dataset: A `windrow.MapDataset`, as for `windrow.lengths`.
        function: Gives the length of an element, at least 0.
        path: A file that keeps the result, on a disk that the worker of the last step sees. If it is
            there, nothing is counted; other data is refused.

    Raises:
        WindrowError: What `windrow.lengths` raises for its arguments and for the file.
    """

    def __init__(
        self,
        dataset: MapDataset[Any],
        function: Callable[[Any], int] = len,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self._counting = Counting.of(dataset, function, path)
        self._kept = self._counting.kept()

    def expand(self, pipeline: Any) -> Any:
        """The lengths of each source, after the last step."""
        steps: Any = beam  # they have no types
        if self._kept is not None:
            return pipeline | steps.Create([self._kept])
        counting, items = self._counting, _items([chain.length for chain in self._counting.chains])
        return (
            pipeline
            | steps.Create(range(_NUMBERS))
            | "items" >> steps.FlatMap(lambda number: items.get(number, []))
            | "spread" >> steps.GroupByKey()
            | "count" >> steps.FlatMap(lambda group: _count(counting, *group))
            | "collect" >> steps.GroupByKey()
            | "keep" >> steps.Map(lambda group: _keep(counting, group[1]))
        )


_Item = tuple[int, int, int]
"""A source, and the records `[start, stop)` of it."""


def _items(lengths: list[int]) -> dict[int, list[tuple[int, _Item | None]]]:
    """What is counted together, by the number in the pipeline that it comes from."""
    size = max(_RECORDS, -(-sum(lengths) // (_NUMBERS - len(lengths) - 1)))
    found: list[_Item] = []
    for source, length in enumerate(lengths):
        bounds = range(0, length, size)
        found += [(source, start, min(length, start + size)) for start in bounds]
    items: dict[int, list[tuple[int, _Item | None]]] = {n: [(n, i)] for n, i in enumerate(found)}
    items.setdefault(0, []).append((_NO_ITEM, None))
    return items


def _count(
    counting: Counting, key: int, items: Iterable[_Item | None]
) -> Iterator[tuple[int, tuple[_Item, IntArray] | None]]:
    """The lengths of an item, all under one key; a runner may give an item more than once."""
    for item in {item for item in items if item is not None}:
        yield 0, (item, counting.part(*item))
    if key == _NO_ITEM:
        yield 0, None


def _keep(counting: Counting, parts: Iterable[tuple[_Item, IntArray] | None]) -> list[IntArray]:
    found = [np.zeros(chain.length, np.int64) for chain in counting.chains]
    for part in parts:
        if part is not None:
            (source, start, stop), lengths = part
            found[source][start:stop] = lengths
    counting.keep(found)
    return found
