"""The elements are strings after the first function."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def halved(number: int) -> float:
    return number / 2


NUMBERS.map(str).map(halved)  # error: arg-type, reportArgumentType
