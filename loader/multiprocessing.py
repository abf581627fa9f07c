"""Options for worker processes, under the name that Grain has for them."""

from typing import Any

from windrow.core.absent_names import absent
from windrow.transforms.options import MultiprocessingOptions, as_multiprocessing_options

__all__ = ["MultiprocessingOptions", "as_multiprocessing_options"]


def __getattr__(name: str) -> Any:
    raise absent(__name__, name)
