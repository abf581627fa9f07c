"""Iterators: one element after the other, and the state to go on from.

An iterator's only memory is the position behind the element it gave last. Everything ahead of that
can be thrown away at any time, so a failed read is retried at the same step, and restoring is
setting a few integers.
"""

from __future__ import annotations

import dataclasses
import numbers
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from windrow import stream
from windrow.ahead import Ahead, InTurn
from windrow.crew import Crews
from windrow.errors import ArgumentError, ClosedError, StateError, WorkerError
from windrow.meter import Meter
from windrow.run import Run
from windrow.state import Identity
from windrow.stats import Stats
from windrow.transforms import tables
from windrow.transforms.nodes import Node
from windrow.transforms.streams import ToStreamNode, origin, width

T_co = TypeVar("T_co", covariant=True)


class DatasetIterator(Iterator[T_co], Generic[T_co]):
    """Elements of a dataset in order, with a state to go on from.

    Iterate a `MapDataset` or an `IterDataset` to get one. Not for several threads at once.

    Example:
        >>> import windrow
        >>> iterator = iter(windrow.MapDataset.range(10).shuffle(seed=42))
        >>> next(iterator), next(iterator)
        (8, 6)
        >>> state = iterator.get_state()
        >>> again = iter(windrow.MapDataset.range(10).shuffle(seed=42))
        >>> again.set_state(state)
        >>> next(again) == next(iterator)
        True
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._identity: Identity | None = None
        self._position = origin(node)
        self._blocks: InTurn | Ahead | None = None
        self._crews: Crews | None = None
        self._end_crews: weakref.finalize[..., Any] | None = None
        self._elements: list[Any] = []
        self._marks: npt.NDArray[np.int64] | None = None
        self._given = 0  # of self._elements
        self._closed = False
        self._owner = 0  # the process that this one was forked from, which has the threads
        self._meter = Meter(node)
        self._listener: _Listener | None = None
        self._telling = False
        _all.add(self)
        _register_with_grain()

    def __iter__(self) -> DatasetIterator[T_co]:
        return self

    def __next__(self) -> T_co:
        if self._given == len(self._elements):
            self._next_block()
            if self._listener is not None:
                self._tell(is_over=False)
                while self._given == len(self._elements):  # whoever listens took or dropped them
                    if self._closed:
                        raise StopIteration
                    self._next_block()
        element: T_co = self._elements[self._given]
        self._elements[self._given] = None  # the consumer's alone from here on
        self._given += 1
        return element

    def _next_block(self) -> None:
        blocks, meter = self._started(), self._meter
        self._keep_position()
        meter.asked(is_ready=blocks.is_ready)
        try:
            handed = next(blocks, None)
        except BaseException:
            meter.stopped(is_over=False)
            self._drop()  # the next call tries the same step again
            raise
        if handed is None:
            self._end_workers()
            meter.stopped(is_over=True)
            self._tell(is_over=True)
            raise StopIteration
        block, size_bytes, made = handed
        meter.got()
        elements = list(tables.elements(block.table))
        with meter.lock:  # or another thread could see half of it in `stats`
            self._elements, self._marks, self._given = elements, block.marks, 0
            meter.took(len(elements), size_bytes, made)

    def _keep_position(self) -> None:
        if self._marks is not None and self._given:
            self._position = self._marks[self._given - 1].tolist()

    def _drop(self) -> None:
        """Throw away what was made ahead; the position stays."""
        self._keep_position()
        blocks, self._blocks = self._blocks, None
        with self._meter.lock:
            self._meter.dropped(len(self._elements) - self._given)
            self._elements, self._marks, self._given = [], None, 0
        if blocks is not None:
            blocks.stop()
        if self._crews is not None and not self._owner:
            self._crews.forget()

    def _end_workers(self) -> None:
        if self._end_crews is not None:
            self._end_crews()
        self._crews = self._end_crews = None

    def _started(self) -> InTurn | Ahead:
        if self._closed:
            raise ClosedError("this iterator was closed; make another with iter(dataset)")
        if self._owner:
            raise WorkerError(
                f"this iterator works ahead in process {self._owner}, and does not go on in process"
                f" {os.getpid()}, which was forked from it: threads and workers are not forked."
                " Make the iterator where it is used, or start processes by spawn or forkserver:"
                " multiprocessing.get_context('spawn'), or"
                " torch.utils.data.DataLoader(..., multiprocessing_context='spawn')"
            )
        if self._blocks is None:
            if self._crews is None:
                self._crews = Crews(self._node)
                # Not when their last reference goes: the thread has one as long as it works.
                self._end_crews = weakref.finalize(self, self._crews.kill)
                self._crews.start()  # they come up while the first records are read
            run = Run(self._node, self._crews, self._meter)
            rest = stream.blocks(self._node, self._position, run, None)
            self._blocks = Ahead(rest, run) if run.ahead else InTurn(rest, run)
            if run.ahead:
                _with_threads.add(self)
        return self._blocks

    def _begin_anew(self) -> None:
        """In a forked child: nothing was counted, and nobody listens."""
        self._meter, self._listener = Meter(self._node), None

    def _leave_to_parent(self) -> None:
        """In a forked child: what was made ahead, and who makes it, is the parent's."""
        self._keep_position()
        self._elements, self._marks, self._given = [], None, 0
        self._owner = self._owner or os.getppid()

    def start_prefetch(self) -> None:
        """Start making elements ahead now, not at the first `next`."""
        self._started()

    def get_state(self) -> dict[str, Any]:
        """The state behind the element given last: JSON, under 1 kB, without data."""
        _register_with_grain()
        self._keep_position()
        return self._named().state(list(self._position))

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state, as `get_state` gave it or after a trip through JSON.

        Reads no records. A state of Grain, `{"next_index": n}`, is taken by a chain whose position
        is one number: random access, map, filter and batch.

        Raises:
            StateError: If it is no state, or one of another chain or of other data.
            ClosedError: If the iterator was closed.
        """
        if self._closed:
            raise ClosedError("this iterator was closed; make another with iter(dataset)")
        position = self._named().position(state)
        _check_reach(self._node, position)
        self._drop()
        self._position = position

    def stats(self) -> Stats:
        """What was done since the iterator was made: times, bytes, and who waited for whom.

        It is always counted, whatever state was set meanwhile, and stays when the iterator is
        closed. A pickled or forked iterator counts anew. May be called from any thread.

        Example:
            >>> import windrow
            >>> iterator = iter(windrow.MapDataset.range(10).map(abs))
            >>> print(iterator.stats())
            nothing was asked for yet
            >>> sum(iterator), iterator.stats().elements
            (45, 10)
        """
        with self._meter.lock:
            return self._meter.stats(len(self._elements) - self._given)

    def on_stats(self, callback: Callable[[Stats], Any] | None, every_s: float = 10.0) -> None:
        """Have `callback` called with the `stats` now and then, and at the end.

        It is called within `next`, in the thread that iterates: when elements were made and
        `every_s` seconds have passed since the last call, or since now; and once when there are no
        more elements or the iterator is closed. What it raises is raised by that `next`; the one
        after it goes on with the element that was to come. It is no part of the state, and is left
        behind where the iterator is pickled or forked.

        Within it the iterator can be used: `close` ends the loop, what `next` gives there the loop
        does not get, and after `set_state` that `next` gives the element of the state. Meanwhile it
        is not called; an end that came then is told when it is through.

        Args:
            callback: Takes a `Stats`; it takes the place of the one before. None for no more calls.
            every_s: Seconds, at least 0.

        Raises:
            ArgumentError: If `callback` can not be called, or `every_s` is no such number.

        Example:
            >>> import windrow
            >>> iterator = iter(windrow.MapDataset.range(10))
            >>> iterator.on_stats(lambda stats: print(stats.elements, "elements"))
            >>> sum(iterator)
            10 elements
            45
        """
        if callback is None:
            self._listener = None
            return
        if not callable(callback):
            raise ArgumentError(
                f"on_stats: callback must take a windrow.Stats, or be None, got {callback!r}"
            )
        if not isinstance(every_s, numbers.Real) or not every_s >= 0:
            raise ArgumentError(
                f"on_stats: every_s must be a number of seconds from 0 on, got {every_s!r}"
            )
        self._listener = _Listener(callback, every_s, self._meter.now_s() + every_s)

    def _tell(self, *, is_over: bool) -> None:
        """Call whoever listens, if it is time, and not from within such a call."""
        listener = self._listener
        if listener is None or self._telling:
            return
        now_s = self._meter.now_s()
        wanted = not listener.is_told_end if is_over else now_s >= listener.due_s
        listener.is_told_end = is_over
        if not wanted:
            return
        listener.due_s = now_s + listener.every_s
        self._telling = True
        try:
            listener.callback(self.stats())
        finally:
            self._telling = False
        if self._closed and not is_over:
            self._tell(is_over=True)

    def _named(self) -> Identity:
        if self._identity is None:
            self._identity = Identity.of(self._node)
        return self._identity

    def close(self) -> None:
        """Stop working ahead and let everything go. Closing twice does no harm."""
        self._closed = True
        self._drop()
        self._end_workers()
        self._meter.stopped(is_over=True)
        self._tell(is_over=True)

    def __enter__(self) -> DatasetIterator[T_co]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as raised:
            if error is None:
                raise
            error.add_note(f"windrow: closing the iterator raised too: {raised!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as the chain and the position: what was made ahead is made again."""
        self._keep_position()
        return _restored, (self._node, list(self._position))

    def __repr__(self) -> str:
        return f"DatasetIterator({self._named().chain})"


