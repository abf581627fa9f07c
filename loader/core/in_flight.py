"""What this process waits for outside of it, such as requests, so that a stall can be explained.

Invariant: an entry costs a dictionary item, and its description is made only when it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_entries: Final[dict[int, tuple[float, Callable[[], str]]]] = {}


class InFlight:
    """A context in which something is waited for.

    Args:
        describe: Describes it, without secrets. Any thread may call it.

    Example:
        >>> from windrow.core.in_flight import InFlight, in_flight
        >>> with InFlight(lambda: "bytes [0, 10) of a file"):
        ...     [what for what, _ in in_flight()]
        ['bytes [0, 10) of a file']
        >>> in_flight()
        []
    """

    __slots__ = ("_describe",)

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe

    def __enter__(self) -> None:
        _entries[id(self)] = time.monotonic(), self._describe

    def __exit__(self, *error: object) -> None:
        _entries.pop(id(self), None)


def in_flight() -> list[tuple[str, float]]:
    """Descriptions of what is waited for now, each with its seconds so far; the longest first."""
    now = time.monotonic()
    return [
        (describe(), now - since)
        for since, describe in sorted(_entries.copy().values(), key=_since)
    ]


def _since(entry: tuple[float, Callable[[], str]]) -> float:
    return entry[0]
