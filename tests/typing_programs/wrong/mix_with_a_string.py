"""Weights are numbers."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

MapDataset.mix([NUMBERS, NUMBERS], "equal")  # error: arg-type, reportArgumentType
