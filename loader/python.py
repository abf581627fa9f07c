"""The names of `grain.python`, for programs that write `import grain.python as grain`.

They come from `windrow`, `windrow.transforms` and so on, some under a former name.
"""

import importlib
from typing import Any, Final

from windrow.core.lazy_names import lazy_names

_PREFIX: Final = "PyGrain"
_found, __dir__, __all__ = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    if name.startswith(f"{_PREFIX}Checkpoint"):  # they need JAX and Orbax
        return getattr(importlib.import_module("windrow.checkpoint"), name.removeprefix(_PREFIX))
    return _found(name)
