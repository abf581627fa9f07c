"""The trainers of one incarnation of a run, from a checkpoint to their end.

Every step is compared as its trainer logs it. Nothing depends on how long a step takes: only a
run that does nothing for `HANG_S` is an error.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.chaos.leftovers import Traces
from tests.chaos.oracle import DisturbedError, Oracle, Steps
from tests.chaos.trainer import EVERY, Orders
from tests.processes import until

ROOT: Final = Path(__file__).resolve().parents[2]
HANG_S: Final = 300.0
_LOOK_S: Final = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a run resumes from: the step, the state before it, and the parameters."""

    step: int
    state: dict[str, Any] | None
    parameters: list[float]


class Trainer:
    """A training process, and the comparison of its steps."""

    def __init__(self, orders: Orders, oracle: Oracle, environment: dict[str, str]) -> None:
        """Start it."""
        folder = Path(orders.folder)
        folder.mkdir(parents=True)
        (folder / "orders.json").write_text(json.dumps(dataclasses.asdict(orders)))
        self.orders = orders
        self.steps = Steps(oracle, orders.step, orders.index, orders.count)
        self.killed: collections.Counter[int] = collections.Counter()
        """Workers that were killed, by lap."""
        self.lap = self.jumps = 0
        self.is_done = False
        self._read = 0
        self._errors = folder / "errors.txt"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.trainer", str(folder / "orders.json")],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Whether it has given a batch in its present lap, so that its source is open."""
        return self.steps.next > self._lap_began

    @property
    def has_checkpoint(self) -> bool:
        """Whether it has made one in this life."""
        return self.steps.next >= (self.steps.first // EVERY + 1) * EVERY

    @property
    def _lap_began(self) -> int:
        stops = [stop for _, stop in self.orders.laps]
        return stops[self.lap - 1] if self.lap else self.orders.step

    def code(self) -> int | None:
        """Its exit code, or the signal that ended it, negative; None while it runs."""
        return self._process.poll()

    def wait(self) -> None:
        """Wait for its end, which something else has caused."""
        self._process.wait(HANG_S)

    def send(self, number: signal.Signals) -> None:
        """A signal, if it still runs."""
        if self.code() is None:
            self._process.send_signal(number)

    def errors(self) -> str:
        """The end of what it has written."""
        return self._errors.read_text(errors="replace")[-8000:]

    def poll(self) -> bool:
        """Compare what it has logged; whether there was something new."""
        if not self.orders.log.exists():
            return False
        with self.orders.log.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):
                self._read += len(line)
                self._take(json.loads(line))
        return bool(lines)

    def _take(self, line: dict[str, Any]) -> None:
        match line:
            case {"step": step, "checksum": found}:
                self.steps.compare(step, found)
            case {"left": []}:
                self.lap += 1
            case {"left": left}:
                raise DisturbedError(
                    f"process {self.orders.index}, lap {self.lap}: its iterator has left {left}"
                )
            case {"jump": _}:
                self.jumps += 1
            case {"done": _}:
                self.is_done = True
            case _:
                raise AssertionError(line)


class Life:
    """The trainers of an incarnation."""

    def __init__(self, orders: Sequence[Orders], oracle: Oracle) -> None:
        """Start them."""
        self._oracle = oracle
        self._traces = Traces()
        environment = self._traces.environment
        self.trainers = [Trainer(one, oracle, environment) for one in orders]
        self._active_s = time.monotonic()

    @property
    def step(self) -> int:
        """The next step of the slowest trainer."""
        return min(trainer.steps.next for trainer in self.trainers)

    @property
    def steps(self) -> int:
        """The steps that were compared."""
        return sum(trainer.steps.next - trainer.steps.first for trainer in self.trainers)

    def is_over(self) -> bool:
        """Whether all have ended."""
        return all(trainer.code() is not None for trainer in self.trainers)

    def wait(self, found: Callable[[], bool], limit_s: float | None = None) -> None:
        """Compare what comes until something is found, all have ended, or the time is over.

        Raises:
            DisturbedError: If a trainer ends with an error, or no trainer logs anything for `HANG_S`.
        """
        began_s = time.monotonic()
        while True:
            is_over = self.is_over()
            self.poll()
            if is_over or found():
                return
            now_s = time.monotonic()
            if limit_s is not None and now_s - began_s > limit_s:
                return
            if now_s - self._active_s > HANG_S:
                raise DisturbedError(f"nothing happened for {HANG_S:g} s{self._stacks()}")
            time.sleep(_LOOK_S)

    def poll(self) -> None:
        """Compare what has come."""
        for trainer in self.trainers:
            code = trainer.code()
            if trainer.poll():
                self._active_s = time.monotonic()
            if code not in (None, 0, -signal.SIGKILL) or (code == 0 and not trainer.is_done):
                raise DisturbedError(
                    f"process {trainer.orders.index} ended with {code}:\n{trainer.errors()}"
                )

    def _stacks(self) -> str:
        for trainer in self.trainers:
            trainer.send(signal.SIGUSR1)
        running = [trainer for trainer in self.trainers if trainer.code() is None]
        until(lambda: all("Thread" in trainer.errors() for trainer in running), 10.0)
        return "".join(
            f"\nprocess {trainer.orders.index}:\n{trainer.errors()}" for trainer in running
        )

    def end(self) -> None:
        """End what still runs, as by kill -9, and compare the rest.

        Raises:
            DisturbedError: If something is left.
        """
        for trainer in self.trainers:
            trainer.send(signal.SIGKILL)
        for trainer in self.trainers:
            trainer.wait()
        self.poll()
        left = self._traces.left()
        if left:
            raise DisturbedError("left behind: " + "; ".join(left))

    def close(self) -> None:
        """Remove all traces, whatever has happened."""
        self._traces.clear()

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that all trainers have, in order, compared with the oracle's states."""
        (first, *_), found = self.trainers, []
        last = max(stop for _, stop in first.orders.laps)
        for step in range(first.orders.step + 1, last + 1):
            files = [trainer.orders.checkpoint(step) for trainer in self.trainers]
            if all(file.exists() for file in files):
                parts = [json.loads(file.read_text()) for file in files]
                state = self._oracle.check_states(step, [part["state"] for part in parts])
                mean = np.mean([part["parameters"] for part in parts], axis=0)
                found.append(Checkpoint(step, state, mean.tolist()))
        return found
