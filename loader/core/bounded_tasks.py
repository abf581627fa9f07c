"""Bounded tasks: many jobs on an event loop, a few at a time, and a limit on bytes.

1. Jobs begin in their order.
2. The first error ends all jobs, and is raised when no job runs any more.
3. Cancelling `run_bounded` cancels its jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


async def run_bounded(
    jobs: Iterator[T], do: Callable[[T], Awaitable[None]], *, at_once: int
) -> None:
    """Run `do` for each of `jobs`.

    Args:
        jobs: The next one is taken when a task is free.
        do: Does one job.
        at_once: The most jobs that run at a time.
    """

    async def work() -> None:
        for job in jobs:
            await do(job)

    if at_once <= 1:
        await work()
        return
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    except BaseExceptionGroup as several:
        error = several.exceptions[0]
    else:
        return
    raise error  # with the cause that it had


class ByteSemaphore:
    """Limits the bytes that are requested and not consumed yet. Used on one event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        """Start with no bytes requested."""
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._turn = asyncio.Lock()
        self._more = asyncio.Event()

    async def take(self, size_bytes: int) -> None:
        """Wait until the bytes fit, or no other bytes are requested; first come, first served."""
        async with self._turn:
            while self._used_bytes and self._used_bytes + size_bytes > self._limit_bytes:
                self._more.clear()
                await self._more.wait()
            self._used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Release bytes that their reader has consumed."""
        self._used_bytes -= size_bytes
        self._more.set()


class Share:
    """The part of a shared semaphore that one reader holds; `end` releases all of it."""

    def __init__(self, budget: ByteSemaphore) -> None:
        """Start with no bytes held."""
        self._budget = budget
        self._used_bytes = 0
        self._ended = False

    async def take(self, size_bytes: int) -> None:
        """Take bytes, as `ByteSemaphore.take` does.

        Raises:
            CancelledError: If it has ended meanwhile.
        """
        await self._budget.take(size_bytes)
        self._used_bytes += size_bytes
        if self._ended:
            self.end()
            raise asyncio.CancelledError

    def give(self, size_bytes: int) -> None:
        """Release bytes, as `ByteSemaphore.give` does; without effect after `end`."""
        if not self._ended:
            self._used_bytes -= size_bytes
            self._budget.give(size_bytes)

    def end(self) -> None:
        """Release all bytes that are still held."""
        self._ended = True
        self._budget.give(self._used_bytes)
        self._used_bytes = 0
