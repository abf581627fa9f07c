"""Outages: stores that answered before and are away, so that their requests wait.

1. Nothing waits before `expect`, so that opening fails as early as without this module.
2. Only faults with `RequestError.is_outage` are waited for, and each request for at most `outage_s` after its
   first fault. What a store has answered wrongly is not an outage.
3. A message is logged when the requests of a store begin to wait, and about every minute from there on. It
   shows no secret.

All methods but `expect` run on the event loop.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from windrow.core.redaction import Redaction, shown_url
from windrow.sources.remote.faults import RequestError
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.request_counts import RemoteStats

_log = logging.getLogger("windrow.remote")
MESSAGE_EVERY_S: Final = 60.0


@dataclasses.dataclass(slots=True)
class _Outage:
    """A store that does not answer.

    Args:
        since_s: When the first of the requests that wait failed first.
        faults: Failed requests by kind.
        is_told: Whether a message was logged.
    """

    since_s: float
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    is_told: bool = False


class Outages:
    """The stores of a fetcher that are away now."""

    def __init__(
        self,
        what: str,
        options: RemoteOptions,
        stats: RemoteStats,
        redaction: Redaction,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait for nothing yet.

        Args:
            what: The name of the reader, for messages.
            options: Limits.
            stats: Counts the seconds in which a store was away.
            redaction: Hides secrets.
            clock: Returns seconds.
        """
        self._what, self._stats, self._redaction = what, stats, redaction
        self._options = options
        self.clock = clock
        self.expected = False
        self.away: dict[str, _Outage] = {}
        """Outages by store."""
        self._told_s: dict[str, float] = {}

    def expect(self) -> None:
        """Wait for stores from now on: they have answered."""
        self.expected = True

    def waits(self, url: str, faults: Sequence[RequestError], since_s: float) -> bool:
        """Whether a request that has used up its retries is made again.

        Args:
            url: What is read.
            faults: The faults of the request; the last one may pass.
            since_s: When the first of them came.
        """
        wrong = sum(not fault.is_outage for fault in faults)
        if not self.expected or not self._options.outage_s or wrong > self._options.retries:
            return False
        store = store_of(url)
        outage = self.away.get(store)
        if outage is None:
            outage = self.away[store] = _Outage(since_s)
            outage.faults.update(fault.kind for fault in faults)
        else:
            outage.since_s = min(outage.since_s, since_s)
            outage.faults[faults[-1].kind] += 1
        now_s = self.clock()
        self._stats.away_since(min(one.since_s for one in self.away.values()), self.clock)
        if now_s - outage.since_s >= self._options.outage_s:
            return False
        if now_s >= self._told_s.get(store, now_s):
            self._told_s[store] = now_s + MESSAGE_EVERY_S
            outage.is_told = True
            self._tell(store, outage, now_s - outage.since_s)
        return True

    def answered(self, url: str) -> None:
        """Note that the store has answered a request for `url`."""
        store = store_of(url)
        outage = self.away.pop(store, None)
        if outage is None:
            return
        if not self.away:
            self._stats.is_back()
        if outage.is_told:
            took_s = self.clock() - outage.since_s
            _log.warning(
                "%s: %s answers again, after %.0f s", self._what, self._hidden(store), took_s
            )

    def _tell(self, store: str, outage: _Outage, away_s: float) -> None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - away_s))
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in outage.faults.items())
        _log.warning(
            "%s: %s has not answered since %s, for %.0f s; requests tried: %s. Reading waits for it, for up"
            " to %g s in all (RemoteOptions.outage_s)",
            *(self._what, self._hidden(store), since, away_s, kinds, self._options.outage_s),
        )

    def _hidden(self, store: str) -> str:
        return self._redaction.hide(store)


@functools.lru_cache(1024)
def store_of(url: str) -> str:
    """Return the protocol and host, or bucket, of a URL."""
    protocol, mark, rest = shown_url(url).rpartition("::")[2].partition("://")
    return f"{protocol}{mark}{rest.partition('/')[0].partition('?')[0]}"
