"""A seed is a number."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.shuffle(seed="1")  # error: arg-type, reportArgumentType
