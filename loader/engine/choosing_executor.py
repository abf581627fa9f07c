"""The executor of `mp_prefetch("auto")`: calls functions here or in workers, as measured.

Contract, in addition to the one of `windrow.engine.executors`:
1. Each work item is done here or by a worker, whichever is chosen when it is begun. A stream does not
   depend on where its work items are done, so it does not depend on the choice.
2. Workers that are started get work once all of them are ready; until then it is done as before.
3. Workers that are not chosen any more end after the work that they were sent.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from windrow.core.machine import MIB, free_bytes, machine_bytes, resident_bytes, usable_cores
from windrow.engine.process_executor import Found, ProcessExecutor, Submitted, W, pipelined
from windrow.engine.stages import ChainStage, Result, StageTask, WorkItem
from windrow.engine.thread_map import StageThreads, ThreadMap
from windrow.engine.worker_choice import WorkerChoice, WorkSample
from windrow.errors import WindrowError, WorkerError
from windrow.stats.profiler import ROOM, WORKERS, ActivityClock
from windrow.stats.stats import ChosenWorkers
from windrow.transforms.nodes import WorkerSettings
from windrow.transforms.nodes.split import Halves
from windrow.transforms.options import ReadOptions
from windrow.workers.messages import UNSENT_RESULT

_log = logging.getLogger("windrow.workers")

# The shortest sample, and what passes before it: threads and sizes of work items settle.
_SAMPLE_S: Final = 1.0
_SETTLE_S: Final = 0.25
# Memory of a worker, as long as none has been measured.
_WORKER_BYTES: Final = 100 * MIB
# Workers take at most this share of the memory that is free; with less than the other share of all memory
# free, one of them ends.
_FREE_SHARE, _RESERVE_SHARE = 0.5, 1 / 32
_STARTED: Final = "windrow: raised when a worker started"


class Team(Protocol):
    """The worker processes that a number is chosen of: see `WorkerPool`."""

    @property
    def process_ids(self) -> Sequence[int]:
        """Their processes."""
        ...

    def employ(self, count: int) -> None:
        """Send later jobs to `count` workers, and start those that are missing."""
        ...

    def dismiss(self) -> None:
        """End the others."""
        ...

    def ready(self) -> int:
        """How many of those that get jobs are ready."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class WorkClocks:
    """Seconds that have passed and that this process has computed, and the workers that memory admits."""

    passed: Callable[[], float] = time.perf_counter
    process: Callable[[], float] = time.process_time
    room: Callable[[Sequence[int]], int] | None = None


def room_for(process_ids: Sequence[int]) -> int:
    """Workers for which there is memory, those with the given processes included."""
    free = free_bytes()
    if free < _RESERVE_SHARE * machine_bytes():
        return len(process_ids) - 1
    known = [resident_bytes(process_id) or 0 for process_id in process_ids]
    each = max(known, default=0) or _WORKER_BYTES
    return len(process_ids) + int(_FREE_SHARE * free / each)


