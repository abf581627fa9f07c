"""Random access to records in Zarr arrays, ArrayRecord files, tfds folders, memory and other sources.

The stub next to this file lists the public names. Each is imported when it is first used, so that a process loads
only the formats that it reads.
"""

from windrow.core.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
