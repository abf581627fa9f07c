"""States of a user's own nodes, which are JSON, behind the integers of positions.

A position holds integers only. The integer of an own node is a number under which one iterator keeps
the state that the node returned. A stored state has the count of elements instead, and the JSON.

Invariant: a number means the same for as long as it is kept, and later rows have larger numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple


class Kept(NamedTuple):
    """The state of an own node after some elements.

    Args:
        elements: The number of elements before it.
        text: What the node returned, as JSON.
    """

    elements: int
    text: str

    def value(self) -> Any:
        """A new copy of what the node returned."""
        return json.loads(self.text)


class OwnStates:
    """The states that an iterator may still need, by their numbers from 1 on."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}
        self._next = 1

    def add(self, count: int, text: str) -> int:
        """Keep a state, and return its number."""
        number, self._next = self._next, self._next + 1
        self._kept[number] = Kept(count, text)
        return number

    def of(self, number: int) -> Kept:
        """The state with a number."""
        return self._kept[number]

    def forget_before(self, numbers: Iterable[int]) -> None:
        """Drop states that come before all of these, which belong to the present position."""
        # A node at its start, 0, may have rows in hand that were made before the rows of other nodes.
        first = min(numbers, default=0)
        while self._kept and (oldest := next(iter(self._kept))) < first:
            del self._kept[oldest]
