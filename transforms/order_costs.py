"""Costs of orders: how many positions are computed to find the records of elements.

Dry runs and samples of an order take as much of a long chain as these costs allow, so they are the
same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

AT_ONCE: Final = 2**16
"""Positions that are computed in one call."""

ORDER: Final = 2**14
"""The order of a window, however short, takes as long as this many positions: about 1 ms."""

POSITION_S: Final = 60e-9
"""What a usual machine takes to compute a position."""


class OrderCost(NamedTuple):
    """Positions that are computed to find the records of a chain's elements.

    Args:
        begin: Cost of moving to another place, however few elements are found there.
        each: Cost of each element from there on.
        span: Elements that one such move yields.
        together: The most elements that come together out of the same blocks.
    """

    begin: float = 0
    each: float = 1
    span: float = 1
    together: int = 1

    def scattered(self, length: int) -> float:
        """The cost of each element if neighbours lie all over `length` elements of this cost.

        They are found one by one, or in calls that compute all of them.
        """
        return min(self.begin + self.each, self.each * max(1.0, length / AT_ONCE))


def added(costs: Iterable[OrderCost]) -> OrderCost:
    """The cost of an element that is made of an element of each of several chains."""
    found = list(costs)
    if not found:
        return OrderCost()
    begin, each, span, _ = (sum(part) for part in zip(*found, strict=True))
    return OrderCost(begin, each, span, max(cost.together for cost in found))
