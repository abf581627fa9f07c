"""Iterators: one element after the other, and a state to resume from.

An iterator's only memory is the position after the element it gave last. Whatever it made ahead
can be dropped at any time, so a failed read is retried at the same step, and restoring sets a few
integers.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.base_iterator import BaseIterator
from windrow.engine import streams
from windrow.engine.context import RunContext, bad_records
from windrow.engine.executors import Executors
from windrow.engine.prefetch_thread import CLOSING_S, MOVING_S, Inline, PrefetchThread
from windrow.errors import (
    ClosedError,
    RecordIndexError,
    StateError,
    WorkerError,
)
from windrow.state import Identity, check_reach
from windrow.stats.profiler import Profiler
from windrow.transforms import tables
from windrow.transforms.arguments import at_least, integer
from windrow.transforms.made_of import MadeOf
from windrow.transforms.nodes import (
    Node,
    RowPosition,
    Tail,
    as_node,
    has_own,
    origin,
    tail_of,
    undecided,
    walk,
)
from windrow.transforms.row_blocks import OwnStates

if TYPE_CHECKING:
    from windrow.devices.delivery import Delivered, Delivery
    from windrow.engine.record_names import Records
    from windrow.transforms.moves import Moved

T_co = TypeVar("T_co", covariant=True)


class DatasetIterator(BaseIterator[T_co]):
    """Iterates over the elements of a dataset in order, with a state to resume from.

    Iterate a `MapDataset` or an `IterDataset` to get one. Use it from one thread at a time.

    Example:
        >>> import windrow
        >>> iterator = iter(windrow.MapDataset.range(10).shuffle(seed=42))
        >>> next(iterator), next(iterator)
        (8, 6)
        >>> state = iterator.get_state()
        >>> again = iter(windrow.MapDataset.range(10).shuffle(seed=42)).set_state(state)
        >>> next(again) == next(iterator)
        True
    """

    def __init__(
        self,
        parents: Node | DatasetIterator[Any] | Sequence[DatasetIterator[Any]] = (),
        delivery: Delivery | None = None,
    ) -> None:
        node = as_node(parents)
        self._is_own = node is None
        _register_with_grain()
        if node is not None:
            self._begin(node, delivery)
            return
        from windrow import own_nodes  # few processes have own nodes

        needed = ("__next__", "get_state", "set_state")
        own_nodes.check_methods(type(self), DatasetIterator, needed)
        self._parents = own_nodes.parents_given(parents, DatasetIterator, type(self))

    def _begin(self, node: Node, delivery: Delivery | None) -> None:
        self._node = node  # as the user wrote it
        self._delivery = delivery  # puts elements on devices, and agrees on the end
        self._tail = tail_of(node)
        self._lead = 0
        self._running = self._tail.run()
        self._identity: Identity | None = None
        self._position = origin(self._running)
        self._agree = None if delivery is not None else self._tail.agree
        self._is_over = False  # for all shards
        self._blocks: Inline | PrefetchThread | Delivered | None = None
        self._is_taking = (
            False  # stays set where an interrupt loses a block: all is made again then
        )
        self._executors: Executors | None = None
        self._end_executors: weakref.finalize[..., Any] | None = None
        self._left: list[Any] = []  # what is to be given of the block, the next one last
        self._in_block = 0  # elements
        self._marks: npt.NDArray[np.int64] | None = None
        self._made_of: MadeOf | None = None  # of the block
        self._last: tuple[MadeOf | None] | None = None  # of the element given last
        self._closed = False
        self._owner = 0  # the process that this one was forked from, which has the threads
        self._meter = Profiler(self._running)
        self._has_own = has_own(self._running)
        # The rows that a cache gives again need the states of own nodes before it.
        cached = self._has_own and any(
            hasattr(each, "gives_again") and has_own(each) for each in walk(self._running)
        )
        self._own_states = OwnStates(keeps_all=cached)
        self._bad = bad_records(self._running)
        _all.add(self)

    def __next__(self) -> T_co:
        if self._agree is not None:
            self._end_together(self._agree)
        left = self._left
        if not left:
            self._make_next()
            left = self._left
        element: T_co = left.pop()  # the consumer's alone from here on
        return element

    def _make_next(self) -> None:
        self._next_block()
        if self._listener is not None:
            self._notify(is_over=False)
            while not self._left:  # the callback took or dropped them
                if self._closed:
                    raise StopIteration
                self._next_block()

    def _end_together(self, agree: Callable[[bool], bool]) -> None:
        """End the stream before the first batch that some shard does not have."""
        if not self._is_over:
            has_next = bool(self._left)
            if not has_next:
                with contextlib.suppress(StopIteration):
                    self._make_next()
                    has_next = True
            self._is_over = not agree(has_next)
        if self._is_over:
            raise StopIteration

    def _next_block(self) -> None:
        blocks, meter = self._started(), self._meter
        self._keep_position()
        self._left, self._marks, self._in_block = [], None, 0
        self._is_taking = True
        meter.asked(is_ready=blocks.is_ready)
        try:
            handed = next(blocks, None)
        except BaseException as error:
            from windrow.core.tracebacks import begin_at_function  # for errors alone

            meter.stopped(is_over=False)
            # The next call tries this step again.
            self._drop(MOVING_S if isinstance(error, Exception) else CLOSING_S)
            begin_at_function(error)
            raise
        if handed is None:
            self._is_taking = False
            if self._epochs is not None:
                self._epochs.ended = True
            self._is_over = self._tail.agree is not None
            self._end_workers()
            meter.stopped(is_over=True)
            self._notify(is_over=True)
            raise StopIteration
        block, size_bytes, made = handed
        meter.got()
        elements = list(tables.elements(block.table))
        elements.reverse()
        with meter.lock:  # or another thread could see half of it in `stats`
            meter.took(len(elements), size_bytes, made)
            # In one statement, which no interrupt divides.
            self._left, self._marks, self._in_block, self._made_of, self._is_taking = (
                elements, block.marks, len(elements), block.made_of, False
            )  # fmt: skip

    def _keep_position(self) -> None:
        if self._marks is not None and self._given:
            self._position = self._reached()
            rows = self._made_of
            self._last = (None if rows is None else rows.sliced(self._given - 1, self._given),)
            if self._has_own:
                from windrow import own_nodes

                at = self._tail.rows_of(self._position, self._lead)
                own_nodes.forget(self._tail, self._own_states, at)

    def _drop(self, wait_s: float = MOVING_S) -> None:
        """Throw away what was made ahead; the position stays."""
        self._keep_position()
        self._is_taking = True  # an interrupt leaves the rest to the next call
        with self._meter.lock:
            self._meter.dropped(len(self._left))
            self._left, self._marks, self._in_block = [], None, 0
        blocks, is_apart = self._blocks, False
        try:
            if blocks is None or blocks.stop(wait_s):
                if self._executors is not None and not self._owner:
                    self._executors.forget()
                is_apart = True
        finally:
            if not is_apart:
                self._share_nothing()
        self._blocks, self._is_taking = None, False

    def _share_nothing(self) -> None:
        """Continue as a restored iterator does, since a run that was dropped may still be at work."""
        self._end_workers()
        found = self._found()
        self._own_states = self._own_states.emptied()
        if self._has_own:
            from windrow import own_nodes

            found = own_nodes.taken(self._tail, self._own_states, found)
        kept = self._last, self._is_over
        self._go_to(*self._tail.position_of(found))
        self._last, self._is_over = kept

    def _end_workers(self) -> None:
        end = self._end_executors
        if end is not None:
            end()
        self._executors = self._end_executors = None

    def _started(self) -> Inline | PrefetchThread | Delivered:
        self._check_open()
        if self._owner:
            raise WorkerError(
                f"this iterator works ahead in process {self._owner}, and cannot continue in process"
                f" {os.getpid()}, which was forked from it: threads and workers are not forked."
                " Make the iterator where it is used, or start processes by spawn or forkserver:"
                " multiprocessing.get_context('spawn'), or"
                " torch.utils.data.DataLoader(..., multiprocessing_context='spawn')"
            )
        if self._is_taking:
            self._drop()
        # Another thread may close it at any moment, so attributes are read once.
        blocks = self._blocks
        if blocks is None:
            if self._epochs is not None and not any(self._position):
                self._epochs.begin(self._node)
            self._is_taking = True
            blocks = self._begun()
            self._is_taking = False
        return blocks

    def _begun(self) -> Inline | PrefetchThread | Delivered:
        """Begin a run at the position."""
        executors = self._executors
        try:
            if executors is None:
                executors = self._executors = Executors(self._running)
                # Not when their last reference goes: the thread has one as long as it works.
                self._end_executors = weakref.finalize(self, executors.kill)
                executors.start()  # they start while the first records are read
            run = RunContext(self._running, executors, self._meter)
            run.own_states, run.bad = self._own_states, self._bad
            rest = streams.blocks(self._running, self._position, run, None)
            made = PrefetchThread(rest, run) if run.ahead else Inline(rest, run)
            if run.ahead:
                _with_threads.add(self)
            blocks: Inline | PrefetchThread | Delivered = made
            self._blocks = made
            if self._delivery is not None:
                rows_of = functools.partial(_rows_at, self._tail, self._lead)
                blocks = self._blocks = self._delivery.started(
                    made, run, self._running, rows_of, self._position
                )
        except BaseException:
            self._share_nothing()  # with a thread that may have begun
            raise
        if self._closed:  # what had begun meanwhile may not have been found
            blocks.stop(CLOSING_S)
            executors.kill()
            self._end_workers()
            self._check_open()
        return blocks

    def _begin_anew(self) -> None:
        """Start with empty statistics and no callback, in a forked child."""
        self._meter, self._listener = Profiler(self._running), None

    def _leave_to_parent(self) -> None:
        """Leave prefetched elements and their threads to the parent process, in a forked child."""
        self._keep_position()
        self._left, self._marks, self._in_block = [], None, 0
        self._owner = self._owner or os.getppid()

    def start_prefetch(self) -> None:
        """Start making elements ahead now, not at the first `next`."""
        if self._is_own:
            for parent in self._parents:
                parent.start_prefetch()
            return
        self._started()

    def get_state(self) -> dict[str, Any]:
        """Return the state after the element given last: JSON, a few integers, without data.

        It counts rows, elements before the last batch. Another batch size, another number of shards
        and other workers resume from it with the next row. The state of one shard of a stream with
        lanes holds its own lanes: join the states of all shards with `windrow.merge_states`.
        """
        _register_with_grain()
        self._keep_position()
        return self._named().state(self._found())

    def _found(self) -> RowPosition:
        found = self._tail.rows_of(self._position, self._lead)
        if not self._has_own:
            return found
        from windrow import own_nodes

        return own_nodes.stored(self._tail, self._own_states, found)

    def _resume(self, found: RowPosition) -> None:
        if self._has_own:
            from windrow import own_nodes

            found = own_nodes.taken(self._tail, self._own_states, found)
        self._move(*self._tail.position_of(found))

    def set_state(self, state: dict[str, Any]) -> Self:
        """Resume from a state, as `get_state` gave it or after a round trip through JSON.

        Reads no records. Where a chain with random access ends in a batch, and its size has changed
        since, the batches begin at the row of the state and are cut at the end of the chain. A chain
        whose position is one number (random access, map, filter and batch) also takes a state of
        Grain, `{"next_index": n}`.

        Returns:
            The iterator itself, so that `iter(dataset).set_state(state)` resumes.

        Raises:
            StateError: If the state is invalid, or belongs to another chain or other data.
            ClosedError: If the iterator was closed.
        """
        self._check_open()
        found = self._named().position(state)
        check_reach(self._tail, found)
        self._resume(found)
        return self

    state_dict = get_state  # torchdata's name

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`set_state`, under torchdata's name."""
        self.set_state(state)

    def _move(self, position: list[int], lead: int) -> None:
        """Continue at a position in the chain of `Tail.run(lead)`."""
        self._drop()
        self._go_to(position, lead)
        if self._delivery is not None:
            self._delivery.moved()

    def _go_to(self, position: list[int], lead: int) -> None:
        running = self._running
        if lead != self._lead:
            self._end_workers()  # they have the nodes of the chain that ran
            running = self._tail.run(lead)
        # One statement, as in `_next_block`.
        self._lead, self._running, self._position, self._bad, self._last, self._is_over = (
            lead, running, position, bad_records(running), None, False
        )  # fmt: skip

    def skip(self, count: int) -> int:
        """Leave out the next `count` elements; the stream continues as if they had been given.

        Where metadata show the position, nothing is read: over random access, and through maps,
        batches, shuffles, `limit`, `repeat`, `zip`, `mix`, `interleave` and `rebatch`, in lanes and
        shards. Rows of `MapDataset.pack` are planned from lengths. A filter, or another node that
        decides by values (`flat_map`, the packers of a stream), runs on the elements that are left out: their records are read, and the functions up to that
        node are called. `stats()` counts these reads, and no element.

        A map of a `MapDataset` that returns None, and so makes an element absent, counts as one that
        does not: write it as a filter.

        Args:
            count: Elements (batches, if the chain ends with a batch), at least 0.

        Returns:
            The number of elements that were left out. It is less than `count` if the stream ends
            before; the iterator is at its end then.

        Raises:
            PlanError: If `count` is negative.
            ClosedError: If the iterator was closed.

        Example:
            >>> import windrow
            >>> iterator = iter(windrow.MapDataset.range(100).shuffle(seed=1).batch(10))
            >>> iterator.skip(8), len(list(iterator)), iterator.skip(1)
            (8, 2, 0)
        """
        self._check_is_chain("skip")
        wanted = at_least(0, count, "skip: count")
        self._check_open()
        if self._is_over:  # all shards have ended
            return 0
        self._keep_position()
        moved = self._after(self._running, self._position, wanted)
        self._move(moved.position, self._lead)
        return moved.passed

    def seek(self, step: int) -> None:
        """Continue with element number `step` of the stream, forwards or backwards.

        Costs what `skip` costs from the start of the stream.

        Args:
            step: At least 0. The number of elements in the stream is its end.

        Raises:
            RecordIndexError: If the stream has fewer elements; the iterator stays where it was.
            PlanError: If `step` is negative.
            ClosedError: If the iterator was closed.

        Example:
            >>> import windrow
            >>> iterator = iter(windrow.MapDataset.range(10).repeat())
            >>> iterator.seek(1_000_003)
            >>> next(iterator)
            3
        """
        self._check_is_chain("seek")
        wanted = at_least(0, step, "seek: step")
        self._check_open()
        whole = self._tail.run() if self._lead else self._running
        moved = self._after(whole, origin(whole), wanted)
        if moved.passed < wanted:
            raise RecordIndexError(
                f"seek: step {wanted} is beyond the end: the stream has {moved.passed} elements;"
                f" choose 0 <= step <= {moved.passed}"
            )
        self._move(moved.position, 0)

    def _after(self, node: Node, position: list[int], count: int) -> Moved:
        from windrow.engine import skipping  # few processes skip

        run = skipping.running(self._meter, self._own_states)
        return skipping.after(node, position, count, run)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this iterator was closed; make another with iter(dataset)")

    def records_of_last(self) -> Records:
        """The records that the element given last is made of, without reading.

        A function does not change them: they are what went into it. Elements that a filter left out
        are not among them.

        Returns:
            A `windrow.RecordOf(source, record)` for each record, in row order, as in
            `MapDataset.records_of`. Where rows are packed, a list of those for each row.

        Raises:
            StateError: If no element was given since the iterator was made or moved.
            PlanError: If a node of the chain, one of your own, does not say what its rows are made of.

        Example:
            >>> import windrow
            >>> odd = windrow.MapDataset.range(9).to_iter_dataset().filter(lambda n: n % 2).batch(3)
            >>> iterator = iter(odd)
            >>> next(iterator).tolist(), [record for _, record in iterator.records_of_last()]
            ([1, 3, 5], [1, 3, 5])
        """
        self._check_is_chain("records_of_last")
        self._keep_position()
        if self._last is None:
            raise StateError(
                "records_of_last: no element was given since this iterator was made, or moved by"
                " set_state, skip or seek; call next first"
            )
        from windrow.engine.record_names import records_of_row  # few processes ask

        return records_of_row(self._running, self._last[0])

    def _records_of_next(self) -> Records:
        """The records of the element that comes next, which is made if values decide which it is."""
        from windrow.engine.record_names import end_at_state, records_after, records_of_row

        if undecided(self._node) is None:
            return records_after(self._running, self._position)
        self._bad = None  # nothing is logged
        try:
            self._next_block()  # not `next`, which counts it, and asks other shards
        except StopIteration:
            raise end_at_state() from None
        rows = self._made_of
        return records_of_row(self._running, None if rows is None else rows.sliced(0, 1))

    def _named(self) -> Identity:
        if self._identity is None:
            self._identity = Identity.of(self._node)
        return self._identity

    def close(self) -> None:
        """Stop prefetching and release everything. Closing twice is harmless."""
        if self._is_own:
            for parent in self._parents:
                parent.close()
            return
        self._closed = True
        self._drop(CLOSING_S)
        self._end_workers()
        self._meter.stopped(is_over=True)
        self._notify(is_over=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the chain and the position; prefetched elements are made again."""
        if self._is_own:
            return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]
        self._keep_position()
        return _restored, (self._node, self._found(), self._delivery)

    def __repr__(self) -> str:
        if self._is_own:
            return f"{type(self).__name__}({', '.join(map(repr, self._parents))})"
        return f"DatasetIterator({self._named().chain})"

    def _repr_html_(self) -> str | None:
        if self._is_own:
            return None  # notebooks show its line
        from windrow import shown  # few processes print

        return shown.iterator_html(self._node, self.stats())


def records_of(node: Node, index: int | dict[str, Any]) -> Records:
    """The records of an element of a stream: its number, or the state before it."""
    if isinstance(index, dict):
        with DatasetIterator[Any](node) as iterator:
            return iterator.set_state(index)._records_of_next()
    from windrow.engine.record_names import records_of_stream  # few processes ask

    return records_of_stream(node, integer(index, "records_of: index"))


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


def _rows_at(tail: Tail, lead: int, position: Sequence[int]) -> int:
    """The number of rows of the whole stream before a position."""
    return tail.rows_of(position, lead).rows


def _restored(
    node: Node, found: RowPosition, delivery: Delivery | None = None
) -> DatasetIterator[Any]:
    iterator: DatasetIterator[Any] = DatasetIterator(node, delivery)
    iterator._resume(found)
    return iterator


def _register_with_grain() -> None:
    """Register our iterators with Grain, whose checkpoint handler requires its own base class."""
    grain = sys.modules.get("grain")
    base = getattr(grain, "DatasetIterator", None)
    if base is not None and not issubclass(DatasetIterator, base):
        base.register(DatasetIterator)
