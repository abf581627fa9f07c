"""A function belongs to map."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def halved(number: int) -> float:
    return number / 2


NUMBERS.apply(halved)  # error: arg-type, reportArgumentType
