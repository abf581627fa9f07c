"""Windrow: data loading for training, planned over array storage.

A chain of `MapDataset` and `IterDataset` nodes over random-access sources; the whole order is known
in advance, so reads are planned and batched, and an iterator's state is a few integers.

The stub next to this file lists the public names. Each is imported when it is first used, so that a command or a
worker process loads only what it needs.
"""

import importlib
from typing import Any

from windrow.core.lazy_names import lazy_names

__version__ = "0.3.0"

_found, __dir__, __all__ = lazy_names(__name__)
__all__.remove("torch")  # `import *` must do without PyTorch
__all__.append("__version__")


def __getattr__(name: str) -> Any:
    if name not in __dir__() and name in importlib.import_module("windrow.sources").__all__:
        raise AttributeError(
            f"module 'windrow' has no attribute {name!r}; it is windrow.sources.{name}"
        )
    return _found(name)
