"""A Filter belongs to filter."""

from windrow import MapDataset
from windrow.transforms import Filter

NUMBERS = MapDataset.range(10)


class Even(Filter):
    def filter(self, element: int) -> bool:
        return element % 2 == 0


NUMBERS.map(Even())  # error: call-overload, reportArgumentType
