"""Nodes of a chain: frozen values that check themselves, know their length and map indices.

Nodes do not read, and do not start threads: the engine of the loader does. `base` has the protocol
that a node follows, as a numbered contract. The stub next to this file lists the names; a process loads only the
kinds of nodes that its chain has.
"""

from windrow.core.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
