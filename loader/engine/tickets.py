"""What a prefetcher has planned: the chunks that read batches want, and the reads of chunks.

A ticket and its chunks hold each other until the read batch is made, or the prefetcher is dropped.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from windrow.engine.chunk_cache import ChunkPlace
from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.chunks import ArrayPart, Part, partly_read


@dataclasses.dataclass(slots=True, eq=False)
class PlannedChunk(ChunkPlace):
    """A chunk that is wanted, being read or in the chunk cache."""

    due: int = 0  # the place of the first read batch that wants it
    # Read batches that want it, and which chunk it is there.
    uses: list[tuple[Ticket, int]] = dataclasses.field(default_factory=list)
    read: ChunkRead | None = None
    rows: int = 0  # that these read batches want of it, where chunks go straight to them

    @property
    def next_use(self) -> int:
        """The place of the next read batch that wants it."""
        return self.uses[0][0].place


@dataclasses.dataclass(slots=True, eq=False, weakref_slot=True)
class ChunkRead:
    """A read under way of some chunks."""

    chunks: list[PlannedChunk]
    future: Future[Any]
    done: bool = False
    failed: bool = False  # as a whole


class Ticket:
    """The records of one part that one read batch wants."""

    def __init__(
        self, number: int, place: int, count: int, fragments: Any, which: IntArray
    ) -> None:
        self.round = number
        self.place = place  # records that were planned before its read batch
        self.count = count
        self.fragments = fragments
        self.which = which  # per fragment, which of the ticket's chunks
        self.chunks: list[PlannedChunk] = []
        self.served: set[int] = set()
        self.out: Any = None
        self.targets: Any = None  # in `out`
        self.is_early = False  # whether `out` was made before the read batch

    @functools.cached_property
    def _by_chunk(self) -> tuple[IntArray, IntArray]:
        order = np.argsort(self.which, kind="stable")
        return order, np.searchsorted(self.which[order], np.arange(len(self.chunks) + 1))

    @property
    def chunk_count(self) -> int:
        """Number of chunks that the read batch wants."""
        return len(self.chunks)

    def of_chunk(self, at: int) -> IntArray:
        """The fragments that lie in chunk `at`."""
        order, bounds = self._by_chunk
        return order[bounds[at] : bounds[at + 1]]

    def error_of(self, part: Part, column: Any, failed: Mapping[int, Exception]) -> Exception:
        """The error of its read batch, where some of its chunks have one.

        Args:
            part: The part.
            column: The column, with anything in place of the records in these chunks.
            failed: The errors of chunks.
        """
        errors = dict[int, ReadError]()
        for at, error in failed.items():
            if not isinstance(error, ReadError):
                return error
            if isinstance(part, ArrayPart):
                error = part.named(error)
            errors |= dict.fromkeys(self.fragments.records[self.of_chunk(at)].tolist(), error)
        return partly_read(column, errors)


def rows_of(part: Part, chunk: PlannedChunk) -> int:
    """The number of rows of a chunk."""
    if not isinstance(part, ArrayPart):
        return 1  # more than is counted: the wanted cells of boxes may overlap
    first, stop = part.bounds(chunk.number)
    return stop - first


def errors_of(
    chunks: Sequence[PlannedChunk], errors: Mapping[ChunkRead, Mapping[int, Exception]]
) -> dict[int, Exception]:
    """The errors of chunks that were read, by their places among these.

    Args:
        chunks: The chunks.
        errors: The errors of reads, by the numbers of their chunks.
    """
    found: dict[int, Exception] = {}
    for at, chunk in enumerate(chunks):
        own = errors.get(chunk.read) if chunk.read is not None else None
        if own is not None and chunk.number in own:
            found[at] = own[chunk.number]
    return found


def let_go(
    tickets: dict[int, list[Ticket]], known: dict[int, PlannedChunk], reads: Iterable[ChunkRead]
) -> None:
    """Take apart what was planned, so that its memory is given back, and reads end unfinished."""
    for ticket in itertools.chain.from_iterable(tickets.values()):
        ticket.chunks.clear()
    for chunk in known.values():
        chunk.uses.clear()
        chunk.read = None
    for read in reads:
        read.chunks.clear()
