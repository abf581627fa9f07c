"""Descriptions of where the nodes of a chain run, for `explain()`."""

from __future__ import annotations

from typing import Any, Protocol


class Where(Protocol):
    """Describes where a node of a chain runs, for `Node.runs_as`."""

    @property
    def of_each(self) -> str:
        """Where a function of one element is called."""
        ...

    @property
    def of_many(self) -> str:
        """Where a function of many elements is called."""
        ...

    def reading(self, source: Any) -> str:
        """How a source is read."""
        ...

    def streaming(self) -> str:
        """How the elements of a chain with random access are made, one after the other."""
        ...

    def working(self, node: Any) -> str:
        """What workers do for the chain before `node`."""
        ...
