"""Options of reading are a ReadOptions."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.to_iter_dataset(4)  # error: call-overload, reportArgumentType
