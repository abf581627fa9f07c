"""Conversions come out the same wherever they run: threads, processes, Beam in and out of process."""

from __future__ import annotations

import logging
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from dask import distributed

from tests.conversion_cases import BY_NAME, CASES, Case, reference, spoilt, tree
from tests.conversions import conversion, stage, tell, told, wait_for, write_number
from tests.processes import Program, until
from windrow.converters import tfrecord_to_array_record, tfrecord_to_zarr
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.job import carry_out
from windrow.converters.job.manifest import UNFINISHED
from windrow.converters.job.stages import Report
from windrow.errors import ArgumentError, ReadError

pytestmark = pytest.mark.jobs

HERE: list[str] = []  # of Beam's options: run in this process
TWO_PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
CASE = BY_NAME["tfrecord_to_array_record"]


# --- the same bytes ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worker_processes_give_the_same_bytes(case: Case, tmp_path: Path) -> None:
    case.convert(reference(case).inputs, tmp_path / "out", processes=2)
    assert tree(tmp_path / "out") == reference(case).whole


@pytest.mark.soak
def test_beam_on_two_processes_gives_the_same_bytes(tmp_path: Path, seed: int) -> None:
    case = CASES[seed % len(CASES)]  # each takes long: one of them in each round
    case.convert(reference(case).inputs, tmp_path / "out", pipeline_options=TWO_PROCESSES)
    assert tree(tmp_path / "out") == reference(case).whole


@pytest.mark.parametrize(
    "run",
    [
        {"runner": "FnApiRunner"},
        {"pipeline_options": ["--runner=FnApiRunner"]},
        {
            "runner": "PortableRunner",
            "pipeline_options": ["--job_endpoint=embed", "--environment_type=LOOPBACK"],
        },
        {"pipeline_options": ("--direct_num_workers=1",)},
        {"pipeline_options": PipelineOptions([])},
        {"runner": FnApiRunner(), "pipeline_options": PipelineOptions(["--job_name=x"])},
    ],
    ids=["name", "flag", "portable", "tuple", "object", "objects"],
)
def test_runners_and_options_in_all_their_forms(tmp_path: Path, run: dict[str, Any]) -> None:
    CASE.convert(reference(CASE).inputs, tmp_path / "out", **run)
    assert tree(tmp_path / "out") == reference(CASE).whole


def test_functions_of_the_caller_travel(tmp_path: Path) -> None:
    files = 3

    def decode(record: bytes) -> dict[str, int]:
        return {"bytes": len(record) * files}

    for name, run in {"a": {}, "b": {"processes": 2}, "c": {"pipeline_options": HERE}}.items():
        source = reference(CASE).inputs
        tfrecord_to_zarr(source, tmp_path / name, decode=decode, **run)  # type: ignore[arg-type]
    assert tree(tmp_path / "a") == tree(tmp_path / "b") == tree(tmp_path / "c")


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [HERE, TWO_PROCESSES], ids=["here", "processes"])
def test_errors_are_those_of_the_default_run(
    tmp_path: Path, options: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    pattern, last, whole = spoilt(tmp_path / "in")
    with pytest.raises(ReadError) as expected:
        tfrecord_to_array_record(pattern, tmp_path / "threads")
    with caplog.at_level(logging.WARNING), pytest.raises(ReadError, match="record 8") as caught:
        tfrecord_to_array_record(pattern, tmp_path / "out", pipeline_options=options)
    assert str(caught.value) == str(expected.value)
    assert vars(caught.value) == vars(expected.value)
    assert "apache_beam" not in "".join(traceback.format_exception(caught.value))
    assert "Traceback" not in caplog.text
    assert (tmp_path / "out" / UNFINISHED).exists()
    if options is HERE:  # and the rest is done by a rerun, here or there
        last.write_bytes(whole)
        tfrecord_to_array_record(pattern, tmp_path / "out", pipeline_options=HERE)
        assert len(CASE.opened(tmp_path / "out")) == 17


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"runner": "NoSuchRunner"}, r"runner 'NoSuchRunner': Unexpected pipeline runner"),
        ({"runner": 7}, r"runner 7: Runner 7 is not a PipelineRunner"),
        ({"pipeline_options": "--region=x"}, r"must be a list of flags .* got '--region=x'"),
        ({"pipeline_options": {"region": "x"}}, r"must be a list of flags .* got \{'region'"),
        ({"pipeline_options": ["--direct_num_workers=x"]}, r"Beam cannot read them; it says why"),
    ],
)
def test_wrong_runners_and_options(tmp_path: Path, run: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        CASE.convert(reference(CASE).inputs, tmp_path / "out", **run)


HELD = """
import sys, time
from tests.conversions import conversion, stage
from windrow.converters.job.job import carry_out

def work(folder, item, report):
    print("at work", flush=True)
    time.sleep(600)

carry_out(conversion(stage(range(9), work)), sys.argv[1], pipeline_options=[])
"""


def test_ctrl_c_is_ctrl_c(tmp_path: Path) -> None:
    with Program(tmp_path, ["-c", HELD, str(tmp_path / "out")]) as program:
        program.says("at work")
        program.send_all(signal.SIGINT)
        program.ends(-signal.SIGINT)
        assert program.errors.rstrip().endswith("KeyboardInterrupt")
        assert "ConversionError" not in program.errors


# --- a Dask cluster of two worker processes ------------------------------------------------------

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
