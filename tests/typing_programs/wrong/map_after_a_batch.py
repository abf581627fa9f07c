"""A batch of numbers is an array."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def halved(number: int) -> float:
    return number / 2


NUMBERS.batch(4).map(halved)  # error: arg-type, reportArgumentType
