"""Attempts: one request, and the same again while its fault may pass.

1. Success on the first attempt costs one slot and one timer, nothing else.
2. A fault that may pass is followed by a pause and another attempt, `retries` times at most; any
   other fault ends it.
3. An attempt ends after `timeout_s`, a pause after `max_backoff_s`: all of it after `longest_s`, and
   the wait for free slots.
4. The error that is raised has no other error as its cause or context.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from windrow.errors import WindrowError
from windrow.sources.faults import RequestError, as_fault, failure
from windrow.sources.remote import RemoteOptions, RemoteStats
from windrow.sources.secrets import Secrets

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# Not the module's own generator: a pause must not change what a user draws from that.
_draw: Final = random.Random()


class Attempts:
    """Makes requests on an event loop, so many at a time."""

    def __init__(
        self, what: str, options: RemoteOptions, *, stats: RemoteStats, secrets: Secrets
    ) -> None:
        """Nothing is asked yet."""
        self._what, self._options, self._stats, self._secrets = what, options, stats, secrets
        self._slots = asyncio.Semaphore(options.max_requests)

    async def make(
        self, url: str, where: Callable[[], str], ask: Callable[[*Ts], Awaitable[T]], *args: *Ts
    ) -> T:
        """What `ask(*args)` returns at last.

        Args:
            url: What it is about, for an error.
            where: Which part of it, for an error.
            ask: One request.
            args: What it is called with.

        Raises:
            NotFoundError: If there is nothing.
            SourceError: If the server can not serve parts of files.
            ReadError: If it can not be read.
        """
        started = time.monotonic()
        faults: list[RequestError] = []
        try:
            return await self._once(faults, ask, *args)
        except RequestError:
            pass
        if faults[-1].transient and self._options.retries:
            try:
                return await self._again(faults, ask, *args)
            except RequestError:
                pass
        took_s = time.monotonic() - started
        raise failure(self._what, url, where(), faults, took_s, self._secrets)

    async def _again(
        self, faults: list[RequestError], ask: Callable[[*Ts], Awaitable[T]], *args: *Ts
    ) -> T:
        import tenacity  # where it is needed: most runs have no faults

        fresh = True

        async def attempt() -> T:
            nonlocal fresh
            if fresh:  # the first attempt was made before: its fault is where tenacity begins
                fresh = False
                raise faults[-1]
            return await self._once(faults, ask, *args)

        def pause_s(state: tenacity.RetryCallState) -> float:
            options = self._options
            most = min(options.max_backoff_s, options.backoff_s * 2.0 ** (state.attempt_number - 1))
            asked = min(options.max_backoff_s, faults[-1].retry_after_s)
            return max(asked, _draw.uniform(0.0, most))

        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._options.retries + 1),
            wait=pause_s,
            retry=tenacity.retry_if_exception(_may_pass),
            reraise=True,
        )
        return await retrying(attempt)

    async def _once(
        self, faults: list[RequestError], ask: Callable[[*Ts], Awaitable[T]], *args: *Ts
    ) -> T:
        async with self._slots:
            self._stats.request(again=bool(faults))
            try:
                async with asyncio.timeout(self._options.timeout_s):
                    return await ask(*args)
            except WindrowError:
                raise
            except Exception as error:
                fault = as_fault(error, self._secrets)
        faults.append(fault)
        self._stats.fault(fault.kind)
        raise fault


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, RequestError) and error.transient
