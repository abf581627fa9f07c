"""Conversions on a Dask cluster of two worker processes. One of them is killed in the middle."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dask import distributed

from tests.conversions import conversion, stage, tell, told, wait_for, write_number
from tests.processes import until
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.job import carry_out
from windrow.converters.job.stages import Report

pytestmark = pytest.mark.jobs

# Few partitions: each costs some tasks, and there are few items.
PARTITIONS = "--dask_npartitions=6"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    local_cluster: Any = distributed.LocalCluster  # it has no types
    with local_cluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
        local_directory=str(tmp_path_factory.mktemp("dask")),
    ) as found:
        yield found


@pytest.fixture
def dask(cluster: Any) -> dict[str, Any]:
    """The arguments that run a conversion on the cluster."""
    options = [f"--dask_client_address={cluster.scheduler_address}", PARTITIONS]
    return {"runner": "DaskRunner", "pipeline_options": options}


def write_or_wait(folder: OutputFolder, number: int, report: Report) -> FinishedPart:
    """Writes a number; the sixth to be begun waits until the worker that has it is killed."""
    tell(folder, "begun", number)
    root = Path(str(folder.target.local))
    if len(told(root, "begun")) > 5 and not told(root, "killed"):
        tell(folder, "held", number)
        wait_for(folder, "killed", 1)
    return write_number(folder, number, report)


def test_a_worker_that_is_killed_at_work_is_replaced(tmp_path: Path, dask: dict[str, Any]) -> None:
    root = tmp_path / "out"

    def kill() -> None:
        assert until(lambda: bool(told(root, "held")))
        number, process = told(root, "held")[0]
        os.kill(process, signal.SIGKILL)
        (tmp_path / f"out.killed-{number}-{process}").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    manifest = carry_out(conversion(stage(range(12), write_or_wait)), root, **dask)
    killer.join()
    assert len(told(root, "killed")) == 1
    assert [file.name for file in manifest.files] == [f"{number:03}" for number in range(12)]
    assert {(root / file.name).read_bytes() for file in manifest.files} == {
        b"%d" % number for number in range(12)
    }
