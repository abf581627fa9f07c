"""Files at URLs: which one, in which version, and which bytes of it.

Invariant: no repr here shows what is secret in a URL.
"""

from __future__ import annotations

import dataclasses

from windrow.sources.secrets import shown_url


@dataclasses.dataclass(frozen=True, slots=True)
class FarFile:
    """A file at a URL, as it was when it was first asked for.

    Args:
        url: As it was given; it may hold credentials.
        size_bytes: Its length.
        version: What tells it from another file at the same URL: an ETag, a generation, a time;
            empty where nothing tells.
    """

    url: str
    size_bytes: int
    version: str = ""

    def __repr__(self) -> str:
        return f"FarFile({self.shown!r}, {self.size_bytes:,} bytes, version={self.version!r})"

    @property
    def shown(self) -> str:
        """Its URL for people."""
        return shown_url(self.url)


@dataclasses.dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes `[start, stop)` of a file."""

    file: FarFile
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """How many they are."""
        return max(0, self.stop - self.start)


@dataclasses.dataclass(frozen=True, slots=True)
class Tail:
    """The last bytes of a file: all of it, where it is no longer."""

    file: FarFile
    data: bytes = dataclasses.field(repr=False)
