"""Watches whether the loop waits too long in `next`, and describes what everything does then.

Invariant: nothing is done in `next`. A thread looks from time to time, and holds no iterator meanwhile.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from windrow.core.in_flight import in_flight
from windrow.core.text import counted
from windrow.core.ticker import Ticker
from windrow.stats.profiler import Profiler

_log = logging.getLogger("windrow.stall")

# Frames of a thread's stack, from the innermost on.
_FRAMES: Final = 12
_REQUESTS: Final = 20
# The watcher looks this often in the time that makes a stall.
_LOOKS: Final = 4
_LEAST_S: Final = 0.001
_OURS: Final = ("windrow-", "fsspecIO")
# The modules where threads of pools and of event loops wait for something to do.
_IDLE: Final = ("futures/thread.py", "core/daemon_threads.py", "selectors.py")


class StallWatch:
    """Reports each stall of one iterator once.

    Args:
        iterator: The iterator; it is not kept alive.
        meter: Its profiler.
        after_s: Seconds of waiting that make a stall.
        describe: Takes the iterator and the seconds, and returns the text.
        callback: Gets the text too.
    """

    def __init__(
        self,
        iterator: Any,
        meter: Profiler,
        after_s: float,
        describe: Callable[[Any, float], str],
        callback: Callable[[str], Any] | None,
    ) -> None:
        self._meter, self._after_s = meter, after_s
        self._describe, self._callback = describe, callback
        self._reported_s: float | None = None
        self._ticker = Ticker(iterator, self._look, "windrow-stall")

    def stop(self) -> None:
        """Stop watching."""
        self._ticker.stop()

    def _look(self, iterator: Any) -> float:
        since_s = self._meter.waiting_since_s()
        if since_s is None or since_s == self._reported_s:
            return max(_LEAST_S, self._after_s / _LOOKS)
        waited_s = self._meter.now_s() - since_s
        if waited_s < self._after_s:
            return max(_LEAST_S, min(self._after_s / _LOOKS, self._after_s - waited_s))
        self._reported_s = since_s
        try:
            text = self._describe(iterator, waited_s)
            _log.warning("%s", text)
            if self._callback is not None:
                self._callback(text)
        except Exception:
            _log.exception("on_stall: the callback raised, or the stall could not be described")
        return max(_LEAST_S, self._after_s / _LOOKS)


def described(
    waited_s: float, meter: Profiler, workers: Sequence[str], is_loop: Callable[[FrameType], bool]
) -> str:
    """What everything does while the loop waits.

    Args:
        waited_s: How long it has waited.
        meter: The profiler of the iterator.
        workers: What each worker process does.
        is_loop: Whether a frame is one of the loop, inside `next`.
    """
    lines = [f"next has waited {waited_s:.1f} s for an element"]
    activity = meter.maker.activity()
    if activity is not None:
        lines.append(f"making elements: {activity[0]}, for {activity[1]:.1f} s")
    lines += ["threads:", *_indented(_threads(is_loop))]
    if workers:
        lines += ["worker processes:", *_indented(workers)]
    requests = [f"{what}: for {passed_s:.1f} s" for what, passed_s in in_flight()]
    if requests:
        lines += [f"{counted(len(requests), 'request')}:", *_indented(requests[:_REQUESTS])]
        if len(requests) > _REQUESTS:
            lines.append(f"  and {len(requests) - _REQUESTS} more")
    return "\n".join(lines)


def _indented(lines: Sequence[str] | Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _threads(is_loop: Callable[[FrameType], bool]) -> Iterator[str]:
    """The stacks of the loop's thread and of Windrow's own; those with nothing to do in one line."""
    idle: list[str] = []
    own = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, f"thread {ident}")
        stack = list(_stack(frame))
        if any(map(is_loop, stack)):
            name = f"{name}, the loop"
        elif ident == own or not name.startswith(_OURS):
            continue
        elif Path(frame.f_code.co_filename).as_posix().endswith(_IDLE):
            idle.append(name)
            continue
        yield f"{name}:"
        yield from _indented([_place(each) for each in stack[:_FRAMES]])
        if len(stack) > _FRAMES:
            yield "  ..."
    if idle:
        yield f"with nothing to do: {', '.join(sorted(idle))}"


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
