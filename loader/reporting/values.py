"""What a report shows, as plain values for its template.

Explanations and statistics are read here and in `charts` and nowhere else in the report.

Invariant: strings are as they come; the template escapes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from windrow.core.text import counted, in_units, listing, shortened
from windrow.explain.explanation import Explanation, in_bytes, number_of
from windrow.explain.explanation import tables_of as explained
from windrow.reporting import charts
from windrow.reporting.elements import ElementSample, is_batched
from windrow.stats.costs import SourceCosts, column_text, known
from windrow.stats.stats import Stats
from windrow.stats.stats import tables_of as measured
from windrow.transforms.nodes import Node

_MOST_SOURCES: Final = 16
_MOST_NODES: Final = 100


def values_of(
    explanation: Explanation, stats: Stats | None, node: Node, sample: ElementSample | None
) -> dict[str, Any]:
    """Return the values of the template.

    Args:
        explanation: The explanation of the chain.
        stats: What an iterator has measured; None for a dataset.
        node: The chain.
        sample: Its first elements; None if none were asked for.
    """
    what = "batch" if is_batched(node) else "element"
    quality = explanation.quality
    said = "" if stats is None else stats.sentence
    return {
        "sources": _source_names(explanation),
        "facts": list(_facts(explanation, stats, what)),
        "sentence": f"{said[:1].upper()}{said[1:]}." if said else "",
        "advice": list(map(str, explanation.advice)),
        "nodes": _nodes(explanation),
        "nodes_left_out": max(0, len(explanation.nodes) - _MOST_NODES),
        "bytes_chart": _bytes_chart(explanation, stats, what),
        # The first table has the nodes, which the plan shows.
        "tables": list(itertools.islice(explained(explanation), 1, 2 + _MOST_SOURCES)),
        "measured_tables": [] if stats is None else measured(stats),
        "sources_left_out": max(0, len(explanation.epoch) - _MOST_SOURCES),
        "given": "" if stats is None else counted(stats.elements, what),
        "unknown": explanation.unknown,
        "timeline": charts.timeline_chart(stats, what) if stats and stats.timeline else None,
        "quality": [] if quality is None else [line.strip() for line in str(quality).splitlines()],
        "sample": sample,
    }


def _source_names(explanation: Explanation) -> str:
    names = [shortened(costs.source, 140) for costs in explanation.epoch]
    if not names:
        names = [line.label for line in explanation.nodes if not line.parents]
    return listing(names, 2)


def _facts(
    explanation: Explanation, stats: Stats | None, what: str
) -> Iterator[tuple[str, str, str]]:
    """Yield prominent numbers: a name, a value and a remark."""
    endless = "for ever" if explanation.is_endless else ""
    yield f"{charts.MANY[what]} per epoch", number_of(explanation.batches), endless
    if explanation.batch_bytes is None and stats is not None:
        yield f"bytes per {what}", in_units(stats.delivered_bytes // stats.elements), "measured"
    else:
        yield f"bytes per {what}", in_bytes(explanation.batch_bytes), ""
    ratios = [c.decoded_per_delivered for c in explanation.epoch if known(c.decoded_bytes).high]
    worst = max((r for r in ratios if r is not None), key=lambda r: r.high, default=None)
    if worst is not None:
        several = "of the costliest source" if len(ratios) > 1 else ""
        yield "decoded per byte delivered", column_text("", worst), several
    measured = "" if stats is None else f"measured: {in_units(stats.peak_buffers_bytes)}"
    yield "buffers at most", in_bytes(explanation.buffers), measured
    quality = explanation.quality
    if quality is not None and quality.variance_ratio is not None:
        ratio = quality.variance_ratio
        about = "" if quality.is_exact else "≈"
        yield "shuffle: variance ratio", f"{about}{ratio:.3g}", "1 is a global shuffle"
    if stats is not None:
        passed_s = stats.passed_s or 1.0
        rate = f"{charts.MANY[what]}, {stats.elements / passed_s:,.4g} per second"
        yield "given to the loop", f"{stats.elements:,}", rate
        waited = f"of {charts.in_time(stats.passed_s)}"
        yield "the loop waited", f"{stats.waited_s / passed_s:.0%}", waited


def _nodes(explanation: Explanation) -> list[dict[str, Any]]:
    """The last nodes of the chain, each with the numbers of the advice about it."""
    return [
        {
            "number": line.number,
            "of": ", ".join(map(str, line.parents[:8])) + (", ..." if line.parents[8:] else ""),
            "label": shortened(line.label, 120),
            "runs": line.runs,
            "length": "" if line.length is None else f"{line.length:,}",
            "bytes": in_bytes(line.element_bytes),
            "advice": [n for n, a in enumerate(explanation.advice, 1) if a.node == line.number],
        }
        for line in explanation.nodes[-_MOST_NODES:]
    ]


# --- costs ---------------------------------------------------------------------------------------


def _bytes_chart(explanation: Explanation, stats: Stats | None, what: str) -> charts.Chart | None:
    sizes = [size for c in explanation.batch for size in (c.delivered_bytes, c.decoded_bytes)]
    if not any(known(size).high for size in sizes):
        return None
    measured, note = [], ""
    if stats is not None and stats.sources:
        pairs = list(zip(stats.sources, explanation.batch, strict=False))
        read_for = [_asked_for(found, each, stats.elements) for found, each in pairs]
        measured = [found.times(1 / n) for (found, _), n in zip(pairs, read_for, strict=True)]
        note = (
            f"Predicted is the mean of an epoch of {number_of(explanation.batches)} {charts.MANY[what]}. Measured"
            f" covers the {counted(round(max(read_for)), what)} that were read for so far; the loop was"
            f" given {stats.elements:,} of them. A chunk is read for its first record and serves later"
            f" {charts.MANY[what]} too: the longer the run, the closer the two get."
        )
    return charts.bytes_chart(explanation.batch, measured, what, note)


def _asked_for(measured: SourceCosts, predicted: SourceCosts, given: int) -> float:
    """Return the elements that were read for, including those that the loop has yet to be given.

    Args:
        measured: Costs so far.
        predicted: Costs of an element.
        given: Elements that the loop was given.
    """
    each = predicted.records
    if not each.is_exact or not each.low or not measured.records.low:
        return given
    return measured.records.low / each.low
