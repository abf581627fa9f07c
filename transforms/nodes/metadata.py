"""What is known of the elements of a node before one is made: their spec, and how many are in a pass.

Each is a function of any node.

Invariant: nothing here reads a record.
"""

from __future__ import annotations

import functools
from typing import Any

from windrow.transforms import specs
from windrow.transforms.specs import Spec


def element_spec(node: Any) -> Spec:
    """The spec of an element. See `windrow.transforms.specs`.

    Raises:
        PlanError: If a source or a function does not declare it, or parents differ.
        ArgumentError: If what one of them returns is not a spec.
    """
    parents = [functools.partial(element_spec, parent) for parent in node.parents]
    found: Spec = node.spec(specs.Lazy(parents))
    return found


def known_spec(node: Any) -> Spec | None:
    """The spec of an element; None if it is not known."""
    try:
        return element_spec(node)
    except Exception:  # of a method `output_spec`, too: a chain runs without
        return None


def pass_length(node: Any) -> int:
    """Elements of a node with random access in one pass over what it repeats for ever."""
    if not node.is_endless():
        return int(node.length)
    return int(node.length_of_pass([pass_length(parent) for parent in node.parents]))
