"""Random access needs max_fan_out."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def copies(number: int) -> list[int]:
    return [number] * number


NUMBERS.flat_map(copies)  # error: call-overload, reportArgumentType