class ChosenTeam:
    """The workers of an iterator, as many as are chosen while it runs.

    Args:
        team: The processes.
        choice: Decides their number.
        number: The number of their `mp_prefetch`, from the end of the chain.
        clocks: Measure the work.
    """

    def __init__(
        self,
        team: Team,
        choice: WorkerChoice,
        number: int = 0,
        clocks: WorkClocks | None = None,
    ) -> None:
        self.choice, self._team, self._number = choice, team, number
        self._clocks = WorkClocks() if clocks is None else clocks
        self._used = choice.workers  # that get work
        self._maker, self._thread_map = ActivityClock(), ThreadMap(0)
        self._is_started = False
        self._skip()

    def start(self) -> None:
        """Start the workers that are chosen before anything is measured."""
        if self.choice.workers:
            self._apply()

    def begin(self, maker: ActivityClock, thread_map: ThreadMap | None) -> None:
        """Begin a run, whose times `maker` counts, and whose functions `thread_map` calls here."""
        self._maker, self._thread_map = maker, thread_map or ThreadMap(0)
        self._skip()
        self._note()

    @property
    def workers(self) -> int:
        """The workers that the next work item may go to; 0 for this process."""
        wanted = self.choice.workers
        if self._used != wanted:
            try:
                if wanted and self._team.ready() < wanted:
                    return self._used
            except WorkerError as error:
                self._do_without(error)
                return self._used
            self._used = wanted
            self._skip()
        return self._used

    def only_here(self, why: str) -> None:
        """Call functions in this process from now on."""
        self.choice.only_here(why)
        self._apply()
        self._note()

    def took(self, rows: int, worked_s: float) -> None:
        """Note a result, which took some seconds of functions; from time to time choose anew."""
        if self._used != self.choice.workers:
            return  # workers are starting
        now_s = self._clocks.passed()
        if self._skipped >= 0:
            self._skipped += 1
            if self._skipped > 2 * self._used and now_s - self._since_s >= _SETTLE_S:
                self._begin_sample(now_s)
            return
        self._rows += rows
        self._results += 1
        self._worked_s += worked_s
        if now_s - self._since_s >= _SAMPLE_S and self._results >= 2 * self._used:
            self._end_sample(now_s)

    def _skip(self) -> None:
        """Leave out the next results, which may have been begun otherwise."""
        self._skipped, self._since_s = 0, self._clocks.passed()

    def _begin_sample(self, now_s: float) -> None:
        self._skipped, self._since_s, self._process_s = -1, now_s, self._clocks.process()
        self._rows = self._results = 0
        self._worked_s = 0.0
        self._before_s = self._maker.spent_s()

    def _end_sample(self, now_s: float) -> None:
        passed_s, spent_s = now_s - self._since_s, self._maker.spent_s()
        ahead_s, waited_s = (
            spent_s.get(name, 0.0) - self._before_s.get(name, 0.0) for name in (ROOM, WORKERS)
        )
        process_s = self._clocks.process() - self._process_s
        sample = WorkSample(
            self._used,
            self._rows,
            passed_s,
            ahead_s,
            waited_s,
            self._worked_s,
            process_s / max(passed_s, 1e-9),
        )
        before = self._used, self.choice.is_trial
        room = self._clocks.room or room_for
        self.choice.saw(sample, room(self._team.process_ids))
        self._note()
        if (self.choice.workers, self.choice.is_trial) != before:
            if _log.isEnabledFor(logging.DEBUG):
                from windrow.core.debug_log import debug

                debug(
                    _log,
                    "mp_prefetch('auto'): %d workers: %s",
                    self.choice.workers,
                    self.choice.reason,
                )
            self._apply()
            self._skip()
        else:
            self._begin_sample(now_s)
            if self._is_started and not self._used:
                self._team.ready()  # takes the end of workers that were dismissed

    def _note(self) -> None:
        """Note for `stats` what is chosen, and why."""
        choice = self.choice
        threads = 1 if choice.workers else self._thread_map.most_used
        found = ChosenWorkers(choice.workers, choice.most, threads, choice.reason)
        self._maker.chosen = {**self._maker.chosen, self._number: found}

    def _apply(self) -> None:
        """Start the workers that are chosen, and end the others unless they may be wanted again."""
        if not self.choice.workers and not self._is_started:
            return
        self._is_started = True
        try:
            self._team.employ(self.choice.workers)
        except WorkerError as error:
            self._do_without(error)
        else:
            if not self.choice.is_trial:
                self._team.dismiss()

    def _do_without(self, error: WorkerError) -> None:
        """Do without workers that cannot be started; raise if those that have work are not usable."""
        if self._used:
            self._team.ready()
            self.choice.at_most(self._used, f"more workers cannot be started: {error}")
            self._note()
            return
        if self.choice.fewest:
            raise error
        _log.warning("functions run in this process, since workers cannot be started: %s", error)
        self._is_started = False
        self.choice.only_here(f"workers cannot be started: {error}")
        self._note()


