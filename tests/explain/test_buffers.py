"""Compares predicted bytes of buffers with measured ones, where the loop is slower than the loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.full_queues import counted
from windrow import MapDataset, ReadOptions
from windrow.sources import ZarrDataSource
from windrow.stats.costs import Amount

SHORT = ReadOptions(prefetch_buffer_size=16)
ROWS = 4_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "chunks"
    rows = np.random.default_rng(0).integers(0, 50, (ROWS, 32)).astype("f4")
    zarr.create_array(str(path), data=rows, chunks=(40, 32))
    return path


def hundred(number: int) -> Any:
    """Return many bytes, which no spec declares."""
    return np.zeros(100)


def doubled(row: Any) -> Any:
    """Return twice the bytes of its argument, which no spec declares."""
    return row.astype("f8")


def chunks(path: Path) -> MapDataset[Any]:
    return MapDataset.source(ZarrDataSource(path))


def arrays(rows: int) -> MapDataset[Any]:
    return MapDataset.source(np.zeros((rows, 16)))


@pytest.mark.parametrize("make", [hundred, doubled])
def test_budgets_bound_what_nobody_tells(store: Path, make: Callable[[Any], Any]) -> None:
    below = MapDataset.range(4_000) if make is hundred else chunks(store)
    dataset = below.map(make).batch(32).to_iter_dataset(SHORT)
    explanation, stats = dataset.explain(), counted(dataset)
    for kind, size in stats.peak_by.items():
        assert size <= explanation.buffers_by[kind].high, kind
    assert any("what map" in line for line in explanation.unknown)


def test_little_is_planned_of_a_store_that_is_kept(tmp_path: Path) -> None:
    # 4 KiB of records: the memory has room for plans of millions of their epochs.
    zarr.create_array(str(tmp_path / "small"), data=np.arange(512), chunks=(64,))
    dataset = chunks(tmp_path / "small").shuffle(seed=1).batch(512).repeat().to_iter_dataset(SHORT)
    explanation, stats = dataset.explain(), counted(dataset.limit(1_000), 16)
    assert stats.peak_by["planned"] < 40 << 20
    assert stats.peak_buffers_bytes <= explanation.buffers.high


def test_small_chains_are_bounded_by_what_they_have() -> None:
    dataset = arrays(64).batch(8).repeat().to_iter_dataset(SHORT)
    assert dataset.explain().buffers_by["queue"] == Amount.exactly(16 * 8 * 128)
    once = arrays(64).batch(8).explain()
    assert once.buffers.high < 5 * 64 * 128
