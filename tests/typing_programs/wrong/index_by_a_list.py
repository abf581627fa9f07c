"""Several elements are read by read."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS[[1, 2]]  # error: call-overload, reportCallIssue
