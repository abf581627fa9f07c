"""The prefetcher of one part starts the reads that its plan decides, and makes columns of what comes.

`read_plan` decides which chunks are read when, and where to. Here reads are started and taken over, and
rows are copied out of slots: when their read batch is made, or before, when another chunk needs the slot.

Contract:
1. A chunk is never read later than its first read batch.
2. An error of a read is raised by the read batches that want its chunks, and by no other.

Not thread-safe: one thread plans, starts and gathers; the reads themselves run on other threads.
"""

from __future__ import annotations

import functools
import itertools
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from windrow.core.threads import DaemonPool
from windrow.engine.budgets import PartRoom
from windrow.engine.chunk_cache import ChunkCache
from windrow.engine.read_plan import ChunkPlan, PlannedChunk, Ticket
from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.chunks import ArrayPart, partly_read
from windrow.sources.ragged_column import PiecePlaces
from windrow.sources.remote.options import is_remote_source
from windrow.stats.read_counters import PartCounters

_log = logging.getLogger("windrow.plan")

# One task reads several chunks smaller than this: handing over a task costs as much as reading one.
_TASK_BYTES = 256 << 10
# Neighbouring chunks of a remote store are one request: waiting for a request costs as much as
# reading these bytes.
_REMOTE_TASK_BYTES = 1 << 20
# The bytes of indices that planning a read batch costs.
TICKET_BYTES = 4_096
# In place of the future of a read whose chunks the chunk cache has taken over.
_TAKEN: Future[Any] = Future()


class _ChunkRead:
    """A read under way of some chunks."""

    def __init__(self, chunks: list[PlannedChunk], future: Future[Any]) -> None:
        self.chunks, self.future = chunks, future
        self.has_failed = False  # as a whole


