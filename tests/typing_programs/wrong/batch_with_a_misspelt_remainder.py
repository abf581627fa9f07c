"""It is spelt pad."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.batch(4, remainder="padd")  # error: call-overload, reportCallIssue
