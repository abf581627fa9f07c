"""Look-ahead: reads of pieces, planned over the rounds to come.

A stream is made in rounds. The pieces that the records of a round lie in are planned when the round
is, many rounds before its turn. Each piece is then read once for all rounds within that horizon.
While it has a slot of the shelf its records are gathered when their round comes; when the slot is
wanted for another piece, its records are copied to where the planned rounds want them. Where it is
likely that no later round wants it, it is read straight there and has no slot.

Contract, for each part of a source:
1. A piece is read at most once for the rounds that were planned when its read was started.
2. A slot is taken from the piece that no planned round wants, else from the one whose next use is
   farthest.
3. A piece is never read later than its first round; how much earlier, `_share_of` decides.
4. An error of a read is raised by the rounds that want its pieces, and by no other.

Not thread-safe: one thread plans, starts and gathers; the reads themselves run beside it.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.box_shelf import BoxShelf
from windrow.budget import Budget, Room, rooms, rounds_at_once
from windrow.shelves import ArrayShelf, ListShelf, Place, Shelf
from windrow.sources import ArrayPart, BoxPart, LaidOutSource, ListPart, Part, is_far
from windrow.sources.threads import HelpedPool
from windrow.tallies import PartTally, Tallies

IntArray = npt.NDArray[np.int64]

# Pieces smaller than this are read several to a task: handing over a task costs as much as they do.
_TASK_BYTES = 256 << 10
# Neighbours that are far away are one request: to wait for one costs as much as these bytes.
_FAR_TASK_BYTES = 1 << 20
# What planning a round costs in indices, and how much of that no budget counts. A store of which all
# has room gets no more of them: its pieces are read once, however far ahead.
TICKET_BYTES = 4_096
FREE_BYTES = 16 << 20
# Columns of so many bytes are there before their rounds are made, while there are slots: memory that
# was used before is got again and again then, and not taken from the system.
EARLY_BYTES = 64 << 20
# In place of the future of a read whose pieces the shelf has taken over.
_TAKEN: Future[Any] = Future()


@dataclasses.dataclass(slots=True, eq=False)
class _Piece(Place):
    """A piece that is wanted, being read or on the shelf."""

    due: int = 0  # the place of the first round that wants it
    # Rounds that want it, and which piece it is there.
    uses: list[tuple[_Ticket, int]] = dataclasses.field(default_factory=list)
    read: _Read | None = None

    @property
    def next_use(self) -> int:
        return self.uses[0][0].place


@dataclasses.dataclass(slots=True, eq=False)
class _Read:
    """A read under way of some pieces."""

    pieces: list[_Piece]
    future: Future[Any]
    done: bool = False
    error: Exception | None = None


class _Ticket:
    """What one round wants of one part."""

    def __init__(
        self, number: int, place: int, count: int, fragments: Any, which: IntArray
    ) -> None:
        self.round = number
        self.place = place  # records that were planned before its round
        self.count = count
        self.fragments = fragments
        self.which = which  # per fragment, which of the ticket's pieces
        self.pieces: list[_Piece] = []
        self.served: set[int] = set()
        self.out: Any = None
        self.targets: Any = None  # in `out`
        self.is_early = False  # whether `out` was there before the round was made

    @functools.cached_property
    def _by_piece(self) -> tuple[IntArray, IntArray]:
        order = np.argsort(self.which, kind="stable")
        return order, np.searchsorted(self.which[order], np.arange(len(self.pieces) + 1))

    def of_piece(self, at: int) -> IntArray:
        """The fragments that lie in piece `at`."""
        order, bounds = self._by_piece
        return order[bounds[at] : bounds[at + 1]]


class PartAhead:
    """The look-ahead of one part of a source, for one stream."""

    def __init__(self, tally: PartTally, room: Room, pool: HelpedPool) -> None:
        part, slots = room.part, room.slots
        self._far_away = is_far(room.source)
        self._tally = tally
        self._piece_bytes = room.piece_bytes
        self._record_bytes = room.record_bytes
        self._index_bytes = room.index_bytes
        self.planned_bytes = 0  # of records
        self.index_bytes = 0  # of their indices
        self._most_in_flight = room.most_in_flight
        self._part = part
        self._pool = pool
        self._shelf = _shelf(part, slots)
        self._slots = slots
        self._free = list(range(slots))  # a heap: low slots first, so that few pages are touched
        self._known: dict[int, _Piece] = {}
        self._idle: dict[int, _Piece] = {}  # on the shelf, wanted by no planned round; oldest first
        self._far: list[_Piece] = []  # with a slot, by next use, when `_far_made` records were made
        self._far_made = -1
        # Pieces to be read, in the order in which they are due, and how many are due when.
        self._queue: collections.deque[_Piece] = collections.deque()
        self._dues: dict[int, int] = {}
        self._reads: collections.deque[_Read] = collections.deque()
        self._in_flight = 0
        # A small store that fits is decoded once, a larger one from when a piece comes back. Else
        # what is done with gives its slot up at once, since memory in use is in the processor's
        # cache, and fresh memory must be got from the system.
        self._fits = room.fits
        self._keeps = room.keeps
        self._entered_once = bytearray(part.piece_count if self._fits and not self._keeps else 0)
        self._ended = False
        self._share = self._started = 0  # reads to start in this round, and those that were
        self._credit = 0.0
        self._given_bytes = 0  # of columns of rounds that are not made yet
        self._entered = 0  # pieces that were put into the queue
        self._place = 0  # of the round being planned
        self._planned = self._made = 0  # records, since the start of the stream
        self._tickets: dict[int, list[_Ticket]] = {}  # of planned rounds, by their number
        tally.has_shelf(self)

    # --- planning --------------------------------------------------------------------------------

    def plan(self, number: int, indices: IntArray) -> Callable[[], Any]:
        """Plan the records of a round; the function waits and returns their column, once."""
        fragments, pieces = self._shelf.fragments(indices)
        distinct, which = _distinct(pieces, self._part.piece_count)
        if number not in self._tickets:
            self._tickets[number] = []
            self._place = self._planned
        ticket = _Ticket(number, self._place, len(indices), fragments, which)
        entered = self._entered
        self._tickets[number].append(ticket)
        self._planned += ticket.count
        self._account(ticket, 1)
        for at, piece in enumerate(distinct.tolist()):
            found = self._known.get(piece)
            if found is None:
                found = _Piece(piece, due=ticket.place)
                self._known[piece] = found
                if self._entered_once:
                    self._enter(piece)
                self._queue.append(found)
                self._dues[ticket.place] = self._dues.get(ticket.place, 0) + 1
                self._entered += 1
            elif not found.uses:
                self._idle.pop(piece, None)
            found.uses.append((ticket, at))
            ticket.pieces.append(found)
        self._tally.wanted(len(distinct), self._entered - entered)
        return functools.partial(self._finish, ticket)

    def _enter(self, piece: int) -> None:
        """A piece is to be read; where it was read before, pieces are kept from now on."""
        if self._entered_once[piece]:
            self._keeps, self._entered_once = True, bytearray()
        else:
            self._entered_once[piece] = True

    def _account(self, ticket: _Ticket, sign: int) -> None:
        self.planned_bytes += sign * ticket.count * self._record_bytes
        self.index_bytes += sign * (TICKET_BYTES + len(ticket.fragments) * self._index_bytes)

    @property
    def shelf_bytes(self) -> int:
        """Of the slots that pieces were read to: their memory is kept."""
        return (self._slots - len(self._free)) * self._piece_bytes

    @property
    def given_bytes(self) -> int:
        """Of planned rounds: the columns that are there already, and the indices."""
        return self._given_bytes + self.index_bytes

    def end(self) -> None:
        """Nothing more will be planned: what is done with is not wanted again."""
        self._keeps, self._ended = False, True

    # --- starting reads --------------------------------------------------------------------------

    def pace(self, number: int) -> int:
        """Round `number` is about to be made: how many reads to start on the way to the next."""
        self._credit = max(0.0, self._credit - self._started)
        self._started = self._share = 0
        self._collect()
        records = sum(ticket.count for ticket in self._tickets.get(number, ()))
        if records:
            self._share = self._share_of(records)
            self.begin()
        return self._share

    def begin(self) -> None:
        """Start the reads that the round to be made is waiting for, as far as there is room."""
        late = sum(count for due, count in self._dues.items() if due <= self._made)
        if late:
            self._begin(late, wait=False)

    def step(self, number: int, steps: int) -> None:
        """Start what is to be started by step `number` of as many `steps` to the next round."""
        wanted = self._share * (number + 1) // steps - self._started
        if wanted > 0 and self._queue:
            self._collect()
            self._begin(wanted, wait=False)

    def _begin(self, count: int, *, wait: bool) -> None:
        """Start up to `count` reads, as far as there is room; with `wait`, one at least."""
        starting: list[_Piece] = []
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
            piece = self._next()
            piece.slot, piece.out = slot, out
            starting.append(piece)
        self._started += len(starting)
        task_bytes = _FAR_TASK_BYTES if self._far_away else _TASK_BYTES
        per_task = max(1, task_bytes // self._piece_bytes)
        for begin in range(0, len(starting), per_task):
            self._start(starting[begin : begin + per_task])

    def _share_of(self, records: int) -> int:
        """How many reads to start while `records` records are made: the fewest at an even pace.

        That is a pace at which each piece is started a little before its round. Where pieces are
        read again and again, as for a shuffle over a store that does not fit, it also spreads the
        reads that a first burst began together: each cycle they lie more evenly.
        """
        per_record = max(1, self._entered) / max(1, self._planned)
        if self._far_away:  # to read early costs no time of this machine
            soon = self._made + records + self._most_in_flight / per_record
            return sum(count for due, count in self._dues.items() if due <= soon)
        lead = self._most_in_flight / 2 / per_record
        lead = max(records, min(lead, (self._planned - self._made) / 4))
        pace, late, entered = 0.0, 0, 0
        for due, count in self._dues.items():
            entered += count
            left = due - lead - self._made + records
            if left <= records:
                left, late = records, entered
            if entered > pace * left:
                pace = entered / left
        # Where it comes to 0.4 reads a round, a read is started in two rounds of five. What could
        # not be started is not made up for all at once.
        share = pace * records
        self._credit = min(self._credit + share, share + 1)
        return max(late, int(self._credit))

    def _next(self) -> _Piece:
        piece = self._queue.popleft()
        left = self._dues[piece.due] - 1
        if left:
            self._dues[piece.due] = left
        else:
            del self._dues[piece.due]
        return piece

    def _start(self, pieces: list[_Piece]) -> None:
        self._tally.started([piece.number for piece in pieces])
        try:
            future = self._shelf.start(pieces, self._pool)
        except Exception as error:  # of a source that does not put it into the future
            future = Future()
            future.set_exception(error)
        read = _Read(pieces, future)
        for piece in pieces:
            piece.read, piece.out = read, None
        self._reads.append(read)
        self._in_flight += len(pieces)

    def _direct(self, piece: _Piece) -> list[Any] | None:
        """Where rounds want a piece, if it is to be read straight there."""
        shelf = self._shelf
        if not piece.uses or not shelf.may_skip(len(piece.uses), last=self._is_last(piece)):
            return None
        ticket, at = piece.uses[0]
        if not shelf.skips(piece.number, ticket.fragments, ticket.of_piece(at)):
            return None
        new = sum(self._column_bytes(ticket) for ticket, _ in piece.uses if ticket.out is None)
        if new and self._given_bytes + new > EARLY_BYTES and (self._free or self._idle):
            return None
        chosen: list[Any] = []
        for ticket, at in piece.uses:
            if ticket.targets is None:
                self._give_column(ticket)
                ticket.targets = shelf.targets(ticket.out, ticket.fragments)
            ticket.served.add(at)
            chosen += shelf.chosen(ticket.targets, ticket.fragments, ticket.of_piece(at))
        piece.uses.clear()  # else piece and ticket would keep each other, and the column, alive
        del self._known[piece.number]
        return chosen

    def _give_column(self, ticket: _Ticket) -> None:
        if ticket.out is None:
            ticket.out = self._shelf.empty(ticket.count)
            self._given_bytes += self._column_bytes(ticket)
            ticket.is_early = True

    def _column_bytes(self, ticket: _Ticket) -> int:
        return ticket.count * self._record_bytes

    def _is_last(self, piece: _Piece) -> bool:
        """Whether the rounds that want a piece are likely to be the last ones to do so.

        They are where nothing more is planned; and, in a store that does not fit, where those that
        were planned last do not want it: who goes through a store in blocks is then past this one,
        and who goes through it at random has little to gain.
        """
        if self._ended or self._fits:
            return self._ended
        last = piece.uses[-1][0].place
        return self._made > 0 and 2 * (last - self._made) <= self._planned - self._made

    # --- slots -----------------------------------------------------------------------------------

    def _slot(self, *, must: bool) -> int | None:
        """A slot for a piece to be read; None if all are being read into, unless it `must` be."""
        if self._free and (self._keeps or not self._idle):
            slot = heapq.heappop(self._free)
            self._tally.holds(self)
            return slot
        if self._idle:
            oldest = self._idle.pop(next(iter(self._idle)))
            del self._known[oldest.number]
            return self._taken_from(oldest)
        while (piece := self._farthest()) is None:
            if not must:
                return None
            if not self._reads:
                raise RuntimeError("look-ahead: every slot is taken, and none by a piece in use")
            self._collect(wait=True)
        self._spill(piece)
        return self._taken_from(piece)

    def _taken_from(self, piece: _Piece) -> int:
        slot, piece.slot = piece.slot, -1
        return slot

    def _release(self, piece: _Piece) -> None:
        if piece.slot >= 0:
            heapq.heappush(self._free, self._taken_from(piece))

    def _farthest(self) -> _Piece | None:
        """The piece on the shelf, read already, whose next use is farthest."""
        for again in (False, True):
            if again or self._far_made != self._made:
                self._far_made = self._made
                held = [piece for piece in self._known.values() if piece.slot >= 0 and piece.uses]
                self._far = sorted(held, key=operator.attrgetter("next_use"))
            for place in range(len(self._far) - 1, -1, -1):
                piece = self._far[place]
                read_already = piece.read is not None and piece.read.done
                if read_already or piece.slot < 0 or not piece.uses:
                    del self._far[place]
                    if piece.slot >= 0 and piece.uses:
                        return piece
        return None

    def _spill(self, piece: _Piece) -> None:
        """Copy a piece's records to the rounds that want them, so that its slot can be taken."""
        del self._known[piece.number]
        for ticket, at in piece.uses:
            self._give_column(ticket)
            mine = ticket.of_piece(at)
            slots = np.full(len(mine), piece.slot)
            self._shelf.fill(ticket.out, ticket.fragments.taken(mine), slots)
            ticket.served.add(at)
        piece.uses.clear()

    # --- what arrives ----------------------------------------------------------------------------

    def _collect(self, *, wait: bool = False, every: bool = False) -> None:
        """Take over reads that are done, from the one begun first up to one that is not.

        With `wait`, at least the first; with `every`, those behind one that is not done too.
        """
        while self._reads and (wait or self._reads[0].future.done()):
            self._take(self._reads.popleft())
            wait = False
        if every:
            reads, self._reads = self._reads, collections.deque()
            for read in reads:
                if read.future.done():
                    self._take(read)
                else:
                    self._reads.append(read)

    def _take(self, read: _Read) -> None:
        self._pool.help_begin(read.future)
        try:
            self._shelf.arrived([piece.slot for piece in read.pieces], read.future)
        except Exception as error:
            read.error = error
            for piece in read.pieces:  # the next round that is planned tries again
                self._release(piece)
                if self._known.get(piece.number) is piece:
                    del self._known[piece.number]
        read.done = True
        read.future = _TAKEN  # the old one holds what was read, which is the shelf's now
        self._in_flight -= len(read.pieces)
        for piece in read.pieces:
            self._rest(piece)  # its round failed meanwhile

    def _wait(self, pieces: Sequence[_Piece]) -> None:
        """Wait until pieces have come; raises the error of one that could not be read."""
        self._collect()
        missing = []
        for piece in pieces:
            read = piece.read
            if read is None:
                raise RuntimeError(f"piece {piece.number} was never started")
            if read.error is not None:
                raise read.error
            if not read.done:
                missing.append(read)
        # From the last one on: each wait is two switches of threads, and when the last has come
        # the others are mostly there.
        for read in reversed(missing):
            if not read.done:
                self._reads.remove(read)
                self._take(read)
            if read.error is not None:
                raise read.error

    # --- gathering -------------------------------------------------------------------------------

    def _finish(self, ticket: _Ticket) -> Any:
        try:
            while self._queue and self._queue[0].due <= ticket.place:
                self._begin(self._dues[self._queue[0].due], wait=True)
            self._wait(ticket.pieces)
            return self._column(ticket)
        finally:
            self._let_go(ticket)

    def drop(self, number: int) -> None:
        """A round failed: what it still wants is not wanted any more."""
        for ticket in list(self._tickets.get(number, ())):
            self._let_go(ticket)

    def _let_go(self, ticket: _Ticket) -> None:
        self._made += ticket.count
        self._account(ticket, -1)
        if ticket.is_early:
            self._given_bytes -= self._column_bytes(ticket)
        ticket.targets = None  # or it would keep the column alive
        self._tickets[ticket.round].remove(ticket)
        if not self._tickets[ticket.round]:
            del self._tickets[ticket.round]
        for at, piece in enumerate(ticket.pieces):
            if at not in ticket.served:
                piece.uses.remove((ticket, at))
                self._rest(piece)

    def _rest(self, piece: _Piece) -> None:
        """Let a piece's slot go to another one if nobody wants the piece, and it is there."""
        if not piece.uses and piece.slot >= 0 and piece.read is not None and piece.read.done:
            self._idle[piece.number] = piece

    def _column(self, ticket: _Ticket) -> Any:
        slots = np.array([piece.slot for piece in ticket.pieces], np.int64)[ticket.which]
        if not ticket.served:
            ticket.out = self._shelf.gather(ticket.count, ticket.fragments, slots)
        elif len(ticket.served) < len(ticket.pieces):
            left = np.ones(len(ticket.pieces), np.bool_)
            left[list(ticket.served)] = False
            rest = np.flatnonzero(left[ticket.which])
            self._shelf.fill(ticket.out, ticket.fragments.taken(rest), slots[rest])
        return self._shelf.finished(ticket.out, ticket.fragments)


