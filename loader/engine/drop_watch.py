"""Watches how much filters leave out, since a filter that drops everything looks like a hang.

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
    """Counts the elements that the filters of some steps leave out."""

    def __init__(
        self, filters: Sequence[Node], options: DatasetOptions, clock: Callable[[], float]
    ) -> None:
        self._filters, self._options, self._clock = filters, options, clock
        self._taken = self._left_out = 0
        self._warned_s: float | None = None

    def saw(self, taken: int, given: int) -> None:
        """Count a block: the elements that went in, and those that came out.

        Raises:
            ElementError: If filters leave out more than the options allow.
        """
        self._taken += taken
        self._left_out += taken - given
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

    def _text(self, ratio: float, taken: int) -> str:
        names = " and ".join(each.written for each in self._filters)
        return (
            f"{names} left out {ratio:.2%} of the last {taken:,} elements; if that is intended, choose"
            " the elements by index before (ds.slice), or set another threshold in"
            " windrow.experimental.DatasetOptions"
        )
