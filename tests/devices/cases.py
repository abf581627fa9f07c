"""What tests of devices share: a source that notes what is read, and comparisons of shards."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt


class Noting:
    """Records of dicts of arrays that notes the indices of records that are read."""

    def __init__(self, length: int, *, fails_at: int | None = None) -> None:
        self.length, self.fails_at = length, fails_at
        self.fingerprint = f"noting({length})"
        self.indices: list[int] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.read(np.array([index]))[0]

    def read(self, indices: npt.NDArray[np.int64]) -> Any:
        with self._lock:
            self.indices += indices.tolist()
        if self.fails_at in indices.tolist():
            raise OSError("the disk is away")
        return records(indices)


def records(indices: npt.NDArray[np.int64]) -> Any:
    """The columns of some records."""
    grid = indices[:, None, None] * 100 + np.arange(24).reshape(4, 6)
    return {"x": grid.astype(np.float32), "n": indices.astype(np.int32)}


def is_same(found: Any, expected: Any) -> bool:
    """Whether this process's shards of a global array hold the same values as the whole batch."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    return all(
        np.asarray(shard.data).tobytes() == np.ascontiguousarray(expected[shard.index]).tobytes()
        for shard in found.addressable_shards
    )


def are_same(found: Any, expected: Any) -> bool:
    """The same of a tree of dicts and tuples."""
    if isinstance(expected, dict):
        keys = list(found) == list(expected)
        return keys and all(are_same(found[key], expected[key]) for key in expected)
    if isinstance(expected, tuple):
        pairs = zip(found, expected, strict=True)
        return type(found) is type(expected) and all(are_same(*pair) for pair in pairs)
    return is_same(found, expected)
