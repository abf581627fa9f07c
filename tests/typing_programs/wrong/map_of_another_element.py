"""The elements are numbers."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def shout(text: str) -> str:
    return text.upper()


NUMBERS.map(shout)  # error: arg-type, reportArgumentType
