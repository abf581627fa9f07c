"""The function gets a generator, not a seed."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)


def noisy(number: int, seed: int) -> int:
    return number + seed


NUMBERS.random_map(noisy, seed=1)  # error: arg-type, reportArgumentType
