"""A function of a map gets the element alone."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def total(one: int, other: int) -> int:
    return one + other


NUMBERS.map(total)  # error: arg-type, reportArgumentType
