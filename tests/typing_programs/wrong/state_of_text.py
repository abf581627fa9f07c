"""A state is a dict, as get_state returns it."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

iter(NUMBERS).set_state("{}")  # error: arg-type, reportArgumentType
