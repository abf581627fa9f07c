"""A stream has no random access."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

MapDataset.zip([NUMBERS, NUMBERS.to_iter_dataset()])  # error: list-item, reportCallIssue
