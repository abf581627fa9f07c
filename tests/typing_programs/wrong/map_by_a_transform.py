"""The transform takes strings."""

from windrow import MapDataset
from windrow.transforms import Map

NUMBERS = MapDataset.range(10)


class Shout(Map):
    def map(self, element: str) -> str:
        return element.upper()


NUMBERS.map(Shout())  # error: arg-type, reportArgumentType
