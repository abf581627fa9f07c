"""A stream has no length."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

len(NUMBERS.to_iter_dataset())  # error: arg-type, reportArgumentType