@dataclasses.dataclass(slots=True)
class _Listener:
    """Who is told the stats, how often, and when next by the meter's clock."""

    callback: Callable[[Stats], Any]
    every_s: float
    due_s: float
    is_told_end: bool = False


_all: weakref.WeakSet[DatasetIterator[Any]] = weakref.WeakSet()
# Iterators whose elements are made by threads, which a forked child does not have.
_with_threads: weakref.WeakSet[DatasetIterator[Any]] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for iterator in list(_all):
        iterator._begin_anew()
    for iterator in list(_with_threads):
        iterator._leave_to_parent()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_leave_all_to_parent)


def _check_reach(node: Node, position: list[int]) -> None:
    if isinstance(node, ToStreamNode):
        if position[0] > node.parent.length:
            raise StateError(
                f"state is at element {position[0]} of a dataset of {node.parent.length}; it was"
                " taken over more data: restore with the dataset it was taken from"
            )
        return
    for parent in node.parents:
        _check_reach(parent, position[: width(parent)])
        position = position[width(parent) :]


def _restored(node: Node, position: list[int]) -> DatasetIterator[Any]:
    iterator: DatasetIterator[Any] = DatasetIterator(node)
    iterator._position = position
    return iterator


def _register_with_grain() -> None:
    """Make Grain's checkpoint handler know our iterators; it asks for its own base class."""
    grain = sys.modules.get("grain")
    base = getattr(grain, "DatasetIterator", None)
    if base is not None and not issubclass(DatasetIterator, base):
        base.register(DatasetIterator)
