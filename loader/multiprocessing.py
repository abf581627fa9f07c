"""Options for worker processes, under Grain's name."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

from windrow.errors import ArgumentError, PlanError
from windrow.sources.process import cores
from windrow.transforms.arguments import at_least


@dataclasses.dataclass(frozen=True, slots=True)
class MultiprocessingOptions:
    """How many worker processes run a chain's functions, and how far ahead.

    For `mp_prefetch`. None of it changes the elements or their order.

    Args:
        num_workers: Worker processes; 0 runs everything in this process.
        per_worker_buffer_size: Pieces of work that wait for each worker beside the one it is at, at
            least 1. A piece is an element (a batch, where the chain batches before), or as many as
            take some 0.1 s together.
        enable_profiling: Taken for compatibility with Grain.
        shared_bytes: Bytes of memory that this process shares with its workers at most, through
            which arrays travel; memory that is never used costs nothing. By default 512 MiB, or
            1/16 of the machine's memory if that is less. With 0 all goes through sockets, more
            slowly.
        timeout_s: Seconds that a worker may take for a piece of work. One that takes longer is ended and its work is done again; the same
            work ending three workers is an error. By default there is no limit.

    Raises:
        ArgumentError: If a number is no number.
        PlanError: If a number is out of range.
    """

    num_workers: int = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False
    shared_bytes: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        at_least(0, self.num_workers, "MultiprocessingOptions: num_workers")
        at_least(1, self.per_worker_buffer_size, "MultiprocessingOptions: per_worker_buffer_size")
        if self.shared_bytes is not None:
            at_least(0, self.shared_bytes, "MultiprocessingOptions: shared_bytes")
        if self.timeout_s is not None:
            _check_seconds(self.timeout_s, "MultiprocessingOptions: timeout_s")


def as_multiprocessing_options(options: Any) -> MultiprocessingOptions:
    """What `mp_prefetch` takes, as Windrow's options.

    Args:
        options: A number of workers, Windrow's or Grain's `MultiprocessingOptions`, or None for
            one worker per core that this process may use.

    Raises:
        ArgumentError: If it is none of these.
        PlanError: If a number is out of range.
    """
    if options is None:
        return MultiprocessingOptions(cores())
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
        "mp_prefetch: needs a number of workers, a windrow.MultiprocessingOptions, or None for one"
        f" worker per core, got {options!r} of type {type(options).__name__}"
    )


def _check_seconds(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentError(f"{what} must be a number of seconds, got {value!r}")
    if not 0 < float(value) < math.inf:
        raise PlanError(
            f"{what} must be a finite number above 0, or None for no limit, got {value}"
        )
