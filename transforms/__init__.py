"""Transforms: what users hand to a chain, and the nodes that chains are made of.

Nodes are values with pure functions: they map indices and turn tables of elements into others, and
never read. The stub next to this file lists the public names.
"""

from windrow.core.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
