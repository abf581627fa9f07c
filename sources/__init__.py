"""Random access to records: Zarr arrays, ArrayRecord files, tfds folders, memory, others' sources."""

from windrow.sources.adapt import as_source
from windrow.sources.array_record import ArrayRecordDataSource
from windrow.sources.base import (
    ArraySpec,
    BatchedSource,
    Columns,
    IntArray,
    Source,
    Specified,
    checked_indices,
    row,
)
from windrow.sources.boxes import BoxField, BoxPart, Cut, Padding
from windrow.sources.foreign import ForeignDataSource, RandomAccessDataSource
from windrow.sources.memory import ArrayDataSource, RangeDataSource, SequenceDataSource
from windrow.sources.pieces import (
    ArrayPart,
    Blocks,
    LaidOutSource,
    ListPart,
    Needs,
    Part,
    RowReader,
    Span,
)
from windrow.sources.remote import RemoteOptions, is_far
from windrow.sources.tfds import TFDSDataSource
from windrow.sources.tfds_splits import even_splits
from windrow.sources.window_fields import Field
from windrow.sources.windows import WindowDataSource
from windrow.sources.zarr import ZarrDataSource

__all__ = [
    "ArrayDataSource",
    "ArrayPart",
    "ArrayRecordDataSource",
    "ArraySpec",
    "BatchedSource",
    "Blocks",
    "BoxField",
    "BoxPart",
    "Columns",
    "Cut",
    "Field",
    "ForeignDataSource",
    "IntArray",
    "LaidOutSource",
    "ListPart",
    "Needs",
    "Padding",
    "Part",
    "RandomAccessDataSource",
    "RangeDataSource",
    "RemoteOptions",
    "RowReader",
    "SequenceDataSource",
    "Source",
    "Span",
    "Specified",
    "TFDSDataSource",
    "WindowDataSource",
    "ZarrDataSource",
    "as_source",
    "checked_indices",
    "even_splits",
    "is_far",
    "row",
]
