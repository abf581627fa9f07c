"""Windrow: data loading for training, planned over array storage.

A chain of `MapDataset` and `IterDataset` nodes over random-access sources; the whole order is known
in advance, so reads are planned and batched, and an iterator's state is a few integers.
"""

from typing import TYPE_CHECKING, Any

from windrow import errors, multiprocessing, sources, transforms
from windrow.dataset import IterDataset, MapDataset
from windrow.errors import WindrowError
from windrow.explanation import Advice, Explanation
from windrow.findings import BadPiece, Report
from windrow.iterator import DatasetIterator
from windrow.multiprocessing import MultiprocessingOptions
from windrow.quality import shuffle_quality
from windrow.shuffle_quality import ShuffleQuality
from windrow.stats import Stats
from windrow.transforms.options import ReadOptions
from windrow.verification import verify

if TYPE_CHECKING:
    from windrow.inspection import inspect
    from windrow.report_page import report

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "BadPiece",
    "DatasetIterator",
    "Explanation",
    "IterDataset",
    "MapDataset",
    "MultiprocessingOptions",
    "ReadOptions",
    "Report",
    "ShuffleQuality",
    "Stats",
    "WindrowError",
    "__version__",
    "checkpoint",
    "converters",
    "errors",
    "inspect",
    "multiprocessing",
    "report",
    "shuffle_quality",
    "sources",
    "transforms",
    "verify",
]


def __getattr__(name: str) -> Any:
    # These need optional packages, or cost what most runs do not use.
    if name in ("checkpoint", "converters"):
        import importlib

        return importlib.import_module(f"windrow.{name}")
    if name == "inspect":
        from windrow.inspection import inspect

        return inspect
    if name == "report":
        from windrow.report_page import report

        return report
    hint = f"; it is windrow.sources.{name}" if hasattr(sources, name) else ""
    raise AttributeError(f"module 'windrow' has no attribute {name!r}{hint}")
