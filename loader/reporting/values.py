"""What a report shows, as plain values for its template.

Explanations and statistics are read here and in `charts` and nowhere else in the report.

Invariant: strings are as they come; the template escapes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from windrow.core.text import ABSENT, counted, in_units, listing, shortened
from windrow.explain.explanation import Explanation, in_bytes, number_of, spec_text
from windrow.reporting import charts
from windrow.reporting.elements import ElementSample
from windrow.stats.costs import SourceCosts, column_text, known
from windrow.stats.stats import Stats
from windrow.transforms.nodes import Node
from windrow.transforms.nodes.following import group_size

_MOST_SOURCES: Final = 16
_MOST_NODES: Final = 100
_COLUMNS: Final[Mapping[str, str]] = {
    "records": "records asked for",
    "chunks": "chunks they lie in",
    "reads": "reads",
    "hits": "chunks used again",
    "stored_bytes": "bytes stored",
    "decoded_bytes": "bytes decoded",
    "delivered_bytes": "bytes delivered",
    "decoded_per_delivered": "decoded per delivered",
    "held_bytes": "bytes of chunks held, at most",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table of plain text.

    Args:
        caption: The line above it.
        headers: One header per column.
        rows: One string per column in each row; the first names the row.
        groups: Headings above the headers but the first, and how many headers each one spans.
    """

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    groups: Sequence[tuple[str, int]] = ()

    @property
    def measured(self) -> set[int]:
        """The columns with measured numbers, which are highlighted."""
        named = [name for name, span in self.groups for _ in range(span)] or self.headers[1:]
        return {at for at, name in enumerate(named, 1) if name == "measured"}


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
    what = _what(node)
    quality = explanation.quality
    said = "" if stats is None else stats.sentence
    return {
        "sources": _source_names(explanation),
        "facts": list(_facts(explanation, stats, sample, what)),
        "sentence": f"{said[:1].upper()}{said[1:]}." if said else "",
        "advice": list(map(str, explanation.advice)),
        "nodes": _nodes(explanation),
        "nodes_left_out": max(0, len(explanation.nodes) - _MOST_NODES),
        "spec": "" if explanation.spec is None else shortened(spec_text(explanation.spec), 600),
        "bytes_chart": _bytes_chart(explanation, stats, what),
        "tables": list(_tables(explanation, stats, what)),
        "sources_left_out": max(0, len(explanation.epoch) - _MOST_SOURCES),
        "given": "" if stats is None else counted(stats.elements, what),
        "unknown": explanation.unknown,
        "time_charts": [] if stats is None else list(_time_charts(stats, what)),
        "quality": [] if quality is None else [line.strip() for line in str(quality).splitlines()],
        "sample": sample,
    }


def _what(node: Node) -> str:
    """Return the word for an element of the chain: batch or element."""
    while len(node.parents) == 1 and group_size(node) is None:
        node = node.parent
    return "element" if group_size(node) is None else "batch"


def _source_names(explanation: Explanation) -> str:
    names = [shortened(costs.source, 140) for costs in explanation.epoch]
    if not names:
        names = [line.label for line in explanation.nodes if not line.parents]
    return listing(names, 2)


def _facts(
    explanation: Explanation, stats: Stats | None, sample: ElementSample | None, what: str
) -> Iterator[tuple[str, str, str]]:
    """Yield prominent numbers: a name, a value and a remark."""
    endless = "for ever" if explanation.is_endless else ""
    yield f"{charts.MANY[what]} per epoch", number_of(explanation.batches), endless
    if explanation.batch_bytes is None and stats is not None:
        yield f"bytes per {what}", in_units(stats.delivered_bytes // stats.elements), "measured"
    elif explanation.batch_bytes is None and sample is not None and sample.size_bytes is not None:
        yield f"bytes per {what}", in_units(sample.size_bytes), "judged by the first"
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


def _tables(explanation: Explanation, stats: Stats | None, what: str) -> Iterator[Table]:
    for number in range(min(len(explanation.epoch), _MOST_SOURCES)):
        yield _source_table(explanation, number, stats, what)
    yield _memory_table(explanation, stats)


def _source_table(explanation: Explanation, number: int, stats: Stats | None, what: str) -> Table:
    epoch = explanation.epoch[number]
    columns: list[tuple[str, SourceCosts]] = [("epoch", epoch)]
    if explanation.later_epoch and explanation.later_epoch[number] != epoch:
        columns = [("first epoch", epoch), ("later epoch", explanation.later_epoch[number])]
    if explanation.batch:
        columns.append((what, explanation.batch[number]))
    groups = [("predicted", len(columns))]
    so_far = ""
    if stats is not None and number < len(stats.sources):
        measured = stats.sources[number]
        asked_for = float(stats.elements)
        if explanation.batch:
            asked_for = _asked_for(measured, explanation.batch[number], stats.elements)
        columns += [(what, measured.times(1 / asked_for)), ("so far", measured)]
        groups.append(("measured", 2))
        so_far = f"; measured over {counted(round(asked_for), what)}"
    rows = []
    for name, words in _COLUMNS.items():
        cells = [column_text(name, getattr(costs, name)) for _, costs in columns]
        if set(cells) - {ABSENT, "0", in_units(0)}:
            rows.append([words, *cells])
    caption = f"Source {number + 1}: {shortened(epoch.source, 160)}{so_far}"
    return Table(caption, ["", *(name for name, _ in columns)], rows, groups)


def _memory_table(explanation: Explanation, stats: Stats | None) -> Table:
    measured = {} if stats is None else dict(stats.peak_by)
    rows = []
    for kind in dict.fromkeys([*explanation.buffers_by, *measured]):
        predicted = explanation.buffers_by.get(kind)
        own = [] if stats is None else [in_units(measured.get(kind, 0))]
        rows.append([kind, ABSENT if predicted is None else in_bytes(predicted), *own])
    whole = [] if stats is None else [in_units(stats.peak_buffers_bytes)]
    rows.append(["together", in_bytes(explanation.buffers), *whole])
    headers = ["", "predicted", *(["measured"] if stats is not None else [])]
    return Table("Memory of Windrow's own buffers, at most", headers, rows)


def _time_charts(stats: Stats, what: str) -> Iterator[charts.Chart]:
    if stats.timeline:
        yield charts.timeline_chart(stats, what)
    yield charts.activities_chart(stats)
