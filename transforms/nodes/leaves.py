"""Leaves: nodes without parents, which begin a chain."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from windrow.errors import PlanError
from windrow.sources.base import IntArray, Specified
from windrow.transforms import layouts, specs
from windrow.transforms.amounts import Amount
from windrow.transforms.columns import PythonInts
from windrow.transforms.layouts import Layout
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.nodes.base import Node
from windrow.transforms.positions import Positions
from windrow.transforms.record_sizes import record_bytes
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Columnar, Table

if TYPE_CHECKING:
    from windrow.sources.cells import Boxes


@runtime_checkable
class LaidOut(Protocol):
    """A source that declares which of its records lie near each other."""

    def blocks(self) -> Any:
        """Bounds of blocks of consecutive records, 0, ..., length; or bounds with `records`.

        None if the blocks are unknown.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class SourceNode(Node):
    """The records of a source, in its order."""

    source: Any

    keeps_values: ClassVar[bool] = True

    def count(self) -> int:
        return len(self.source)

    @property
    def label(self) -> str:
        return f"source({self.source.fingerprint})"

    @property
    def written(self) -> str:
        # Without a repr of its own it would show an address.
        has_repr = getattr(type(self.source), "__repr__", None) is not object.__repr__
        return f"source({self.source!r})" if has_repr else self.label

    @property
    def data_source(self) -> Any:
        return self.source

    def spec(self, parents: Sequence[Spec]) -> Spec:
        name = type(self.source).__name__
        declared = self.source.spec if isinstance(self.source, Specified) else None
        if declared is None:
            raise PlanError(
                f"element_spec: {name} does not declare what its records are;"
                " read one with ds.read_spec()"
            )
        return specs.checked(declared, f"{name}.spec")

    def with_boxes(self, boxes: Boxes) -> Node | None:
        """The node that makes only boxes of its elements; None if it cannot."""
        # Few chains are narrowed: others do not load it.
        from windrow.sources.cells import Narrowable

        found = self.source.narrowed(boxes) if isinstance(self.source, Narrowable) else None
        return None if found is None else SourceNode((), found)

    def element_bytes(self) -> Amount | None:
        return record_bytes(self.source)

    def layout(self) -> Layout:
        found = None
        if isinstance(self.source, LaidOut):
            found = layouts.declared_layout(self.source, self.length)
        return super().layout() if found is None else found

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        return known.of(self.source, at.offsets)


class LeafNode(Node):
    """Elements that follow from their positions alone."""

    keeps_values: ClassVar[bool] = True

    @abc.abstractmethod
    def table(self, at: Positions) -> Table:
        """The elements at some positions."""

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        raise PlanError(f"lengths: elements of {self.label} are not sequences, so they have none")


@dataclasses.dataclass(frozen=True, eq=False)
class RangeNode(LeafNode):
    """The Python ints of a `range`."""

    start: int
    stop: int
    step: int

    def count(self) -> int:
        if self.step == 0:
            raise PlanError("range: step must not be 0")
        if max(abs(self.start), abs(self.stop), abs(self.step)) >= 2**62:
            raise PlanError("range: start, stop and step must be below 2**62 in size")
        return len(range(self.start, self.stop, self.step))

    @property
    def label(self) -> str:
        return f"range({self.start}, {self.stop}, {self.step})"

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return specs.INTEGER

    def table(self, at: Positions) -> Table:
        values = (self.start + at.offsets * self.step).view(PythonInts)
        return Columnar(values, len(at))
