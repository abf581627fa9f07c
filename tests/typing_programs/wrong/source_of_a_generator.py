"""A generator has no random access."""

from windrow import MapDataset

MapDataset.source(number for number in range(3))  # error: call-overload, reportCallIssue
