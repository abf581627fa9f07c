"""The prefetcher of one part plans reads of chunks over the read batches to come.

A stream is made in read batches. The chunks of a read batch are planned together with it, many read
batches before its turn. Each chunk is then read once for all read batches within that horizon. While
the chunk has a slot of the chunk cache, its records are gathered when their read batch comes. When
another chunk needs the slot, the records are copied to the columns of the planned read batches. If
it is likely that no later read batch wants the chunk, it is read straight there and has no slot.
Where the reader copies rows out of each chunk that it decodes, and the store does not fit, every
chunk is read straight to the read batches that want it, once the horizon is full; the slots, which no
chunk has then, give their memory back.

Contract:
1. A chunk is read at most once for the read batches that were planned when its read was started.
2. A slot is taken from a chunk that no planned read batch wants, or else from the chunk whose next
   use is farthest.
3. A chunk is never read later than its first read batch; how much earlier, `_share_of` decides.
4. An error of a read is raised by the read batches that want its chunks, and by no other.

Not thread-safe: one thread plans, starts and gathers; the reads themselves run on other threads.
"""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import logging
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from windrow.core.threads import DaemonPool
from windrow.engine.budgets import CacheRoom
from windrow.engine.chunk_cache import ChunkCache
from windrow.engine.tickets import ChunkRead, PlannedChunk, Ticket, errors_of, let_go, rows_of
from windrow.sources.base import IntArray
from windrow.sources.chunks import reads_without_lock
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
# Columns of this many bytes are allocated before their read batches are made, while slots are free.
# The process then reuses its memory and does not ask the system for more.
EARLY_BYTES = 64 << 20
# In place of the future of a read whose chunks the chunk cache has taken over.
_TAKEN: Future[Any] = Future()


