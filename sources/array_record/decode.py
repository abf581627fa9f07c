"""Decodes chunks of ArrayRecord files in memory: the native core does it, without the interpreter's lock.

Invariant: a chunk's header is as it was written, and its records have the number and the total size
that it counts. With `verify="all"` the records are as they were written; otherwise a changed bit
within compressed data may go unnoticed. A chunk that cannot be decoded is a `ChunkError`. A header
cannot make the core allocate more memory than its chunk can decompress to. A chunk does not state
its place: a chunk in the place of another with as many records is taken for it, as by the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from windrow.core import native
from windrow.core.system_errors import lacks_memory
from windrow.sources.array_record.chunks import WHAT, Buffer, Ints

Verify = Literal["all", "headers"]


class StoredChunk(NamedTuple):
    """A chunk as stored in its file.

    Args:
        offset: Where it begins in the file.
        data: The file's bytes from there on, with block headers, at least to its end.
        records: The number of its records by the file's index.
    """

    offset: int
    data: Buffer
    records: int


class ChunkError(Exception):
    """A chunk cannot be decoded.

    Args:
        chunk: Its number in the list.
        why: The reason, as a clause that follows its name.
    """

    def __init__(self, chunk: int, why: str) -> None:
        super().__init__(chunk, why)
        self.chunk, self.why = chunk, why

    def __str__(self) -> str:
        return f"chunk {self.chunk}: {self.why}"


def decode(chunks: Sequence[StoredChunk], *, verify: Verify = "all") -> list[list[bytes]]:
    """The records of each chunk.

    Args:
        chunks: Chunks of one file or several.
        verify: "headers" skips the hashes of data.

    Raises:
        ChunkError: If a chunk is damaged, cut off, or does not match the index.
        MissingExtraError: If the native core is missing.
    """
    for number, (offset, _, _) in enumerate(chunks):
        if offset < 0:
            raise ChunkError(number, f"no chunk can begin at byte {offset:,}")
    core = native.needed(WHAT)
    records: list[list[bytes]] = _asked(
        core, core.array_record_decode, list(chunks), verify == "all"
    )
    return records


def decode_index(offset: int, raw: Buffer) -> tuple[bytes, Ints]:
    """The records of a file's footer: the one about the file, and the entries of its chunks.

    Args:
        offset: Where the footer begins in the file.
        raw: The file's bytes from there on.

    Returns:
        The first record, and for each chunk its begin, bytes in memory and records, int64
        `(chunks, 3)`.

    Raises:
        ChunkError: If the footer is damaged, or does not hold these numbers.
        MissingExtraError: If the native core is missing.
    """
    core = native.needed(WHAT)
    found = _asked(core, core.array_record_index, offset, raw)
    if found is None:
        raise ChunkError(0, "its index does not hold three numbers per chunk")
    about, entries = found
    return about, np.frombuffer(entries, np.int64).reshape(-1, 3)


def _asked(core: Any, function: Callable[..., Any], *args: Any) -> Any:
    """What a function of the core returns; its errors as ours, which can be pickled with their context."""
    try:
        return function(*args)
    except core.ChunkError as error:
        told = error.args
    if lacks_memory(told[1]):
        raise MemoryError(f"chunk {told[0]}: {told[1]}")
    raise ChunkError(*told)
