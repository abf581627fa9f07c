"""Progress: how far a long job is, on a terminal, in the log, or passed to a function.

Invariant: the counts only grow within one stage of a job, and showing them costs next to nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tqdm import tqdm

LOGGED_EVERY_S: Final = 10.0
_log = logging.getLogger("windrow.progress")


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is within its current stage.

    `total_bytes` is None if it is unknown. Bytes count the data that the stage reads.
    """

    stage: str
    records: int
    done_bytes: int
    total_bytes: int | None


ShowProgress = bool | Callable[[Progress], None]


class ProgressMeter:
    """Adds up what is done in one stage, from any thread, and shows it. A context manager.

    Args:
        stage: The name of the stage, a word or two.
        total_bytes: The bytes of the whole stage.
        show: True for a bar on a terminal and log lines elsewhere, False for neither, or a function
            that is called with a `Progress` after each change, by one thread at a time.
    """

    def __init__(self, stage: str, total_bytes: int | None, show: ShowProgress) -> None:
        self._stage, self._total_bytes = stage, total_bytes
        self._records = self._done_bytes = 0
        self._lock = threading.Lock()
        self._at_end = contextlib.ExitStack()
        self._show = _shown(show, self._at_end)

    def __enter__(self) -> ProgressMeter:
        self._show(self._now())
        return self

    def add(self, records: int, done_bytes: int) -> None:
        """Add records and bytes that are done."""
        with self._lock:
            self._records += records
            self._done_bytes += done_bytes
            self._show(self._now())

    def _now(self) -> Progress:
        return Progress(self._stage, self._records, self._done_bytes, self._total_bytes)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._at_end.close()


def _shown(show: ShowProgress, at_end: contextlib.ExitStack) -> Callable[[Progress], None]:
    """Return the function that shows progress; `at_end` closes the bar or the log that it uses."""
    if callable(show):
        return lambda now: show(now) if now.records or now.done_bytes else None
    if not show:
        return lambda now: None
    # None in a program that was started with stderr closed.
    view = _Bar() if sys.stderr is not None and sys.stderr.isatty() else _Logged()
    at_end.callback(view.close)
    return view.show


class _Bar:
    """A bar with bytes, records and the time left."""

    def __init__(self) -> None:
        self._bar: tqdm[None] | None = None

    def show(self, now: Progress) -> None:
        if self._bar is None:
            from tqdm import tqdm  # slow to import, and seldom needed

            self._bar = tqdm(
                total=now.total_bytes, unit="B", unit_scale=True, desc=now.stage, mininterval=0.2
            )
        if now.records:
            self._bar.set_postfix_str(f"{now.records:,} records", refresh=False)
        self._bar.update(now.done_bytes - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()


class _Logged:
    """Logs a line from time to time, with the time left, and a last line for a long job."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()
        self._now: Progress | None = None
        self._logged = False

    def show(self, now: Progress) -> None:
        self._now = now
        at = time.monotonic()
        if at - self._last >= LOGGED_EVERY_S:
            self._last = at
            self._logged = True
            _log.info("%s", progress_line(now, at - self._begun))

    def close(self) -> None:
        if self._logged and self._now is not None:
            _log.info("%s", progress_line(self._now, time.monotonic() - self._begun))


def progress_line(now: Progress, taken_s: float) -> str:
    """Return `now` as a line of text, with the time left at the pace so far."""
    of = "" if now.total_bytes is None else f" of {now.total_bytes / 1e6:,.0f}"
    records = f", {now.records:,} records" if now.records else ""
    line = f"{now.stage}: {now.done_bytes / 1e6:,.0f}{of} MB{records}, {taken_s:,.0f} s"
    if now.total_bytes and 0 < now.done_bytes < now.total_bytes:
        left_s = taken_s * (now.total_bytes / now.done_bytes - 1)
        line += f", about {left_s:,.0f} s left"
    return line
