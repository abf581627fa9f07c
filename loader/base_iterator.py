"""What iterators of Windrow and a user's own iterators share: parents, checkpoints, reports, `with`."""

from __future__ import annotations

import abc
import dataclasses
import json
import numbers
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from windrow.errors import ArgumentError, PlanError
from windrow.stats.profiler import Profiler
from windrow.stats.stats import Stats

if TYPE_CHECKING:
    from windrow import state_files
    from windrow.engine.bad_records import BadRecords
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
    _bad: BadRecords | None
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
        if self._bad is None:
            return found
        return dataclasses.replace(found, bad_records=self._bad.totals())

    def metrics(self) -> dict[str, float]:
        """Return the numbers of `stats` by name, for a monitoring system.

        Any thread may call this.

        Returns:
            Totals since the iterator was made: `elements`, `delivered_bytes`, and the seconds
            `passed_s`, `waited_s`, `loop_s`, `reading_s`, `mapping_s` and `blocked_s`. `waited_share`
            is `waited_s / passed_s`, 0 before the first element. `buffers_bytes` is the memory of
            Windrow's own buffers now. `records`, `reads`, `stored_bytes`, `decoded_bytes` and
            `source_delivered_bytes` are sums over all sources, and left out where one is not known.
            With `on_bad` also `bad_records`, the sum of its nodes. With `mp_prefetch("auto")` also
            `workers`, the number that is chosen now. With remote sources also `requests`, `retries`, and
            their times by percentile: `request_p50_s`, `request_p95_s` and `request_p99_s`.

        Example:
            >>> import windrow
            >>> iterator = iter(windrow.MapDataset.range(10))
            >>> _ = list(iterator)
            >>> iterator.metrics()["elements"]
            10.0
        """
        self._check_is_chain("metrics")
        from windrow.metrics import metrics_of  # few processes ask

        return metrics_of(self.stats())

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
