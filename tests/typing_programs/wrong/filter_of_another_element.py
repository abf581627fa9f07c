"""The elements are numbers."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def is_long(text: str) -> bool:
    return len(text) > 10


NUMBERS.filter(is_long)  # error: arg-type, reportArgumentType
