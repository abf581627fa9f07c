"""Runs under faults, life after life, until the time is over.

What is drawn for a life depends on the seed, its run and its number alone, so a seed repeats all but the
moments at which other processes are where they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.chaos import leftovers, store
from tests.chaos.faults import FAULTS, JUMP_CLOCK, USUAL_SHARE, Disk, NotNowError, Site, Undo
from tests.chaos.life import Checkpoint, Life
from tests.chaos.oracle import DisturbedError, Oracle
from tests.chaos.server import StoreServer
from tests.chaos.trainer import Orders

MIB: Final = 1 << 20
STEPS: Final = 240
"""Steps of a run."""
# The longest time between faults, so that they come on a slow machine too.
_MOMENT_S: Final = 3.0
_KILL: Final = "kill-trainer"
# A killed trainer ends the life, so that little else would happen if it came as often as others; a worker
# is not always there to be killed.
_WEIGHTS: Final = {_KILL: 0.5, "kill-worker": 2.0}
# Time enough for anything; what is wrong does not pass by itself. Few requests at a time, and pauses, so that a
# slow machine does not keep all of them waiting.
_REMOTE: Final = {
    "max_requests": 16,
    "max_request_bytes": MIB // 4,
    "merge_gap_bytes": MIB // 32,
    "retries": 60,
    "backoff_s": 0.05,
    "max_backoff_s": 2.0,
    "stall_s": 5.0,
    "timeout_s": 20.0,
    "outage_s": 900.0,
}


@dataclasses.dataclass(slots=True)
class Tally:
    """What was done and compared."""

    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    answers: Counter[str] = dataclasses.field(default_factory=Counter)
    runs: int = 0
    lives: int = 0
    steps: int = 0
    checkpoints: int = 0

    def summary(self, disk: Disk) -> str:
        """A table by kind of fault, and what was compared."""
        lines = [f"{'fault':<24}{'injected':>9}"]
        lines += [f"{name:<24}{self.faults[name]:>9,}" for name in (*FAULTS, JUMP_CLOCK)]
        lines += [f"answer: {kind:<16}{count:>9,}" for kind, count in sorted(self.answers.items())]
        lines += [f"{'all':<24}{self.faults.total() + self.answers.total():>9,}"]
        if not disk.is_small:
            lines += ["No disk was full: this needs the right to mount a file system (tmpfs)."]
        lines += [
            f"{self.runs} runs, {self.lives} lives of 1 to {max(store.PROCESSES)} processes,"
            f" {self.steps:,} steps and {self.checkpoints:,} checkpoints compared,"
            f" {store.DAMAGED} of {store.RECORDS} records damaged"
        ]
        return "\n".join(lines)


class Chaos:
    """A store, its server, a disk for the cache, and the runs over them."""

    def __init__(self, folder: Path, seed: int, kinds: Sequence[str]) -> None:
        """Write the store and start the server."""
        self._folder, self._seed, self._kinds = folder, seed, kinds
        self._files = folder / "store"
        self._files.mkdir()
        store.write(self._files, seed)
        self._values = store.values(seed)
        self._traces = leftovers.Traces()
        self.disk = Disk(folder / "disk")
        self._server = StoreServer(self._files, self._traces.environment)
        self._server.start()
        self.tally = Tally()

    def run(self, minutes: float) -> None:
        """Run until the minutes are over; the last run is finished without faults.

        Raises:
            DisturbedError: If a fault has changed what training sees, or something is left.
        """
        end_s = time.monotonic() + 60 * minutes
        before = leftovers.of_this_process()
        while not self.tally.runs or time.monotonic() < end_s:
            self.tally.runs += 1
            self._run(end_s)
        left = leftovers.more(before)
        self._server.close()
        left += self._traces.left()
        if left:
            raise DisturbedError("left behind at the end: " + "; ".join(left))

    def close(self) -> None:
        """End all that runs, whatever has happened."""
        self._server.close()
        self._traces.clear()
        self.disk.close()

    def _run(self, end_s: float) -> None:
        number = self.tally.runs
        draw = random.Random(f"{self._seed} {number}")
        task, seed = draw.choice(store.TASKS), draw.randrange(2**32)
        remote: dict[str, Any] = {
            **_REMOTE,
            "cache_dir": draw.choice([str(self.disk.cache)] * 3 + [None]),
            "cache_bytes": draw.choice([1, 4, 64]) * MIB,
            "keep_bytes": draw.choice([0, 4 * MIB]),
        }
        # Little is read ahead, so that faults of the store reach the loop.
        reading = {
            "num_threads": draw.choice([0, 1, 4]),
            "prefetch_buffer_size": draw.choice([4, 8, 40]),
            "memory_bytes": draw.choice([2, 16]) * MIB,
        }
        print(
            f"run {number}: {task}, cache {remote['cache_dir'] and remote['cache_bytes']}",
            flush=True,
        )
        oracle = Oracle(iter(store.chain(task, str(self._files), seed)), self._check, store.IGNORED)
        at, life, count = Checkpoint(0, None, [0.0] * store.WIDTH), 0, 0
        while at.step < STEPS:
            life += 1
            draw = random.Random(f"{self._seed} {number} {life}")
            count = draw.choice([other for other in store.PROCESSES if other != count])
            orders = [
                Orders(
                    folder=str(self._folder / f"run-{number}" / f"life-{life}" / str(index)),
                    place=f"http://127.0.0.1:{self._server.port}",
                    task=task,
                    seed=seed,
                    index=index,
                    count=count,
                    step=at.step,
                    state=at.state,
                    parameters=at.parameters,
                    laps=_laps(draw, at.step),
                    jumps=self._jumps(draw),
                    remote=remote,
                    reading=reading,
                )
                for index in range(count)
            ]
            at = self._live(Life(orders, oracle), at, draw, end_s)
        oracle.close()
        shutil.rmtree(self._folder / f"run-{number}")

    def _check(self, batch: Any) -> None:
        """Each row must be what its record holds, and no row may be of a bad record."""
        for number, row in zip(batch["number"].tolist(), batch["x"], strict=True):
            if not store.is_usable(number) or row.tobytes() != self._values[number].tobytes():
                raise DisturbedError(f"the undisturbed run has a wrong row, of record {number}")

    def _jumps(self, draw: random.Random) -> dict[str, float]:
        if JUMP_CLOCK not in self._kinds:
            return {}
        steps = draw.sample(range(STEPS), 4)
        return {str(step): draw.choice([-1, 1]) * draw.choice([30, 7200, 1e6]) for step in steps}

    def _live(self, life: Life, at: Checkpoint, draw: random.Random, end_s: float) -> Checkpoint:
        site = Site(self._server, self.disk, life.trainers)
        held: dict[str, Undo] = {}
        began, done = at.step, Counter[str]()
        self._server.fail(share=USUAL_SHARE, seed=draw.randrange(2**32))
        try:
            while not life.is_over() and not done[_KILL]:
                if time.monotonic() > end_s:
                    _undo_all(held)
                    self._server.fail(share=0.0, seed=0)
                    life.wait(lambda: False)
                    break
                self._wait(life, draw, bool(held))
                if held and draw.random() < 0.6:
                    held.pop(draw.choice(list(held)))()
                    continue
                self._inject(site, draw, held, done)
            _undo_all(held)
            life.end()
            found = life.checkpoints()
            self.tally.checkpoints += len(found)
        finally:
            _undo_all(held)
            life.close()
            self._server.count()
            self._add(life, done)
        at = found[-1] if found else at
        laps = [trainer.orders.laps for trainer in life.trainers]
        workers = ", ".join("-".join(str(count) for count, _ in one) for one in laps)
        what = ", ".join(f"{count} {name}" for name, count in sorted(done.items())) or "no faults"
        print(
            f"  {len(laps)} processes, workers {workers}; steps {began} to {at.step}; {what}",
            flush=True,
        )
        return at

    def _wait(self, life: Life, draw: random.Random, is_held: bool) -> None:
        """Wait for the next moment: some steps more, or some time where nothing may move."""
        steps, seconds = draw.randrange(12), draw.choice([0.0, draw.random(), 4 * draw.random()])
        if is_held or draw.random() < 0.1:
            life.wait(lambda: False, seconds)
        else:
            wanted = min(life.step + steps, STEPS)
            life.wait(lambda: life.step >= wanted, _MOMENT_S)
            life.wait(lambda: False, seconds / 10)

    def _inject(
        self, site: Site, draw: random.Random, held: dict[str, Undo], done: Counter[str]
    ) -> None:
        kinds = [kind for kind in FAULTS if kind in self._kinds and _target(kind) not in held]
        if not kinds:
            return
        (kind,) = draw.choices(kinds, [_WEIGHTS.get(kind, 1.0) for kind in kinds])
        with contextlib.suppress(NotNowError):
            undo = FAULTS[kind](site, draw)
            done[kind] += 1
            if undo is not None:
                held[_target(kind)] = undo

    def _add(self, life: Life, done: Counter[str]) -> None:
        tally = self.tally
        tally.lives += 1
        tally.steps += life.steps
        tally.faults += done
        tally.faults[JUMP_CLOCK] += sum(trainer.jumps for trainer in life.trainers)
        tally.answers = Counter(self._server.faults)


def _target(kind: str) -> str:
    """What a fault harms; a worker of a stopped trainer may be harmed, but no stopped server."""
    return kind.partition("-")[2]


def _undo_all(held: dict[str, Undo]) -> None:
    while held:
        held.popitem()[1]()


def _laps(draw: random.Random, step: int) -> list[list[int]]:
    """Numbers of workers, each other than the one before, and the steps at which they change."""
    laps: list[list[int]] = []
    workers = -1
    while step < STEPS:
        workers = draw.choice([other for other in (0, 1, 2, 3) if other != workers])
        step = min(STEPS, step + draw.randrange(20, 100))
        laps.append([workers, step])
    return laps


def chaos(seed: int, *, minutes: float, kinds: Sequence[str]) -> int:
    """Run under faults of these kinds, and return the exit code."""
    print(f"chaos: seed {seed}, {minutes:g} minutes, faults {' '.join(kinds)}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    made = Chaos(folder, seed, kinds)
    try:
        made.run(minutes)
    except DisturbedError as error:
        print(made.tally.summary(made.disk))
        print(f"FAILED: {error}")
        print(
            f"To repeat it: make chaos SEED={seed} (MINUTES={minutes:g}). Logs: {folder}",
            flush=True,
        )
        return 1
    finally:
        made.close()
    shutil.rmtree(folder)
    print(made.tally.summary(made.disk))
    print("No batch was wrong, lost or repeated, and nothing was left behind.", flush=True)
    return 0
