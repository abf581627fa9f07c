"""Mixtures of many stores share the threads and the memory of one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from array_record.python.array_record_module import ArrayRecordWriter

from windrow import IterDataset, MapDataset
from windrow.core.machine import usable_cores
from windrow.sources import ArrayRecordDataSource, ZarrDataSource

COMPONENTS = 40
RECORDS = 200
BATCHES = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


def write_stores(folder: Path, stored: str) -> list[Path]:
    """Write small stores of one format, of 20 chunks or groups each."""
    paths = [folder / f"{stored}-{number}" for number in range(COMPONENTS)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        rows = np.arange(RECORDS * 64, dtype=np.int32).reshape(-1, 64) + number
        if stored == "zarr":
            zarr.create_array(str(path), data=rows, chunks=(RECORDS // 20, 64))
            continue
        writer = ArrayRecordWriter(str(path), f"group_size:{RECORDS // 20}")
        for row in rows:
            writer.write(row.tobytes())
        writer.close()
    return paths


def mixture(paths: list[Path], mixed: str) -> IterDataset[Any]:
    """A mixture of shuffled stores, of streams or of datasets, in batches of 64."""
    opened: Any = ZarrDataSource if paths[0].is_dir() else ArrayRecordDataSource
    parts = [MapDataset.source(opened(str(path))).shuffle(seed=1).repeat() for path in paths]
    weights = list(range(1, len(parts) + 1))
    if mixed == "map":
        return MapDataset.mix(parts, weights).batch(64).to_iter_dataset()
    return IterDataset.mix([part.to_iter_dataset() for part in parts], weights).batch(64)


def facts(paths: list[Path], mixed: str) -> tuple[int, int, Any]:
    """The most threads that a mixture has, the most bytes that it holds, and the first batch."""
    before = threading.active_count()
    with iter(mixture(paths, mixed)) as iterator:
        first = next(iterator)
        threads = threading.active_count() - before
        for _ in range(BATCHES):
            next(iterator)
            threads = max(threads, threading.active_count() - before)
        return threads, iterator.stats().peak_buffers_bytes, first


@pytest.mark.parametrize("mixed", ["iter", "map"])
@pytest.mark.parametrize("stored", ["zarr", "array_record"])
def test_many_components_have_the_threads_of_one(stored: str, mixed: str, folder: Path) -> None:
    paths = write_stores(folder, stored)
    alone, held, _ = facts(paths[:1], mixed)
    threads, bytes_held, first = facts(paths, mixed)
    # Those of the decoding pool start one by one, when there is work for them.
    assert threads <= max(alone, 1 + usable_cores())
    assert len(first) == 64
    assert bytes_held - held <= (COMPONENTS - 1) << 23
