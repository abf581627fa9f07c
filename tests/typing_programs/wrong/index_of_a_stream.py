"""A stream has no random access."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.to_iter_dataset()[0]  # error: index, reportIndexIssue
