"""What a stream reads next: near records one by one, far ones by a sample, and nothing is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import windrow
from windrow.engine.coming_records import ComingRecords, coming_records
from windrow.sources.base import BatchedSource
from windrow.sources.remote.coming_reads import ComingReads
from windrow.transforms.functions import DatasetSelectionMap

IntArray = npt.NDArray[np.int64]


FIRST, COUNT = 3_200_000, 1 << 14


class Numbered(BatchedSource):
    """A source that cannot be read, and notes who says what comes."""

    def __init__(self, length: int) -> None:
        self.length, self.told = length, list[ComingReads]()

    def __len__(self) -> int:
        return self.length

    def read(self, indices: IntArray) -> Any:
        raise AssertionError("it was read")

    @property
    def fingerprint(self) -> str:
        return f"numbered({self.length})"

    def foresee(self, coming: ComingReads) -> None:
        self.told.append(coming)


def coming(chain: windrow.MapDataset[Any], first: int = 0) -> ComingRecords:
    (found,) = coming_records(chain._node)
    found.first = first
    return found


def columns(found: ComingRecords) -> tuple[IntArray, IntArray]:
    records, distances = zip(*found.sampled(COUNT), strict=True)
    return np.concatenate(records), np.concatenate(distances)


def test_near_records_come_in_the_order_of_the_stream() -> None:
    chain = windrow.MapDataset.source(Numbered(100)).shuffle(seed=3).repeat(2).batch(4)
    order = windrow.MapDataset.range(100).shuffle(seed=3).repeat(2).read(np.arange(200))
    records, distances = columns(coming(chain, first=5))
    np.testing.assert_array_equal(records, order[20:])
    np.testing.assert_array_equal(distances, np.arange(180) // 4)


@pytest.mark.parametrize("batch", [1, 32])
def test_far_records_are_a_sample(batch: int) -> None:
    """Distances to runs of 20,000 of ten million records are about right."""
    chain = windrow.MapDataset.source(Numbered(10**7)).repeat().batch(batch)
    records, distances = columns(coming(chain, first=FIRST // batch))
    assert len(records) < 500_000
    assert (records == (FIRST + distances * batch) % 10**7)[::batch].all()
    runs, at = np.unique(records // 20_000, return_index=True)
    assert len(runs) == 500
    exact = (runs * 20_000 - FIRST) % 10**7
    found = distances[at] * batch
    assert (found >= exact).all()
    # The farthest runs are little longer than the steps, so that some are passed over.
    assert (found - exact <= 20_000 + exact // 100).mean() > 0.98


def test_sources_are_told_once_and_others_are_not() -> None:
    one, two = Numbered(5), Numbered(5)
    chain = windrow.MapDataset.mix(
        [windrow.MapDataset.source(each) for each in (one, two, one)]
        + [windrow.MapDataset.range(5)]
    )
    found = coming_records(chain._node)
    assert [one.told, two.told] == [[found[0]], [found[1]]]


def test_an_order_that_raises_is_not_known_from_there_on() -> None:
    class Broken(DatasetSelectionMap):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> tuple[int, int]:
            raise ValueError("no element")

    source = windrow.MapDataset.source(Numbered(10))
    chain = windrow.MapDataset.select_from_datasets([source], Broken())
    assert list(coming(chain).sampled(COUNT)) == []
