"""Profiler: how long each activity of a run takes, and how long the loop waits for it.

A maker makes elements, in a prefetch thread or in the loop's own, and the loop takes them. At any
moment a maker is at one activity, or at none that is counted. So the difference between two
readings of the maker's times shows what the loop waited for.

Contract:
1. Time and bytes are counted by read batch, block and read, never by element.
2. All that a function of the user does, such as iterating another dataset, counts as that function:
   nothing else is counted during the call.
3. `Profiler.stats` may be called from any thread at any time.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import Final, NamedTuple, Protocol, TypeAlias

from windrow.stats.read_counters import ReadCounters
from windrow.stats.stats import BlockTimes, ChosenWorkers, Stats
from windrow.transforms.functions import name_of
from windrow.transforms.nodes import Node, as_batch

Clock: TypeAlias = Callable[[], float]

PLANNING: Final = "planning"
READING: Final = "reading"
WORKERS: Final = "workers"
SPLITTING: Final = "splitting"
ROOM: Final = "room"
OTHER: Final = "other"
_NOT_FUNCTIONS: Final = frozenset({PLANNING, READING, WORKERS, SPLITTING, ROOM, OTHER})

_KEPT_BLOCKS: Final = 1_000
# Blocks that come faster than this share an entry, and memory is not measured between them.
_LEAST_S: Final = 1e-3


class HoldsMemory(Protocol):
    """An object that holds memory for a run."""

    def bytes_by(self) -> Mapping[str, int]:
        """Return the bytes held now, by kind."""
        ...


class Made(NamedTuple):
    """When the making of a block began, by the clock, and the seconds of reading and mapping in it."""

    started_s: float = 0.0
    reading_s: float = 0.0
    mapping_s: float = 0.0


# --- makers --------------------------------------------------------------------------------------


class ActivityClock:
    """Counts the seconds of one run by activity, and the memory that the run holds.

    Only one thread uses it, except for `spent_s`, `heard_s` and `bytes_by`. As a context it counts
    the activity given to `at`; no other activity begins within it.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        """Start with no time counted."""
        self._clock = clock
        # The counted activity and when it began. No lock: that would cost as much as the rest, and
        # another thread that reads it can miss only one such time.
        self._at: tuple[str, float] | None = None
        self._next = OTHER
        self._spent_s: dict[str, float] = {}
        self._heard_s: dict[str, float] = {}  # of worker processes
        self._names: dict[int, str] = {}  # of what nodes do
        self._last = Made()  # the clock and the sums when a block was last made
        self._weighed_s = float("-inf")
        self._buffers: list[weakref.ref[HoldsMemory]] = []
        self.peak_by: dict[str, int] = {}
        self.peak_bytes = 0
        # Whether blocks were ready for the loop when the last one was made.
        self.is_ahead = False
        # Numbers of workers, by the number of their `mp_prefetch`. It is replaced as a whole.
        self.chosen: Mapping[int, ChosenWorkers] = {}

    def begin(self) -> Token[ActivityClock | None]:
        """Count this thread as making elements, until `pause` is given the returned token."""
        return _here.set(self)

    def pause(self, begun: Token[ActivityClock | None]) -> None:
        """Stop counting this thread."""
        _here.reset(begun)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """A context in which this thread makes elements."""
        begun = self.begin()
        try:
            yield
        finally:
            self.pause(begun)

    def at(self, activity: str) -> ActivityClock:
        """Return the context that counts an activity."""
        self._next = activity
        return self

    def __enter__(self) -> None:
        _here.set(None)
        self._at = self._next, self._clock()

    def __exit__(self, *error: object) -> None:
        now_s, at = self._clock(), self._at
        _here.set(self)
        if at is not None:
            self._at = None
            activity, since_s = at
            self._spent_s[activity] = self._spent_s.get(activity, 0.0) + now_s - since_s

    def name_of_work(self, node: Node) -> str:
        """The node's `work_label`, which is made once for each node."""
        found = self._names.get(id(node))
        if found is None:
            found = self._names[id(node)] = work_label(node)
        return found

    def heard(self, spent_s: Mapping[str, float]) -> None:
        """Add the seconds that a worker process spent by activity."""
        if spent_s:
            found = dict(self._heard_s)
            _add(found, spent_s)
            self._heard_s = found

    def spent_s(self) -> dict[str, float]:
        """Seconds by activity, up to now; what is not counted is left out."""
        while True:
            at = self._at
            spent_s = dict(self._spent_s)
            if at is self._at:  # else it was copied while that changed
                break
        if at is not None:
            _add(spent_s, {at[0]: self._clock() - at[1]})
        return spent_s

    def heard_s(self) -> dict[str, float]:
        """Seconds of worker processes by activity."""
        return dict(self._heard_s)

    def plus(self, other: ActivityClock) -> ActivityClock:
        """Return the sums of both."""
        found = ActivityClock()
        for each in (self, other):
            _add(found._spent_s, each.spent_s())
            _add(found._heard_s, each.heard_s())
            found.peak_by = _most(found.peak_by, each.peak_by)
            found.peak_bytes = max(found.peak_bytes, each.peak_bytes)
            found.chosen = {**found.chosen, **each.chosen}
        return found

    # --- blocks ---

    def begin_block(self) -> None:
        """Start the time of the next block."""
        self._last = self._last._replace(started_s=self._clock())

    def made_block(self) -> Made:
        """Return the times of the block that is ready, and start the next one."""
        before, spent_s, heard_s = self._last, self._spent_s, self._heard_s
        reading_s = spent_s.get(READING, 0.0) + heard_s.get(READING, 0.0)
        mapping_s = sum(_functions(spent_s).values()) + sum(_functions(heard_s).values())
        self._last = Made(self._clock(), reading_s, mapping_s)
        return Made(before.started_s, reading_s - before.reading_s, mapping_s - before.mapping_s)

    # --- memory ---

    def watch(self, buffers: HoldsMemory) -> None:
        """Include the bytes of `buffers` as long as the object exists."""
        kept = [ref for ref in self._buffers if ref() is not None]
        self._buffers = [*kept, weakref.ref(buffers)]

    def bytes_by(self) -> dict[str, int]:
        """Bytes held now, by kind."""
        found: dict[str, int] = {}
        for ref in self._buffers:
            buffers = ref()
            if buffers is not None:
                for kind, size in buffers.bytes_by().items():
                    found[kind] = found.get(kind, 0) + size
        return found

    def weigh(self, *, always: bool = False) -> None:
        """Update the peak of held memory; after blocks only from time to time, unless `always`."""
        if not always and self._last.started_s - self._weighed_s < _LEAST_S:
            return
        self._weighed_s = self._last.started_s
        held, peak_by = self.bytes_by(), self.peak_by
        self.peak_bytes = max(self.peak_bytes, sum(held.values()))
        self.peak_by = _most(peak_by, held)


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The larger of two sizes of each kind."""
    return {**one, **{kind: max(size, one.get(kind, 0)) for kind, size in other.items()}}


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, number in more.items():
        sums[name] = sums.get(name, 0.0) + number


def _functions(spent_s: Mapping[str, float]) -> dict[str, float]:
    """The seconds of functions and of stacking batches."""
    return {name: spent for name, spent in spent_s.items() if name not in _NOT_FUNCTIONS}


# The maker that this thread works for, while no activity is being timed.
_here: Final[ContextVar[ActivityClock | None]] = ContextVar("windrow-maker", default=None)


_NOT_COUNTED: Final = contextlib.nullcontext()


def doing(activity: str) -> contextlib.AbstractContextManager[None]:
    """A context that counts an activity, if this thread makes elements."""
    maker = _here.get()
    return _NOT_COUNTED if maker is None else maker.at(activity)


def calling(node: Node) -> contextlib.AbstractContextManager[None]:
    """A context that counts a call of a node's function, or the stacking of a batch."""
    maker = _here.get()
    return _NOT_COUNTED if maker is None else maker.at(maker.name_of_work(node))


