"""`explain(sharding=...)` over devices of several processes, which here are names alone."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from windrow import DatasetIterator, MapDataset
from windrow.explain.explanation import AcrossProcesses
from windrow.jax_dataset import JaxDataset
from windrow.sources import ZarrDataSource
from windrow.stats.costs import Amount

P: Any = PartitionSpec


class _Client:
    """What JAX asks of the client of a device."""

    platform = "cpu"

    def process_index(self) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class _Device:
    id: int
    process_index: int
    client: Any = dataclasses.field(compare=False)
    platform: str = "cpu"
    device_kind: str = "cpu"


def mesh(processes: int, each: int = 1, *axes: tuple[str, int]) -> Mesh:
    """A mesh of devices of several processes, by default along one axis 'data'."""
    count, client = processes * each, _Client()
    devices: Any = np.array([_Device(n, n // each, client) for n in range(count)])
    names = axes or (("data", count),)
    return Mesh(devices.reshape([size for _, size in names]), [name for name, _ in names])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 chunks of 8 rows."""
    place = tmp_path_factory.mktemp("rows") / "rows.zarr"
    zarr.create_array(
        store=place, data=np.arange(512 * 4, dtype="f4").reshape(512, 4), chunks=(8, 4)
    )
    return place


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 fields of 4 by 4 chunks."""
    place = tmp_path_factory.mktemp("fields") / "fields.zarr"
    data = np.arange(12 * 16 * 16, dtype="f4").reshape(12, 16, 16)
    zarr.create_array(store=place, data=data, chunks=(1, 4, 4))
    return place


def source(place: Path) -> MapDataset[Any]:
    return MapDataset.source(ZarrDataSource(place))


def described(dataset: Any, sharding: Any) -> AcrossProcesses:
    found = dataset.explain(sharding=sharding).across
    assert isinstance(found, AcrossProcesses)
    return found


def read_by(dataset: Any, sharding: Any, process: int) -> dict[str, float]:
    """What one of the processes reads, measured by its chain."""
    shared: JaxDataset = dataset.to_jax(sharding)
    with DatasetIterator[Any](shared._chain_of(shared._written, process)) as batches:
        for _ in batches:
            pass
        stats = batches.stats()
        (costs,) = stats.sources
    assert costs.decoded_bytes is not None
    return {
        "held_bytes": stats.peak_buffers_bytes,
        "records": costs.records.high,
        "chunks": costs.chunks.high,
        "reads": costs.reads.high,
        "decoded_bytes": costs.decoded_bytes.high,
    }


def check(dataset: Any, sharding: Any) -> AcrossProcesses:
    """What is said of each process is what it reads."""
    found = described(dataset, sharding)
    for process in found.processes:
        (costs,) = process.epoch
        counted = read_by(dataset, sharding, process.process)
        assert 0 < counted.pop("held_bytes") <= process.buffers.high
        for name, number in counted.items():
            assert number in getattr(costs, name), (process, name)
    return found


@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_each_process_reads_what_is_said(rows: Path, data: st.DataObject) -> None:
    processes = data.draw(st.sampled_from([2, 3, 4]), "processes")
    each = data.draw(st.sampled_from([1, 2]), "devices of a process")
    sharding = NamedSharding(mesh(processes, each), P(data.draw(st.sampled_from(["data", None]))))
    order = data.draw(st.sampled_from(["as stored", "shuffle", "block_shuffle", "lanes"]), "order")
    dataset: Any = source(rows)
    if order == "shuffle":
        dataset = dataset.shuffle(seed=1)
    elif order != "as stored":
        dataset = dataset.block_shuffle(seed=1, window_blocks=4)
    if order == "lanes":
        dataset = dataset.to_iter_dataset(lanes=processes * each)
    found = check(dataset.batch(processes * each * 4, remainder="drop"), sharding)
    assert [process.process for process in found.processes] == list(range(processes))


def test_processes_end_with_the_shortest_lane(rows: Path) -> None:
    # 64 blocks are dealt to 6 lanes: the first four have 11 of 8 rows each, the others 10.
    lanes = source(rows).block_shuffle(seed=1, window_blocks=4).to_iter_dataset(lanes=6)
    dropped = check(lanes.batch(24, remainder="drop"), NamedSharding(mesh(3, 2), P("data")))
    first, second, third = (process.epoch[0].records for process in dropped.processes)
    assert first == second
    assert not first.is_exact  # what is read ahead of the end depends on the read batches
    assert 176 in first
    assert 160 in third
    padded = lanes.batch(24, remainder="pad", mask="real")
    kept = check(padded, NamedSharding(mesh(3, 2), P("data")))
    assert [process.epoch[0].records for process in kept.processes] == [
        *2 * [Amount.exactly(176)],
        Amount.exactly(160),
    ]


def test_boxes_of_each_process(fields: Path) -> None:
    dataset = source(fields).shuffle(seed=1).batch(4)
    halves = check(dataset, NamedSharding(mesh(4, 1, ("data", 2), ("lat", 2)), P("data", "lat")))
    assert [process.epoch[0].chunks.high for process in halves.processes] == [6 * 8] * 4
    assert halves.times_read == (Amount.exactly(1),)
    # Parts of 16 / 8 = 2 rows lie two in a chunk: each chunk is read by two processes.
    eighths = check(dataset, NamedSharding(mesh(8, 1, ("lat", 8)), P(None, "lat")))
    assert eighths.times_read == (Amount.exactly(2),)
    (costs,) = eighths.processes[3].epoch
    assert costs.decoded_per_delivered is not None
    assert costs.decoded_per_delivered.high == 2


def test_lanes_are_advised_and_then_each_chunk_is_read_once(rows: Path) -> None:
    sharding = NamedSharding(mesh(4, 2), P("data"))
    before = source(rows).block_shuffle(seed=1).batch(32)
    (advice,) = before.explain(sharding=sharding).advice
    assert (advice.kind, advice.node) == ("lanes", 3)
    assert str(advice) == (
        "4 processes read each chunk 3.55 times in all, and decode 3.55 times the bytes of one process"
        " alone: to_iter_dataset(lanes=8) before the batch, or a multiple of 8 lanes (each chunk is read"
        " by one process)"
    )
    for order in (source(rows).shuffle(seed=1), source(rows).window_shuffle(64, seed=1)):
        kinds = list(order.batch(32).explain(sharding=sharding).advice)
        assert [each.kind for each in kinds] == ["lanes"]
        assert "use block_shuffle in place of" in kinds[0].do
    after = source(rows).block_shuffle(seed=1).to_iter_dataset(lanes=8).batch(32)
    explanation = after.explain(sharding=sharding)
    assert not explanation.advice
    assert check(after, sharding).times_read == (Amount.exactly(1),)


def test_lanes_are_not_advised_in_vain(rows: Path, fields: Path) -> None:
    rows_of_all = NamedSharding(mesh(4), P(None))
    assert not source(rows).block_shuffle(seed=1).batch(32).explain(sharding=rows_of_all).advice
    own = NamedSharding(mesh(4), P("data"))
    assert not source(rows).batch(32).explain(sharding=own).advice  # in order
    few = source(rows)[:16].block_shuffle(seed=1).batch(16)  # fewer blocks than lanes
    assert not few.explain(sharding=own).advice
    latitudes = NamedSharding(mesh(8, 1, ("lat", 8)), P(None, "lat"))
    assert not source(fields).batch(4).explain(sharding=latitudes).advice


@pytest.mark.parametrize("processes", [9, 64])
def test_of_many_processes_some_are_run(rows: Path, processes: int) -> None:
    dataset = source(rows).block_shuffle(seed=1).batch(2 * processes, remainder="drop")
    found = described(dataset, NamedSharding(mesh(processes), P("data")))
    numbers = [process.process for process in found.processes]
    assert (len(numbers), numbers[0], numbers[-1]) == (7, 0, processes - 1)
    assert found.count == processes
    (records,) = (costs.records for costs in found.epoch)
    assert math.isclose(records.middle, 512, rel_tol=0.15)


def test_no_record_is_read_for_the_leaves_of_others() -> None:
    read = []

    def noted(n: int) -> dict[str, int]:
        read.append(n)
        return {"n": n}

    dataset = MapDataset.range(64).map(noted).batch(16)
    shared = dataset.to_jax(lambda path: NamedSharding(mesh(4), P("data")))
    before = len(read)
    assert shared.explain().across is not None
    assert len(read) == before > 0
