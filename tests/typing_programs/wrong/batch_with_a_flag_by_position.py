"""Options are given by name."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.batch(4, True)  # error: call-overload, reportCallIssue