def _shelf(part: Part, slots: int) -> Shelf:
    match part:
        case ArrayPart():
            return ArrayShelf(part, slots)
        case BoxPart():
            return BoxShelf(part, slots)
        case ListPart():
            return ListShelf(part)
        case _:
            raise TypeError(f"look-ahead: no shelf is known for {type(part).__name__}")


def _distinct(pieces: IntArray, piece_count: int) -> tuple[IntArray, IntArray]:
    """The distinct ones in order, and which of them each is."""
    if piece_count > 4 * len(pieces):
        return np.unique(pieces, return_inverse=True)
    wanted = np.zeros(piece_count, np.bool_)  # a sort costs five times as much
    wanted[pieces] = True
    return np.flatnonzero(wanted), (np.cumsum(wanted) - 1)[pieces]


class Lookahead:
    """The look-aheads of all parts of all sources of one stream."""

    def __init__(
        self, sources: Sequence[LaidOutSource], budget: Budget, pool: HelpedPool, tallies: Tallies
    ) -> None:
        planned, budget = rooms(sources, budget)
        self._ahead: dict[tuple[int, str], PartAhead] = {}
        for room in planned:
            tally = tallies.of(room.source).part(room.part)
            self._ahead[id(room.source), room.part.name] = PartAhead(tally, room, pool)
        self._planned = {id(room.source) for room in planned}
        self._fits = all(room.fits for room in planned)
        self.rounds_at_once = rounds_at_once(planned)
        self.horizon_bytes = budget.horizon_bytes

    @property
    def is_full(self) -> bool:
        """Whether as many bytes of records are planned as the budget has room for."""
        records = sum(ahead.planned_bytes for ahead in self.parts)
        indices = sum(ahead.index_bytes for ahead in self.parts)
        if self._fits and indices >= FREE_BYTES:
            return True
        return records + max(0, indices - FREE_BYTES) >= self.horizon_bytes

    @property
    def parts(self) -> Sequence[PartAhead]:
        """The look-aheads of the parts that are read through here."""
        return list(self._ahead.values())

    def bytes_by(self) -> dict[str, int]:
        """Bytes that are held, by kind."""
        pieces = sum(ahead.shelf_bytes for ahead in self.parts)
        return {"pieces": pieces, "planned": sum(ahead.given_bytes for ahead in self.parts)}

    def plans(self, source: Any) -> bool:
        """Whether some part of a source is read through here."""
        return id(source) in self._planned

    def __len__(self) -> int:
        """Number of parts that are read through here."""
        return len(self._ahead)

    def of(self, source: Any, part: Part) -> PartAhead | None:
        """The look-ahead of a part; None where its records are read alone."""
        return self._ahead.get((id(source), part.name))

    def end(self) -> None:
        """Every round is planned."""
        for ahead in self.parts:
            ahead.end()

    def drop(self, number: int) -> None:
        """Round `number` failed, and is not made through here."""
        for ahead in self.parts:
            ahead.drop(number)

    def begin(self) -> None:
        """Start what the round to be made is waiting for."""
        for ahead in self.parts:
            ahead.begin()

    def pace(self, number: int) -> int:
        """Round `number` is about to be made: how many reads of a part to start until the next."""
        return max(ahead.pace(number) for ahead in self.parts)

    def step(self, number: int, steps: int) -> None:
        """Start what is to be started by step `number` of `steps`."""
        for ahead in self.parts:
            ahead.step(number, steps)
