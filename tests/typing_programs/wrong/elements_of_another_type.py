"""The elements are numbers."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def shown(texts: list[str]) -> None: ...


shown(list(NUMBERS))  # error: arg-type, reportArgumentType
