"""What iterators of Windrow and a user's own iterators share: parents, checkpoints, reports, `with`."""

from __future__ import annotations

import abc
import dataclasses
import json
import numbers
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from windrow.errors import ArgumentError, PlanError
from windrow.stats.profiler import Profiler
from windrow.stats.stats import Stats

if TYPE_CHECKING:
    from windrow import state_files
    from windrow.engine.context import Bad
    from windrow.history.keeping import Keeper, Keeping
    from windrow.stalls import StallWatch
    from windrow.state import Identity
    from windrow.transforms.nodes import Node, Tail

T_co = TypeVar("T_co", covariant=True)
B = TypeVar("B", bound="BaseIterator[Any]")


class Epochs:
    """What a dataset shares with its iterators: whether one of them ran to its end.

    Where another one begins at the first element, the dataset warns once if that gives an order again.
    """

    __slots__ = ("ended", "warned")

    def __init__(self) -> None:
        """Begin with no epoch."""
        self.ended = self.warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Epochs, ()

    @staticmethod
    def of(dataset: object, iterator: B) -> B:
        """The iterator of a dataset, which notes its beginning and its end."""
        iterator._epochs = dataset.__dict__.setdefault("_epochs", Epochs())
        return iterator

    def begin(self, node: Node) -> None:
        """Note that an iterator begins at the first element."""
        if self.ended and not self.warned:
            from windrow.epochs import warn_of_one_order

            self.warned = True
            warn_of_one_order(node)


