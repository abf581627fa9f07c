"""A number has no upper."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.map(lambda number: number.upper())  # error: attr-defined, reportAttributeAccessIssue
