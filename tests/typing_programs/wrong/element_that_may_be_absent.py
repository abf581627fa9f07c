"""After a filter an element may be None."""

from windrow import MapDataset

NUMBERS = MapDataset.range(10)

NUMBERS.filter(bool)[0] + 1  # error: operator, reportOptionalOperand
