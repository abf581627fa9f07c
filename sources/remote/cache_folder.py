"""The folder of a cache on disk: what it keeps, checked and cleared by hand.

Invariant: only files that a cache has made are deleted. Processes that use the cache notice that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from windrow.errors import NotFoundError, ReadError
from windrow.sources.remote.cache_segments import CacheSegment, StoredSegment, stored_segments

_SHOWN_URLS = 20
_UNKNOWN = "(unknown URL)"


@dataclasses.dataclass(frozen=True, slots=True)
class KeptUrl:
    """What a cache keeps of one URL.

    Args:
        url: The URL, without secrets.
        ranges: The number of byte ranges.
        bytes: The bytes of these ranges.
    """

    url: str
    ranges: int
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class CacheReport:
    """What a folder keeps.

    Args:
        folder: The folder.
        urls: What is kept of each URL, the most bytes first.
        disk_bytes: Bytes of the disk that it takes.
        damaged: Ranges that were damaged, and are deleted; None if they were not checked.
        cleared: Whether all was deleted.
    """

    folder: str
    urls: tuple[KeptUrl, ...]
    disk_bytes: int
    damaged: int | None = None
    cleared: bool = False

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        ranges, size = sum(one.ranges for one in self.urls), sum(one.bytes for one in self.urls)
        lines = [
            f"{self.folder}: {ranges:,} ranges of {len(self.urls):,} URLs, {size:,} bytes"
            f" ({self.disk_bytes:,} of the disk)"
        ]
        lines += [
            f"{one.bytes:>16,} {one.ranges:>10,}  {one.url}" for one in self.urls[:_SHOWN_URLS]
        ]
        if len(self.urls) > _SHOWN_URLS:
            lines.append(f"and {len(self.urls) - _SHOWN_URLS:,} URLs more")
        if self.damaged is not None:
            lines.append(f"{self.damaged:,} damaged ranges" + (", deleted" if self.damaged else ""))
        if self.cleared:
            lines.append("all deleted")
        return "\n".join(lines)


def cache_report(folder: str, *, verify: bool = False, clear: bool = False) -> CacheReport:
    """What the folder of a cache keeps.

    Args:
        folder: The folder, the `cache_dir` of `RemoteOptions`.
        verify: Compare all bytes with their checksums, and delete segments with damaged ranges.
        clear: Delete everything.

    Raises:
        NotFoundError: If there is no such folder.
        ReadError: If it cannot be listed.
    """
    found: dict[str, KeptUrl] = {}
    disk_bytes = damaged = 0
    for one in _segments(folder):
        opened = _opened(one)
        if opened is not None:
            with contextlib.closing(opened):
                bad = _damaged(opened) if verify else 0
                damaged += bad
                rows = opened.rows
                if bad or clear:
                    opened.delete()
            url = one.url() or _UNKNOWN
            before = found.get(url, KeptUrl(url, 0, 0))
            size = int((rows["stop"] - rows["start"]).sum())
            found[url] = KeptUrl(url, before.ranges + len(rows), before.bytes + size)
        elif clear:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(one.path)
        disk_bytes += one.disk_bytes
    urls = sorted(found.values(), key=lambda one: (-one.bytes, one.url))
    return CacheReport(folder, tuple(urls), disk_bytes, damaged if verify else None, clear)


def _segments(folder: str) -> Iterator[StoredSegment]:
    try:
        yield from stored_segments(folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(
            f"{folder} is not a folder; give the cache_dir of RemoteOptions"
        ) from error
    except OSError as error:
        raise ReadError(f"{folder} cannot be listed: {error}", file=folder) from error


def _opened(stored: StoredSegment) -> CacheSegment | None:
    """The segment with its rows; None if it is not whole, or not there any more."""
    try:
        segment = CacheSegment(stored.path)
        if segment.refresh():
            return segment
        segment.close()
    except OSError:
        pass
    return None


def _damaged(segment: CacheSegment) -> int:
    """The number of damaged ranges."""
    return len(segment.damaged(np.arange(len(segment.rows))))
