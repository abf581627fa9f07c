"""The option is called batched."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.map(abs, batch=True)  # error: call-overload, reportCallIssue
