"""Computes the bytes that the chunks and records of a part take in memory.

Invariant: a size follows from the layout of a part, or from a sample of its chunks. Nothing is read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from windrow.sources.base import IntArray
from windrow.sources.boxes import BoxPart
from windrow.sources.chunks import ArrayPart, LaidOutSource, Part

# Size of the sample of chunks. Most sources have fewer chunks.
_SAMPLED: Final = 1 << 20


def _sampled(part: Part) -> IntArray:
    """Chunks that lie evenly over a part."""
    count = min(part.chunk_count, _SAMPLED)
    chunks: IntArray = np.linspace(0, part.chunk_count - 1, count).astype(np.int64)
    return chunks


def largest_bytes(part: Part) -> int:
    """Bytes of a part's largest chunk in memory, at least 1."""
    if isinstance(part, ArrayPart):
        return max(1, part.chunk_rows * part.row_bytes)
    if isinstance(part, BoxPart):
        return max(1, part.chunk_bytes)
    return int(part.memory_bytes(_sampled(part)).max(initial=1))


def bytes_per_record(part: Part, records: int) -> int:
    """Mean bytes in memory of one record in a part with `records` records."""
    if isinstance(part, ArrayPart):
        if part.lengths is not None:
            return part.row_bytes * part.rows // max(1, records)
        return part.row_bytes * (part.size or 1)
    if isinstance(part, BoxPart):
        return part.record_bytes
    return int(_mean(part.memory_bytes(_sampled(part))) * part.chunk_count / max(1, records))


def decoded_per_record(part: Part, records: int) -> float:
    """Mean bytes of one record, without objects around it, in a part of lists with `records` records."""
    return _mean(part.decoded_bytes(_sampled(part))) * part.chunk_count / max(1, records)


def _mean(sizes: IntArray) -> float:
    """Their mean; 0 without any, as in a file without records."""
    return float(sizes.sum()) / max(1, len(sizes))


def ragged_bytes(source: Any, records: IntArray, sizes: IntArray | None = None) -> int | None:
    """Bytes in memory of these records, whose lengths are known; None if all have one size.

    With `sizes`, of as many items of each record.
    """
    parts = source.parts if isinstance(source, LaidOutSource) else ()
    if not any(isinstance(part, ArrayPart) and part.lengths is not None for part in parts):
        return None
    return sum(
        int((part.sizes(records) if sizes is None else sizes).sum()) * part.row_bytes
        if isinstance(part, ArrayPart)
        else bytes_per_record(part, len(source)) * len(records)
        for part in parts
    )
