"""The simulation of thousands of hosts: plans that do not grow with them, and its page."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from benchmarks import hosts
from windrow import MapDataset

TINY = {kind: hosts.Run(kind, 16, records=200_000, warm=3, steps=3) for kind in hosts.KINDS}


def planned(kind: hosts.Kind, count: int) -> float:
    """The records whose places are computed for a step of the last of some processes.

    How far it reads ahead depends on what else the machine does: the least of three runs has no more than it needs.
    """
    run, found = dataclasses.replace(TINY[kind], hosts=count, records=100_000_000), list[float]()
    for _ in range(3):
        dataset = hosts.dataset(run, MapDataset.source(hosts.Store(run)))
        with iter(dataset.shard(count - 1, count)) as batches:
            for _ in range(4):
                next(batches)
            (costs,) = batches.stats().sources
        found.append(costs.records.high)
    return min(found)


@pytest.mark.jobs
@pytest.mark.parametrize("kind", hosts.KINDS)
def test_the_plan_of_a_step_does_not_grow_with_the_hosts(kind: hosts.Kind) -> None:
    assert planned(kind, 4_096) <= 1.2 * planned(kind, 16)


def test_all_cases_are_on_the_page() -> None:
    page = Path("docs/scaling.md").read_text(encoding="utf-8")
    table = page.split("<!-- hosts -->")[1].split("<!-- end of hosts -->")[0]
    for kind in hosts.KINDS:
        for count in hosts.HOSTS:
            row = re.compile(rf"^\| {kind} +\| +{count:,} \|", re.MULTILINE)
            assert row.search(table) or f"`hosts.{kind}, {count:,}`" in table
