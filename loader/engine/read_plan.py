"""Which chunks planned read batches want, and when and where each chunk is read.

A stream is made in read batches, and their chunks are planned many read batches before their turn. A
chunk is *over* when the oldest quarter of the plan has three quarters of what an epoch wants of it: an order
that takes chunks in turn, or in blocks, is past such a chunk then. An order that comes back
to chunks soon keeps them all, if all have slots: when a quarter of the reads are of chunks that were read
fewer reads ago than half of the chunks are.

Contract:
1. A chunk is read once for all read batches that are planned when its read starts.
2. It starts when one of the next two read batches wants it, or, if it is over, as early as `lead` records.
3. It goes straight to the read batches that want it if it is over, or if chunks have no slots. Otherwise it
   has a slot. One that is over gives its slot back when its read batches are made, others stay.
4. A chunk gets a free slot, else the slot of the chunk which no planned read batch has wanted for the longest
   time, else the slot of the chunk whose next use is farthest.
5. A longer plan saves reads until all chunks that start next are over, or until it is an epoch: then each is
   read once for all its rows, and more would spare reads of the next epoch at most.

Invariant: it reads nothing, waits for nothing, and what it decides follows from the calls alone.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from windrow.engine.chunk_cache import ChunkPlace, WantedChunks
from windrow.sources.base import IntArray


@dataclasses.dataclass(slots=True, eq=False)
class PlannedChunk(ChunkPlace):
    """A chunk that is wanted, being read or in a slot.

    Args:
        due: The place of the first read batch that wants it.
        lacks: How many of its rows have to be planned until it is complete.
        complete: The place of the read batch that completed it.
        uses: The tickets that want it and are not served, each with its number for the chunk.
        is_there: Whether its read has ended.
        is_kept: Whether it stays in its slot when no planned read batch wants it.
        read: The read that it is part of.
    """

    due: int = 0
    lacks: int = 0
    complete: float = math.inf
    uses: list[tuple[Ticket, int]] = dataclasses.field(default_factory=list)
    is_there: bool = False
    is_kept: bool = False
    read: Any = None


class Ticket:
    """The records of one part that one read batch wants."""

    def __init__(
        self, number: int, place: int, count: int, fragments: Any, which: IntArray
    ) -> None:
        self.read_batch = number
        self.place = place  # records that were planned before its read batch
        self.count = count
        self.fragments = fragments
        self.which = which  # per fragment, which of the ticket's chunks
        self.chunks: list[PlannedChunk] = []
        self.served: set[int] = set()  # chunks whose rows are in `out`, or on their way
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


class ChunkPlan:
    """The plan of one part of a source, for one stream."""

    def __init__(
        self,
        rows_of: Callable[[int], int],
        slots: int,
        lead: int,
        epoch: float,
        *,
        has_all: bool = False,
        keeps: bool = False,
        scatters: bool = False,
        is_remote: bool = False,
    ) -> None:
        """Start without a read batch.

        Args:
            rows_of: The number of rows that an epoch wants of a chunk.
            slots: The most chunks that have a slot; 0 if chunks go straight to read batches.
            lead: Records whose reads may start before their read batches are due.
            epoch: The number of records.
            has_all: Whether there is a slot for each chunk.
            keeps: Whether all chunks are kept from the start.
            scatters: Whether a chunk can go straight to read batches.
            is_remote: Whether chunks that are not over start early, too: those reads wait.
        """
        self._rows_of, self._slots, self._lead = rows_of, slots, lead
        self._epoch = epoch
        self._reach = lead  # records before which reads start, at most
        self._scatters, self._is_remote = scatters, is_remote
        self.planned = self.made = 0  # records, since the start of the stream
        self.known: dict[int, PlannedChunk] = {}
        self._queue: collections.deque[PlannedChunk] = collections.deque()  # to be read, by `due`
        self._free = list(range(slots))  # a heap: low slots first, so that few pages are touched
        self._held: dict[int, PlannedChunk] = {}  # by slot
        self._idle: dict[int, PlannedChunk] = {}  # wanted by no planned read batch; oldest first
        self._by_next_use: list[PlannedChunk] = []  # of `_held`, when `_sorted_at` were made
        self._sorted_at = -1
        self._has_ended, self._keeps = False, keeps
        # The number of the last read of each chunk, where all have slots, and reads that came soon after.
        self._read_at = [0] * (slots if has_all and not keeps else 0)
        self._reads = self._soon = 0

    @property
    def used_slots(self) -> int:
        """Number of slots that chunks have."""
        return self._slots - len(self._free)

    # --- read batches ----------------------------------------------------------------------------

    def add(self, ticket: Ticket, wanted: WantedChunks) -> int:
        """Plan the records of a read batch; returns the number of chunks to read for them."""
        self.planned += ticket.count
        new = 0
        for at, (number, rows) in enumerate(zip(wanted.numbers, wanted.rows, strict=True)):
            chunk = self.known.get(number)
            if chunk is None:
                # Not all: a record that crosses the bounds of a chunk may come in another window.
                lacks = -(-3 * self._rows_of(number) // 4)
                chunk = PlannedChunk(number, due=ticket.place, lacks=lacks)
                self.known[number] = chunk
                self._queue.append(chunk)
                new += 1
            elif not chunk.uses:
                self._idle.pop(number, None)
            chunk.uses.append((ticket, at))
            if chunk.lacks > 0:
                chunk.lacks -= rows
                chunk.complete = ticket.place if chunk.lacks <= 0 else math.inf
            ticket.chunks.append(chunk)
        return new

    def remove(self, ticket: Ticket) -> None:
        """Remove a read batch that is made, or given up."""
        self.made += ticket.count
        for at, chunk in enumerate(ticket.chunks):
            if at not in ticket.served:
                chunk.uses.remove((ticket, at))
                self.rest(chunk)

    def end(self) -> None:
        """Note that every read batch is planned."""
        self._has_ended = True

    @property
    def wants_more(self) -> bool:
        """Whether a longer plan would save reads, or keep the reads going."""
        planned = self.planned - self.made
        if planned < 2 * self._reach or planned >= self._epoch or self._keeps:
            return planned < 2 * self._reach
        soon = itertools.takewhile(lambda each: each.due < self.made + self._reach, self._queue)
        return not all(map(self.is_over, soon))

    def is_over(self, chunk: PlannedChunk) -> bool:
        """Whether no later read batch is likely to want a chunk."""
        if self._has_ended or self._keeps:
            return self._has_ended
        return 4 * (chunk.complete - self.made) <= self.planned - self.made

    # --- what to read ----------------------------------------------------------------------------

    def is_due(self, place: int) -> bool:
        """Whether a read batch at `place` wants a chunk whose read was not started."""
        return bool(self._queue) and self._queue[0].due <= place

    def take(self, records: int) -> tuple[PlannedChunk, PlannedChunk | None] | None:
        """Take the next chunk to read, if one of the next `records` records wants it or it may start early.

        Returns:
            The chunk, which goes straight to its uses if it has no slot; and the chunk that has to
            be copied out of this slot to its uses first. None if no chunk is to be read now, or no
            slot is free until a read has ended.
        """
        self._reach = max(self._reach, records)
        while self._queue and not self._queue[0].uses:  # its read batches were given up
            del self.known[self._queue.popleft().number]
        if not self._queue:
            return None
        chunk = self._queue[0]
        is_over, far = self.is_over(chunk), chunk.due - self.made
        if far >= records and not (far < self._lead and (is_over or self._is_remote)):
            return None
        self._note(chunk.number)
        crowded_out = None
        if self._scatters and (is_over or not self._slots):
            del self.known[chunk.number]
        elif self._free:
            chunk.slot = heapq.heappop(self._free)
        elif self._idle:
            oldest = self._idle.pop(next(iter(self._idle)))
            del self.known[oldest.number]
            chunk.slot, oldest.slot = oldest.slot, -1
        elif (crowded_out := self._farthest()) is not None:
            del self.known[crowded_out.number]
            chunk.slot = crowded_out.slot
        else:
            return None
        self._queue.popleft()
        chunk.is_kept = not is_over
        if chunk.slot >= 0:
            self._held[chunk.slot] = chunk
        return chunk, crowded_out

    def _note(self, number: int) -> None:
        """Note a read, to learn whether the order comes back to chunks soon."""
        if not self._read_at:
            return
        self._reads += 1
        before, self._read_at[number] = self._read_at[number], self._reads
        count = len(self._read_at)
        self._soon += before > 0 and 2 * (self._reads - before) < count
        self._keeps = 4 * self._soon > max(self._reads, count // 2)
        if self._keeps:
            self._read_at = []

    def _farthest(self) -> PlannedChunk | None:
        """The chunk in a slot, read already, whose next use is farthest."""
        for again in (False, True):
            if again or self._sorted_at != self.made:
                self._sorted_at = self.made
                held = [chunk for chunk in self._held.values() if chunk.uses and chunk.is_there]
                self._by_next_use = sorted(held, key=_next_use)
            while self._by_next_use:
                chunk = self._by_next_use.pop()
                if chunk.slot >= 0 and chunk.uses:
                    return chunk
        return None

    # --- what arrives ----------------------------------------------------------------------------

    def arrived(self, chunk: PlannedChunk) -> None:
        """Note that a chunk was read."""
        chunk.is_there = True
        self.rest(chunk)

    def failed(self, chunk: PlannedChunk) -> None:
        """Note that a chunk could not be read: a later read batch tries again."""
        self._release(chunk)
        if self.known.get(chunk.number) is chunk:
            del self.known[chunk.number]

    def served(self, chunk: PlannedChunk) -> Sequence[tuple[Ticket, int]]:
        """End the uses of a chunk, whose rows are copied to them now; returns these."""
        uses, chunk.uses = chunk.uses, []  # else chunk and ticket would keep the column alive
        for ticket, at in uses:
            ticket.served.add(at)
        return uses

    def rest(self, chunk: PlannedChunk) -> None:
        """Keep a chunk that no planned read batch wants, or free its slot."""
        if chunk.uses or chunk.slot < 0 or not chunk.is_there:
            return
        if chunk.is_kept:
            self._idle[chunk.number] = chunk
        else:
            del self.known[chunk.number]
            self._release(chunk)

    def _release(self, chunk: PlannedChunk) -> None:
        if chunk.slot >= 0:
            del self._held[chunk.slot]
            heapq.heappush(self._free, chunk.slot)
            chunk.slot = -1


def _next_use(chunk: PlannedChunk) -> int:
    return chunk.uses[0][0].place
