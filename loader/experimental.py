"""Grain's experimental names, each over a method of the chain or a part of Windrow.

Nothing here is experimental: a class has the elements, the states and the costs of its method.
"""

from windrow.core.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
