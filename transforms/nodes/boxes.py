"""What a node knows of boxes of its elements: the part of the protocol by which chains are narrowed.

Invariant: boxes never change which elements come, or their order. See `windrow.transforms.nodes.parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from windrow.transforms import specs
from windrow.transforms.specs import Spec

if TYPE_CHECKING:
    from windrow.sources.cells import Boxes


class MadeOfBoxes:
    """The part of a node that says which boxes its boxes are made of."""

    parents: tuple[Any, ...]
    keeps_elements: ClassVar[bool] = False
    """Whether each element is, as it is, an element of a parent."""

    def spec(self, parents: Sequence[Spec]) -> Spec:
        """See `Node.spec`."""
        raise NotImplementedError

    def grid_spec(self) -> Spec:
        """The spec of an element; where a local map declares none, dtypes may be others.

        Raises:
            PlanError: If shapes are not known before an element is made.
        """
        return self.spec(specs.Lazy([parent.grid_spec for parent in self.parents]))

    def boxes_of_parents(self, boxes: Boxes) -> tuple[Sequence[Boxes], Boxes] | None:
        """What makes boxes of elements: see `windrow.transforms.nodes.parts`.

        Returns:
            The boxes of the elements of each parent that are needed, and the boxes that come of them,
            which hold `boxes`. None if the node needs whole elements.
        """
        return ([boxes] * len(self.parents), boxes) if self.keeps_elements else None

    def with_boxes(self, boxes: Boxes) -> Any:
        """A node without parents that makes only boxes of its elements; None if it cannot."""
        return None
