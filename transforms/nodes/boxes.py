"""Boxes of elements, which go down a chain as indices do: see `windrow.transforms.nodes.parts`.

Three kinds of node know more of boxes than that they pass them on, and each is asked by `isinstance`.

Invariant: boxes never change which elements come, or their order.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from windrow.transforms import specs
from windrow.transforms.specs import Spec

if TYPE_CHECKING:
    from windrow.sources.cells import Boxes


class MakesBoxes(abc.ABC):
    """A node that makes boxes of its elements of other boxes of its parents' elements."""

    @abc.abstractmethod
    def boxes_of_parents(self, boxes: Boxes) -> tuple[Sequence[Boxes], Boxes] | None:
        """What makes boxes of elements.

        Returns:
            The boxes of the elements of each parent that are needed, and the boxes that come of them,
            which hold `boxes`. None if the node needs whole elements.
        """


class ReadsBoxes(abc.ABC):
    """A node without parents that may make boxes of its elements alone."""

    @abc.abstractmethod
    def with_boxes(self, boxes: Boxes) -> Any:
        """The node that makes only boxes of its elements; None if there is none."""


class KnowsGrid(abc.ABC):
    """A node that knows the shapes of its elements where it does not know their dtypes."""

    @abc.abstractmethod
    def grid_spec(self) -> Spec:
        """The spec of an element, whose dtypes may be others: see `grid_spec`."""


def boxes_of_parents(node: Any, boxes: Boxes) -> tuple[Sequence[Boxes], Boxes] | None:
    """What makes boxes of the elements of any node with parents: see `MakesBoxes`."""
    if isinstance(node, MakesBoxes):
        return node.boxes_of_parents(boxes)
    return ([boxes] * len(node.parents), boxes) if node.keeps_elements else None


def grid_spec(node: Any) -> Spec:
    """The spec of an element of any node; where a local map declares none, dtypes may be others.

    Raises:
        PlanError: If shapes are not known before an element is made.
    """
    if isinstance(node, KnowsGrid):
        return node.grid_spec()
    parents = [functools.partial(grid_spec, parent) for parent in node.parents]
    found: Spec = node.spec(specs.Lazy(parents))
    return found
