"""Options with room for some bytes of chunks and planned records."""

from __future__ import annotations

from typing import Any

from windrow import ReadOptions


def room_for(size_bytes: float, **options: Any) -> ReadOptions:
    """Options with this room: 13/16 of a memory that is too small for the limits of batches."""
    return ReadOptions(memory_bytes=max(1, int(size_bytes * 16 / 13)), **options)
