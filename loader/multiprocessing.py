"""Options for worker processes, under Grain's name."""

from __future__ import annotations

import dataclasses

from windrow.errors import PlanError


@dataclasses.dataclass(frozen=True, slots=True)
class MultiprocessingOptions:
    """How many worker processes run a chain's functions, and how far ahead.

    Args:
        num_workers: Worker processes; 0 runs everything in this process.
        per_worker_buffer_size: Elements made ahead per worker, at least 1.
        enable_profiling: Taken for compatibility with Grain.

    Raises:
        PlanError: If a number is out of range.
    """

    num_workers: int = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise PlanError(
                f"MultiprocessingOptions: num_workers must be at least 0, got {self.num_workers}"
            )
        if self.per_worker_buffer_size < 1:
            raise PlanError(
                "MultiprocessingOptions: per_worker_buffer_size must be at least 1, got"
                f" {self.per_worker_buffer_size}"
            )
