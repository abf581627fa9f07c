"""Limits of time for tests of reading remote, on a machine that other programs keep busy.

1. Where a good answer is expected, no limit is short, or it is asked for again and again: what only
   waited for a busy server changes no result.
2. A limit is short where every answer breaks it; the other limit then is long, so that it is always
   the same one that ends a request.
3. Requests are counted exactly where no limit is short, or by what the server saw; else from below.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from windrow.errors import ReadError, SourceError
from windrow.sources import RemoteOptions

T = TypeVar("T")

# Three attempts, soon one after the other, also of a store that answered before; the limits of time are
# those that users have.
CALM: Final = RemoteOptions(retries=2, backoff_s=0.001, max_backoff_s=0.01, outage_s=0)
# A file on a server.
DATA: Final = bytes(range(256)) * 40
# What a busy machine may add to a limit.
SLACK_S: Final = 30.0
_ATTEMPTS: Final = 50


def ended(by: str, limit_s: float = 0.2, *, retries: int = CALM.retries) -> RemoteOptions:
    """Limits that end what is "stalled" or what takes too long ("timeout") after `limit_s`.

    Faults by any other name end by themselves, and no limit is short.
    """
    options = dataclasses.replace(CALM, retries=retries)
    if by == "stalled":
        return dataclasses.replace(options, stall_s=limit_s)
    return dataclasses.replace(options, timeout_s=limit_s) if by == "timeout" else options


def passed(by: str) -> RemoteOptions:
    """Limits as of `ended` that a good answer keeps at some attempt, however busy the machine is."""
    return ended(by, 1.0, retries=20) if by in ("stalled", "timeout") else CALM


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    """What runs inside ends in time."""
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < limit_s + SLACK_S


def at_last(call: Callable[[], T]) -> T:
    """What `call` returns when it does, under limits that a good answer of a busy server may pass."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(ReadError, SourceError):
            return call()
    return call()
