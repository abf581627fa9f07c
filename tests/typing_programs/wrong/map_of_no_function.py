"""A number is not a function."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.map(3)  # error: call-overload, reportArgumentType
