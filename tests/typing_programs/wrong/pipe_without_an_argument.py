"""The function needs a size."""

from typing import Any

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def batches(dataset: MapDataset[Any], size: int) -> MapDataset[Any]:
    return dataset.batch(size)


NUMBERS.pipe(batches)  # error: call-arg, reportCallIssue
