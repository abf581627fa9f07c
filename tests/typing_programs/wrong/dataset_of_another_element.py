"""The dataset has numbers."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def texts() -> MapDataset[str]:
    return NUMBERS  # error: return-value, reportReturnType
