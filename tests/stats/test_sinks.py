"""Sinks of stats, tried with the real packages of the systems that they report to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event

from tests.laid_out import pieced
from windrow import DatasetIterator, MapDataset, sinks
from windrow.errors import ArgumentError

RECORDS, CHUNK = 100, 10


def stream() -> DatasetIterator[Any]:
    chain = MapDataset.source(pieced(RECORDS, CHUNK)).map(np.negative).batch(10)
    iterator: DatasetIterator[Any] = iter(chain)
    return iterator


def events(folder: Path) -> list[Any]:
    """The events of TensorBoard files: each is a length, a checksum, an event and a checksum."""
    found = []
    for file in sorted(folder.iterdir()):
        data, at = file.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            found.append(Event.FromString(data[at + 12 : at + 12 + size]))
            at += 16 + size
    return found


def test_metrics_are_the_numbers_of_the_stats() -> None:
    iterator = stream()
    before = sinks.metrics_of(iterator.stats())
    assert before["elements"] == before["waited_share"] == 0.0
    list(iterator)
    stats = iterator.stats()
    found = sinks.metrics_of(stats)
    assert found["elements"] == 10
    assert found["records"] == RECORDS
    assert found["reads"] == RECORDS / CHUNK
    assert found["waited_s"] == stats.waited_s
    assert found["waited_share"] == stats.waited_s / stats.passed_s
    assert found["mapping_s"] == sum(stats.mapping_s.values()) > 0
    assert all(math.isfinite(value) for value in found.values())


def test_no_sources_have_no_costs() -> None:
    iterator = iter(MapDataset.range(3))
    list(iterator)
    assert "reads" not in sinks.metrics_of(iterator.stats())


def test_bad_records_are_counted_where_they_may_be() -> None:
    numbers = MapDataset.source(["1", "two", "3", "four"]).map(int)
    found = []
    for dataset in (numbers.on_bad("skip"), numbers.slice([0])):
        with iter(dataset) as iterator:
            list(iterator)
            found.append(sinks.metrics_of(iterator.stats()).get("bad_records"))
    assert found == [2, None]


def test_tensorboard_gets_scalars_at_the_step_of_the_loop(tmp_path: Path) -> None:
    steps = iter([3, 7])
    with SummaryWriter(str(tmp_path)) as writer:
        iterator = stream()
        sink = sinks.tensorboard(writer, step=lambda: next(steps), prefix="loader")
        sink(iterator.stats())
        list(iterator)
        sink(iterator.stats())
    scalars = {
        (value.tag, event.step): value.simple_value
        for event in events(tmp_path)
        for value in event.summary.value
    }
    assert scalars["loader/elements", 3] == 0
    assert scalars["loader/elements", 7] == 10


def test_tensorboard_of_flax_is_called_scalar() -> None:
    class Writer:
        def __init__(self) -> None:
            self.found: list[tuple[str, float, int]] = []

        def scalar(self, tag: str, value: float, step: int) -> None:
            self.found.append((tag, value, step))

    writer, iterator = Writer(), stream()
    iterator.on_stats(sinks.tensorboard(writer))
    list(iterator)
    assert ("windrow/elements", 10.0, 10) in writer.found


def test_prometheus_serves_gauges_with_labels() -> None:
    registry, iterator = prometheus_client.CollectorRegistry(), stream()
    sink = sinks.prometheus(registry, labels={"host": "3"})
    sink(iterator.stats())
    list(iterator)
    sink(iterator.stats())
    assert registry.get_sample_value("windrow_elements", {"host": "3"}) == 10
    assert registry.get_sample_value("windrow_reads", {"host": "3"}) == RECORDS / CHUNK


def test_prometheus_writes_a_file_that_its_own_parser_reads(tmp_path: Path) -> None:
    iterator = stream()
    iterator.on_stats(sinks.prometheus(path=tmp_path / "loader.prom"), every_s=0)
    list(iterator)
    text = (tmp_path / "loader.prom").read_text()
    found = {
        family.name: family.samples[0].value for family in text_string_to_metric_families(text)
    }
    assert found["windrow_elements"] == 10
    assert found["windrow_delivered_bytes"] == iterator.stats().delivered_bytes
    assert [file.name for file in tmp_path.iterdir()] == ["loader.prom"]


def test_a_file_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "later"
    iterator = stream()
    sink = sinks.prometheus(path=folder / "loader.prom")
    iterator.on_stats(sink, every_s=0)
    assert len(list(iterator)) == 10
    assert caplog.text.count("sinks.prometheus: cannot write path=") == 1
    folder.mkdir()
    sink(iterator.stats())
    assert "windrow_elements 10.0" in (folder / "loader.prom").read_text()
    (folder / "loader.prom").unlink()
    folder.rmdir()
    sink(iterator.stats())  # it is reported again
    assert caplog.text.count("sinks.prometheus: cannot write path=") == 2


def test_opentelemetry_reads_the_last_values() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("training")
    iterator = stream()
    iterator.on_stats(sinks.opentelemetry(meter, {"host": "3"}), every_s=0)
    list(iterator)
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    points = {metric.name: metric.data.data_points[0] for metric in scope.metrics}
    assert points["windrow.elements"].value == 10  # type: ignore[union-attr]
    assert points["windrow.elements"].attributes == {"host": "3"}


def test_wandb_logs_beside_the_step_of_the_loop() -> None:
    class Run:
        def __init__(self) -> None:
            self.found: list[tuple[dict[str, float], bool]] = []

        def log(self, data: dict[str, float], *, commit: bool) -> None:
            self.found.append((data, commit))

    run, iterator = Run(), stream()
    iterator.on_stats(sinks.wandb(run))
    list(iterator)
    ((data, commit),) = run.found
    assert data["windrow/elements"] == 10
    assert not commit


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (sinks.tensorboard, r"tensorboard: writer must have a method add_scalar.* got int"),
        (sinks.wandb, r"wandb: run must be what wandb.init\(\) returned, got int"),
        (sinks.opentelemetry, r"opentelemetry: meter must have a method create_gauge, got int"),
    ],
)
def test_what_is_not_of_the_system_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(1)
