"""The executor of `mp_prefetch("auto")`: calls functions here or in workers, as decided once.

Contract, in addition to the one of `windrow.engine.executors`:
1. Each work item is done here or by a worker, whichever is decided when it is begun. A stream does not
   depend on where its work items are done, so it does not depend on the decision.
2. Functions are called here until the first elements are measured, or in one worker if they need
   one. Then the number of workers is fixed. They get work once all of them are ready.
3. If workers cannot be started, or elements cannot be sent to them, all work is done here.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from windrow.core.machine import MIB, free_bytes, usable_cores
from windrow.engine.process_executor import Found, ProcessExecutor, Submitted, W, pipelined
from windrow.engine.stages import ChainStage, Result, StageTask, WorkItem
from windrow.engine.thread_map import StageThreads, ThreadMap
from windrow.engine.worker_choice import WorkerChoice, WorkSample, choose_workers
from windrow.errors import WindrowError, WorkerError
from windrow.stats.profiler import WORKERS, ActivityClock
from windrow.stats.stats import ChosenWorkers
from windrow.transforms.nodes import WorkerSettings
from windrow.transforms.nodes.split import Halves
from windrow.transforms.options import ReadOptions
from windrow.workers.messages import UNSENT_RESULT

_log = logging.getLogger("windrow.workers")

# Seconds of work that are measured, and what passes before: threads and sizes of work items settle.
_SAMPLE_S: Final = 1.0
_SETTLE_S: Final = 0.25
# Memory of a worker, and the share of the free memory that workers may take.
_WORKER_BYTES: Final = 100 * MIB
_FREE_SHARE: Final = 0.5
_STARTED: Final = "windrow: raised when a worker started"


class Team(Protocol):
    """The worker processes that a number is decided of: see `ProcessExecutor`."""

    def start(self, count: int) -> None:
        """Start processes until there are `count`."""
        ...

    def ready(self) -> int:
        """How many workers are ready."""
        ...

    def end(self) -> None:
        """End them for good."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class WorkClocks:
    """Seconds that have passed, and that all threads of this process have computed."""

    passed: Callable[[], float] = time.perf_counter
    process: Callable[[], float] = time.process_time


class _Moment(NamedTuple):
    """Readings of the clocks, and the seconds that this process has waited for workers."""

    passed_s: float
    process_s: float
    waited_s: float


