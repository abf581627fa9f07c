"""Endless streams that have no row: how long to read before that is sure.

A filter that drops every element of a lane would let its stream be read for ever without a row.

Invariant: a stream that has a row is not stopped, unless its order leaves out all rows for `_EPOCHS`
epochs in a row.
"""

from __future__ import annotations

import math
from typing import Final

from windrow.engine.stages import ChainStage
from windrow.errors import PlanError
from windrow.transforms.nodes import may_be_absent, no_row

# Lanes have other elements in each epoch of a shuffle. If one element of an epoch gives a row, a lane
# that took the elements of 16 epochs has missed it with a probability of e**-16.
_EPOCHS: Final = 16


class RowWatch:
    """Counts the elements that one stage took since it gave a row.

    Args:
        stage: The stage.
        lane: The lane that it runs in, and the number of lanes.
    """

    def __init__(self, stage: ChainStage, lane: tuple[int, int]) -> None:
        self._most, self._lane, self._without = most_without_row(stage), lane, 0

    def saw(self, elements: int, rows: int) -> None:
        """Note that some elements gave some rows.

        Raises:
            PlanError: If the stage gives no row, however long it runs.
        """
        self._without = 0 if rows else self._without + elements
        if self._without > self._most:
            raise never_a_row(*self._lane)


def most_without_row(stage: ChainStage) -> float:
    """The elements after which a stage that has given no row will give none; infinite if unknown."""
    chain, below = stage.chain, stage.below
    drops = not stage.keeps_rows
    if chain is not None:
        drops = drops or (may_be_absent(chain.parent) and not chain.allow_nones)
        below = chain.parent
    # It is not known how long a mixture takes to give every element.
    if not drops or not below.is_endless() or any(len(each.parents) > 1 for each in below.walk()):
        return math.inf
    if chain is not None:
        return _EPOCHS * below.epoch_length()
    return _EPOCHS * below.elements(once=True).high


def never_a_row(lane: int, lanes: int) -> PlanError:
    """The error of a lane whose elements are all dropped."""
    return no_row(lane, lanes, f"all of its elements were dropped for {_EPOCHS} epochs")
