"""Datasets are given in a list."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

MapDataset.concatenate(NUMBERS)  # error: arg-type, reportArgumentType
