"""How a stream is read: threads, buffers and byte budgets. None of it changes what is read."""

from __future__ import annotations

import dataclasses
from typing import Any

from windrow.errors import ArgumentError, PlanError

MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class ReadOptions:
    """How far and how widely an iterator reads ahead.

    Args:
        num_threads: Threads that read records from sources without batched reads, side by side.
            With 0 there are no threads: the consumer waits while a block of elements is made.
        prefetch_buffer_size: Elements made ahead at most (batches, where the chain batches before
            it becomes a stream). With 0 each element (or batch of a stream) is made when it is
            asked for, and no thread is started.
        prefetch_bytes: Bytes of elements made ahead at most, per iterator.
        block_bytes: Bytes that one round of reads aims at. Two rounds are under way at a time.

    Raises:
        PlanError: If a number is negative, or `block_bytes` or `prefetch_bytes` is 0.
    """

    num_threads: int = 16
    prefetch_buffer_size: int = 500
    prefetch_bytes: int = 128 * MIB
    block_bytes: int = 8 * MIB

    def __post_init__(self) -> None:
        for name in ("num_threads", "prefetch_buffer_size"):
            if getattr(self, name) < 0:
                raise PlanError(
                    f"ReadOptions: {name} must be at least 0, got {getattr(self, name)}"
                )
        for name in ("prefetch_bytes", "block_bytes"):
            if getattr(self, name) < 1:
                raise PlanError(
                    f"ReadOptions: {name} must be at least 1, got {getattr(self, name)}"
                )

    @property
    def ahead(self) -> bool:
        """Whether a thread makes elements ahead of the consumer."""
        return self.num_threads > 0 and self.prefetch_buffer_size > 0


def as_read_options(options: Any) -> ReadOptions:
    """Windrow's or Grain's `ReadOptions` as Windrow's.

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
