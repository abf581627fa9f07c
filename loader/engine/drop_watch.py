"""Watches how much filters leave out, since a filter that drops everything looks like a hang.

A function that returns None leaves its element out, too, and most that do so always lack a `return`.

Invariant: it counts, and changes no element. A check is made at the end of a block, after 1,000
elements or more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from windrow.errors import ElementError
from windrow.transforms.nodes import Node
from windrow.transforms.options import DatasetOptions

_LEAST: Final = 1000
_PAUSE_S: Final = 60.0
_log = logging.getLogger("windrow.filter")


class DropWatch:
    """Counts the elements that the filters of some steps leave out, or else their functions."""

    def __init__(
        self, nodes: Sequence[Node], options: DatasetOptions, clock: Callable[[], float]
    ) -> None:
        self._nodes, self._options, self._clock = nodes, options, clock
        self._filters = any(node.drops for node in nodes)
        self._taken = self._left_out = self._given = 0
        self._warned_s: float | None = None

    def saw(self, taken: int, given: int) -> None:
        """Count a block: the elements that went in, and those that came out.

        Raises:
            ElementError: If filters leave out more than the options allow.
        """
        self._taken += taken
        self._left_out += taken - given
        self._given += given
        if self._taken < _LEAST:
            return
        ratio, taken = self._left_out / self._taken, self._taken
        self._taken = self._left_out = 0
        if ratio >= (self._options.filter_raise_threshold_ratio or 2):
            raise ElementError(
                f"{self._text(ratio, taken)}, or None for filter_raise_threshold_ratio"
            )
        if ratio < (self._options.filter_warn_threshold_ratio or 2):
            return
        now_s = self._clock()
        if self._warned_s is None or now_s - self._warned_s >= _PAUSE_S:
            self._warned_s = now_s
            _log.warning("%s, or None for filter_warn_threshold_ratio", self._text(ratio, taken))

    def ended(self) -> None:
        """Warn if the functions of a whole stream left out every element."""
        is_on = (self._options.filter_warn_threshold_ratio or 2) <= 1 and not self._filters
        if is_on and self._taken and not self._given and self._warned_s is None:
            _log.warning("%s", self._text(1.0, self._taken))

    def _text(self, ratio: float, taken: int) -> str:
        names = " and ".join(each.written for each in self._nodes)
        if not self._filters:
            return (
                f"{names} returned None for {ratio:.2%} of the last {taken:,} elements, which are left"
                " out; does a function lack a return? If it is intended, set another threshold in"
                " windrow.experimental.DatasetOptions"
            )
        return (
            f"{names} left out {ratio:.2%} of the last {taken:,} elements; if that is intended, choose"
            " the elements by index before (ds.slice), or set another threshold in"
            " windrow.experimental.DatasetOptions"
        )
