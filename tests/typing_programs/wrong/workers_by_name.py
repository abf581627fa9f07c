"""The number of workers is a number."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.mp_prefetch("two")  # error: arg-type, reportArgumentType
