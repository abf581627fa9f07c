"""Options for worker processes, under Grain's name."""

from __future__ import annotations

import dataclasses

from windrow.transforms.arguments import at_least


@dataclasses.dataclass(frozen=True, slots=True)
class MultiprocessingOptions:
    """How many worker processes run a chain's functions, and how far ahead.

    For `mp_prefetch`, which Windrow does not have yet: programs that make one go on to work.

    Args:
        num_workers: Worker processes; 0 runs everything in this process.
        per_worker_buffer_size: Elements made ahead per worker, at least 1.
        enable_profiling: Taken for compatibility with Grain.

    Raises:
        ArgumentError: If a number is no integer.
        PlanError: If a number is out of range.
    """

    num_workers: int = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False

    def __post_init__(self) -> None:
        at_least(0, self.num_workers, "MultiprocessingOptions: num_workers")
        at_least(1, self.per_worker_buffer_size, "MultiprocessingOptions: per_worker_buffer_size")
