"""Errors for arrays that were found and are not read: what is not read, why, and what to do instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from windrow.errors import NotFoundError, SourceError
from windrow.sources.zarr.names import Found

_READ_DTYPES: Final = "bool, int4 to int64, uint8 to uint64, all floats, bfloat16 and complex"
_MOST_BYTES: Final = 2**31


def unread(found: Found, why: str) -> SourceError:
    """The error for an array that cannot be read, with the reason `why`."""
    return SourceError(
        f"{found.what}: {found.named} in {found.where} is not read: {why}. Arrays of"
        f" {_READ_DTYPES} are. In a group, choose the arrays to read: names=['image', ...]"
    )


def refuse_absurd(
    found: Found,
    shape: Sequence[int],
    chunk: Sequence[int | None],
    itemsize: int,
    shard: Sequence[int | None],
) -> None:
    """Refuse sizes that no storage has, before memory is allocated.

    Args:
        found: The array.
        shape: Its shape.
        chunk: Shape of the cells that are decoded together; None along axes where it is unknown.
        itemsize: Bytes of a value.
        shard: Shape of what one stored object holds.

    Raises:
        SourceError: If a chunk or the index of a shard has more than 2 GiB, or the whole 2**62.
    """
    of_chunk = math.prod(size or 1 for size in chunk) * itemsize
    chunks = math.prod(-(-(s or 1) // (c or 1)) for s, c in zip(shard, chunk, strict=True))
    for what, size, most in (
        ("a chunk has {:,} bytes", of_chunk, _MOST_BYTES),
        ("the index of a shard has {:,} bytes", 16 * chunks if chunks > 1 else 0, _MOST_BYTES),
        ("it has {:,} bytes", math.prod(max(1, size) for size in shape) * itemsize, 2**62),
    ):
        if size > most:
            raise SourceError(
                f"{found.what}: {found.named} in {found.where} says that {what.format(size)}, and"
                f" at most {most:,} are read. If that is right, write it in smaller chunks;"
                " otherwise its metadata are damaged"
            )


def gone(found: Found, why: str) -> NotFoundError:
    """The error for an array that is no longer where it was found."""
    if found.listing:
        return NotFoundError(
            f"{found.what}: there is no array at {found.where}, though {found.listing} list it: {why}."
            " Consolidate again (zarr.consolidate_metadata), or choose other arrays by names=[...]"
        )
    return NotFoundError(f"{found.what}: there is no array at {found.where}: {why}")
