"""How a stream is read: threads, buffers and byte budgets. None of it changes what is read."""

from __future__ import annotations

import dataclasses
from typing import Any

from windrow.errors import ArgumentError
from windrow.transforms.arguments import at_least

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
        block_bytes: Bytes that one round of reads aims at, and half of it where pieces are kept for
            several rounds. Two rounds are under way at a time.
        in_flight_bytes: Bytes of decoded pieces (chunks, record groups) that are being read at a
            time at most. By default 32 MiB, or 1/256 of the machine's memory if that is less.
        resident_bytes: Bytes of pieces kept for planned batches (a quarter of it, or as much as the
            whole store if that is no more than three quarters), and of records copied out of pieces
            for such batches (the rest). By default 1 GiB, or 1/16 of the
            machine's memory if that is less. A shuffle over a store that does not fit reads a piece
            once for each such part of an epoch: more memory, fewer reads.

    Bytes are those of arrays, strings and bytes. Any other object counts as 64 bytes, whatever it
    holds: where elements are large objects of your own, choose a small `prefetch_buffer_size`.

    Raises:
        ArgumentError: If one is no integer.
        PlanError: If a number is negative, or a number of bytes is 0.
    """

    num_threads: int = 16
    prefetch_buffer_size: int = 500
    prefetch_bytes: int = 64 * MIB
    block_bytes: int = 16 * MIB
    in_flight_bytes: int | None = None
    resident_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_threads", "prefetch_buffer_size"):
            at_least(0, getattr(self, name), f"ReadOptions: {name}")
        for name in ("prefetch_bytes", "block_bytes"):
            at_least(1, getattr(self, name), f"ReadOptions: {name}")
        for name in ("in_flight_bytes", "resident_bytes"):
            if getattr(self, name) is not None:
                at_least(1, getattr(self, name), f"ReadOptions: {name}")

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
