"""How many requests a store gets at a time: fewer when it slows down or refuses them, more while it keeps up.

It judges by as many answers as requests are in flight, of requests that began after the number was last lowered.

1. If more than `_REFUSED` of them are refusals (`RequestError.is_refusal`), the number falls by half their share.
2. If requests take more than `SLOW` times as long as usual for their size, in the median, the number is halved.
   If they are hardly faster with half as many, the store is slow for another reason. Then the number is doubled
   again, and their time is the usual one from then on.
3. Otherwise the number grows by its square root, if requests had to wait for it.

A `StoreSlot` keeps the requests of all sources of the process to a store within the number, and the requests of
sources with some `RemoteOptions.max_requests_per_host`, or a lower one, within that. No source waits for the bound
of another.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import statistics
import weakref
from typing import Final, TypeAlias

_log = logging.getLogger("windrow.remote")
SLOW: Final = 2.0
# The number stays halved if the time of requests falls to this share, or below.
_BETTER: Final = 0.75
# The fewest answers to judge by, and those after which the usual time of a size is known.
_FEW: Final = 8
_LEARNT: Final = 64
# Refusals up to this share change nothing.
_REFUSED: Final = 1 / 16
# The number falls from these at least, although fewer were in flight.
_SOME: Final = 16
# By which part the usual time follows an answer that took more, or less.
_STEP: Final = 1 / 1024
# Requests up to this size are alike; larger ones are alike if they have as many bits.
_SMALL_BITS: Final = 16
# Before a store slows down, the options alone limit the number.
_UNLIMITED: Final = 1 << 16


class RequestPace:
    """The number of requests that a store gets at a time, from times and refusals; it knows no clock."""

    def __init__(self, most: int) -> None:
        """Begin with `most`, which is never exceeded."""
        self._most = most
        self._number = float(most)
        self._changes = 0
        self._usual_s: dict[int, tuple[float, int]] = {}
        self._slow_by = 0.0
        self._in_flight = _SOME
        self._fresh()

    @property
    def number(self) -> int:
        """Requests at a time, at least 1."""
        return int(self._number)

    def began(self, in_flight: int, *, waited: bool = False) -> int:
        """Note that a request begins.

        Args:
            in_flight: Requests in flight, with this one.
            waited: Whether it had to wait because of `number`.

        Returns:
            When it began, for `answered` and `refused`.
        """
        self._in_flight = max(self._in_flight, in_flight)
        self._waited |= waited
        return self._changes

    def refused(self, began: int) -> None:
        """Note that the store has refused a request."""
        if began == self._changes:
            self._refused += 1
            self._judge()

    def answered(self, began: int, took_s: float, size_bytes: int) -> None:
        """Note that the store has answered a request for this number of bytes; 0 if they are not known."""
        if began != self._changes:
            return  # more requests were in flight than are now
        if size_bytes:
            size = max(_SMALL_BITS, size_bytes.bit_length())
            usual_s, count = self._usual_s.get(size, (took_s, 0))
            if count >= _LEARNT:
                self._slower_by.append(took_s / max(usual_s, 1e-6))
            step = max(_STEP, 1 / (count + 2))
            usual_s *= 1 + step if took_s > usual_s else 1 - step
            self._usual_s[size] = usual_s, count + 1
        self._answered += 1
        self._judge()

    def _judge(self) -> None:
        count = self._refused + self._answered
        if count < max(_FEW, min(self.number, self._in_flight)):
            return
        refused = self._refused / count
        slow_by = statistics.median(self._slower_by) if len(self._slower_by) >= _FEW else 1.0
        if refused > _REFUSED:
            self._slow_by = 0.0
            self._shrink(1 - refused / 2)
        elif slow_by <= SLOW:
            self._slow_by = 0.0
            self._grow(math.sqrt(self._number) if self._waited else 0.0)
        elif not self._slow_by or slow_by <= self._slow_by * _BETTER:
            self._slow_by = slow_by
            self._shrink(0.5)
        else:
            for size, (usual_s, count) in self._usual_s.items():
                self._usual_s[size] = usual_s * slow_by, count
            self._slow_by = 0.0
            self._grow(self._number)

    def _grow(self, by: float) -> None:
        self._number = min(self._most, self._number + by)
        self._fresh()

    def _shrink(self, to: float) -> None:
        """Lower the number to a part of the most that were in flight."""
        self._number = max(1.0, min(self._number, self._in_flight) * to)
        self._in_flight = self.number
        self._changes += 1
        self._fresh()

    def _fresh(self) -> None:
        self._refused = self._answered = 0
        self._slower_by: list[float] = []
        self._waited = False


class StoreRequests:
    """The requests in flight at one store. Used on one event loop only.

    Each begins under a bound, its source's `max_requests_per_host`. Those under this bound or lower ones are
    never more than it, and all together not more than `pace` allows. They begin first come, first served, but
    for those whose bound is reached: others pass them.
    """

    def __init__(self, store: str) -> None:
        """Start with none; `store` is its address without secrets."""
        self.store = store
        self.pace = RequestPace(_UNLIMITED)
        self.in_flight = 0
        self._under: collections.Counter[int] = collections.Counter()
        # The bound of each request that waits, in the order in which they came.
        self._waiting: dict[asyncio.Future[None], int] = {}

    async def take(self, most: int) -> int:
        """Wait until one more may begin under a bound; return when it began, for `pace`."""
        waited = self.in_flight >= self.pace.number
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = most
        self._begin()
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None:  # it has begun meanwhile
                self.give(most)
            raise
        return self.pace.began(self.in_flight, waited=waited)

    def give(self, most: int) -> None:
        """Note that one has ended that began under a bound."""
        self.in_flight -= 1
        self._under[most] -= 1
        self._begin()

    def _begin(self) -> None:
        """Begin all that may."""
        reached = self._reached()
        for turn, most in list(self._waiting.items()):
            if self.in_flight >= self.pace.number:
                break
            if most > reached and not turn.cancelled():
                del self._waiting[turn]
                self.in_flight += 1
                self._under[most] += 1
                reached = self._reached()
                turn.set_result(None)

    def _reached(self) -> int:
        """The highest bound that is reached, 0 for none; so are all lower ones."""
        reached = count = 0
        for most in sorted(self._under):
            count += self._under[most]
            if count >= most:
                reached = most
        return reached


_Stores: TypeAlias = "weakref.WeakValueDictionary[str, StoreRequests]"
_stores: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Stores]] = (
    weakref.WeakKeyDictionary()
)


def requests_to(store: str) -> StoreRequests:
    """The requests to a store, which all sources that keep this object share on the event loop that runs."""
    stores = _stores.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    requests = stores.get(store)
    if requests is None:
        requests = stores[store] = StoreRequests(store)
    return requests


class StoreSlot:
    """A context in which one request to a store is in flight.

    Args:
        requests: The requests to the store.
        most: The most of them at a time, of sources with this bound or a lower one.
    """

    __slots__ = ("_began", "_most", "_requests")

    def __init__(self, requests: StoreRequests, most: int) -> None:
        self._requests, self._most, self._began = requests, most, 0

    async def __aenter__(self) -> StoreSlot:
        self._began = await self._requests.take(self._most)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._requests.give(self._most)

    @property
    def number(self) -> int:
        """The requests that may be in flight at a time now."""
        return min(self._most, self._requests.pace.number)

    def refused(self) -> None:
        """Note that the store has refused the request."""
        before = self._requests.pace.number
        self._requests.pace.refused(self._began)
        log_fewer(self._requests.store, before, self._requests.pace.number)

    def answered(self, took_s: float, size_bytes: int) -> None:
        """Note that the store has answered it, for this number of bytes."""
        before = self._requests.pace.number
        self._requests.pace.answered(self._began, took_s, size_bytes)
        log_fewer(self._requests.store, before, self._requests.pace.number)


def log_fewer(store: str, before: int, number: int) -> None:
    """Log that a store gets fewer requests at a time than before, if it does."""
    if number < before and _log.isEnabledFor(logging.DEBUG):
        from windrow.core.debug_log import debug

        debug(_log, "%s: %d requests at a time, since it is slow or refuses some", store, number)
