"""Sinks: callbacks for `DatasetIterator.on_stats` that pass the numbers on to a monitoring system.

A sink takes an object of the system's own package: a writer, a run, a registry or a meter. Windrow
imports none of these packages, except prometheus_client to make the gauges of a registry.

Invariant: a sink reports `metrics_of` the stats and nothing else, under the same names everywhere.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Final

from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError
from windrow.stats.stats import Stats
from windrow.transforms.amounts import Amount

__all__ = ["metrics_of", "opentelemetry", "prometheus", "tensorboard", "wandb"]

_log = logging.getLogger("windrow.sinks")
# Fields of `SourceCosts`.
_COSTS: Final = ("records", "reads", "stored_bytes", "decoded_bytes", "delivered_bytes")


def metrics_of(stats: Stats) -> dict[str, float]:
    """The numbers of stats, by name.

    Args:
        stats: What an iterator has done so far.

    Returns:
        Totals since the iterator was made: `elements`, `delivered_bytes`, and the seconds `passed_s`,
        `waited_s`, `loop_s`, `reading_s`, `mapping_s` and `blocked_s`. `waited_share` is
        `waited_s / passed_s`, 0 before the first element. `buffers_bytes` is the memory of Windrow's
        own buffers now. `records`, `reads`, `stored_bytes`, `decoded_bytes` and
        `source_delivered_bytes` are sums over all sources, and left out where one is not known. With
        `on_bad` also `bad_records`, the sum of its nodes. With `mp_prefetch("auto")` also `workers`,
        the number that is chosen now. With remote sources also the figures of `Stats.requests`:
        `requests`, `retries`, `hedged`, `outage_s`, `at_once`, and as `request_p50_s`, `request_p95_s`
        and `request_p99_s` the times by percentile.

    Example:
        >>> import windrow
        >>> iterator = iter(windrow.MapDataset.range(10))
        >>> _ = list(iterator)
        >>> windrow.sinks.metrics_of(iterator.stats())["elements"]
        10.0
    """
    found = {
        "elements": stats.elements,
        "delivered_bytes": stats.delivered_bytes,
        "passed_s": stats.passed_s,
        "waited_s": stats.waited_s,
        "loop_s": stats.loop_s,
        "reading_s": stats.reading_s,
        "mapping_s": sum(stats.mapping_s.values()),
        "blocked_s": stats.blocked_s,
        "waited_share": stats.waited_s / stats.passed_s if stats.passed_s else 0.0,
        "buffers_bytes": stats.buffers_bytes,
    }
    for name in _COSTS if stats.sources else ():
        amounts: list[Amount | None] = [getattr(source, name) for source in stats.sources]
        known = [amount.middle for amount in amounts if amount is not None]
        if len(known) == len(amounts):
            found["source_delivered_bytes" if name == "delivered_bytes" else name] = sum(known)
    if stats.bad_records is not None:
        found["bad_records"] = sum(stats.bad_records.values())
    if stats.chosen:
        found["workers"] = sum(each.workers for each in stats.chosen)
    for name, value in (stats.requests or {}).items():
        found[f"request_{name}" if name.startswith("p") else name] = value
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def tensorboard(
    writer: Any, step: Callable[[], int] | None = None, prefix: str = "windrow"
) -> Callable[[Stats], None]:
    """A sink that writes scalars of TensorBoard.

    Args:
        writer: Has a method `add_scalar(tag, value, step)`, as the `SummaryWriter` of tensorboardX, of
            torch.utils.tensorboard and of flax.metrics.tensorboard (there it is called `scalar`).
        step: Returns the step of the training loop; by default the number of elements given so far.
        prefix: Tags are `prefix/name`.

    Raises:
        ArgumentError: If the writer has neither method.

    Example:
        >>> import windrow
        >>> class Writer:
        ...     def add_scalar(self, tag, value, step):
        ...         if tag == "windrow/elements":
        ...             print(tag, value, step)
        >>> iterator = iter(windrow.MapDataset.range(10))
        >>> iterator.on_stats(windrow.sinks.tensorboard(Writer()))
        >>> _ = list(iterator)
        windrow/elements 10.0 10
    """
    add = getattr(writer, "add_scalar", None) or getattr(writer, "scalar", None)
    if not callable(add):
        raise ArgumentError(
            "tensorboard: writer must have a method add_scalar(tag, value, step), or scalar, got"
            f" {type(writer).__name__}; give a SummaryWriter"
        )

    def sink(stats: Stats) -> None:
        at = stats.elements if step is None else step()
        for name, value in metrics_of(stats).items():
            add(f"{prefix}/{name}", value, at)

    return sink


def wandb(run: Any, prefix: str = "windrow") -> Callable[[Stats], None]:
    """A sink that logs to a run of Weights & Biases.

    The numbers belong to the step that the training loop logs next (`commit=False`), so they do not
    move the run's step forward.

    Args:
        run: What `wandb.init()` returned.
        prefix: Keys are `prefix/name`.

    Raises:
        ArgumentError: If the run has no method `log`.
    """
    log = getattr(run, "log", None)
    if not callable(log):
        raise ArgumentError(
            f"wandb: run must be what wandb.init() returned, got {type(run).__name__}"
        )

    def sink(stats: Stats) -> None:
        log({f"{prefix}/{name}": value for name, value in metrics_of(stats).items()}, commit=False)

    return sink


def prometheus(
    registry: Any = None, path: Any = None, labels: dict[str, str] | None = None
) -> Callable[[Stats], None]:
    """A sink that sets gauges of Prometheus, named `windrow_NAME`.

    Args:
        registry: A `prometheus_client.CollectorRegistry`, by default a new one with `path`, else the
            registry that prometheus_client serves. Each registry takes one sink.
        path: A file that gets the registry as text each time, for the textfile collector of the node
            exporter. It is replaced as a whole, so that no reader sees half of it. If it cannot be
            written, a warning is logged and the run continues.
        labels: Names and values of labels that all gauges have, such as `{"host": "3"}`.

    Raises:
        MissingExtraError: If prometheus_client is not installed.

    Example:
        >>> import windrow
        >>> iterator = iter(windrow.MapDataset.range(10))
        >>> iterator.on_stats(windrow.sinks.prometheus(path="loader.prom"))
        >>> _ = list(iterator)
        >>> "windrow_elements 10.0" in open("loader.prom").read().splitlines()
        True
    """
    client = optional("prometheus_client", "sinks.prometheus", "prometheus")
    if registry is None:
        registry = client.REGISTRY if path is None else client.CollectorRegistry()
    names, values = list(labels or {}), list((labels or {}).values())
    gauges: dict[str, Any] = {}
    is_unwritten = False

    def sink(stats: Stats) -> None:
        nonlocal is_unwritten
        for name, value in metrics_of(stats).items():
            if name not in gauges:
                gauge = client.Gauge(f"windrow_{name}", _meaning(name), names, registry=registry)
                gauges[name] = gauge.labels(*values) if names else gauge
            gauges[name].set(value)
        if path is None:
            return
        try:
            client.write_to_textfile(str(path), registry)
        except OSError as error:  # a full disk does not end the run
            if not is_unwritten:
                _log.warning("sinks.prometheus: cannot write path=%r: %s", str(path), error)
            is_unwritten = True
        else:
            is_unwritten = False

    return sink


def opentelemetry(meter: Any, attributes: dict[str, str] | None = None) -> Callable[[Stats], None]:
    """A sink that sets gauges of OpenTelemetry, named `windrow.NAME`.

    Args:
        meter: A `Meter` of `opentelemetry.metrics`, which has a method `create_gauge`.
        attributes: Attributes that all gauges have, such as `{"host": "3"}`.

    Raises:
        ArgumentError: If the meter has no method `create_gauge`.
    """
    create = getattr(meter, "create_gauge", None)
    if not callable(create):
        raise ArgumentError(
            "opentelemetry: meter must have a method create_gauge, got"
            f" {type(meter).__name__}; give what opentelemetry.metrics.get_meter(name) returns"
        )
    gauges: dict[str, Any] = {}

    def sink(stats: Stats) -> None:
        for name, value in metrics_of(stats).items():
            if name not in gauges:
                gauges[name] = create(f"windrow.{name}", description=_meaning(name))
            gauges[name].set(value, attributes)

    return sink


def _meaning(name: str) -> str:
    unit = "bytes" if name.endswith("_bytes") else "seconds" if name.endswith("_s") else "a number"
    return f"{name} of windrow.Stats, {unit}"
