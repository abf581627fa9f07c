"""The simulation of thousands of hosts: what it counts in tiny cases, and its tables."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import hosts, hosts_pictures
from windrow import MapDataset

TINY = {
    kind: hosts.Case(kind, 16, records=200_000, warm=3, steps=3)
    for kind in ("global shuffle", "block shuffle", "lanes", "filtered lanes", "packed rows")
}


@pytest.mark.parametrize("kind", TINY)
def test_a_case_has_all_figures(kind: str) -> None:
    found = hosts.measured(TINY[kind])
    assert set(found) == set(hosts.Found.__annotations__)
    assert (found["kind"], found["hosts"]) == (kind, 16)
    assert found["plan_ms"] > 0
    assert found["first_reads"] > 0
    assert found["state_bytes"] < 1_000
    one_each = kind in ("lanes", "filtered lanes")
    assert (found["sharing"] == 1) == one_each
    assert (found["shared"] == 0) == one_each


def test_readers_of_chunks_are_counted() -> None:
    records = np.arange(3 * hosts.CHUNK_RECORDS)
    processes = records // (2 * hosts.CHUNK_RECORDS)  # one process has two chunks, another one
    assert hosts.counted_readers(records, processes, 2).tolist() == [1, 1, 1]
    processes[:10] = 1
    assert hosts.counted_readers(records, processes, 2).tolist() == [2, 1, 1]


def planned(kind: str, count: int) -> float:
    """The records whose places are computed for a step of the last of some processes.

    How far it reads ahead depends on what else the machine does: the least of three runs has no more than it needs.
    """
    case, found = dataclasses.replace(TINY[kind], hosts=count, records=100_000_000), list[float]()
    for _ in range(3):
        dataset = hosts.dataset(case, MapDataset.source(hosts.Store(case)))
        with iter(dataset.shard(count - 1, count)) as batches:
            for _ in range(4):
                next(batches)
            (costs,) = batches.stats().sources
        found.append(costs.records.high)
    return min(found)


@pytest.mark.parametrize("kind", ["global shuffle", "block shuffle", "lanes"])
def test_the_plan_of_a_step_does_not_grow_with_the_hosts(kind: str) -> None:
    assert planned(kind, 4_096) <= 1.2 * planned(kind, 16)


def test_all_chains_are_in_the_picture() -> None:
    assert set(hosts_pictures._COLOURS) == {case.kind for case in hosts.CASES}


def test_all_cases_are_on_the_page() -> None:
    page = Path("docs/scaling.md").read_text()
    measured, simulated = page.split("<!-- hosts -->")[1].split("Simulated, at one step")
    for case in hosts.CASES:
        row = re.compile(rf"^\| {case.kind} +\| +{case.hosts:,} \|", re.MULTILINE)
        assert len(row.findall(measured)) == len(row.findall(simulated)) == 1, case


@pytest.mark.jobs
def test_a_tiny_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert hosts.main(["--small"]) == 0
    lines = [
        json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")
    ]
    assert [line["kind"] for line in lines] == [case.kind for case in hosts.SMALL_CASES]
