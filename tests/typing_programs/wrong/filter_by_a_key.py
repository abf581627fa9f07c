"""A filter takes a function."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.filter("label")  # error: arg-type, reportArgumentType