class ChoosingExecutor:
    """Does the work of one run here or in workers."""

    is_here = False

    def __init__(
        self,
        process: ProcessExecutor,
        team: ChosenTeam,
        threads: StageThreads,
        maker: ActivityClock,
    ) -> None:
        """Begin a run.

        Args:
            process: Sends work to the workers.
            team: The workers.
            threads: Call functions in this process.
            maker: Counts the times of the run.
        """
        self.process, self.team, self._threads, self.maker = process, team, threads, maker
        team.begin(maker, threads.thread_map)

    def part_of(self, stage: ChainStage) -> tuple[int, Halves | None]:
        return self.process.part_of(stage)

    def bounded(self, options: ReadOptions) -> ReadOptions:
        return self.process.bounded(options)

    def wants_more_rows(self) -> bool:
        thread_map = self._threads.thread_map
        return thread_map is not None and thread_map.was_starved()

    def begun(self, work: WorkItem) -> _Begun:
        try:
            task = work.request()
        except Exception as error:
            return _Begun(self, error, None)
        if not self.team.workers:
            return _Begun(self, task, None)
        sent = self.process.submitted(work, task)
        failed = sent.failure
        if failed is not None and self._may_do(failed):
            return _Begun(self, task, None)
        return _Begun(self, task, sent)

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Found]]:
        return pipelined(works, self.begun, self._wants_more)

    def _wants_more(self, waiting: Sequence[tuple[WorkItem, _Begun]]) -> bool:
        """Whether to begin another work item before the first one under way is taken."""
        if not waiting:
            return True
        # Work is done here when its turn comes: there is no gain in beginning more of it.
        return (
            self.team.workers > 0
            and waiting[-1][1].is_sent
            and self.process.wants_more(waiting[0][1])
        )

    def here(self, task: StageTask) -> Result:
        """Do a work item in this process."""
        part, began = self.process.parts[task.stage], time.perf_counter()
        result = task.result(part.steps, part.upper, self._threads)
        self.team.took(result.rows, time.perf_counter() - began)
        return result

    def away(self, task: StageTask, sent: Submitted) -> Result:
        """Wait for the result of a worker; do the work here if that cannot be sent."""
        try:
            result = sent()
        except Exception as error:
            if UNSENT_RESULT not in getattr(error, "__notes__", ()) or not self._may_do(error):
                raise
        else:
            self.team.took(result.rows, sum(result.worked_s.values()))
            return result
        return self.here(task)

    def _may_do(self, error: Exception) -> bool:
        """Whether work that cannot be sent to a worker, or back, may be done here; if so, all is."""
        notes = getattr(error, "__notes__", ())
        if self.team.choice.fewest or isinstance(error, WindrowError) or _STARTED in notes:
            return False
        self.team.only_here(f"elements cannot be sent to workers: {type(error).__name__}: {error}")
        return True


class _Begun:
    """A work item that was sent to a worker, or is done here when its turn comes."""

    def __init__(
        self, executor: ChoosingExecutor, task: StageTask | Exception, sent: Submitted | None
    ) -> None:
        self._executor, self._task, self._sent = executor, task, sent

    @property
    def is_sent(self) -> bool:
        """Whether a worker does it."""
        return self._sent is not None

    def is_done(self) -> bool:
        """Whether the call returns at once, or does the work."""
        return self._sent is None or self._sent.is_done()

    def drop(self) -> None:
        """Note that its result is not wanted."""
        if self._sent is not None:
            self._sent.drop()

    def __call__(self) -> Result:
        if isinstance(self._task, Exception):
            raise self._task
        if self._sent is None:
            return self._executor.here(self._task)
        return self._executor.away(self._task, self._sent)


def chosen_team(team: Team, settings: WorkerSettings, number: int) -> ChosenTeam:
    """The workers of `mp_prefetch` number `number`, at most one for each core."""
    # Functions may need what the workers' `init` does, and only a worker can be ended.
    only_workers = settings.init is not None or settings.options.timeout_s is not None
    return ChosenTeam(team, WorkerChoice(int(only_workers), usable_cores()), number)
