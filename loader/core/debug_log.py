"""Messages for finding out what a run does, few of each kind, so that a long run can have them on.

A module asks its logger first, and imports this only where messages are wanted:

    if _log.isEnabledFor(logging.DEBUG):
        from windrow.core.debug_log import debug

        debug(_log, "chunk %d is evicted", number)

Invariant: of one kind of message at most `MOST` are logged in `EVERY_S`; the next one has the number of
those that were left out.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

MOST: Final = 10
EVERY_S: Final = 1.0
_lock: Final = threading.Lock()
# When the time of each kind of message began, and the messages since.
_seen: Final[dict[tuple[str, str], tuple[float, int]]] = {}


def debug(log: logging.Logger, message: str, *args: object) -> None:
    """Log a message, unless many like it were logged just before.

    Args:
        log: The logger.
        message: The kind of message, with places for `args`.
        args: No secrets.
    """
    key, now = (log.name, message), time.monotonic()
    with _lock:
        since, count = _seen.get(key, (now, 0))
        left_out = 0
        if now - since >= EVERY_S:
            since, left_out, count = now, max(0, count - MOST), 0
        _seen[key] = since, count + 1
    if count < MOST:
        more = f" ({left_out} such messages were left out before)" if left_out else ""
        log.debug(f"{message}{more}", *args)
