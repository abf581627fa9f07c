"""Options for worker processes, under the name that Grain has for them."""

from windrow.transforms.options import MultiprocessingOptions, as_multiprocessing_options

__all__ = ["MultiprocessingOptions", "as_multiprocessing_options"]
