"""Crews: many jobs on an event loop, a few at a time.

1. Jobs begin in their order.
2. The first error ends all of them and is raised, once none is running any more.
3. Cancelling a crew cancels its jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


async def run_crew(jobs: Iterator[T], do: Callable[[T], Awaitable[None]], *, at_once: int) -> None:
    """Do all `jobs`.

    Args:
        jobs: Taken one by one, when there is someone to do it.
        do: Does one.
        at_once: How many are done at a time, at most.
    """

    async def work() -> None:
        for job in jobs:
            await do(job)

    if at_once <= 1:
        await work()
        return
    workers = [asyncio.ensure_future(work()) for _ in range(at_once)]
    try:
        await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        ended = [worker for worker in workers if worker.done() and not worker.cancelled()]
        errors = [error for worker in ended if (error := worker.exception()) is not None]
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if errors:
        raise errors[0]


class Budget:
    """Bytes that are asked for and not taken yet, within a limit. Used on one event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        """Nothing is asked for yet."""
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._turn = asyncio.Lock()
        self._more = asyncio.Event()

    async def take(self, size_bytes: int) -> None:
        """Wait until there is room, or nothing else is asked for; first come, first served."""
        async with self._turn:
            while self._used_bytes and self._used_bytes + size_bytes > self._limit_bytes:
                self._more.clear()
                await self._more.wait()
            self._used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """So much was taken by who asked for it."""
        self._used_bytes -= size_bytes
        self._more.set()


class Share:
    """What one of several takes of a budget that they share; `end` gives back what it has."""

    def __init__(self, budget: Budget) -> None:
        """Nothing is taken yet."""
        self._budget = budget
        self._used_bytes = 0
        self._ended = False

    async def take(self, size_bytes: int) -> None:
        """As of `Budget`.

        Raises:
            CancelledError: If it has ended meanwhile.
        """
        await self._budget.take(size_bytes)
        self._used_bytes += size_bytes
        if self._ended:
            self.end()
            raise asyncio.CancelledError

    def give(self, size_bytes: int) -> None:
        """As of `Budget`; nothing once it has ended."""
        if not self._ended:
            self._used_bytes -= size_bytes
            self._budget.give(size_bytes)

    def end(self) -> None:
        """Nobody takes what is left."""
        self._ended = True
        self._budget.give(self._used_bytes)
        self._used_bytes = 0
