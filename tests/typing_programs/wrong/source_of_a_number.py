"""A number is not a source."""

from windrow import MapDataset

MapDataset.source(3)  # error: call-overload, reportCallIssue
