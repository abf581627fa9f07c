"""The public names of `windrow.transforms`: type checkers read this list, and `windrow.transforms` imports by it."""

from windrow.transforms.columns import ListColumns as ListColumns
from windrow.transforms.functions import Batch as Batch
from windrow.transforms.functions import DatasetSelectionMap as DatasetSelectionMap
from windrow.transforms.functions import Filter as Filter
from windrow.transforms.functions import FlatMap as FlatMap
from windrow.transforms.functions import Map as Map
from windrow.transforms.functions import MapWithIndex as MapWithIndex
from windrow.transforms.functions import RandomMap as RandomMap
from windrow.transforms.functions import TfRandomMap as TfRandomMap
from windrow.transforms.functions import Transformation as Transformation
from windrow.transforms.functions import Transformations as Transformations
from windrow.transforms.mixtures import Schedule as Schedule