class ChunkPrefetcher:
    """The prefetcher of one part of a source, for one stream."""

    def __init__(
        self, counters: PartCounters, room: PartRoom, pool: DaemonPool, cache: ChunkCache
    ) -> None:
        is_remote = is_remote_source(room.source)
        self.room = room
        self.entered = 0  # chunks to read, of all read batches so far
        self.is_remote = is_remote
        self._counters, self._pool, self._cache = counters, pool, cache
        self._plan = ChunkPlan(
            room.rows_of,
            room.slots,
            room.lead,
            len(room.source),
            has_all=room.fits,
            keeps=room.keeps,
            scatters=room.scatters,
            is_remote=is_remote,
        )
        task_bytes = _REMOTE_TASK_BYTES if is_remote else _TASK_BYTES
        self._chunks_per_task = max(1, task_bytes // room.chunk_bytes)
        self._reads: dict[_ChunkRead, None] = {}  # under way, in the order of their starts
        self._tickets: dict[int, list[Ticket]] = {}  # of planned read batches
        self._place = 0  # of the read batch being planned
        self._index_bytes = self._column_bytes = 0  # of planned read batches
        # The errors of chunks by number. Not in the reads: the frames of an error hold this object, and the
        # finalizer holds the reads.
        self._errors = weakref.WeakKeyDictionary[_ChunkRead, dict[int, Exception]]()
        known = self._plan.known
        weakref.finalize(self, _let_go, self._tickets, known, self._reads).atexit = False
        counters.has_cache(self)

    # --- planning --------------------------------------------------------------------------------

    def plan(
        self, number: int, indices: IntArray, places: PiecePlaces | None = None
    ) -> Callable[[], Any]:
        """Plan the records of a read batch; the function waits and returns their column, once.

        With `places` it is a column of parts of records: see `ChunkCache.fragments`.
        """
        fragments, wanted = self._cache.fragments(indices, places)
        if number not in self._tickets:
            self._tickets[number] = []
            self._place = self._plan.planned
        ticket = Ticket(number, self._place, len(indices), fragments, wanted.which)
        self._tickets[number].append(ticket)
        self._index_bytes += self._index_bytes_of(ticket)
        new = self._plan.add(ticket, wanted)
        self.entered += new
        self._counters.wanted(len(wanted.numbers), new)
        if _log.isEnabledFor(logging.DEBUG):
            from windrow.core.debug_log import debug

            text = "read batch %d takes %d records of %d chunks; %d of these are to be read"
            debug(_log, text, number, len(indices), len(wanted.numbers), new)
        return functools.partial(self._finish, ticket)

    def _index_bytes_of(self, ticket: Ticket) -> int:
        return TICKET_BYTES + len(ticket.fragments) * self.room.index_bytes

    def _bytes_of(self, ticket: Ticket) -> int:
        return ticket.count * self.room.record_bytes

    def end(self) -> None:
        """End planning."""
        self._plan.end()

    @property
    def wants_more(self) -> bool:
        """Whether a longer plan would save reads."""
        return self._plan.wants_more

    @property
    def planned_bytes(self) -> int:
        """Bytes of planned read batches, once all their columns are there."""
        records = self._plan.planned - self._plan.made
        return records * self.room.record_bytes + self._index_bytes

    @property
    def given_bytes(self) -> int:
        """Bytes of planned read batches: the columns that are there already, and the indices."""
        return self._column_bytes + self._index_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of the slots that chunks have."""
        return self._plan.used_slots * self.room.chunk_bytes

    # --- starting reads --------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start the reads that it is time for when read batch `number` is made next."""
        self._collect()
        self._begin(2 * sum(ticket.count for ticket in self._tickets.get(number, ())))

    def _begin(self, records: int) -> bool:
        """Start the reads that one of the next `records` records wants; whether there was one."""
        starting: list[PlannedChunk] = []
        while (found := self._plan.take(records)) is not None:
            chunk, crowded_out = found
            if crowded_out is not None:
                self._copy_out(crowded_out)
            if chunk.slot < 0:
                chunk.out = self._targets(chunk)
            else:
                self._counters.holds(self)
            starting.append(chunk)
        each = self._chunks_per_task
        for begin in range(0, len(starting), each):
            self._start(starting[begin : begin + each])
        return bool(starting)

    def _start(self, chunks: list[PlannedChunk]) -> None:
        self._counters.started([chunk.number for chunk in chunks])
        try:
            future = self._cache.start(chunks, self._pool)
        except Exception as error:  # of a source that does not put it into the future
            future = Future()
            future.set_exception(error)
        read = _ChunkRead(chunks, future)
        for chunk in chunks:
            chunk.read, chunk.out = read, None
        self._reads[read] = None

    def _targets(self, chunk: PlannedChunk) -> list[Any]:
        """Where read batches want a chunk that has no slot."""
        chosen: list[Any] = []
        for ticket, at in self._plan.served(chunk):
            if ticket.targets is None:
                self._give_column(ticket)
                ticket.targets = self._cache.targets(ticket)
            chosen.append((ticket, ticket.targets, at))
        return chosen

    def _copy_out(self, chunk: PlannedChunk) -> None:
        """Copy a chunk's rows to the read batches that want them, to free its slot."""
        if _log.isEnabledFor(logging.DEBUG):
            from windrow.core.debug_log import debug

            debug(_log, "chunk %d is evicted, and read batches still want it", chunk.number)
        for ticket, at in self._plan.served(chunk):
            self._give_column(ticket)
            mine = ticket.of_chunk(at)
            slots = np.full(len(mine), chunk.slot)
            self._cache.fill(ticket.out, ticket.fragments.taken(mine), slots)
        chunk.slot = -1

    def _give_column(self, ticket: Ticket) -> None:
        if ticket.out is None:
            ticket.out = self._cache.empty(ticket.count, ticket.fragments)
            ticket.is_early = True
            self._column_bytes += self._bytes_of(ticket)

    # --- what arrives ----------------------------------------------------------------------------

    def _collect(self) -> None:
        """Take over finished reads."""
        for read in [read for read in self._reads if read.future.done()]:
            self._take(read)

    def _take(self, read: _ChunkRead) -> None:
        del self._reads[read]
        self._pool.help_begin(read.future)
        chunks, read.chunks = read.chunks, []  # they hold it
        try:
            failed = self._cache.arrived([chunk.slot for chunk in chunks], read.future)
        except Exception as error:
            read.has_failed, failed = True, dict.fromkeys(range(len(chunks)), error)
        if failed:
            self._errors[read] = {chunks[at].number: error for at, error in failed.items()}
            for at in failed:
                self._plan.failed(chunks[at])
        read.future = _TAKEN  # the old one holds the result, which the chunk cache has now
        for chunk in chunks:
            self._plan.arrived(chunk)

    def _first_read(self) -> _ChunkRead:
        read = next(iter(self._reads), None)
        if read is None:
            raise RuntimeError("prefetcher: every slot is taken, and none by a chunk in use")
        return read

    def _wait(self, chunks: Sequence[PlannedChunk]) -> dict[int, Exception]:
        """Wait until chunks have come; returns the errors of some alone, raises one of a whole read."""
        self._collect()
        for chunk in chunks if self._errors else ():
            self._check(chunk.read)
        # From the last one backwards: when it has come, most others have, and each wait costs.
        for read in reversed([chunk.read for chunk in chunks if not chunk.is_there]):
            if read in self._reads:
                self._take(read)
            self._check(read)
        found = dict[int, Exception]()
        for at, chunk in enumerate(chunks if self._errors else ()):
            own = self._errors.get(chunk.read, {})
            if chunk.number in own:
                found[at] = own[chunk.number]
        return found

    def _check(self, read: _ChunkRead) -> None:
        """Raise the error of a read that failed as a whole."""
        if read.has_failed:
            raise next(iter(self._errors[read].values()))

    # --- gathering -------------------------------------------------------------------------------

    def _finish(self, ticket: Ticket) -> Any:
        try:
            while self._plan.is_due(ticket.place):
                if not self._begin(1) and self._plan.is_due(ticket.place):
                    self._take(self._first_read())  # all slots are being read to
            failed = self._wait(ticket.chunks)
            if failed:
                raise self._partly(ticket, failed)
            return self._column(ticket)
        finally:
            self._let_go(ticket)

    def drop(self, number: int) -> None:
        """Note that a read batch failed, and no longer wants its chunks."""
        for ticket in list(self._tickets.get(number, ())):
            self._let_go(ticket)

    def _let_go(self, ticket: Ticket) -> None:
        self._index_bytes -= self._index_bytes_of(ticket)
        if ticket.is_early:
            self._column_bytes -= self._bytes_of(ticket)
        ticket.targets = None  # or it would keep the column alive
        self._tickets[ticket.read_batch].remove(ticket)
        if not self._tickets[ticket.read_batch]:
            del self._tickets[ticket.read_batch]
        self._plan.remove(ticket)

    def _partly(self, ticket: Ticket, failed: Mapping[int, Exception]) -> Exception:
        """The error of a read batch, some of whose chunks could not be read."""
        self._give_column(ticket)
        left_out = failed.keys() - ticket.served
        ticket.served |= left_out
        column = self._column(ticket)
        ticket.served -= left_out
        errors = dict[int, ReadError]()
        for at, error in failed.items():
            if not isinstance(error, ReadError):
                return error
            if isinstance(self.room.part, ArrayPart):
                error = self.room.part.named(error)
            errors |= dict.fromkeys(ticket.fragments.records[ticket.of_chunk(at)].tolist(), error)
        return partly_read(column, errors)

    def _column(self, ticket: Ticket) -> Any:
        if ticket.chunks and len(ticket.served) == len(ticket.chunks):
            return self._cache.finished(ticket.out, ticket.fragments)
        slots = np.array([chunk.slot for chunk in ticket.chunks], np.int64)[ticket.which]
        if not ticket.served:
            ticket.out = self._cache.gather(ticket.count, ticket.fragments, slots)
        else:
            left = np.ones(len(ticket.chunks), np.bool_)
            left[list(ticket.served)] = False
            rest = np.flatnonzero(left[ticket.which])
            self._cache.fill(ticket.out, ticket.fragments.taken(rest), slots[rest])
        return self._cache.finished(ticket.out, ticket.fragments)


def _let_go(
    tickets: dict[int, list[Ticket]], known: dict[int, PlannedChunk], reads: Iterable[_ChunkRead]
) -> None:
    """Take apart what was planned, so that its memory is given back, and reads end unfinished."""
    for ticket in itertools.chain.from_iterable(tickets.values()):
        ticket.chunks.clear()
    for chunk in known.values():
        chunk.uses.clear()
        chunk.read = None
    for read in reads:
        read.chunks.clear()
