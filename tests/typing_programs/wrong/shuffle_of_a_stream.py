"""A stream has no global shuffle."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.to_iter_dataset().shuffle(seed=1)  # error: attr-defined, reportAttributeAccessIssue
