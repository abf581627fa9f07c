"""The chaos itself: what it must find is found."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.chaos import run, store
from tests.chaos.oracle import DisturbedError, Oracle, Steps, checksum

BATCHES = 6


def batches() -> Any:
    numbers = windrow.MapDataset.range(1_000).shuffle(seed=1)
    stream = numbers.to_iter_dataset(lanes=4).map(lambda number: {"number": number})
    return stream.repeat().batch(store.ROWS)


def parts(index: int, count: int) -> list[dict[str, Any]]:
    iterator = iter(batches().shard(index, count))
    return [next(iterator) for _ in range(BATCHES)]


@pytest.fixture
def oracle() -> Iterator[Oracle]:
    made = Oracle(iter(batches()), lambda batch: None, ("chain",))
    yield made
    made.close()


# ---- the oracle


@pytest.mark.parametrize("count", store.PROCESSES)
def test_the_steps_of_all_processes_are_known(oracle: Oracle, count: int) -> None:
    for index in range(count):
        steps = Steps(oracle, 2, index, count)
        for step, batch in enumerate(parts(index, count)[2:], start=2):
            steps.compare(step, checksum(batch))
        assert steps.next == BATCHES


def test_lost_and_repeated_steps_are_found(oracle: Oracle) -> None:
    steps, found = Steps(oracle, 0, 1, 2), [checksum(batch) for batch in parts(1, 2)]
    with pytest.raises(DisturbedError, match="step 1 came and step 0 was lost"):
        steps.compare(1, found[1])
    steps.compare(0, found[0])
    with pytest.raises(DisturbedError, match="process 1 of 2: step 0 came twice"):
        steps.compare(0, found[0])


# ---- the whole


@pytest.mark.jobs
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_disturbed_run_fails_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The oracle then expects another order.
    right = store.chain
    monkeypatch.setattr(store, "chain", lambda task, place, seed: right(task, place, seed + 1))
    code, out = run.chaos(5, minutes=0, kinds=["kill-worker"]), capsys.readouterr().out
    logs = re.search(r"Logs: (\S+)", out)
    assert logs is not None
    assert (Path(logs[1]) / "run-1" / "life-1" / "0" / "log.jsonl").exists()
    shutil.rmtree(logs[1])
    assert code == 1
    assert "chaos: seed 5, 0 minutes" in out
    assert "step 0 has a wrong batch" in out
    assert "To repeat it: make chaos SEED=5" in out
