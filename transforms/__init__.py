"""Transforms: what users hand to a chain, and the nodes that chains are made of.

Nodes are values with pure functions: they map indices and turn tables of elements into others, and
never read.
"""

from windrow.transforms.columns import ListColumns
from windrow.transforms.functions import (
    Batch,
    DatasetSelectionMap,
    Filter,
    FlatMap,
    Map,
    MapWithIndex,
    RandomMap,
    TfRandomMap,
    Transformation,
    Transformations,
)
from windrow.transforms.mixtures import Schedule

__all__ = [
    "Batch",
    "DatasetSelectionMap",
    "Filter",
    "FlatMap",
    "ListColumns",
    "Map",
    "MapWithIndex",
    "RandomMap",
    "Schedule",
    "TfRandomMap",
    "Transformation",
    "Transformations",
]
