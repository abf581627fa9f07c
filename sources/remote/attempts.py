"""Makes requests on an event loop: a bounded number at a time, again after faults, and twice where one is slow.

1. At most `max_requests` requests are in flight, second ones included. To one store, all sources with the same
   `max_requests_per_host` together have at most as many.
2. A fault that may pass is followed by a pause and another attempt, at most `retries` times; while a store is
   away (`outages.py`), until it answers or its time is over. Any other fault ends the request.
3. A second request is made only where each answer states the version of the file, so that either answer is
   right, and within the share of requests that `RemoteOptions.hedge` sets. The first good answer is taken and
   the other request is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, TypeVar, TypeVarTuple

from windrow.core.redaction import Redaction, shown_url
from windrow.errors import WindrowError
from windrow.sources.remote.faults import RequestError, as_fault, failure
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.outages import Outages, store_of
from windrow.sources.remote.request_counts import RemoteStats

_log = logging.getLogger("windrow.remote")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# Not the module's own generator: a pause must not change the numbers that a user draws from it.
_draw: Final = random.Random()
_Slots: TypeAlias = "weakref.WeakValueDictionary[tuple[str, int], asyncio.Semaphore]"
_slots: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Slots]] = (
    weakref.WeakKeyDictionary()
)


def slots_of(store: str, most: int) -> asyncio.Semaphore:
    """Return the slots for requests to a store that sources share."""
    slots = _slots.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    found = slots.get((store, most))
    if found is None:
        found = slots[store, most] = asyncio.Semaphore(most)
    return found


def pause_s(options: RemoteOptions, faults: Sequence[RequestError]) -> float:
    """Draw the seconds before the next attempt, or take those requested."""
    # The bound of the exponent keeps it finite in an outage.
    most = min(options.max_backoff_s, options.backoff_s * 2.0 ** min(64, len(faults) - 1))
    requested = min(options.max_backoff_s, faults[-1].retry_after_s)
    return max(requested, _draw.uniform(0.0, most))


class Attempts:
    """Makes requests on an event loop, and retries them."""

    def __init__(
        self,
        what: str,
        options: RemoteOptions,
        *,
        stats: RemoteStats,
        redaction: Redaction,
        outages: Outages,
    ) -> None:
        """Request nothing yet."""
        self._what, self._options, self._stats, self._redaction = what, options, stats, redaction
        self._outages = outages
        self._slots = asyncio.Semaphore(options.max_requests)
        self._to_stores: dict[str, asyncio.Semaphore] = {}

    async def make(
        self,
        url: str,
        where: Callable[[], str],
        ask: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        is_range: bool = False,
    ) -> T:
        """Make the request `ask(*args)`, as often as it needs.

        Args:
            url: The URL that is read, for an error.
            where: Names the part of it that is read, for an error.
            ask: Makes the request.
            args: Its arguments.
            is_range: Whether a second request may be made: each answer states the version of the file.

        Raises:
            NotFoundError: If the URL names nothing.
            SourceError: If the server cannot serve parts of files.
            ReadError: If the URL cannot be read.
        """
        began_s = failed_s = time.monotonic()
        faults: list[RequestError] = []
        store = store_of(url)
        hedges = is_range and self._options.hedge > 0
        while True:
            try:
                found = await self._once(store, faults, hedges, ask, *args)
            except RequestError as fault:
                if len(faults) == 1:
                    failed_s = self._outages.clock()
                if not fault.transient or (
                    len(faults) > self._options.retries
                    and not self._outages.waits(url, faults, failed_s)
                ):
                    break
            else:
                if self._outages.away:
                    self._outages.answered(url)
                return found
            seconds = pause_s(self._options, faults)
            if _log.isEnabledFor(logging.DEBUG):
                from windrow.core.debug_log import debug

                debug(_log, "%s: in %.1f s", self._described(url, where(), faults), seconds)
            await asyncio.sleep(seconds)
        took_s = time.monotonic() - began_s
        raise failure(
            *(self._what, url, where(), faults, took_s, self._redaction),
            outage_s=self._options.outage_s if len(faults) > self._options.retries + 1 else 0.0,
        )

    def _slot(self, store: str) -> asyncio.Semaphore:
        slots = self._to_stores.get(store)
        if slots is None:
            slots = self._to_stores[store] = slots_of(store, self._options.max_requests_per_host)
        return slots

    def _described(self, url: str, where: str, faults: Sequence[RequestError]) -> str:
        shown = ", ".join(filter(None, [self._redaction.hide(shown_url(url)), where]))
        before = f" after {faults[-1].kind}" if faults else ""
        return f"{shown}, attempt {len(faults) + 1}{before}"

    async def _once(
        self,
        store: str,
        faults: list[RequestError],
        hedges: bool,
        ask: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
    ) -> T:
        async with self._slots, self._slot(store):
            self._stats.request(again=bool(faults))
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(self._options.timeout_s):
                    after_s = self._stats.hedge_after_s if hedges else None
                    if after_s is None:
                        found = await ask(*args)
                    else:
                        found = await self._hedged(after_s, store, ask, *args)
                self._stats.took(time.monotonic() - began_s)
                return found
            except WindrowError:
                raise
            except Exception as error:
                fault = as_fault(error, self._redaction)
        faults.append(fault)
        self._stats.fault(fault.kind)
        raise fault

    async def _hedged(
        self, after_s: float, store: str, ask: Callable[[*Ts], Awaitable[T]], *args: *Ts
    ) -> T:
        """The result of `ask`, or of a second call of it if the first one is slow."""

        async def second() -> T:
            async with self._slots, self._slot(store):
                if not self._stats.hedge(self._options.hedge):
                    return await asyncio.shield(first)
                return await ask(*args)

        first = asyncio.ensure_future(_awaited(ask, *args))
        tasks = [first]
        try:
            if not (await asyncio.wait(tasks, timeout=after_s))[0]:
                tasks.append(asyncio.ensure_future(second()))
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[-1].done() and tasks[-1].exception() is None:
                return tasks[-1].result()
            return await first
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _awaited(ask: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    return await ask(*args)
