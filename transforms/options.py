"""Options of a run: threads, buffers, byte budgets and worker processes.

None of them changes an element or the order, but for `on_bad`, which is part of the chain.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
import numbers
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from windrow.core.machine import usable_cores
from windrow.errors import ArgumentError, PlanError
from windrow.transforms.arguments import at_least, integer, one_of

MIB = 1 << 20

OnBad: TypeAlias = Literal["raise", "skip", "replace"]
"""What becomes of a bad record."""

ON_BAD: Final[tuple[OnBad, ...]] = ("raise", "skip", "replace")


@dataclasses.dataclass(frozen=True, slots=True)
class ReadOptions:
    """How far and how widely an iterator reads ahead.

    Args:
        num_threads: Threads that read records in parallel from sources without batched reads.
            With 0 there are no threads: the consumer waits while a block of elements is made.
        prefetch_buffer_size: The most elements made ahead (batches, if the chain batches before
            it becomes a stream). With 0 each element (or batch of a stream) is made when it is
            requested, and no thread is started. Fewer than `num_threads` keep only as many busy.
        prefetch_bytes: The most bytes of elements made ahead, per iterator.
        block_bytes: Target size of one read batch; half of it if chunks are kept for several read
            batches. Two read batches run at a time.
        in_flight_bytes: The most bytes of decoded chunks (Zarr chunks, record groups) that are
            read at a time. By default 32 MiB, or 1/256 of the machine's memory if that is less.
        resident_bytes: Bytes of chunks kept for planned batches (a quarter of it, or as much as the
            whole store if that is no more than three quarters), and of records copied out of chunks
            for such batches (the rest). By default 1 GiB, or 1/16 of the machine's memory if that
            is less. A shuffle over a store that does not fit reads a chunk once for each such part
            of an epoch: more memory, fewer reads.
        on_bad: What becomes of records that cannot be read, or for which a function raises, as by
            `MapDataset.on_bad` just before the stream. It is part of the chain, unlike the others.
        max_bad: The most of them, or their share, as for `MapDataset.on_bad`.

    Arrays, strings and bytes count with their size, also in fields of objects. If elements are large
    objects that hide what they hold, choose a small `prefetch_buffer_size`.

    Raises:
        ArgumentError: If one is not an integer.
        PlanError: If a number is negative, or a number of bytes is 0.
    """

    num_threads: int = 16
    prefetch_buffer_size: int = 500
    prefetch_bytes: int = 64 * MIB
    block_bytes: int = 16 * MIB
    in_flight_bytes: int | None = None
    resident_bytes: int | None = None
    on_bad: OnBad = "raise"
    max_bad: float | None = None

    def __post_init__(self) -> None:
        for name in ("num_threads", "prefetch_buffer_size"):
            at_least(0, getattr(self, name), f"ReadOptions: {name}")
        for name in ("prefetch_bytes", "block_bytes"):
            at_least(1, getattr(self, name), f"ReadOptions: {name}")
        for name in ("in_flight_bytes", "resident_bytes"):
            if getattr(self, name) is not None:
                at_least(1, getattr(self, name), f"ReadOptions: {name}")
        one_of(self.on_bad, ON_BAD, "ReadOptions: on_bad")
        checked_max_bad(self.max_bad, "ReadOptions: max_bad")

    def with_block_bytes(self, most: int) -> ReadOptions:
        """The same options with read batches of at most `most` bytes."""
        moved = copy.copy(self)
        object.__setattr__(moved, "block_bytes", max(1, min(self.block_bytes, most)))
        return moved

    @property
    def ahead(self) -> bool:
        """Whether a thread makes elements ahead of the consumer."""
        return self.num_threads > 0 and self.prefetch_buffer_size > 0


def checked_max_bad(value: Any, what: str) -> float | None:
    """The most bad records: an int, a share of them as a float, or None for no limit.

    Raises:
        ArgumentError: If it is not a number.
        PlanError: If it is negative, or a share that is not between 0 and 1.
    """
    if value is None:
        return None
    if not isinstance(value, (float, np.floating)):
        found = integer(value, what)
        at_least(0, found, what)
        return found
    if not 0 < value < 1:
        raise PlanError(
            f"{what} must be an integer from 0 on, a share between 0 and 1 such as 0.01, or None for no"
            f" limit, got {value}"
        )
    return float(value)


def as_read_options(options: Any) -> ReadOptions:
    """Convert Windrow's or Grain's `ReadOptions` to Windrow's.

    Raises:
        ArgumentError: If it is neither.
    """
    if isinstance(options, ReadOptions):
        return options
    if type(options).__name__ == "ReadOptions":
        return ReadOptions(options.num_threads, options.prefetch_buffer_size)
    raise ArgumentError(
        f"read_options: needs a windrow.ReadOptions, got {options!r} of type"
        f" {type(options).__name__}"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class MultiprocessingOptions:
    """How many worker processes run a chain's functions, and how far ahead.

    For `mp_prefetch`. No option changes the elements or their order.

    Args:
        num_workers: Worker processes; 0 runs everything in this process. With "auto" the iterator
            measures its first elements and decides once.
        per_worker_buffer_size: Work items that wait for each worker, in addition to the one it
            runs; at least 1. A work item is one element (one batch, if the chain batches before
            `mp_prefetch`), or as many as take about 0.1 s together.
        enable_profiling: Accepted for compatibility with Grain.
        shared_bytes: The most bytes of memory that this process shares with its workers to pass
            arrays; memory that is never used costs nothing. By default 512 MiB, or 1/16 of the
            machine's memory if that is less. With 0 arrays go through sockets, which is slower.
        timeout_s: Seconds that a worker may take for a work item. A worker that takes longer is
            killed, and its work is done again; it is an error if the same work ends three
            workers. By default there is no limit.

    Raises:
        ArgumentError: If a value is not a number.
        PlanError: If a number is out of range.
    """

    num_workers: int | Literal["auto"] = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False
    shared_bytes: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.num_workers != "auto":
            at_least(0, self.num_workers, "MultiprocessingOptions: num_workers")
        at_least(1, self.per_worker_buffer_size, "MultiprocessingOptions: per_worker_buffer_size")
        if self.shared_bytes is not None:
            at_least(0, self.shared_bytes, "MultiprocessingOptions: shared_bytes")
        if self.timeout_s is not None:
            _check_seconds(self.timeout_s, "MultiprocessingOptions: timeout_s")

    @property
    def most_workers(self) -> int:
        """The most worker processes that run at a time: with "auto", one for each usable core."""
        return usable_cores() if self.num_workers == "auto" else self.num_workers


class ExecutionTrackingMode(enum.Enum):
    """What Grain measures of a run. Windrow measures every run: see `DatasetIterator.stats`."""

    DISABLED = enum.auto()
    STAGE_TIMING = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class _Unset:
    """A default, as opposed to the same value given by the user."""

    value: Any


@dataclasses.dataclass(kw_only=True, frozen=True)
class DatasetOptions:
    """Options of a whole stream: see `windrow.experimental.WithOptionsIterDataset`.

    Args:
        filter_warn_threshold_ratio: Log a warning if filters have left out at least this part of the
            last 1,000 elements or more; at most once a minute. None for no warning.
        filter_raise_threshold_ratio: Raise an `ElementError` then. None for no error.
        execution_tracking_mode: Accepted for compatibility: `DatasetIterator.stats` has the times.
        min_shm_size: Accepted for compatibility: `MultiprocessingOptions` have `shared_bytes`.

    Raises:
        PlanError: If a ratio is not in `(0, 1]`.
    """

    filter_warn_threshold_ratio: float | None = _Unset(0.9)  # type: ignore[assignment]
    filter_raise_threshold_ratio: float | None = _Unset(None)  # type: ignore[assignment]
    execution_tracking_mode: ExecutionTrackingMode = _Unset(  # type: ignore[assignment]
        ExecutionTrackingMode.DISABLED
    )
    min_shm_size: int = _Unset(0)  # type: ignore[assignment]
    _given: frozenset[str] = dataclasses.field(default=frozenset(), init=False, repr=False)

    def __post_init__(self) -> None:
        given = set[str]()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, _Unset):
                object.__setattr__(self, field.name, value.value)
            elif field.init:
                given.add(field.name)
        object.__setattr__(self, "_given", frozenset(given))
        for name in ("filter_warn_threshold_ratio", "filter_raise_threshold_ratio"):
            ratio = getattr(self, name)
            if ratio is not None and not 0 < ratio <= 1:
                raise PlanError(f"DatasetOptions: {name} must be in (0, 1] or None, got {ratio!r}")

    def merge(self, other: DatasetOptions | None) -> DatasetOptions:
        """These options, and the values that only `other` was given."""
        if other is None:
            return self
        found = {name: getattr(other, name) for name in other._given}
        found |= {name: getattr(self, name) for name in self._given}
        return DatasetOptions(**found)


def as_multiprocessing_options(options: Any) -> MultiprocessingOptions:
    """Convert the argument of `mp_prefetch` to Windrow's options.

    Args:
        options: A number of workers, "auto", Windrow's or Grain's `MultiprocessingOptions`, or None
            for one worker per core that this process may use.

    Raises:
        ArgumentError: If it has another type.
        PlanError: If a number is out of range.
    """
    if options is None:
        return MultiprocessingOptions(usable_cores())
    if isinstance(options, str) and options == "auto":
        return MultiprocessingOptions("auto")
    if isinstance(options, MultiprocessingOptions):
        return options
    if type(options).__name__ == "MultiprocessingOptions":
        return MultiprocessingOptions(
            options.num_workers,
            options.per_worker_buffer_size,
            enable_profiling=options.enable_profiling,
        )
    if isinstance(options, numbers.Integral) and not isinstance(options, bool):
        return MultiprocessingOptions(int(options))
    raise ArgumentError(
        'mp_prefetch: needs a number of workers, "auto", a windrow.MultiprocessingOptions, or None for one'
        f" worker per core, got {options!r} of type {type(options).__name__}"
    )


def _check_seconds(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentError(f"{what} must be a number of seconds, got {value!r}")
    if not 0 < float(value) < math.inf:
        raise PlanError(
            f"{what} must be a finite number above 0, or None for no limit, got {value}"
        )
