"""Metrics: the numbers of stats by name, in one flat dict that any monitoring system takes."""

from __future__ import annotations

import math
from typing import Final

from windrow.stats.stats import Stats
from windrow.transforms.amounts import Amount

# Fields of `SourceCosts`.
_COSTS: Final = ("records", "reads", "stored_bytes", "decoded_bytes", "delivered_bytes")


def metrics_of(stats: Stats) -> dict[str, float]:
    """The numbers of stats by name, as `DatasetIterator.metrics` returns them."""
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
