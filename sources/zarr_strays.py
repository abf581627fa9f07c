"""Strays: stored chunks that the metadata of a local array has no place for.

They tell that the metadata is wrong, of a shape or chunk shape that is not that of the chunks, or
that something was left over.

Invariant: files are listed and never opened.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Final

from windrow.sources.zarr_plain import PlainArray, plain_array

_MOST: Final = 1000
_NUMBER: Final = r"0|[1-9]\d*"


def strays_of(plain: PlainArray) -> list[str]:
    """Paths of up to 1,000 stored chunks that are outside of an array as it is now, in order.

    Raises:
        OSError: If a folder can not be listed.
    """
    # An array may grow while it is read.
    now = plain_array(plain.folder, plain.name)
    if isinstance(now, str) or len(now.shape) != len(plain.shape):
        return []
    whole = now.shard_shape or now.chunk_shape
    grid = tuple(-(-n // c) for n, c in zip(now.shape, whole, strict=True))
    listed = _in_one_folder(now, grid) if now.separator == "." else _in_folders(now, grid)
    return sorted(itertools.islice(listed, _MOST))


def _in_one_folder(plain: PlainArray, grid: tuple[int, ...]) -> Iterator[str]:
    key = re.escape(plain.prefix) + r"\.".join([rf"({_NUMBER})"] * len(grid))
    with os.scandir(plain.folder) as entries:
        for entry in entries:
            found = re.fullmatch(key, entry.name)
            if found and any(int(k) >= n for k, n in zip(found.groups(), grid, strict=True)):
                yield entry.path


def _in_folders(plain: PlainArray, grid: tuple[int, ...]) -> Iterator[str]:
    folder = os.path.join(plain.folder, plain.prefix.rstrip("/"))
    if os.path.isdir(folder):
        yield from _below(folder, grid, outside=False)


def _below(folder: str, grid: tuple[int, ...], *, outside: bool) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not re.fullmatch(_NUMBER, entry.name):
                continue
            out = outside or int(entry.name) >= grid[0]
            if len(grid) > 1:
                if entry.is_dir():
                    yield from _below(entry.path, grid[1:], outside=out)
            elif out:
                yield entry.path
