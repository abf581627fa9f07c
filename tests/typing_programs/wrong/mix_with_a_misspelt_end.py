"""It is spelt repeat."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

MapDataset.mix([NUMBERS, NUMBERS], at_end="repeated")  # error: arg-type, reportArgumentType
