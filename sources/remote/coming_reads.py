"""What a stream reads next, and who wants to know: a cache on disk keeps what is needed soon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from windrow.sources.remote.remote_file import RemoteFile

IntArray = npt.NDArray[np.int64]
FileRanges: TypeAlias = tuple[RemoteFile, IntArray, IntArray, IntArray]
"""A file, which of some records lie in it, and the begin and the end of the bytes of each of these."""
RangesOf: TypeAlias = Callable[[IntArray], Iterator[FileRanges]]
"""The bytes of records, by their indices."""


class ComingReads(Protocol):
    """The records of a source that a stream reads next, the near ones first. Any thread may ask.

    Far ones are a sample: the farther, the fewer.
    """

    def __iter__(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Indices of records, and how many elements of the stream come before each of them."""
        ...

    def __hash__(self) -> int: ...


@runtime_checkable
class KeepsOnDisk(Protocol):
    """A source that may keep what it reads in a bounded folder."""

    def foresee(self, coming: ComingReads) -> None:
        """Keep what a stream reads soon rather than what it reads later, as long as `coming` exists."""
        ...
