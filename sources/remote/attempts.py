"""Makes requests on an event loop: a bounded number at a time, again after faults, and twice where one is slow.

1. At most `max_requests` requests are in flight, second ones included. To one store, all sources together have as
   many in flight as `pace.py` and `max_requests_per_host` allow.
2. A fault that may pass is followed by a pause and another attempt, at most `retries` times; while a store is
   away (`outages.py`), until it answers or its time is over. Any other fault ends the request.
3. A second request is made only where each answer states the version of the file, so that either answer is
   right, and within the shares of requests and bytes that `RemoteOptions.hedge` sets. The first good answer is
   taken and the other request is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, TypeVarTuple

from windrow.core.redaction import Redaction, shown_url
from windrow.errors import WindrowError
from windrow.sources.remote.faults import RequestError, as_fault, failure
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.outages import Outages, store_of
from windrow.sources.remote.pace import StoreRequests, StoreSlot, requests_to
from windrow.sources.remote.request_counts import RemoteStats

_log = logging.getLogger("windrow.remote")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# Not the module's own generator: a pause must not change the numbers that a user draws from it.
_draw: Final = random.Random()


def pause_s(options: RemoteOptions, faults: Sequence[RequestError]) -> float:
    """The seconds before the next attempt: a random part of the backoff, or as requested."""
    # The bound of the exponent keeps it finite in an outage.
    most = min(options.max_backoff_s, options.backoff_s * 2.0 ** min(64, len(faults) - 1))
    requested = min(options.max_backoff_s, faults[-1].retry_after_s)
    return max(requested, _draw.uniform(0.0, most))


class Attempts:
    """Makes requests on an event loop, at most `max_requests` at a time, and retries them."""

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
        self._to_stores: dict[str, StoreRequests] = {}
        self._most = min(options.max_requests, options.max_requests_per_host)

    async def make(
        self,
        url: str,
        where: Callable[[], str],
        ask: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        size_bytes: int = 0,
        is_range: bool = False,
    ) -> T:
        """The result of `ask(*args)`, which makes one request, after as many attempts as it needs.

        Args:
            url: The URL that is read, for an error.
            where: Names the part of it that is read, for an error.
            ask: Makes the request.
            args: Its arguments.
            size_bytes: The bytes of the answer; 0 if they are not known.
            is_range: Whether a second request may be made: each answer states the version of the file.

        Raises:
            NotFoundError: If the URL names nothing.
            SourceError: If the server cannot serve parts of files.
            ReadError: If the URL cannot be read.
        """
        began_s = failed_s = time.monotonic()
        faults: list[RequestError] = []
        store = store_of(url)
        hedge_bytes = size_bytes if is_range and self._options.hedge else 0
        while True:
            try:
                found = await self._once(store, faults, size_bytes, hedge_bytes, ask, *args)
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

    def _slot(self, store: str) -> StoreSlot:
        requests = self._to_stores.get(store)
        if requests is None:
            requests = self._to_stores[store] = requests_to(store)
        return StoreSlot(requests, self._options.max_requests_per_host)

    def _described(self, url: str, where: str, faults: Sequence[RequestError]) -> str:
        shown = ", ".join(filter(None, [self._redaction.hide(shown_url(url)), where]))
        before = f" after {faults[-1].kind}" if faults else ""
        return f"{shown}, attempt {len(faults) + 1}{before}"

    async def _once(
        self,
        store: str,
        faults: list[RequestError],
        size_bytes: int,
        hedge_bytes: int,
        ask: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
    ) -> T:
        async with self._slots, self._slot(store) as slot:
            self._stats.request(again=bool(faults), size_bytes=hedge_bytes)
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(self._options.timeout_s):
                    if hedge_bytes and self._stats.hedge_after_s is not None:
                        found = await self._hedged(store, hedge_bytes, ask, *args)
                    else:
                        found = await ask(*args)
                took_s = time.monotonic() - began_s
                self._stats.took(took_s)
                slot.answered(took_s, size_bytes)
                return found
            except WindrowError:
                raise
            except Exception as error:
                fault = as_fault(error, self._redaction)
                if fault.is_refusal:
                    slot.refused()
            finally:
                self._stats.pace(store, min(self._most, slot.number))
        faults.append(fault)
        self._stats.fault(fault.kind)
        raise fault

    async def _hedged(
        self, store: str, size_bytes: int, ask: Callable[[*Ts], Awaitable[T]], *args: *Ts
    ) -> T:
        """The result of `ask`, or of a second call of it if the first one is slow."""
        is_made = False

        async def first() -> T:
            return await ask(*args)

        async def second() -> T:
            nonlocal is_made
            async with self._slots, self._slot(store):
                is_made = True
                return await ask(*args)

        tasks = [asyncio.ensure_future(first())]
        try:
            while not (await asyncio.wait(tasks, timeout=self._stats.hedge_after_s))[0]:
                # If the shares are used up now, later requests make room.
                if self._stats.hedge(size_bytes, self._options.hedge):
                    tasks.append(asyncio.ensure_future(second()))
                    break
            left = set(tasks)
            while True:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                good = [task for task in done if task.exception() is None]
                # One that still waits for a slot may wait for the slot of this request.
                if good or not left or not is_made:
                    return (good or list(done))[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if len(tasks) > 1 and not is_made:
                self._stats.not_hedged(size_bytes)
