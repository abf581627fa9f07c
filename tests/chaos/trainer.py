"""The training loop, in a process of its own: `python -m tests.chaos.trainer ORDERS`.

1. A step is in the log before the next one begins, with the checksum of its batch.
2. A checkpoint has the state of the iterator and the parameters; it is a whole file or none.
3. After each lap, with another number of workers, it looks for what the lap's iterator has left.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

import windrow
from tests.chaos import leftovers, store
from tests.chaos.oracle import checksum
from windrow.sources import RemoteOptions

EVERY: Final = 10
"""Steps between checkpoints."""
_PAUSE_S: Final = 0.02
_RATE: Final = 1e-4


@dataclasses.dataclass(frozen=True, slots=True)
class Orders:
    """What a process of a life does.

    Args:
        folder: Its folder, for the log and the checkpoints.
        place: The URL of the store.
        task: The name of the chain.
        seed: The seed of the chain.
        index: Its number among the processes.
        count: The processes.
        step: The first step.
        state: The state of the iterator before it; None at the start of a run.
        parameters: The parameters of the model before it.
        laps: For each lap, its number of workers and the step after its last one.
        jumps: Steps at which the clock jumps, and by how many seconds.
        remote: Arguments of `RemoteOptions`.
        reading: Arguments of `ReadOptions`.
    """

    folder: str
    place: str
    task: str
    seed: int
    index: int
    count: int
    step: int
    state: dict[str, Any] | None
    parameters: list[float]
    laps: list[list[int]]
    jumps: dict[str, float]
    remote: dict[str, Any]
    reading: dict[str, Any]

    @property
    def log(self) -> Path:
        """The file of its log."""
        return Path(self.folder) / "log.jsonl"

    def checkpoint(self, step: int) -> Path:
        """The file of the checkpoint before a step."""
        return Path(self.folder) / f"checkpoint-{step}.json"

    def batches(self, workers: int) -> Any:
        """The dataset of this process."""
        remote, options = RemoteOptions(**self.remote), windrow.ReadOptions(**self.reading)
        whole = store.chain(self.task, self.place, self.seed, remote, options)
        return whole.shard(self.index, self.count).mp_prefetch(workers)


class Log:
    """JSON Lines; a line is in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **what: Any) -> None:
        """Append a line."""
        os.write(self._number, json.dumps(what).encode() + b"\n")


class Clock:
    """A fake of `time.time`, which jumps."""

    def __init__(self) -> None:
        self._real, self._offset_s = time.time, 0.0
        time.time = lambda: self._real() + self._offset_s

    def jump(self, seconds: float) -> None:
        """From now on it is later, or earlier."""
        self._offset_s += seconds


class Model:
    """A linear model of the record's number, trained by gradient descent."""

    def __init__(self, parameters: list[float]) -> None:
        self.parameters = np.array(parameters)

    def train(self, batch: Any) -> None:
        """One step; a process may have no rows."""
        if len(batch["x"]):
            wrong = batch["x"] @ self.parameters - batch["number"] / store.RECORDS
            self.parameters -= _RATE * (wrong @ batch["x"]) / len(wrong)
        assert np.isfinite(self.parameters).all()
        time.sleep(_PAUSE_S)


def train(orders: Orders) -> None:
    """Run all laps."""
    log, clock, model = Log(orders.log), Clock(), Model(orders.parameters)
    state, step = orders.state, orders.step
    with iter(orders.batches(1)) as iterator:  # what any first use keeps is not left behind
        next(iterator)
    del iterator
    before = leftovers.of_this_process()
    for workers, stop in orders.laps:
        with iter(orders.batches(workers)) as iterator:
            if state is not None:
                iterator.set_state(state)
            while step < stop:
                if (seconds := orders.jumps.get(str(step))) is not None:
                    clock.jump(seconds)
                    log.write(jump=seconds)
                batch = next(iterator)
                log.write(step=step, checksum=checksum(batch))
                model.train(batch)
                step, state = step + 1, iterator.get_state()
                if step % EVERY == 0 or step == stop:
                    _save(orders.checkpoint(step), state, model)
        del iterator, batch
        log.write(left=leftovers.more(before))
    log.write(done=step)


def _save(path: Path, state: Any, model: Model) -> None:
    whole = {"state": state, "parameters": model.parameters.tolist()}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(whole))
    new.replace(path)


def main(path: str) -> None:
    """Train as the file of orders says."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.WARNING, format="%(relativeCreated)d %(name)s %(message)s")
    train(Orders(**json.loads(Path(path).read_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
