"""A transform is an instance."""

from windrow import MapDataset
from windrow.transforms import Batch

NUMBERS = MapDataset.range(10)

NUMBERS.apply(Batch)  # error: arg-type, reportArgumentType
