"""The function must return an iterable."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def twice(number: int) -> int:
    return 2 * number


NUMBERS.flat_map(twice, max_fan_out=2)  # error: arg-type, reportCallIssue
