"""The benchmarks run, and every side delivers the same records. What the figures are is not tested."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import benchmarks.__main__
from benchmarks import cases, criteria, data, functions, memory, process, report, timing
from benchmarks.cases import CASES, SIDES, Case, Measured, Side
from benchmarks.criteria import Criterion, Verdict
from benchmarks.data import Data
from benchmarks.grids import DTYPES
from benchmarks.job import WHOLE, Job, Work

pytestmark = pytest.mark.jobs

AnyArray = npt.NDArray[Any]

PAGE = Path(__file__).parents[1] / "docs" / "measurements.md"
GROUPS = list(dict.fromkeys(case.group for case in CASES))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Data:
    small = data.small(str(tmp_path_factory.mktemp("stores")))
    for layout in data.LAYOUTS:
        if layout != "arrow" or importlib.util.find_spec("datasets"):
            data.write(small, layout)
    return small


def job_of(case: Case, side: Side, stores: Data) -> Job:
    share = case.resident_share
    return Job(stores, case.layout, case.order, side.module, side.option, share, small=True)


def settings_of(job: Job) -> list[str]:
    """The settings a side tries for that job; a side without any has one without a name."""
    module = importlib.import_module(f"benchmarks.{job.module}")
    tried = [job.option] if job.option or job.module == "ours" else list(module.options(job))
    return tried or [""]


def rows_of(batches: Iterator[Any], job: Job) -> AnyArray:
    """What came, as rows."""
    dtype = np.dtype(DTYPES.get(job.layout.partition("_")[0], "uint8"))
    shaped = [
        np.frombuffer(b"".join(batch), dtype) if isinstance(batch, list) else np.asarray(batch)
        for batch in batches
    ]
    return np.concatenate([rows.reshape(-1, job.record_bytes // dtype.itemsize) for rows in shaped])


def sorted_rows(rows: AnyArray) -> AnyArray:
    return rows[np.lexsort(rows.T[::-1])]


PAIRS = [
    pytest.param(case, SIDES[name], id=f"{case.name}-{name}")
    for case in CASES
    for name in case.sides
    if case.has_store and case.layout not in WHOLE and name != "floor"
]


@pytest.mark.parametrize(("case", "side"), PAIRS)
def test_every_side_delivers_the_records(case: Case, side: Side, stores: Data) -> None:
    if side.missing:
        pytest.skip(side.missing)
    job = job_of(case, side, stores)
    written = stores.all_rows(case.layout)
    written = np.concatenate([written.reshape(len(written), -1)] * job.epochs)
    for setting in settings_of(job):
        work = process.opened(dataclasses.replace(job, option=setting))
        came = rows_of(iter(work.open()), job)
        assert came.dtype == written.dtype
        np.testing.assert_array_equal(sorted_rows(came), sorted_rows(written))
        if case.order == "in order":
            np.testing.assert_array_equal(came, written)
        else:
            assert not np.array_equal(came, written)


IN_MEMORY = [
    pytest.param(case, SIDES[name], id=f"{case.name}-{name}")
    for case in CASES
    for name in case.sides
    if case.layout in ("slow", "start", "large", "compact")
]


@pytest.mark.parametrize(("case", "side"), IN_MEMORY)
def test_every_side_delivers_what_is_in_memory(case: Case, side: Side, stores: Data) -> None:
    if side.missing:
        pytest.skip(side.missing)
    job = job_of(case, side, stores)
    written = np.concatenate([job.kept.rows()] * job.kept.epochs)
    wanted = functions.scaled(written) if case.layout == "start" else written
    for setting in settings_of(job):
        work = process.opened(dataclasses.replace(job, option=setting))
        # Some sides use the memory of a batch again.
        came = [np.asarray(batch).copy() for batch in work.open()]
        assert {len(batch) for batch in came} == {job.batch_size}
        np.testing.assert_array_equal(np.concatenate(came), wanted)


VERIFY = [
    pytest.param(case, SIDES[name], id=f"{case.name}-{name}")
    for case in CASES
    for name in case.sides
    if case.layout.startswith("verify")
]


@pytest.mark.parametrize(("case", "side"), VERIFY)
def test_every_side_goes_through_all_records(case: Case, side: Side, stores: Data) -> None:
    figures = process.ask("measure", job_of(case, side, stores))
    assert figures["delivered"] == stores.records
    assert figures["mb_per_s"] > 0


def test_verifying_what_is_bad_is_an_error_not_a_figure(stores: Data, tmp_path: Path) -> None:
    copied = dataclasses.replace(stores, folder=str(tmp_path))
    shutil.copytree(stores.path("verify"), copied.path("verify"))
    job = job_of(cases.chosen(["convert.verify"])[0], SIDES["ours"], copied)
    next(Path(copied.path("verify")).glob("*.array_record*")).unlink()
    with pytest.raises(RuntimeError, match="it is not there"):
        process.ask("measure", job)


def test_memory_of_children_counts() -> None:
    child = "import os; kept = bytes(os.urandom(1)) * 60_000_000; print(flush=True); input()"
    watch = memory.Watch()
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process_of_its_own:
        assert process_of_its_own.stdout is not None
        process_of_its_own.stdout.readline()
        found = watch.stop()
        process_of_its_own.communicate(b"\n")
    assert 60_000_000 <= found < 120_000_000


@pytest.mark.parametrize("layout", [case.layout for case in CASES if "floor" in case.sides])
@pytest.mark.parametrize("order", data.ORDERS)
def test_floor_decompresses_every_record(layout: str, order: str, stores: Data) -> None:
    if layout in WHOLE:
        pytest.skip("it is no epoch of records")
    job = Job(stores, layout, order, "floor", small=True)
    for setting in settings_of(job):
        work = process.opened(dataclasses.replace(job, option=setting))
        came = sum(len(batch) if work.batched else 1 for batch in work.open())
        assert came == job.records


@pytest.mark.parametrize("group", GROUPS)
def test_tiny_run_of_every_case(group: str, tmp_path: Path) -> None:
    told, page = tmp_path / "run.json", tmp_path / "run.md"
    files = ["--json", str(told), "--markdown", str(page)]
    assert benchmarks.__main__.main([group, "--small", "--repeats", "1", *files]) == 0
    run = json.loads(told.read_text())
    wanted = {case.name: case for case in cases.chosen([group])}
    assert run["skipped"] == list(
        dict.fromkeys(
            SIDES[s].missing for c in wanted.values() for s in c.sides if SIDES[s].missing
        )
    )
    for name, case in wanted.items():
        found = {result["side"]: result for result in run["results"] if result["case"] == name}
        for side in case.sides:
            if SIDES[side].missing:
                continue
            single = {"checkpoint": "first_batch_ms", "start": "first_batch_ms"}
            single["far_files"] = "open_ms"
            figure = single.get(case.layout, "records_per_s")
            assert found[side][figure]["median"] > 0
            if case.layout.startswith("far_"):
                assert found[side]["requests"]["median"] > 0
    assert "A tiny run: its figures say nothing." in page.read_text()
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        assert len({len(line) for line in table.splitlines()}) == 1


def test_index_shuffle_and_import_are_cases_too(tmp_path: Path) -> None:
    told = tmp_path / "run.json"
    arguments = ["orders", "import", "--small", "--repeats", "1", "--json", str(told)]
    assert benchmarks.__main__.main(arguments) == 0
    run = json.loads(told.read_text())
    assert run["results"] == run["criteria"] == []
    assert {other["case"] for other in run["others"]} == {"orders", "import"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zar", "--small"], r"no such case: zar; choose from array_record, zarr"),
        (["zarr", "--repeats", "0"], r"--repeats must be at least 1, got 0"),
        (["zarr", "--records", "0"], r"--records must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmarks.__main__.main(arguments)
    assert re.search(message, capsys.readouterr().err)


def test_measurement_has_a_process_of_its_own(stores: Data) -> None:
    case = cases.chosen(["zarr.block"])[0]
    job = dataclasses.replace(job_of(case, SIDES["expert"], stores), small=False)
    tried = process.ask("tune", job)["tried"]
    assert set(tried) == {"1 ahead", "2 ahead", "4 ahead", "8 ahead"}
    assert min(tried.values()) > 0
    figures = process.ask("measure", dataclasses.replace(job, option="2 ahead"))
    assert figures["delivered"] == stores.records
    assert {name: figures[name] for name in figures if figures[name] < 0} == {}
    assert figures["mb_per_s"] * 1e6 == pytest.approx(
        figures["records_per_s"] * stores.record_bytes
    )


def test_side_that_fails_shows_why(tmp_path: Path) -> None:
    case = cases.chosen(["zarr.order"])[0]
    empty = data.small(str(tmp_path))
    job = dataclasses.replace(job_of(case, SIDES["ours"], empty), small=False)
    with pytest.raises(RuntimeError, match=r"(?s)ours, zarr, in order, .*failed.*Error"):
        process.ask("measure", job)


def test_run_goes_on_without_a_side_that_fails(tmp_path: Path) -> None:
    said: list[str] = []
    empty = dataclasses.replace(data.small(str(tmp_path)), records=0)
    case = dataclasses.replace(cases.chosen(["chain.range"])[0], layout="zarr", sides=("ours",))
    run = cases.Run([case], empty, repeats=2, is_small=False, say=said.append)
    assert len(list(run.go())) == run.steps == 2
    assert run.failed
    assert run.skipped == ["ours is left out of chain.range: it failed"]
    assert "zarr" in said[0]


def numbers(length: int, *, delivered: int) -> tuple[Work, Job]:
    small = dataclasses.replace(data.small(""), elements=length)
    job = Job(small, "numbers", "in order", "ours", small=True)
    return Work(lambda: ([n] for n in range(delivered))), job


def test_lost_record_is_an_error_not_a_figure() -> None:
    work, job = numbers(4, delivered=3)
    with pytest.raises(RuntimeError, match=r"3 of 4 records came"):
        timing.measure(work, job, limit_s=60)


def test_slow_epoch_ends_at_the_limit() -> None:
    work, job = numbers(4, delivered=4)
    figures = timing.measure(work, job, limit_s=0)
    assert figures["delivered"] == 1
    assert figures["records_per_s"] > 0
    # The clock starts behind the first batch where there are processes to start.
    figures = timing.measure(dataclasses.replace(work, workers=True), job, limit_s=0)
    assert figures["delivered"] == 2


def measured(case: str, side: str, *values: float, metric: str = "records_per_s") -> Measured:
    return Measured(case, side, "", tuple({metric: value} for value in values), {})


def test_ratios_are_taken_within_a_round() -> None:
    results = [
        measured("zarr.block", "ours", 8, 30, 90),
        measured("zarr.block", "floor", 10, 20, 100),
        measured("zarr.block", "expert", 8, 30, 90),
    ]
    found = {verdict.criterion.over: verdict for verdict in criteria.judged(results)}
    assert set(found) == {"floor", "expert"}
    assert found["floor"].values == (0.8, 1.5, 0.9)
    assert found["floor"].median == 0.9
    assert found["floor"].is_met
    assert not found["expert"].is_met


def test_worst_case_counts_where_none_is_named() -> None:
    results = [
        measured("zarr.block", "ours", 1_500, 1_200, 1_300, metric="first_batch_ms"),
        measured("zarr.global", "ours", 50, 60, 2_000, metric="first_batch_ms"),
    ]
    (found,) = criteria.judged(results)
    assert (found.case, found.median, found.is_met) == ("zarr.block", 1_300, False)


def test_first_batch_of_worker_processes_is_judged_by_itself() -> None:
    results = [
        measured("workers.start", "ours", 1_400, metric="first_batch_ms"),
        measured("workers.start", "Grain", 2_000, metric="first_batch_ms"),
        measured("zarr.global", "ours", 50, metric="first_batch_ms"),
    ]
    found = [(verdict.case, verdict.median) for verdict in criteria.judged(results)]
    assert found == [("zarr.global", 50), ("workers.start", 0.7), ("workers.start", 1_400)]


def test_memory_is_judged_without_the_budget() -> None:
    rounds = ({"memory_mb": 200.0, "budget_mb": 60.0}, {"memory_mb": 220.0, "budget_mb": 60.0})
    (found,) = criteria.judged([Measured("zarr.budget", "ours", "", rounds, {})])
    assert found.values == (140, 160)
    assert found.is_met


def test_criteria_name_cases_and_sides_that_exist() -> None:
    sides = {case.name: {*case.sides, ""} for case in CASES} | {"": {""}}
    assert [c for c in criteria.CRITERIA if c.over not in sides[c.case]] == []
    assert [c for c in criteria.CRITERIA if (c.at_least is None) == (c.at_most is None)] == []


def test_table_shows_what_is_not_met() -> None:
    criterion = Criterion("zarr.block", "of the floor", over="floor", at_least=0.8)
    verdicts = [Verdict(criterion, "zarr.block", (0.5, 0.7, 0.6))]
    sizes = {**dataclasses.asdict(data.small("")), "repeats": 3, "is_small": False}
    run = report.document(
        [], verdicts, [], where="here", skipped=["torch is left out"], sizes=sizes
    )
    text = report.markdown(json.loads(json.dumps(run)))
    assert re.search(
        r"`zarr.block` +\| of the floor +\| +≥ 0.8 \| +0.6 \(0.5 to 0.7\) \| \*\*no\*\*", text
    )
    assert "- torch is left out" in text


def test_tables_take_their_place_in_a_page() -> None:
    page = "# Speed\n\n<!-- tables of the last run -->\nold\n<!-- end of the tables -->\n\nmore\n"
    once = report.placed("new\n", page)
    assert once == page.replace("\nold\n", "\n\nnew\n\n")
    assert report.placed("new\n", once) == once
    assert report.placed("new\n", "# No marks\n") == "new\n"


@pytest.mark.parametrize("order", data.ORDERS)
@pytest.mark.parametrize("layout", ["zarr", "tokens"])
def test_orders_are_permutations(order: str, layout: str, stores: Data) -> None:
    epoch = stores.order(layout, order)
    assert sorted(epoch.tolist()) == list(range(stores.count(layout)))
    if order == "block shuffle":
        at = 0
        for group in stores.block_groups(layout):
            records = np.concatenate(group)
            assert len(group) <= stores.window_blocks
            assert set(epoch[at : at + len(records)].tolist()) == set(records.tolist())
            at += len(records)


def test_sizes_and_jobs_survive_json(stores: Data) -> None:
    assert Data.loads(stores.dumps()) == stores
    job = job_of(cases.chosen(["zarr.quarter"])[0], SIDES["Grain"], stores)
    assert Job.loads(job.dumps()) == job
    assert job.resident_bytes == stores.records * stores.record_bytes // 4


def test_every_case_is_told_of() -> None:
    names = [case.name for case in CASES] + ["orders", "import"]
    text = PAGE.read_text()
    assert [name for name in names if f"`{name}`" not in text] == []
