"""Types of elements by their source."""

import collections
from typing import Any, NamedTuple, assert_type

import numpy as np

from windrow import MapDataset
from windrow.sources import ArrayDataSource, ArrayRecordDataSource, SequenceDataSource


class Pair(NamedTuple):
    """A record."""

    text: str
    label: int


class Texts:
    """A map-style source, as torch and Grain take it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> str:
        return "abc"[index]


class Untyped:
    def __len__(self):  # type: ignore[no-untyped-def]
        return 3

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return index


assert_type(MapDataset.source([3, 1, 4]), MapDataset[int])
assert_type(MapDataset.source([b"a", b"b"]), MapDataset[bytes])
assert_type(MapDataset.source(range(4)), MapDataset[int])
assert_type(MapDataset.source(collections.deque(["a"])), MapDataset[str])
assert_type(MapDataset.source([Pair("a", 1)]), MapDataset[Pair])
assert_type(MapDataset.source([{"a": 1, "b": "c"}]), MapDataset[dict[str, Any]])
assert_type(MapDataset.source({"x": np.zeros(3)}), MapDataset[dict[str, Any]])
assert_type(MapDataset.source({"x": {"y": np.zeros(3)}}), MapDataset[dict[str, Any]])
assert_type(MapDataset.source(np.zeros((3, 4))), MapDataset[Any])
assert_type(MapDataset.source(Texts()), MapDataset[str])
assert_type(MapDataset.source(Untyped()), MapDataset[Any])
assert_type(MapDataset.source(ArrayRecordDataSource("digits")), MapDataset[Any])
assert_type(MapDataset.source(SequenceDataSource(["a"])), MapDataset[Any])
assert_type(MapDataset.source(ArrayDataSource({"x": np.zeros(3)})), MapDataset[Any])


def given(anything: Any) -> None:
    assert_type(MapDataset.source(anything), MapDataset[Any])
