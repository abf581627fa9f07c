"""The plan of reads, without threads or memory: what is read when, where to, and what is evicted."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.engine.chunk_cache import WantedChunks
from windrow.engine.read_plan import ChunkPlan, PlannedChunk, Ticket
from windrow.sources.base import IntArray

ROWS = 20  # of a chunk
BATCH = 8
LEAD = 40


def ticket_of(number: int, place: int, records: IntArray) -> tuple[Ticket, WantedChunks]:
    wanted = WantedChunks.of(records // ROWS, int(records.max()) // ROWS + 1)
    return Ticket(number, place, len(records), None, wanted.which), wanted


@dataclasses.dataclass
class Run:
    """Makes read batches of a plan, as a prefetcher does, and checks what the plan decides.

    Attributes:
        plan: The plan.
        room: The most records that are planned, but for two read batches.
        delay: Reads that are under way before the first of them has ended.
        reads: The chunks that were read, in order, each with the place where it was.
        straight: How many of them had no slot.
        most_held: The most records in columns of read batches that were not made yet.
    """

    plan: ChunkPlan
    room: float
    delay: int = 0
    reads: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    straight: int = 0
    most_held: int = 0
    _under_way: collections.deque[PlannedChunk] = dataclasses.field(
        default_factory=collections.deque
    )
    _slots: dict[int, PlannedChunk] = dataclasses.field(default_factory=dict)

    def over(self, batches: Sequence[IntArray]) -> Run:
        """Plan and make all these read batches."""
        plan, waiting, place, k = self.plan, collections.deque[Ticket](), 0, 0
        for made in range(len(batches)):
            while k < len(batches) and (len(waiting) < 2 or self._plans_more(made, len(waiting))):
                ticket, wanted = ticket_of(k, place, batches[k])
                plan.add(ticket, wanted)
                waiting.append(ticket)
                place, k = place + ticket.count, k + 1
            if k == len(batches):
                plan.end()
            self._start(2 * waiting[0].count)
            if plan.made > 400:  # a start plans more
                held = sum(each.count for each in waiting if each.served)
                self.most_held = max(self.most_held, held)
            self._make(waiting.popleft())
        return self

    def _plans_more(self, made: int, waiting: int) -> bool:
        planned = self.plan.planned - self.plan.made
        return planned < self.room and self.plan.wants_more and waiting < 16 * (1 + made)

    def _start(self, records: int) -> bool:
        found = False
        while (taken := self.plan.take(records)) is not None:
            found = True
            chunk, crowded_out = taken
            self.reads.append((chunk.number, self.plan.made))
            if chunk.slot < 0:
                self.straight += 1
                self.plan.served(chunk)
            else:
                self._check_evicted(chunk, crowded_out)
                self._slots[chunk.slot] = chunk
            self._under_way.append(chunk)
            while len(self._under_way) > self.delay:
                self.plan.arrived(self._under_way.popleft())
        return found

    def _check_evicted(self, chunk: PlannedChunk, crowded_out: PlannedChunk | None) -> None:
        before = self._slots.get(chunk.slot)
        if crowded_out is None:
            assert before is None or not before.uses  # free, or wanted by no read batch
            return
        assert before is crowded_out
        assert crowded_out.is_there
        assert crowded_out.uses
        self.plan.served(crowded_out)
        crowded_out.slot = -1

    def _make(self, ticket: Ticket) -> None:
        while self.plan.is_due(ticket.place):
            if not self._start(1):
                self.plan.arrived(self._under_way.popleft())
        for at, chunk in enumerate(ticket.chunks):
            assert at in ticket.served or self._slots[chunk.slot] is chunk
            while chunk in self._under_way:
                self.plan.arrived(self._under_way.popleft())
        self.plan.remove(ticket)


def orders(order: str, chunks: int, epochs: int, *, window: int = 4, seed: int = 0) -> IntArray:
    """The records of some epochs."""
    rng, found = np.random.default_rng(seed), list[IntArray]()
    for _ in range(epochs):
        if order == "in order":
            found.append(np.arange(chunks * ROWS))
        elif order == "global":
            found.append(rng.permutation(chunks * ROWS))
        else:
            mixed = rng.permutation(chunks)
            parts = [mixed[first : first + window] for first in range(0, chunks, window)]
            rows = [(part[:, None] * ROWS + np.arange(ROWS)).ravel() for part in parts]
            found += map(rng.permutation, rows)
    return np.concatenate(found)


def batches_of(records: IntArray, size: int = BATCH) -> list[IntArray]:
    return [records[first : first + size] for first in range(0, len(records), size)]


def scattering(chunks: int, *, fits: bool) -> ChunkPlan:
    slots, epoch = chunks if fits else 0, chunks * ROWS
    return ChunkPlan(lambda _: ROWS, slots, LEAD, epoch, has_all=fits, scatters=True)


# --- what an order gains from --------------------------------------------------------------------


@pytest.mark.parametrize("fits", [False, True])
@pytest.mark.parametrize(("order", "window"), [("in order", 1), ("blocks", 4), ("blocks", 9)])
def test_an_order_in_turn_or_in_blocks_holds_two_windows(
    order: str, window: int, fits: bool
) -> None:
    records = orders(order, 100, 2, window=window)
    run = Run(scattering(100, fits=fits), math.inf).over(batches_of(records))
    # The first window may be read again: it was read before all of it was planned.
    assert len(run.reads) <= 200 + window
    assert run.plan.used_slots <= (2 * window if fits else 0)
    assert run.most_held <= 5 * (LEAD + window * ROWS)


def test_a_global_shuffle_of_a_store_that_fits_reads_each_chunk_once() -> None:
    run = Run(scattering(100, fits=True), math.inf).over(batches_of(orders("global", 100, 4)))
    # At the start few read batches are planned.
    assert len(run.reads) - run.straight == 100
    assert run.straight <= 10


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_a_global_shuffle_plans_all_the_memory(share: float) -> None:
    room = share * 100 * ROWS
    run = Run(scattering(100, fits=False), room).over(batches_of(orders("global", 100, 6)))
    later = [place for _, place in run.reads if place > 2 * room]
    # Each chunk is read once for all that is planned.
    assert len(later) <= 1.15 * 100 * (600 * ROWS - 2 * room) / room
    assert run.straight == len(run.reads)


def test_an_order_that_comes_back_soon_keeps_chunks_of_which_it_wants_little() -> None:
    rng = np.random.default_rng(0)
    # Each read batch wants one chunk as a whole: it is over at once, and wanted again in this epoch.
    picked = rng.integers(0, 40, 600)
    batches = [number * ROWS + np.arange(ROWS) for number in picked.tolist()]
    run = Run(scattering(40, fits=True), 8 * ROWS).over(batches)
    assert len(run.reads) <= 120
    assert run.plan.used_slots == 40


def test_windows_that_cross_the_bounds_of_chunks_hold_little() -> None:
    # Windows of five rows: those that begin in chunks of a window of the shuffle, from row 2 on.
    rng = np.random.default_rng(1)
    parts = [rng.permutation(100)[first : first + 4] for first in range(0, 100, 4)]
    starts = [rng.permutation((part[:, None] * 4 + np.arange(4)).ravel()) for part in parts]
    windows = np.concatenate(starts) * 5 + 2
    batches = [(w[:, None] + np.arange(5)).ravel() % (100 * ROWS) for w in batches_of(windows)]
    run = Run(scattering(100, fits=False), 8 * LEAD * 5).over(batches)
    assert run.most_held <= 8 * LEAD * 5


# --- any order, any room -------------------------------------------------------------------------


@given(data=st.data())
def test_every_read_batch_has_its_chunks(data: st.DataObject) -> None:
    chunks = data.draw(st.integers(1, 12), "chunks")
    order = data.draw(st.sampled_from(["in order", "global", "blocks", "any"]), "order")
    if order == "any":
        numbers = st.lists(st.integers(0, chunks * ROWS - 1), min_size=1, max_size=300)
        records = np.array(data.draw(numbers, "records"))
    else:
        seed = data.draw(st.integers(0, 3), "seed")
        records = orders(order, chunks, data.draw(st.integers(1, 3), "epochs"), seed=seed)
    scatters = data.draw(st.booleans(), "scatters")
    slots = data.draw(st.integers(0 if scatters else 1, chunks), "slots")
    plan = ChunkPlan(
        lambda _: ROWS,
        slots,
        data.draw(st.integers(0, 200), "lead"),
        chunks * ROWS,
        has_all=slots == chunks,
        keeps=slots == chunks and data.draw(st.booleans(), "keeps"),
        scatters=scatters,
        is_remote=data.draw(st.booleans(), "remote"),
    )
    room = data.draw(st.integers(1, 400), "room")
    run = Run(plan, room, delay=data.draw(st.integers(0, 5), "delay"))
    batches = batches_of(records, data.draw(st.integers(1, 30), "batch"))
    run.over(batches)
    wanted = {int(number) for number in np.unique(records // ROWS)}
    assert {number for number, _ in run.reads} == wanted
    assert plan.made == plan.planned == len(records)
    assert plan.used_slots <= slots
    used = {chunk.slot for chunk in plan.known.values()}
    assert len(used) == len(plan.known) <= slots
    if slots == chunks and not scatters:
        lasting = [number for number, _ in run.reads]
        assert len(lasting) <= len(wanted) * len(batches)


@given(seed=st.integers(0, 99), room=st.integers(8, 400))
def test_no_chunk_is_read_again_for_what_was_planned(seed: int, room: int) -> None:
    rng = np.random.default_rng(seed)
    batches = batches_of(rng.integers(0, 12 * ROWS, 400))
    run = Run(scattering(12, fits=False), room).over(batches)
    # Naively: a read at a place serves all read batches that are planned there, so the next read of the
    # chunk lies where the plan ended, or later.
    last: dict[int, int] = {}
    for number, place in run.reads:
        assert place >= last.get(number, 0)
        last[number] = place
    ends = dict[int, int]()
    for k, records in enumerate(batches):
        for number in np.unique(records // ROWS).tolist():
            assert any(n == number and at <= k * BATCH for n, at in run.reads)
            ends[number] = k
    assert set(ends) == set(last)