# --- the loop ------------------------------------------------------------------------------------


# Blocks that share an entry of the timeline: the fields of `BlockTimes`, with times by the clock. A tuple,
# since there is one for every block.
_Entry: TypeAlias = tuple[int, float, float, float, float, float]
# The loop's activity and when it began, the seconds it has waited, and the seconds of its own.
_Loop: TypeAlias = tuple[str, float, float, float]
_AWAY, _WAITS, _WORKS = "away", "waits", "works"  # time away is not counted


def _turned(loop: _Loop, doing: str, now_s: float) -> _Loop:
    """Return the loop with a new activity that begins now."""
    did, since_s, waited_s, own_s = loop
    if did == _WAITS:
        return doing, now_s, waited_s + now_s - since_s, own_s
    if did == _WORKS:
        return doing, now_s, waited_s, own_s + now_s - since_s
    return doing, now_s, waited_s, own_s


class Profiler:
    """Counts everything for one iterator: its loop, its makers one after the other, its reads.

    The loop calls `asked`, `got` and `took` for each block, or `stopped` if no block comes. Other
    threads may call only `stats` and `bytes_by`.
    """

    def __init__(self, node: Node, clock: Clock = time.perf_counter) -> None:
        """Start with nothing counted.

        Args:
            node: The chain.
            clock: Seconds.
        """
        self.read_counters = ReadCounters(node)
        self.lock = threading.RLock()
        self._clock = clock
        self._gone = ActivityClock()
        self.maker = self._new_maker()
        self._in_turn = True
        # Replaced as a whole, so that every thread sees a consistent one.
        self._loop: _Loop = _AWAY, 0.0, 0.0, 0.0
        self._first_s: float | None = None
        self._before_s: dict[str, float] | None = None  # the maker's, when the loop began to wait
        self._waited_for: dict[str, float] = {}
        self._got_s = self._split_s = 0.0
        self._elements = self._delivered_bytes = 0
        self._block = 0, 0  # elements of the block that is being given, and their bytes
        self._timeline: collections.deque[_Entry] = collections.deque(maxlen=_KEPT_BLOCKS)
        self._entry: _Entry | None = None  # blocks that are not in the timeline yet
        self._entered_s = float("-inf")

    def _new_maker(self) -> ActivityClock:
        maker = ActivityClock(self._clock)
        maker.watch(self)
        return maker

    def now_s(self) -> float:
        """The time by the clock."""
        return self._clock()

    def renew(self, *, in_turn: bool) -> ActivityClock:
        """Return a new maker for another run; earlier makers are no longer counted.

        Args:
            in_turn: Whether it works only while the loop waits.
        """
        with self.lock:
            if self._in_turn:
                _add(self._waited_for, self.maker.spent_s())
            self._gone = self._gone.plus(self.maker)
            self.maker, self._in_turn = self._new_maker(), in_turn
            return self.maker

    def bytes_by(self) -> Mapping[str, int]:
        """Return the memory that the loop holds: the block whose elements it is given."""
        return {"rounds": self._block[1]}

    # --- what the loop does ---

    def asked(self, *, is_ready: bool) -> None:
        """Note that the loop asks for a block; for one that `is_ready` no maker works."""
        now_s = self._clock()
        if self._first_s is None:
            self._first_s = now_s
        if not self._in_turn:
            self._before_s = None if is_ready else self.maker.spent_s()
        did, since_s, waited_s, own_s = self._loop  # as `_turned`, without a call
        if did == _WORKS:
            own_s += now_s - since_s
        self._loop = _WAITS, now_s, waited_s, own_s

    def got(self) -> None:
        """Note that a block has arrived, in columns."""
        self._got_s = self._clock()
        if self._before_s is not None:
            self._note_waits()

    def took(self, elements: int, size_bytes: int, made: Made | None) -> None:
        """Note that the loop continues with the elements of a block; hold the lock.

        Args:
            elements: Number of elements.
            size_bytes: Their bytes.
            made: How the block was made; None if it was made while the loop waited.
        """
        now_s = self._clock()
        _, asked_s, waited_s, own_s = self._loop
        took_s = now_s - asked_s
        self._loop = _WORKS, now_s, waited_s + took_s, own_s
        self._split_s += now_s - self._got_s
        self._elements += elements
        self._delivered_bytes += size_bytes
        self._block = elements, size_bytes
        started_s, read_s, mapped_s = (asked_s, 0.0, 0.0) if made is None else made
        before = self._entry
        if before is not None:
            elements += before[0]
            started_s = before[1]
            read_s += before[2]
            mapped_s += before[3]
            took_s += before[5]
        self._entry = elements, started_s, read_s, mapped_s, now_s, took_s
        if now_s - self._entered_s >= _LEAST_S:
            self._enter(now_s)

    def stopped(self, *, is_over: bool) -> None:
        """Note that no block came: the loop continues, or everything `is_over`."""
        with self.lock:
            now_s = self._clock()
            if self._before_s is not None:
                self._note_waits()
            self._loop = _turned(self._loop, _AWAY if is_over else _WORKS, now_s)
            self._block = 0, 0
            self._enter(now_s)

    def dropped(self, elements: int) -> None:
        """Subtract elements of the last block that will not be given; hold the lock."""
        self._elements -= elements
        self._delivered_bytes -= self._bytes_of(elements)
        self._block = 0, 0

    def _enter(self, now_s: float) -> None:
        """Add the last blocks to the timeline."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._entered_s = now_s
            if self._in_turn:
                elements, started_s, read_s, mapped_s, _, waited_s = entry
                made = self.maker.made_block()
                self.maker.weigh()
                read_s, mapped_s = read_s + made.reading_s, mapped_s + made.mapping_s
                entry = elements, started_s, read_s, mapped_s, now_s, waited_s
            self._timeline.append(entry)

    def _bytes_of(self, elements: int) -> int:
        return elements * self._block[1] // max(1, self._block[0])

    def _note_waits(self) -> None:
        """Count what the maker has done since the loop asked."""
        found = self._waits()
        with self.lock:
            self._before_s = None
            _add(self._waited_for, found)

    def _waits(self) -> dict[str, float]:
        before_s = self._before_s or {}
        spent_s = self.maker.spent_s()
        return {name: max(0.0, s - before_s.get(name, 0.0)) for name, s in spent_s.items()}

    # --- results ---

    def stats(self, left: int) -> Stats:
        """Return the stats, if `left` elements of the last block are not given yet."""
        sources = tuple(counters.costs() for counters in self.read_counters.all)
        requests = self.read_counters.requests()
        with self.lock:
            sums, held = self._gone.plus(self.maker), self.maker.bytes_by()
            loop = self._loop  # before the clock, since it may turn in between
            _, _, waited_s, loop_s = _turned(loop, _AWAY, self._clock())
            spent_s, heard_s = sums.spent_s(), sums.heard_s()
            _add(spent_s, heard_s)
            return Stats(
                elements=self._elements - left,
                passed_s=waited_s + loop_s,
                waited_s=waited_s,
                loop_s=loop_s,
                reading_s=spent_s.get(READING, 0.0),
                mapping_s=_functions(spent_s),
                blocked_s=spent_s.get(ROOM, 0.0),
                waited_for=self._waits_until_now(waited_s, heard_s),
                delivered_bytes=self._delivered_bytes - self._bytes_of(left),
                sources=sources,
                buffers_bytes=sum(held.values()),
                peak_buffers_bytes=max(sums.peak_bytes, sum(held.values())),
                buffers_by=held,
                peak_by=_most(sums.peak_by, held),
                packing=self.read_counters.packing,
                requests=requests,
                chosen=tuple(sums.chosen.values()),
                timeline=tuple(_times(entry, self._first_s or 0.0) for entry in self._timeline),
            )

    def _waits_until_now(self, waited_s: float, heard_s: Mapping[str, float]) -> dict[str, float]:
        """The seconds that the loop has waited, by activity, longest first: the parts of `waited_s`."""
        found = dict(self._waited_for)
        if self._in_turn:
            _add(found, self.maker.spent_s())
        elif self._before_s is not None:
            _add(found, self._waits())
        _add(found, {SPLITTING: self._split_s})
        found.pop(ROOM, None)  # there was room, or the loop would not have waited
        _part(found, heard_s)
        found[OTHER] = max(0.0, waited_s - sum(found.values()))
        longest = sorted(found.items(), key=lambda item: -item[1])
        return {name: spent_s for name, spent_s in longest if spent_s > 0}


def work_label(node: Node) -> str:
    """Names a node's own work in `stats()`: the word of the chain, the rows of a batch, and the function."""
    name, batch = node.label.partition("(")[0], as_batch(node)
    more = [] if batch is None else [str(batch.size)]
    more += map(name_of, node.functions[:1])
    return f"{name}({', '.join(more)})" if more else name


def _times(entry: _Entry, first_s: float) -> BlockTimes:
    """An entry of the timeline, in seconds since the loop first asked."""
    elements, started_s, reading_s, mapping_s, taken_s, waited_s = entry
    return BlockTimes(
        elements=elements,
        started_s=started_s - first_s,
        reading_s=reading_s,
        mapping_s=mapping_s,
        taken_s=taken_s - first_s,
        waited_s=waited_s,
    )


def _part(waited_for: dict[str, float], heard_s: Mapping[str, float]) -> None:
    """Split the time waited for workers by their activities.

    Several workers do different things while the loop waits for one of them, so the time is split in
    proportion to all their time. Time in which they do not work, such as their start, stays `workers`.
    """
    worked_s = sum(heard_s.values())
    known_s = min(waited_for.get(WORKERS, 0.0), worked_s)
    if known_s > 0:
        waited_for[WORKERS] -= known_s
        for name, spent_s in heard_s.items():
            _add(waited_for, {WORKERS if name == OTHER else name: known_s * spent_s / worked_s})
