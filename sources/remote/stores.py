"""Stores that parts of files are fetched from, and names.

Invariants: a part is exactly the bytes that were asked for, of the version that was asked for, or a
`RequestError`. Bytes are as they are stored. When an iterator over parts is closed, its requests end.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import threading
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, TypeAlias

from windrow.sources.remote.faults import RequestError

What: TypeAlias = Literal["file", "folder", "nothing"]
"""What a path names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a file: bytes `[start, stop)`, without a start the last `stop`, without both all.

    Args:
        path: The file in its store.
        start: The first byte.
        stop: The end.
        version: The version that is wanted; any if it is empty.
        weight_bytes: Bytes that count towards `RemoteOptions.in_flight_bytes`.
        versioned: Whether the version of what comes must be known.
    """

    path: str
    start: int | None = None
    stop: int | None = None
    version: str = ""
    weight_bytes: int = 0
    versioned: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of a part, with the length and version of its file, and whether it is a page of HTML."""

    data: bytes
    size_bytes: int
    version: str
    is_page: bool = False


Arrivals: TypeAlias = list[tuple[int, Fetched | RequestError]]
"""Places of parts, with their bytes or faults."""


class Store(Protocol):
    """Where files are fetched from."""

    confirms: bool
    """Whether each part that arrives is known to be of its version; else only after the last one."""

    def fetch(self, parts: Sequence[Part], *, patient: bool) -> Iterator[Arrivals]:
        """Yield parts as they arrive, each once: all that are there at a time.

        Args:
            parts: The parts.
            patient: Whether to wait for a store that is away.

        Raises:
            ReadError: If the scope of this thread is cancelled.
        """
        ...

    def what(self, path: str) -> What:
        """Find what a path names."""
        ...

    def names(self, path: str) -> list[str]:
        """List the names in a folder, sorted; folders end in a slash. None if it does not exist."""
        ...


class HeldBytes:
    """Bytes that were requested and have not come, of all callers."""

    def __init__(self, most: int) -> None:
        """Start with none; hold at most `most`, or what one caller takes."""
        self._most, self._bytes, self._fewer = most, 0, threading.Condition()

    def take(self, size: int, *, wait: bool) -> bool:
        """Add bytes if they fit or nothing is held; else `wait` for that, or return False."""
        with self._fewer:
            while self._bytes and self._bytes + size > self._most:
                if not wait:
                    return False
                self._fewer.wait()
            self._bytes += size
        return True

    def give(self, size: int) -> None:
        """Take bytes off again."""
        with self._fewer:
            self._bytes -= size
            self._fewer.notify_all()


def fetch_one(store: Store, part: Part) -> Fetched:
    """Fetch one part; raise its fault."""
    (((_, answer),),) = store.fetch([part], patient=False)
    if isinstance(answer, RequestError):
        raise answer
    return answer


def glob(store: Store, pattern: str) -> list[str]:
    """List the files that match a pattern, by listing folders; `**` stands for any folders."""
    return sorted(set(_matches(store, "", pattern.split("/"))))


def _matches(store: Store, folder: str, pattern: list[str]) -> Iterator[str]:
    head, *rest = pattern
    if not any(mark in head for mark in "*?["):
        path = folder + head
        if rest:
            yield from _matches(store, path + "/", rest)
        elif store.what(path) == "file":
            yield path
        return
    if head == "**" and rest:
        yield from _matches(store, folder, rest)
    for name in store.names(folder):
        bare = name.rstrip("/")
        if head == "**" and name != bare:
            yield from _matches(store, folder + name, pattern)
        elif head != "**" and fnmatch.fnmatchcase(bare, head):
            if rest and name != bare:
                yield from _matches(store, folder + name, rest)
            elif not rest and name == bare:
                yield folder + name
        elif head == "**" and not rest:
            yield folder + name