class ChunkPrefetcher:
    """The prefetcher of one part of a source, for one stream."""

    def __init__(
        self, counters: PartCounters, room: CacheRoom, pool: DaemonPool, cache: ChunkCache
    ) -> None:
        part, slots = room.part, room.slots
        self.room = room
        self._is_remote = is_remote_source(room.source)
        self._counters = counters
        self._chunk_bytes = room.chunk_bytes
        self._record_bytes = room.record_bytes
        self._index_bytes = room.index_bytes
        self.planned_bytes = 0  # of records
        self.index_bytes = 0  # of their indices
        self._most_in_flight = room.most_in_flight
        self._part = part
        self._pool = pool
        self._cache = cache
        self._slots = slots
        # Whether chunks go straight to all read batches that want them. At first, when few of these
        # are planned, chunks have slots.
        self._hands_out = False
        self._free = list(range(slots))  # a heap: low slots first, so that few pages are touched
        self._known: dict[int, PlannedChunk] = {}
        # In the chunk cache, wanted by no planned read batch; oldest first.
        self._idle: dict[int, PlannedChunk] = {}
        # By slot: few, where all that are planned may be many.
        self._in_slots: dict[int, PlannedChunk] = {}
        # With a slot, by next use, when `_sorted_at` records were made.
        self._by_next_use: list[PlannedChunk] = []
        self._sorted_at = -1
        # Chunks to be read, in the order in which they are due, and how many are due when.
        self._queue: collections.deque[PlannedChunk] = collections.deque()
        self._dues: dict[int, int] = {}
        self._reads: collections.deque[ChunkRead] = collections.deque()
        self._in_flight = 0
        # Chunks of a small store that fits are kept from the start, chunks of a larger store once a
        # chunk comes back. Otherwise a chunk that is done with gives up its slot at once: memory in
        # use is in the processor's cache, and the system must provide fresh memory.
        self._fits = room.fits
        self._keeps = room.keeps
        self._entered_once = bytearray(part.chunk_count if self._fits and not self._keeps else 0)
        self._comes_back = False  # whether a chunk that was given up was wanted again
        self._ended = False
        self._share = self._started = 0  # reads to start in this read batch, and started ones
        self._credit = 0.0
        self._given_bytes = 0  # of columns of read batches that are not made yet
        self.entered = 0  # chunks that were put into the queue
        # Chunks that had to be read again, or evicted, for lack of room.
        self.crowded_out = 0
        # Reads that were started before chunks went straight to read batches.
        self.started_early = 0
        # Chunks that went straight to read batches, with the place of the last read batch until it
        # is made.
        self._handed_out: dict[int, int] = {}
        self._place = 0  # of the read batch being planned
        self.planned = self._made = 0  # records, since the start of the stream
        self._tickets: dict[int, list[Ticket]] = {}  # of planned read batches
        # The errors of chunks by number. Not in the reads: the frames of an error hold this object, and the
        # finalizer holds the reads.
        self._errors = weakref.WeakKeyDictionary[ChunkRead, dict[int, Exception]]()
        weakref.finalize(self, let_go, self._tickets, self._known, self._reads).atexit = False
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
            self._place = self.planned
        ticket = Ticket(number, self._place, len(indices), fragments, wanted.which)
        rows = itertools.repeat(0) if wanted.rows is None else wanted.rows
        entered = self.entered
        self._tickets[number].append(ticket)
        self.planned += ticket.count
        self._account(ticket, 1)
        for at, (chunk, count) in enumerate(zip(wanted.numbers, rows, strict=False)):
            found = self._known.get(chunk)
            if found is None:
                found = PlannedChunk(chunk, due=ticket.place)
                if self._handed_out.pop(chunk, -1) >= self._made:
                    self.crowded_out += 1
                self._known[chunk] = found
                if self._entered_once:
                    self._enter(chunk)
                self._queue.append(found)
                self._dues[ticket.place] = self._dues.get(ticket.place, 0) + 1
                self.entered += 1
            elif not found.uses:
                self._idle.pop(chunk, None)
            found.uses.append((ticket, at))
            found.rows += count
            ticket.chunks.append(found)
        self._counters.wanted(len(wanted.numbers), self.entered - entered)
        if _log.isEnabledFor(logging.DEBUG):
            from windrow.core.debug_log import debug

            text = "read batch %d takes %d records of %d chunks; %d of these are to be read"
            debug(_log, text, number, len(indices), len(wanted.numbers), self.entered - entered)
        return functools.partial(self._finish, ticket)

    def _enter(self, chunk: int) -> None:
        """Note a chunk to read; if it was read before, chunks are kept from now on."""
        if self._entered_once[chunk]:
            self._keeps, self._comes_back, self._entered_once = True, True, bytearray()
        else:
            self._entered_once[chunk] = True

    def _account(self, ticket: Ticket, sign: int) -> None:
        self.planned_bytes += sign * ticket.count * self._record_bytes
        self.index_bytes += sign * (TICKET_BYTES + len(ticket.fragments) * self._index_bytes)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the slots that chunks were read to: their memory is kept."""
        return (self._slots - len(self._free)) * self._chunk_bytes

    @property
    def waiting(self) -> int:
        """Chunks that are to be read, and were not started."""
        return len(self._queue)

    @property
    def given_bytes(self) -> int:
        """Bytes of planned read batches: the columns that are there already, and the indices."""
        return self._given_bytes + self.index_bytes

    def end(self) -> None:
        """End planning: no later read batch wants a chunk that is done with."""
        self._keeps, self._ended = False, True

    # --- starting reads --------------------------------------------------------------------------

    def pace(self, number: int, *, is_full: bool) -> int:
        """Plan the reads between read batch `number`, which is next, and the one after it.

        Args:
            number: The read batch.
            is_full: Whether as much is planned as there is room for.
        """
        self._hands_out = self.room.scatters and (is_full or self._ended)
        self._credit = max(0.0, self._credit - self._started)
        self._started = self._share = 0
        self._collect()
        records = sum(ticket.count for ticket in self._tickets.get(number, ()))
        if self._hands_out:
            self._give_up_slots()
            self._hand_out(2 * records)
        elif records:
            self._share = self._share_of(records)
            self.begin()
        return self._share

    def begin(self) -> None:
        """Start the reads that the next read batch waits for, as far as there is room."""
        late = sum(count for due, count in self._dues.items() if due <= self._made)
        if late:
            self._begin(late, wait=False)

    def step(self, number: int, steps: int) -> None:
        """Start the reads due by step `number` of the `steps` to the next read batch."""
        if self._hands_out:
            if number == 0:
                self._hand_out(0)
            return
        wanted = self._share * (number + 1) // steps - self._started
        if wanted > 0 and self._queue:
            self._collect()
            self._begin(wanted, wait=False)

    def _begin(self, count: int, *, wait: bool) -> None:
        """Start up to `count` reads, as far as there is room; with `wait`, one at least."""
        starting: list[PlannedChunk] = []
        while len(starting) < count and self._queue:
            must = wait and not starting
            if self._in_flight + len(starting) >= self._most_in_flight:
                self._collect(wait=must, every=True)
                if self._in_flight + len(starting) >= self._most_in_flight:
                    break
            out = self._direct(self._queue[0])
            slot = self._slot(must=must) if out is None else -1
            if slot is None:
                break
            chunk = self._next()
            chunk.slot, chunk.out = slot, out
            if slot >= 0:
                self._in_slots[slot] = chunk
            starting.append(chunk)
        self._started += len(starting)
        task_bytes = _REMOTE_TASK_BYTES if self._is_remote else _TASK_BYTES
        per_task = max(1, task_bytes // self._chunk_bytes)
        for begin in range(0, len(starting), per_task):
            self._start(starting[begin : begin + per_task])

    def _hand_out(self, records: int) -> None:
        """Start reading the chunks of the next `records` records, for all that is planned.

        And of as many records as may be read at a time, while all rows of the chunks are planned: a
        read of one that is not serves more if it starts later.
        """
        lead = self._most_in_flight * self._chunk_bytes // max(1, self._record_bytes)
        starting: list[PlannedChunk] = []
        while self._queue:
            chunk, far = self._queue[0], self._queue[0].due - self._made
            if far >= records and (far >= lead or chunk.rows < rows_of(self._part, chunk)):
                break
            chunk = self._next()
            if chunk.uses:
                self._handed_out[chunk.number] = chunk.uses[-1][0].place
                chunk.out = self._targets(chunk)
                starting.append(chunk)
            else:  # its read batches failed
                del self._known[chunk.number]
        if starting:
            self._start(starting)

    def _share_of(self, records: int) -> int:
        """Return how many reads to start while `records` records are made, at an even pace.

        At that pace each chunk is started a little before its read batch. Where chunks are read again
        and again, as for a shuffle over a store that does not fit, the pace also spreads the reads
        that a first burst began together: each cycle they lie more evenly.
        """
        per_record = max(1, self.entered) / max(1, self.planned)
        if self._is_remote:  # early reads cost this machine no time
            soon = self._made + records + self._most_in_flight / per_record
            return sum(count for due, count in self._dues.items() if due <= soon)
        lead = self._most_in_flight / 2 / per_record
        # Threads that need no lock of the interpreter do more while other threads run Python.
        part = 2 if reads_without_lock(self._part) else 4
        lead = max(records, min(lead, (self.planned - self._made) / part))
        pace, late, entered = 0.0, 0, 0
        for due, count in self._dues.items():
            entered += count
            left = due - lead - self._made + records
            if left <= records:
                left, late = records, entered
            if entered > pace * left:
                pace = entered / left
        # At 0.4 reads per read batch, a read starts in two read batches of five. Reads that could
        # not be started are made up for little by little.
        share = pace * records
        self._credit = min(self._credit + share, share + 1)
        return max(late, int(self._credit))

    def _next(self) -> PlannedChunk:
        chunk = self._queue.popleft()
        left = self._dues[chunk.due] - 1
        if left:
            self._dues[chunk.due] = left
        else:
            del self._dues[chunk.due]
        return chunk

    def _start(self, chunks: list[PlannedChunk]) -> None:
        self._counters.started([chunk.number for chunk in chunks])
        self.started_early += 0 if self._hands_out else len(chunks)
        try:
            future = self._cache.start(chunks, self._pool)
        except Exception as error:  # of a source that does not put it into the future
            future = Future()
            future.set_exception(error)
        read = ChunkRead(chunks, future)
        for chunk in chunks:
            chunk.read, chunk.out = read, None
        self._reads.append(read)
        self._in_flight += len(chunks)

    def _direct(self, chunk: PlannedChunk) -> list[Any] | None:
        """The places where read batches want a chunk, if it is read straight there."""
        cache = self._cache
        if not chunk.uses or (self._comes_back and self._keeps):
            return None
        last = self._is_last(chunk)
        if not cache.may_skip(len(chunk.uses), last=last):
            return None
        if not cache.skips(chunk.number, *chunk.uses[0], last=last):
            return None
        new = sum(self._column_bytes(ticket) for ticket, _ in chunk.uses if ticket.out is None)
        if new and self._given_bytes + new > EARLY_BYTES and (self._free or self._idle):
            return None
        return self._targets(chunk)

    def _targets(self, chunk: PlannedChunk) -> list[Any]:
        """Where read batches want a chunk, which then has no slot."""
        cache = self._cache
        chosen: list[Any] = []
        for ticket, at in chunk.uses:
            if ticket.targets is None:
                self._give_column(ticket)
                ticket.targets = cache.targets(ticket)
            ticket.served.add(at)
            chosen += cache.chosen(ticket, at)
        chunk.uses.clear()  # else chunk and ticket would keep each other, and the column, alive
        del self._known[chunk.number]
        return chosen

    def _give_column(self, ticket: Ticket) -> None:
        if ticket.out is None:
            ticket.out = self._cache.empty(ticket.count, ticket.fragments)
            self._given_bytes += self._column_bytes(ticket)
            ticket.is_early = True

    def _column_bytes(self, ticket: Ticket) -> int:
        return ticket.count * self._record_bytes

    def _is_last(self, chunk: PlannedChunk) -> bool:
        """Whether the read batches that want a chunk are likely to be the last ones to do so.

        They are the last ones if planning has ended. In a store that does not fit, they are also
        the last ones if the newest planned read batches do not want the chunk: an order in blocks
        is then past this chunk, and a random order has little to gain.
        """
        if self._ended or self._fits:
            return self._ended
        last = chunk.uses[-1][0].place
        return self._made > 0 and 2 * (last - self._made) <= self.planned - self._made

    # --- slots -----------------------------------------------------------------------------------

    def _slot(self, *, must: bool) -> int | None:
        """A slot for a chunk to read; None if reads fill all slots and it is not a `must`."""
        if self._free and (self._keeps or not self._idle):
            slot = heapq.heappop(self._free)
            self._counters.holds(self)
            return slot
        if self._idle:
            oldest = self._idle.pop(next(iter(self._idle)))
            del self._known[oldest.number]
            return self._taken_from(oldest)
        while (chunk := self._farthest()) is None:
            if not must:
                return None
            if not self._reads:
                raise RuntimeError("prefetcher: every slot is taken, and none by a chunk in use")
            self._collect(wait=True)
        self.crowded_out += 1
        if _log.isEnabledFor(logging.DEBUG):
            from windrow.core.debug_log import debug

            debug(_log, "chunk %d is evicted, and read batches still want it", chunk.number)
        self._spill(chunk)
        return self._taken_from(chunk)

    def _taken_from(self, chunk: PlannedChunk) -> int:
        slot, chunk.slot = chunk.slot, -1
        del self._in_slots[slot]
        return slot

    def _release(self, chunk: PlannedChunk) -> None:
        if chunk.slot >= 0:
            heapq.heappush(self._free, self._taken_from(chunk))

    def _farthest(self) -> PlannedChunk | None:
        """The chunk in the chunk cache, read already, whose next use is farthest."""
        for again in (False, True):
            if again or self._sorted_at != self._made:
                self._sorted_at = self._made
                held = [chunk for chunk in self._in_slots.values() if chunk.uses]
                self._by_next_use = sorted(held, key=operator.attrgetter("next_use"))
            for place in range(len(self._by_next_use) - 1, -1, -1):
                chunk = self._by_next_use[place]
                read_already = chunk.read is not None and chunk.read.done
                if read_already or chunk.slot < 0 or not chunk.uses:
                    del self._by_next_use[place]
                    if chunk.slot >= 0 and chunk.uses:
                        return chunk
        return None

    def _spill(self, chunk: PlannedChunk) -> None:
        """Copy a chunk's records to the read batches that want them, to free its slot."""
        del self._known[chunk.number]
        for ticket, at in chunk.uses:
            self._give_column(ticket)
            mine = ticket.of_chunk(at)
            slots = np.full(len(mine), chunk.slot)
            self._cache.fill(ticket.out, ticket.fragments.taken(mine), slots)
            ticket.served.add(at)
        chunk.uses.clear()

    # --- what arrives ----------------------------------------------------------------------------

    def _collect(self, *, wait: bool = False, every: bool = False) -> None:
        """Take over finished reads in the order of their starts, up to the first unfinished one.

        With `wait`, take over at least the first. With `every`, take over finished reads after an
        unfinished one, too.
        """
        while self._reads and (wait or self._reads[0].future.done()):
            self._take(self._reads.popleft())
            wait = False
        if every:
            for _ in range(len(self._reads)):
                read = self._reads.popleft()
                if read.future.done():
                    self._take(read)
                else:
                    self._reads.append(read)

    def _take(self, read: ChunkRead) -> None:
        self._pool.help_begin(read.future)
        chunks, read.chunks = read.chunks, []  # they hold it
        try:
            failed = self._cache.arrived([chunk.slot for chunk in chunks], read.future)
        except Exception as error:
            read.failed, failed = True, dict.fromkeys(range(len(chunks)), error)
        if failed:
            self._errors[read] = {chunks[at].number: error for at, error in failed.items()}
            for chunk in map(chunks.__getitem__, failed):  # the next planned read batch tries again
                self._release(chunk)
                if self._known.get(chunk.number) is chunk:
                    del self._known[chunk.number]
        read.done = True
        read.future = _TAKEN  # the old one holds the result, which the chunk cache has now
        self._in_flight -= len(chunks)
        for chunk in chunks:
            self._rest(chunk)  # its read batch failed meanwhile

    def _wait(self, chunks: Sequence[PlannedChunk]) -> dict[int, Exception]:
        """Wait until chunks have come; returns the errors of some alone, raises one of a whole read."""
        self._collect()
        missing = []
        for chunk in chunks:
            read = chunk.read
            if read is None:
                raise RuntimeError(f"chunk {chunk.number} was never started")
            if read.failed:
                raise next(iter(self._errors[read].values()))
            if not read.done:
                missing.append(read)
        # From the last one backwards: when it has come, most others have, and each wait costs.
        for read in reversed(missing):
            if not read.done:
                self._reads.remove(read)
                self._take(read)
            if read.failed:
                raise next(iter(self._errors[read].values()))
        return errors_of(chunks, self._errors) if self._errors else {}

    # --- gathering -------------------------------------------------------------------------------

    def _finish(self, ticket: Ticket) -> Any:
        try:
            while self._queue and self._queue[0].due <= ticket.place:
                self._begin(self._dues[self._queue[0].due], wait=True)
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
        self._made += ticket.count
        handed_out = self._handed_out
        while handed_out and handed_out[first := next(iter(handed_out))] < self._made:
            del handed_out[first]
        self._account(ticket, -1)
        if ticket.is_early:
            self._given_bytes -= self._column_bytes(ticket)
        ticket.targets = None  # or it would keep the column alive
        self._tickets[ticket.round].remove(ticket)
        if not self._tickets[ticket.round]:
            del self._tickets[ticket.round]
        for at, chunk in enumerate(ticket.chunks):
            if at not in ticket.served:
                chunk.uses.remove((ticket, at))
                self._rest(chunk)

    def _rest(self, chunk: PlannedChunk) -> None:
        """Free a chunk's slot for another chunk if no read batch wants the chunk and its read is done."""
        if not chunk.uses and chunk.slot >= 0 and chunk.read is not None and chunk.read.done:
            if self._hands_out:
                self._forget(chunk)
            else:
                self._idle[chunk.number] = chunk

    def _give_up_slots(self) -> None:
        """Free the slots of all chunks that are there, since no later chunk is read to one."""
        if len(self._free) == self._slots:
            return
        while self._idle:
            self._forget(self._idle.popitem()[1])
        while (chunk := self._farthest()) is not None:
            self._handed_out[chunk.number] = chunk.uses[-1][0].place
            self._spill(chunk)
            self._release(chunk)
        if len(self._free) == self._slots:
            self._cache.release()

    def _forget(self, chunk: PlannedChunk) -> None:
        """Give up a chunk's slot: where chunks have no slots, copying from a few would cost more."""
        del self._known[chunk.number]
        self._release(chunk)

    def _partly(self, ticket: Ticket, failed: Mapping[int, Exception]) -> Exception:
        """The error of a read batch, some of whose chunks could not be read."""
        if ticket.out is None:
            ticket.out = self._cache.empty(ticket.count, ticket.fragments)
        left_out = failed.keys() - ticket.served
        ticket.served |= left_out
        column = self._column(ticket)
        ticket.served -= left_out
        return ticket.error_of(self._part, column, failed)

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
