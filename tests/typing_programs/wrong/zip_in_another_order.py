"""The number comes first."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def named(pair: tuple[str, int]) -> str:
    return pair[0] * pair[1]


MapDataset.zip((NUMBERS, NUMBERS.map(str))).map(named)  # error: arg-type, reportArgumentType
