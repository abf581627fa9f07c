"""The chaos itself: what it must find is found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.chaos import leftovers, run, store
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


def test_a_wrong_batch_is_found(oracle: Oracle) -> None:
    steps, (batch, later, *_) = Steps(oracle, 0, 0, 2), parts(0, 2)
    batch["number"][3] += 1
    with pytest.raises(DisturbedError, match=r"process 0 of 2: step 0 has a wrong batch$"):
        steps.compare(0, checksum(batch))
    with pytest.raises(DisturbedError, match="step 0 has a wrong batch, the batch of step 1"):
        steps.compare(0, checksum(later))


def test_lost_and_repeated_steps_are_found(oracle: Oracle) -> None:
    steps, found = Steps(oracle, 0, 1, 2), [checksum(batch) for batch in parts(1, 2)]
    with pytest.raises(DisturbedError, match="step 1 came and step 0 was lost"):
        steps.compare(1, found[1])
    steps.compare(0, found[0])
    with pytest.raises(DisturbedError, match="process 1 of 2: step 0 came twice"):
        steps.compare(0, found[0])


def test_a_checksum_covers_names_types_and_shapes() -> None:
    rows = np.arange(6, dtype=np.int64)
    others: list[dict[str, Any]] = [
        {"x": rows},
        {"y": rows},
        {"x": rows.view(np.uint64)},
        {"x": rows.reshape(2, 3)},
        {"x": rows[::-1]},
    ]
    assert len({checksum(batch) for batch in others}) == len(others)
    assert checksum({"x": np.stack([rows, rows], 1)[:, 0]}) == checksum({"x": rows})


def test_states_are_merged_and_compared(oracle: Oracle) -> None:
    shards = [iter(batches().shard(index, 2)) for index in range(2)]
    for shard in shards:
        for _ in range(3):
            next(shard)
    states = [shard.get_state() for shard in shards]
    assert oracle.check_states(3, states)["rows"] == 3 * store.ROWS
    with pytest.raises(DisturbedError, match=r"the state before step 2 is .*, and must be"):
        oracle.check_states(2, states)
    with pytest.raises(DisturbedError, match=r"before step 3 cannot be merged: .*no position"):
        oracle.check_states(3, states[:1])


# ---- leftovers


@pytest.fixture
def traces() -> Iterator[leftovers.Traces]:
    made = leftovers.Traces()
    yield made
    made.clear()


def python(program: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_left_process_is_found_and_ended(traces: leftovers.Traces) -> None:
    with python("import time; print(1, flush=True); time.sleep(600)", traces.environment) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == "1\n"
        (found,) = traces.left(limit_s=0.0)
        assert found.startswith(f"process {left.pid}: ")
        traces.clear()
        assert left.wait() != 0


@pytest.mark.jobs  # shared memory may be removed for some seconds
def test_left_files_are_found(traces: leftovers.Traces) -> None:
    name = f"chaos-{os.getpid()}"
    program = "import tempfile; tempfile.mkstemp(prefix='forgotten')"
    with python(f"{program}; open('/dev/shm/{name}', 'w')", traces.environment) as ended:
        assert ended.wait() == 0
    try:
        file, memory = traces.left()
    finally:
        Path("/dev/shm", name).unlink()
    assert "forgotten" in file
    assert memory == f"shared memory {name}"


def test_nothing_is_left_by_a_program_that_tidies_up(traces: leftovers.Traces) -> None:
    program = "import tempfile; tempfile.TemporaryFile().close()"
    with python(program, traces.environment) as ended:
        assert ended.wait() == 0
    assert traces.left() == []


def test_left_threads_and_descriptors_are_found() -> None:
    before, go = leftovers.of_this_process(), threading.Event()
    assert leftovers.more(before) == []
    thread = threading.Thread(target=go.wait, name="windrow-forgotten")
    thread.start()
    ends = os.pipe()
    try:
        found = leftovers.more(before, limit_s=0.0)
    finally:
        go.set()
        thread.join()
        for end in ends:
            os.close(end)
    assert found == ["threads: windrow-forgotten", "descriptors: pipe", "descriptors: pipe"]
    assert leftovers.more(before) == []


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