class ChosenTeam:
    """The workers of an iterator, whose number is decided once its first elements are measured.

    Args:
        team: The processes.
        cores: Cores that this process and its workers may keep busy. With one, nothing is measured.
        fewest: 0 if functions may be called in this process, else 1.
        number: The number of their `mp_prefetch`, from the end of the chain.
        clocks: Measure the work.

    Attributes:
        choice: The number that is decided, or that is used until then, and why.
    """

    def __init__(
        self,
        team: Team,
        *,
        cores: int,
        fewest: int = 0,
        number: int = 0,
        clocks: WorkClocks | None = None,
    ) -> None:
        self._team, self._cores, self.fewest, self._number = team, cores, fewest, number
        self._clocks = WorkClocks() if clocks is None else clocks
        self._is_decided = cores == 1
        reason = "the loop has waited for too few elements to measure them"
        if self._is_decided:
            reason = "only one core may be used"
        self.choice = WorkerChoice(fewest, reason)
        self._used = fewest  # workers that get work
        self._maker, self._thread_map = ActivityClock(), ThreadMap(0)

    def start(self) -> None:
        """Start the worker that functions need before anything is measured."""
        if self.fewest:
            self._team.start(self.fewest)

    def begin(self, maker: ActivityClock, thread_map: ThreadMap | None) -> None:
        """Begin a run, whose times `maker` counts, and whose functions `thread_map` calls here."""
        self._maker, self._thread_map = maker, thread_map or ThreadMap(0)
        self._settled_s, self._sample, self._last = 0.0, WorkSample(), self._moment()
        self._note()

    @property
    def workers(self) -> int:
        """The workers that the next work item may go to; 0 for this process."""
        if self._used < self.choice.workers:
            try:
                if self._team.ready() >= self.choice.workers:
                    self._used = self.choice.workers
            except WorkerError as error:
                self._do_without(error)
        return self._used

    def decide(self, choice: WorkerChoice) -> None:
        """Use this number of workers from now on."""
        self._is_decided, self.choice = True, choice
        self._used = min(self._used, choice.workers)
        self._note()
        if _log.isEnabledFor(logging.DEBUG):
            from windrow.core.debug_log import debug

            debug(_log, "mp_prefetch('auto'): %d workers: %s", *choice)
        if not choice.workers:
            self._team.end()
        elif self._used < choice.workers:
            try:
                self._team.start(choice.workers)
            except WorkerError as error:
                self._do_without(error)

    def took(self, rows: int, worked_s: float) -> None:
        """Note a result, which took some seconds of functions; decide after enough of them."""
        if self._is_decided:
            return
        before, now = self._last, self._moment()
        self._last = now
        if self._maker.is_ahead:
            return  # the loop did not wait for it
        passed_s = now.passed_s - before.passed_s
        if self._settled_s < _SETTLE_S:
            self._settled_s += passed_s
            return
        if self.fewest:
            own_s, computed_s = passed_s - (now.waited_s - before.waited_s), 0.0
        else:
            own_s, computed_s = passed_s - worked_s, now.process_s - before.process_s
        taken = WorkSample(rows, passed_s, worked_s, max(0.0, own_s), computed_s)
        self._sample = self._sample.plus(taken)
        if self._sample.passed_s >= _SAMPLE_S:
            room = self.fewest + int(_FREE_SHARE * free_bytes() / _WORKER_BYTES)
            self.decide(
                choose_workers(self._sample, cores=self._cores, room=room, fewest=self.fewest)
            )

    def _moment(self) -> _Moment:
        waited_s = self._maker.spent_s().get(WORKERS, 0.0) if self.fewest else 0.0
        return _Moment(self._clocks.passed(), self._clocks.process(), waited_s)

    def _note(self) -> None:
        """Note for `stats` what is decided, and why."""
        threads = 1 if self.choice.workers else self._thread_map.most_used
        found = ChosenWorkers(self.choice.workers, threads, self.choice.reason)
        self._maker.chosen = {**self._maker.chosen, self._number: found}

    def _do_without(self, error: WorkerError) -> None:
        """Continue with the workers that get work, or here, as the others cannot be started."""
        if self._used:
            self._team.ready()  # raises if those are not usable either
            reason = f"more workers cannot be started: {error}"
        else:
            reason = f"workers cannot be started: {error}"
            _log.warning("functions run in this process, since %s", reason)
        self.decide(WorkerChoice(self._used, reason))


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
        if self.team.fewest or isinstance(error, WindrowError) or _STARTED in notes:
            return False
        reason = f"elements cannot be sent to workers: {type(error).__name__}: {error}"
        self.team.decide(WorkerChoice(0, reason))
        return True


class _Begun:
    """A work item that a worker does, or that is done here when its turn comes."""

    def __init__(
        self, executor: ChoosingExecutor, task: StageTask | Exception, sent: Submitted | None
    ) -> None:
        self._executor, self._task, self._own_sent = executor, task, sent

    @property
    def _sent(self) -> Submitted | None:
        """What was sent; None after the end of the workers."""
        return self._own_sent if self._executor.process.workers is not None else None

    @property
    def is_sent(self) -> bool:
        """Whether a worker does it."""
        return self._sent is not None

    def is_done(self) -> bool:
        """Whether the call returns at once, or does the work."""
        sent = self._sent
        return sent is None or sent.is_done()

    def drop(self) -> None:
        """Note that its result is not wanted."""
        sent = self._sent
        if sent is not None:
            sent.drop()

    def __call__(self) -> Result:
        if isinstance(self._task, Exception):
            raise self._task
        sent = self._sent
        return (
            self._executor.here(self._task)
            if sent is None
            else self._executor.away(self._task, sent)
        )


def chosen_team(team: Team, settings: WorkerSettings, number: int) -> ChosenTeam:
    """The workers of the `mp_prefetch` with a number, at most one for each core."""
    # Functions may need what the workers' `init` does, and only a worker can be ended.
    only_workers = settings.init is not None or settings.options.timeout_s is not None
    return ChosenTeam(team, cores=usable_cores(), fewest=int(only_workers), number=number)
