"""Random access to records in Zarr arrays, ArrayRecord files, tfds folders, memory and other sources.

Public names are imported when they are first used, so that a process loads only the formats that it reads.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windrow.sources.adapt import as_source
    from windrow.sources.array_record.source import ArrayRecordDataSource
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
    from windrow.sources.boxes import BoxField, BoxPart, Cut
    from windrow.sources.chunks import (
        ArrayPart,
        Blocks,
        LaidOutSource,
        ListPart,
        Needs,
        Part,
        RowReader,
        Span,
    )
    from windrow.sources.foreign import ForeignDataSource, RandomAccessDataSource
    from windrow.sources.memory import ArrayDataSource, RangeDataSource, SequenceDataSource
    from windrow.sources.padding import Padding
    from windrow.sources.remote.options import RemoteOptions, is_remote_source
    from windrow.sources.tfds.source import TFDSDataSource
    from windrow.sources.tfds.splits import even_splits
    from windrow.sources.windows.fields import Field
    from windrow.sources.windows.source import WindowDataSource
    from windrow.sources.zarr.ragged import RaggedDataSource
    from windrow.sources.zarr.source import ZarrDataSource

_MODULE_OF = {
    "ArrayDataSource": "windrow.sources.memory",
    "ArrayPart": "windrow.sources.chunks",
    "ArrayRecordDataSource": "windrow.sources.array_record.source",
    "ArraySpec": "windrow.sources.base",
    "BatchedSource": "windrow.sources.base",
    "Blocks": "windrow.sources.chunks",
    "BoxField": "windrow.sources.boxes",
    "BoxPart": "windrow.sources.boxes",
    "Columns": "windrow.sources.base",
    "Cut": "windrow.sources.boxes",
    "Field": "windrow.sources.windows.fields",
    "ForeignDataSource": "windrow.sources.foreign",
    "IntArray": "windrow.sources.base",
    "LaidOutSource": "windrow.sources.chunks",
    "ListPart": "windrow.sources.chunks",
    "Needs": "windrow.sources.chunks",
    "Padding": "windrow.sources.padding",
    "Part": "windrow.sources.chunks",
    "RaggedDataSource": "windrow.sources.zarr.ragged",
    "RandomAccessDataSource": "windrow.sources.foreign",
    "RangeDataSource": "windrow.sources.memory",
    "RemoteOptions": "windrow.sources.remote.options",
    "RowReader": "windrow.sources.chunks",
    "SequenceDataSource": "windrow.sources.memory",
    "Source": "windrow.sources.base",
    "Span": "windrow.sources.chunks",
    "Specified": "windrow.sources.base",
    "TFDSDataSource": "windrow.sources.tfds.source",
    "WindowDataSource": "windrow.sources.windows.source",
    "ZarrDataSource": "windrow.sources.zarr.source",
    "as_source": "windrow.sources.adapt",
    "checked_indices": "windrow.sources.base",
    "even_splits": "windrow.sources.tfds.splits",
    "is_remote_source": "windrow.sources.remote.options",
    "row": "windrow.sources.base",
}

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
    "RaggedDataSource",
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
    "is_remote_source",
    "row",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        # Few processes ask for what is not there.
        raise importlib.import_module("windrow.core.absent_names").absent(__name__, name)
    found = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
