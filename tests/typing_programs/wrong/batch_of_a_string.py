"""A batch size is a number."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.batch("4")  # error: call-overload, reportCallIssue
