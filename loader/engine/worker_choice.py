"""The number of workers of `mp_prefetch("auto")`, decided once from the first elements.

This process reads and gathers elements in any case. Functions are called here (0 workers, on threads
where that is faster), or in workers, to which this process then sends the elements.

Invariant: nothing is started here, and no element depends on the number.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from windrow.core.machine import MIB, machine_bytes, usable_cores
from windrow.engine.thread_map import ThreadMap
from windrow.errors import WindrowError
from windrow.stats.profiler import ActivityClock
from windrow.stats.stats import ChosenWorkers
from windrow.transforms.nodes import WorkerSettings

_log = logging.getLogger("windrow.workers")

# Seconds of work that are measured, and what passes before: threads and sizes of work items settle.
_SAMPLE_S: Final = 1.0
_SETTLE_S: Final = 0.25
# Memory of a worker, and the share of the memory that workers may take.
_WORKER_BYTES: Final = 100 * MIB
_MEMORY_SHARE: Final = 0.25
# Seconds that sending an element to a worker and back takes this process, at least.
_SEND_S: Final = 5e-6
# How many times as fast workers must be by the estimate to be worth their memory and their start.
_GAIN: Final = 1.25
# The share of its time for which a worker should be busy, so that it is rarely waited for.
_BUSY: Final = 0.8
_STARTED: Final = "windrow: raised when a worker started"


def choose_workers(
    rows: int, passed_s: float, functions_s: float, computed_s: float, *, cores: int, room: int
) -> tuple[int, str]:
    """Return how many workers keep up with what this process reads and sends, and why.

    Args:
        rows: Elements that this process made while the loop waited for them.
        passed_s: Seconds that passed.
        functions_s: The seconds of `passed_s` in which functions were called.
        computed_s: Seconds that all threads computed.
        cores: Cores that this process and its workers may keep busy: no more workers than that.
        room: Workers for which there is memory.
    """
    most = min(cores, room)
    if most < 1:
        return 0, "there is no memory for workers"
    reads_s = max(0.0, passed_s - functions_s)
    own_s = reads_s + rows * _SEND_S
    # Functions on several threads keep more than one core busy.
    work_s = max(functions_s, computed_s - reads_s)
    least_s = max(own_s, work_s / most, (own_s + work_s) / cores, 1e-9)
    gain = passed_s / least_s
    reason = (
        f"functions take {functions_s / max(passed_s, 1e-9):.0%} of the time,"
        f" {1e6 * functions_s / max(rows, 1):,.1f} us for an element;"
        f" workers make it at most {gain:.1f} times as fast"
    )
    workers = 0 if gain < _GAIN else min(most, math.ceil(work_s / (_BUSY * least_s)))
    return workers, reason


class WorkerChooser:
    """Measures the first work of an iterator, and decides its number of workers.

    Attributes:
        workers: The number that is decided, or that is used until then.
        is_used: Whether work goes to them. The executor sets it once they are ready.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        number: int,
        *,
        cores: int | None = None,
        passed: Callable[[], float] = time.perf_counter,
        computed: Callable[[], float] = time.process_time,
    ) -> None:
        """Decide for an `mp_prefetch`.

        Args:
            settings: Its settings.
            number: Its number from the end of the chain.
            cores: Cores that may be kept busy.
            passed: Seconds that have passed.
            computed: Seconds that all threads of this process have computed.
        """
        self._number, self._passed, self._computed = number, passed, computed
        self._cores = usable_cores() if cores is None else cores
        # Functions may need what the workers' `init` does, and only a worker can be ended.
        self._needs_workers = settings.init is not None or settings.options.timeout_s is not None
        self.is_used = self._needs_workers
        self.workers = self._cores if self._needs_workers else 0
        self._reason = "the loop has waited for too few elements to measure them"
        if self._needs_workers:
            self._reason = "with worker_init_fn or timeout_s functions run in workers only"
        elif self._cores == 1:
            self._reason = "only one core may be used"
        self._is_decided = self._needs_workers or self._cores == 1
        self._maker, self._thread_map = ActivityClock(), ThreadMap(0)

    def begin(self, maker: ActivityClock, thread_map: ThreadMap | None) -> None:
        """Begin a run, whose times `maker` counts, and whose functions `thread_map` calls here."""
        self._maker, self._thread_map = maker, thread_map or ThreadMap(0)
        self._settled_s = 0.0
        self._rows, self._passed_s, self._functions_s, self._computed_s = 0, 0.0, 0.0, 0.0
        self._last_s = self._now_s()
        self._note()

    def took(self, rows: int, functions_s: float) -> None:
        """Note elements that were made here; decide after enough of them."""
        if self._is_decided:
            return
        before, self._last_s = self._last_s, self._now_s()
        if self._maker.is_ahead:
            return  # the loop did not wait for them
        passed_s, computed_s = (now - then for now, then in zip(self._last_s, before, strict=True))
        if self._settled_s < _SETTLE_S:
            self._settled_s += passed_s
            return
        self._rows += rows
        self._passed_s += passed_s
        self._functions_s += functions_s
        self._computed_s += computed_s
        if self._passed_s >= _SAMPLE_S:
            measured = self._rows, self._passed_s, self._functions_s, self._computed_s
            room = int(_MEMORY_SHARE * machine_bytes() / _WORKER_BYTES)
            self.decide(*choose_workers(*measured, cores=self._cores, room=room))

    def decide(self, workers: int, reason: str) -> None:
        """Fix the number of workers, 0 for none."""
        self._is_decided, self.workers, self._reason = True, workers, reason
        self.is_used = self.is_used and workers > 0
        self._note()
        if _log.isEnabledFor(logging.DEBUG):
            from windrow.core.debug_log import debug

            debug(_log, "mp_prefetch('auto'): %d workers: %s", workers, reason)

    def stays_here(self, error: Exception) -> bool:
        """Whether work that cannot be sent to a worker, or back, may be done here; if so, all is."""
        is_of_start = _STARTED in getattr(error, "__notes__", ())
        if self._needs_workers or isinstance(error, WindrowError) or is_of_start:
            return False
        self.decide(0, f"elements cannot be sent to workers: {type(error).__name__}: {error}")
        return True

    def _now_s(self) -> tuple[float, float]:
        return self._passed(), self._computed()

    def _note(self) -> None:
        """Note for `stats` what is decided, and why."""
        threads = 1 if self.workers else self._thread_map.most_used
        found = ChosenWorkers(self.workers, threads, self._reason)
        self._maker.chosen = {**self._maker.chosen, self._number: found}
