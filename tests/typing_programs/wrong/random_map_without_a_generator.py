"""The function gets a generator too."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def flipped(number: int) -> int:
    return -number


NUMBERS.random_map(flipped, seed=1)  # error: arg-type, reportArgumentType
