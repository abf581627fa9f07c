"""Mixtures of many stores share the threads and the memory of one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mixture
from windrow.core.machine import usable_cores

COMPONENTS = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


def facts(case: mixture.Case, paths: list[str]) -> tuple[int, int, Any]:
    """The most threads that a mixture has, the most bytes that it holds, and the first batch."""
    before = threading.active_count()
    with iter(mixture.dataset(case, paths)) as iterator:
        first = next(iterator)
        threads = threading.active_count() - before
        for _ in range(case.batches):
            next(iterator)
            threads = max(threads, threading.active_count() - before)
        return threads, iterator.stats().peak_buffers_bytes, first


@pytest.mark.parametrize("case", mixture.CASES, ids=lambda case: f"{case.stored}-{case.mixed}")
def test_a_hundred_components_have_the_threads_of_one(case: mixture.Case, folder: Path) -> None:
    case = mixture.Case(case.stored, case.mixed, COMPONENTS, records=200, batches=200)
    paths = mixture.write_stores(folder, case)
    alone, held, _ = facts(case, paths[:1])
    threads, bytes_held, first = facts(case, paths)
    # Those of the decoding pool start one by one, when there is work for them.
    assert threads <= max(alone, 1 + usable_cores())
    assert len(first) == 64
    assert bytes_held - held <= (COMPONENTS - 1) << 20


def test_the_benchmark_runs() -> None:
    one, many = mixture.run(mixture.SMALL_CASES)
    assert (one["components"], many["components"]) == (1, 3)
    assert one["threads"] > 0
    assert many["batches_per_s"] > 0