class BaseIterator(Iterator[T_co], Generic[T_co]):
    """An iterator with a state. A user's own iterator is over `_parents`."""

    _is_own: bool | None = None  # until `__init__` has run
    _parents: tuple[Any, ...] = ()
    _meter: Profiler
    _bad: Bad
    _left: list[Any]
    _in_block: int
    _tail: Tail
    _running: Node
    _lead: int
    _position: list[int]
    _marks: Any
    _made_of: Any
    _closed: bool
    _listener: _Listener | None = None
    _notifying = False
    _keeper: Keeper | None = None
    _keeping: Keeping | None = None
    _stall_watch: StallWatch | None = None
    _epochs: Epochs | None = None  # of the dataset that it was made of

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            from windrow.core.absent_names import of_iterator  # only for errors

            raise of_iterator(type(self).__name__, name)

    @property
    def _parent(self) -> Any:
        from windrow import own_nodes  # few processes have own nodes

        parent: Any = own_nodes.parent_of(self, self._parents)
        return parent

    @property
    def _given(self) -> int:
        """How many elements of the block were given."""
        return self._in_block - len(self._left)

    def _reached(self) -> list[int]:
        """The position after the element given last."""
        marks, given = self._marks, self._given
        if marks is None or not given:
            return self._position
        found: list[int] = marks[given - 1].tolist()
        return found

    def _check_is_chain(self, who: str) -> None:
        if self._is_own:
            raise PlanError(
                f"{who}: {type(self).__name__} is an iterator of your own, which has no such method;"
                " define it there, or call it of the iterator of a dataset after it"
            )

    @abc.abstractmethod
    def _check_open(self) -> None:
        """Refuse a closed iterator."""

    @abc.abstractmethod
    def _keep_position(self) -> None:
        """Note the position after the element given last."""

    @abc.abstractmethod
    def _named(self) -> Identity:
        """What makes a state belong to the chain."""

    @abc.abstractmethod
    def _stall_text(self, waited_s: float) -> str:
        """What everything does while the loop waits."""

    def _note_block(self, marks: Any, made_of: Any, given: int = 0) -> None:
        if self._keeper is not None and marks is not None:
            self._keeper.block(self._running, self._lead, self._position, marks, made_of, given)

    def __iter__(self) -> Self:
        return self

    def stats(self) -> Stats:
        """Return times, bytes and waits since the iterator was made.

        Setting a state does not reset them, and they stay when the iterator is closed. A pickled
        or forked iterator starts from zero. Any thread may call this.

        Example:
            >>> import windrow
            >>> iterator = iter(windrow.MapDataset.range(10).map(abs))
            >>> print(iterator.stats())
            nothing was asked for yet
            >>> sum(iterator), iterator.stats().elements
            (45, 10)
        """
        self._check_is_chain("stats")
        with self._meter.lock:
            found = self._meter.stats(len(self._left))
            return self._bad.added_to(found, self._reached())

    def on_stats(self, callback: Callable[[Stats], Any] | None, every_s: float = 10.0) -> None:
        """Call `callback` with the `stats` at intervals, and at the end.

        It is called within `next`, in the thread that iterates: when elements were made and
        `every_s` seconds have passed since the last call, or since now; and once when there are no
        more elements or the iterator is closed. An exception from it propagates from that `next`;
        the `next` after it continues with the element that was due. The callback is not part of the
        state, and a pickled or forked iterator does not have it.

        The callback may use the iterator. `close` ends the loop. The loop does not get elements that
        the callback took with `next`. After `set_state` the interrupted `next` gives the element of
        that state. The callback is not called while it runs; if the end comes then, it is called
        once more after it returns.

        Args:
            callback: Takes a `Stats`, and replaces the previous callback. None stops the calls.
            every_s: Seconds, at least 0.

        Raises:
            ArgumentError: If `callback` cannot be called, or `every_s` is negative or not a number.

        Example:
            >>> import windrow
            >>> iterator = iter(windrow.MapDataset.range(10))
            >>> iterator.on_stats(lambda stats: print(stats.elements, "elements"))
            >>> sum(iterator)
            10 elements
            45
        """
        self._check_is_chain("on_stats")
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

    def _notify(self, *, is_over: bool) -> None:
        """Call the callback if it is due, and not from within itself."""
        listener = self._listener
        if listener is None or self._notifying:
            return
        now_s = self._meter.now_s()
        wanted = not listener.was_called_at_end if is_over else now_s >= listener.due_s
        listener.was_called_at_end = is_over
        if not wanted:
            return
        listener.due_s = now_s + listener.every_s
        self._notifying = True
        try:
            listener.callback(self.stats())
        finally:
            self._notifying = False
        if self._closed and not is_over:
            self._notify(is_over=True)

    def on_stall(self, after_s: float = 60.0, callback: Callable[[str], Any] | None = None) -> None:
        """Report what everything does when the loop has waited long in `next`.

        The text goes to the logger `windrow.stall` as a warning, once for each stall: the activity that
        is waited for, the stacks of the loop's thread and of Windrow's own, what each worker process
        does, and the remote requests of this process. A thread looks for stalls; it ends with the
        iterator. A pickled or forked iterator does not have it.

        Args:
            after_s: Seconds of waiting in one `next` that make a stall, more than 0. 0 stops the watch.
            callback: Also gets the text, in that thread. What it raises is logged.

        Raises:
            ArgumentError: If `after_s` is not a number of seconds, or `callback` cannot be called.
            ClosedError: If the iterator was closed.

        Example:
            >>> import threading, windrow
            >>> seen = threading.Event()
            >>> dataset = windrow.MapDataset.range(3).map(lambda n: n if seen.wait(10) else None)
            >>> iterator = iter(dataset)
            >>> iterator.on_stall(0.01, lambda text: (print(text.splitlines()[0][:15]), seen.set()))
            >>> next(iterator)
            next has waited
            0
            >>> iterator.close()
        """
        self._check_is_chain("on_stall")
        if not isinstance(after_s, numbers.Real) or not 0 <= after_s < float("inf"):
            raise ArgumentError(
                f"on_stall: after_s must be a number of seconds, or 0 to stop, got {after_s!r}"
            )
        if callback is not None and not callable(callback):
            raise ArgumentError(
                f"on_stall: callback must take a string, or be None, got {callback!r}"
            )
        self._end_stall_watch()
        if after_s:
            self._check_open()
            from windrow.stalls import StallWatch  # few processes watch

            self._stall_watch = StallWatch(self, self._meter, float(after_s), _stalled, callback)

    def _end_stall_watch(self) -> None:
        watch, self._stall_watch = self._stall_watch, None
        if watch is not None:
            watch.stop()

    def keep_history(self, path: str | os.PathLike[str] | None) -> None:
        """Append to a file which records each element from here on is made of.

        `windrow.history.read` and `windrow records` list the records of any step from it, without the
        data. A row takes few bytes: about four where the order is random, almost none where it is in
        order. What was given is in the file after some 16,000 rows, after 5 seconds, when a state is
        taken, and at the end. A file that exists is continued. If it cannot be written during the run,
        a warning is logged, the run continues, and the history has a gap.

        A pickled or forked iterator keeps no history.

        Args:
            path: A file of this process and this iterator alone, on a disk. None ends the history.

        Raises:
            PlanError: If another iterator writes the file. `next` raises it if a node of the chain, one
                of your own, does not say what its rows are made of.
            SourceError: If the file is not a history.
            OSError: If the file cannot be opened.
            ClosedError: If the iterator was closed.

        Example:
            >>> import windrow
            >>> with iter(windrow.MapDataset.range(100).shuffle(seed=1).batch(4)) as iterator:
            ...     iterator.keep_history("run.history")
            ...     batches = [batch.tolist() for batch in iterator]
            >>> step = windrow.history.read("run.history").step(7)
            >>> [record for _, record in step.records] == batches[7], step.rows
            (True, (28, 32))
        """
        self._check_is_chain("keep_history")
        self._end_history()
        if path is None:
            return
        self._check_open()
        from windrow.history.keeping import Keeper, Keeping  # few processes keep one

        named = self._named()
        keeper = Keeper(path, named.tail, named.fingerprint)
        self._keep_position()
        with self._meter.lock:
            self._keeper = keeper
            self._note_block(self._marks, self._made_of, self._given)
        self._keeping = Keeping(self, keeper)

    def _note_given(self) -> None:
        """Note what was given since; any thread may call this."""
        keeper = self._keeper
        if keeper is not None:
            with self._meter.lock:
                keeper.given(self._given)
            keeper.flush()

    def _end_history(self) -> None:
        self._note_given()
        keeping, self._keeper, self._keeping = self._keeping, None, None
        if keeping is not None:
            keeping.end()

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """The state after the element given last."""

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> Self:
        """Resume from a state; the iterator itself."""

    def has_lanes_of(self, state: Any) -> bool:
        """Whether a state holds all lanes that this iterator runs, so that it needs no other.

        A state of one shard of a stream with lanes holds its own lanes only: see
        `windrow.merge_states`.
        """
        if self._is_own:
            return True  # its state is its own
        from windrow.state import has_lanes  # few processes ask

        return has_lanes(self._tail, state.get("lanes") if isinstance(state, dict) else None)

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything."""

    async def save(self, directory: Any) -> state_files.Pending:
        """Write the state into a checkpoint of Orbax, which calls this for a checkpointable.

        The state is the one of now, also where it is written later.

        Args:
            directory: A path that Orbax creates.

        Returns:
            A coroutine that writes it.
        """
        from windrow import state_files  # few processes save so

        return state_files.written(directory, json.dumps(self.get_state()))

    async def load(self, directory: Any) -> state_files.Pending:
        """Restore the state in a checkpoint of Orbax, which calls this for a checkpointable.

        The coroutine raises what `set_state` raises, and NotFoundError if there is no state.

        Args:
            directory: The path of the checkpointable.

        Returns:
            A coroutine that reads and restores it.
        """
        from windrow import state_files

        return state_files.read_then(directory, self.has_lanes_of, self.set_state)

    def __enter__(self) -> Self:
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


@dataclasses.dataclass(slots=True)
class _Listener:
    """The callback of `on_stats`, its interval, and when it is due by the profiler's clock."""

    callback: Callable[[Stats], Any]
    every_s: float
    due_s: float
    was_called_at_end: bool = False


def _stalled(iterator: BaseIterator[Any], waited_s: float) -> str:
    return iterator._stall_text(waited_s)
