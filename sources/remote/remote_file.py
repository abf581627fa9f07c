"""A file at a URL in one version, and ranges of its bytes.

Invariant: no repr here shows a secret of a URL.
"""

from __future__ import annotations

import dataclasses

from windrow.core.redaction import shown_url


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at a URL, as it was at the first request.

    Args:
        url: The URL as it was given; it may hold credentials.
        size_bytes: The length of the file.
        version: Distinguishes it from another file at the same URL: an ETag, a generation, a time; the
            length in bytes if the server states none of these.
    """

    url: str
    size_bytes: int
    version: str = ""

    def __repr__(self) -> str:
        return f"RemoteFile({self.shown!r}, {self.size_bytes:,} bytes, version={self.version!r})"

    @property
    def has_version(self) -> bool:
        """Whether the server states more than the length of the file."""
        return self.version not in ("", f"{self.size_bytes} bytes")

    @property
    def shown(self) -> str:
        """Return its URL without secrets, for people."""
        return shown_url(self.url)


@dataclasses.dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes `[start, stop)` of a file."""

    file: RemoteFile
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes."""
        return max(0, self.stop - self.start)


@dataclasses.dataclass(frozen=True, slots=True)
class FileTail:
    """The last bytes of a file, or all of a short one."""

    file: RemoteFile
    data: bytes = dataclasses.field(repr=False)
