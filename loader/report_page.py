"""Reports: a chain, what it costs and what it gives, as one page that needs no other file.

1. `windrow.explanation` and `windrow.stats` have the figures, predicted and measured.
2. `report_plan`, `report_charts`, `report_order` and `report_elements` make the pictures.
3. This module puts them together and writes the page.

Invariant: the page is whole or not there; it loads nothing, and nothing in it that comes from the
data or the chain is part of its code.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from windrow import report_charts, report_elements
from windrow.contact_sheet_cells import pictures
from windrow.costs import Amount, SourceCosts, known
from windrow.dataset import IterDataset, MapDataset
from windrow.errors import (
    ArgumentError,
    ConversionError,
    MissingExtraError,
    NotFoundError,
    WindrowError,
    missing_extra,
)
from windrow.explanation import Explanation, in_bytes, spec_text
from windrow.inspection_facts import in_units, shortened
from windrow.iterator import DatasetIterator
from windrow.record_order import nodes_below
from windrow.report_elements import Sample
from windrow.report_html import facts, page, section, table, text
from windrow.report_order import Order, order_of, sources_of
from windrow.report_plan import MADE, MEASURED, Seen, plan_html, seen_of
from windrow.stats import Stats
from windrow.transforms.arguments import at_least, integer
from windrow.transforms.nodes import BatchNode, FilterNode, Node

_SUFFIXES: Final = (".html", ".htm")
_BEGINNING: Final = 2_000
_ABSENT: Final = "-"
_MOST_SOURCES: Final = 16


def report(
    ds_or_iterator: MapDataset[Any] | IterDataset[Any] | DatasetIterator[Any],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    elements: int = 8,
) -> Path:
    """Write a page about a chain: its plan, its costs, its order and its first elements.

    The page is one file that needs no network. It has what `explain()` predicts, and of an iterator
    what `stats()` has measured beside it.

    Args:
        ds_or_iterator: A dataset, or an iterator, which stays where it is.
        path: The file, which ends in .html; what is there is replaced.
        title: The heading.
        elements: How many of the first elements are shown, or rows of the first batches. They are
            made for the page, in this thread and with the chain's functions; with 0 nothing is read.

    Returns:
        The path of the file.

    Raises:
        ArgumentError: If it is neither a dataset nor an iterator, or the path names no page.
        MissingExtraError: If Plotly or matplotlib is not installed.
        NotFoundError: If there is no such folder.
        ConversionError: If the file can not be written.

    Example:
        >>> import tempfile, numpy as np, windrow
        >>> dataset = windrow.MapDataset.source(np.arange(100)).shuffle(seed=0).batch(10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = windrow.report(dataset, f"{folder}/report.html")
        ...     page.name, "shuffle(seed=0)" in page.read_text(encoding="utf-8")
        ('report.html', True)
    """
    target = _checked(path)
    at_least(0, integer(elements, "report: elements"), "report: elements")
    _check_packages()
    dataset, stats = _of(ds_or_iterator)
    explanation = dataset.explain()
    node = dataset._node
    body = "\n".join(_body(explanation, stats, node, title or "Data report", elements))
    _write(
        target, page(title or f"Data report: {_named(explanation)}", body, report_charts.library())
    )
    return target


def _checked(path: str | os.PathLike[str]) -> Path:
    try:
        target = Path(path)
    except TypeError as error:
        raise ArgumentError(f"report: path must be that of a file, got {path!r}") from error
    if target.suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"report: {target} must end in .html, which browsers open")
    if not target.absolute().parent.is_dir():
        raise NotFoundError(f"report: there is no folder {target.absolute().parent}; make it first")
    return target


def _check_packages() -> None:
    """Before anything is read, which may take long."""
    report_charts.plotly("plotly")
    try:
        pictures("matplotlib")
    except MissingExtraError as error:
        raise missing_extra("windrow.report", "report") from error


def _of(given: Any) -> tuple[MapDataset[Any] | IterDataset[Any], Stats | None]:
    if isinstance(given, DatasetIterator):
        stats = given.stats()
        return IterDataset(given._node), stats if stats.elements else None
    if isinstance(given, (MapDataset, IterDataset)):
        return given, None
    raise ArgumentError(
        "report: needs a windrow.MapDataset, a windrow.IterDataset or an iterator of one, got"
        f" {given!r:.200}"
    )


def _write(target: Path, text: str) -> None:
    temporary = target.with_name(f".windrow-{uuid.uuid4().hex}.tmp")
    try:
        try:
            temporary.write_text(text, encoding="utf-8", errors="replace")
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        raise ConversionError(
            f"report: {target} can not be written: {error.strerror or error}"
        ) from error


# --- the parts of the page -----------------------------------------------------------------------


def _body(
    explanation: Explanation, stats: Stats | None, node: Node, title: str, elements: int
) -> Iterator[str]:
    what = _what(node)
    sample = report_elements.sample_of(node, elements) if elements else None
    seen = _seen(explanation, stats, node, sample)
    drawn = _orders(node)
    sections = {"plan": "Plan", "costs": "What it costs"}
    sections |= {"time": "Time"} if stats is not None else {}
    sections |= {"order": "Order", "elements": "Elements"}
    links = "".join(f'<a href="#{name}">{text(words)}</a>' for name, words in sections.items())
    yield f"<header><h1>{text(title)}</h1>"
    yield f'<p class="soft">{text(_named(explanation))}</p>'
    yield f'<nav aria-label="Parts of the page">{links}</nav></header><main>'
    yield facts(_facts(explanation, stats, seen, what))
    if stats is not None:
        yield f'<p class="sentence">{text(_sentence(stats))}</p>'
    yield _advice(explanation)
    loop = _sentence(stats) if stats is not None else ""
    yield section("plan", sections["plan"], [plan_html(explanation, loop, seen)])
    yield section("costs", sections["costs"], _costs(explanation, stats, what))
    if stats is not None:
        yield section("time", sections["time"], _time(stats, what))
    yield section("order", sections["order"], _order(explanation, drawn, what))
    yield section("elements", sections["elements"], _elements(node, sample, drawn))
    yield "</main>"


def _named(explanation: Explanation) -> str:
    """The chain's sources in a few words."""
    names = [shortened(costs.source, 140) for costs in explanation.epoch]
    if not names:
        names = [line.label for line in explanation.nodes if not line.parents]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def _sentence(stats: Stats) -> str:
    said = stats.sentence
    return said[:1].upper() + said[1:] + "."


def _facts(
    explanation: Explanation, stats: Stats | None, seen: Seen, what: str
) -> Iterator[tuple[str, str, str]]:
    batches = explanation.batches
    endless = "for ever" if explanation.is_endless else ""
    yield (
        f"{report_charts.MANY[what]} per epoch",
        "unknown" if batches is None else str(batches),
        endless,
    )
    size_bytes = seen.by_node.get(explanation.nodes[-1].number)
    if explanation.batch_bytes is None and size_bytes is not None:
        yield f"bytes per {what}", in_units(round(size_bytes)), seen.how
    else:
        yield f"bytes per {what}", in_bytes(explanation.batch_bytes), ""
    decoded, delivered = _ratio(explanation.epoch)
    if decoded is not None:
        yield "decoded per byte delivered", str(decoded), delivered
    measured = "" if stats is None else f"measured: {in_units(stats.peak_buffers_bytes)}"
    yield "buffers at most", in_bytes(explanation.buffers), measured
    ratio = None if explanation.quality is None else explanation.quality.variance_ratio
    if ratio is not None:
        yield "shuffle: variance ratio", str(ratio), "1 is a global shuffle"
    if stats is not None:
        rate = stats.elements / stats.passed_s if stats.passed_s else 0.0
        yield (
            "given to the loop",
            f"{stats.elements:,}",
            f"{report_charts.MANY[what]}, {rate:,.4g} per second",
        )
        share = stats.waited_s / stats.passed_s if stats.passed_s else 0.0
        yield "the loop waited", f"{share:.0%}", f"of {report_charts.in_time(stats.passed_s)}"


def _ratio(costs: tuple[SourceCosts, ...]) -> tuple[Amount | None, str]:
    found = [c.decoded_per_delivered for c in costs if known(c.decoded_bytes).high]
    ratios = [ratio for ratio in found if ratio is not None]
    if not ratios:
        return None, ""
    worst = max(ratios, key=lambda ratio: ratio.high)
    return worst, "of the costliest source" if len(ratios) > 1 else ""


def _advice(explanation: Explanation) -> str:
    lines = [
        f'<li id="advice-{number}"><b>Advice {number}.</b> {text(advice)}</li>'
        for number, advice in enumerate(explanation.advice, 1)
    ]
    return f'<ul class="advice">{"".join(lines)}</ul>' if lines else ""


# --- costs ---------------------------------------------------------------------------------------

_COLUMNS: Final[Mapping[str, str]] = {
    "records": "records asked for",
    "pieces": "pieces they lie in",
    "reads": "reads",
    "hits": "pieces used again",
    "stored_bytes": "bytes stored",
    "decoded_bytes": "bytes decoded",
    "delivered_bytes": "bytes delivered",
    "decoded_per_delivered": "decoded per delivered",
    "held_bytes": "bytes of pieces held, at most",
}


def _costs(explanation: Explanation, stats: Stats | None, what: str) -> Iterator[str]:
    measured = () if stats is None else stats.sources
    if explanation.spec is not None:
        yield f"<p>An element is <code>{text(shortened(spec_text(explanation.spec), 600))}</code></p>"
    given = 0 if stats is None else stats.elements
    sizes = [size for c in explanation.batch for size in (c.delivered_bytes, c.decoded_bytes)]
    if any(known(size).high for size in sizes):
        pairs = zip(measured, explanation.batch, strict=False)
        each = tuple(found.times(1 / _asked_for(found, one, given)) for found, one in pairs)
        note = _compared(explanation, stats, what) if stats is not None and measured else ""
        yield report_charts.bytes_chart(explanation.batch, each, what, note)
    for number in range(min(len(explanation.epoch), _MOST_SOURCES)):
        found = measured[number] if number < len(measured) else None
        yield _source_table(explanation, number, found, given, what)
    if len(explanation.epoch) > _MOST_SOURCES:
        yield f"<p>And {len(explanation.epoch) - _MOST_SOURCES:,} more sources.</p>"
    if not explanation.epoch:
        yield '<p class="soft">There is no source that reads anything.</p>'
    yield _memory_table(explanation, stats)
    if stats is not None:
        yield (
            f'<p class="soft">Measured figures count what was read ahead of the loop, which was given'
            f" {_counted(given, what)}.</p>"
        )
    if explanation.unknown:
        lines = "".join(f"<li>{text(line)}</li>" for line in explanation.unknown)
        yield f"<h3>Not known</h3><ul>{lines}</ul>"


def _compared(explanation: Explanation, stats: Stats, what: str) -> str:
    """What an epoch's mean and a run so far have to do with each other."""
    predicted = f"Predicted is the mean of an epoch{_of_how_many(explanation, what)}."
    pairs = zip(stats.sources, explanation.batch, strict=False)
    read_for = max(round(_asked_for(found, one, stats.elements)) for found, one in pairs)
    told = (
        f"{predicted} Measured are the {_counted(read_for, what)} that were read for so far, of which"
        f" the loop was given {stats.elements:,}."
    )
    if explanation.batches is not None and read_for >= explanation.batches.low:
        return told
    decoded, whole = (
        sum(known(costs.decoded_bytes).middle for costs in several)
        for several in (stats.sources, explanation.epoch)
    )
    if not decoded or not whole or explanation.batches is None:
        return told
    share, given = decoded / whole, read_for / explanation.batches.middle
    if share < 1.05 * given:
        return told
    return (
        f"{told} A piece is read for its first record and serves later {report_charts.MANY[what]} too:"
        f" {share:.0%} of an epoch's bytes are decoded, for {given:.0%} of its"
        f" {report_charts.MANY[what]}. The longer the run, the closer the two come."
    )


def _of_how_many(explanation: Explanation, what: str) -> str:
    batches = explanation.batches
    return "" if batches is None else f" of {batches} {report_charts.MANY[what]}"


def _source_table(
    explanation: Explanation, number: int, measured: SourceCosts | None, given: int, what: str
) -> str:
    epoch = explanation.epoch[number]
    columns: list[tuple[str, SourceCosts]] = [("epoch", epoch)]
    if explanation.later_epoch and explanation.later_epoch[number] != epoch:
        columns = [("first epoch", epoch), ("later epoch", explanation.later_epoch[number])]
    if explanation.batch:
        columns.append((what, explanation.batch[number]))
    groups = [("predicted", len(columns))]
    asked_for = float(given)
    if measured is not None:
        if explanation.batch:
            asked_for = _asked_for(measured, explanation.batch[number], given)
        columns += [(what, measured.times(1 / asked_for)), ("so far", measured)]
        groups.append(("measured", 2))
    rows = []
    for name, words in _COLUMNS.items():
        cells = [_shown(name, getattr(costs, name)) for _, costs in columns]
        if set(cells) - {_ABSENT, "0", in_units(0)}:
            rows.append([words, *cells])
    so_far = "" if measured is None else f"; measured over {_counted(round(asked_for), what)}"
    caption = f"Source {number + 1}: {shortened(epoch.source, 160)}{so_far}"
    return table(caption, ["", *(name for name, _ in columns)], rows, groups=groups)


def _asked_for(measured: SourceCosts, predicted: SourceCosts, given: int) -> float:
    """Elements that were read for, those too that the loop has not been given yet.

    Args:
        measured: So far.
        predicted: For an element.
        given: Elements that the loop was given.
    """
    each = predicted.records
    if not each.is_exact or not each.low or not measured.records.low:
        return given
    return measured.records.low / each.low


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what if count == 1 else report_charts.MANY[what]}"


def _shown(name: str, amount: Amount | None) -> str:
    if amount is None:
        return _ABSENT
    return in_bytes(amount) if name.endswith("_bytes") else str(amount)


def _memory_table(explanation: Explanation, stats: Stats | None) -> str:
    measured = {} if stats is None else dict(stats.peak_by)
    kinds = list(dict.fromkeys([*explanation.buffers_by, *measured]))
    rows = []
    for kind in kinds:
        predicted = explanation.buffers_by.get(kind)
        row = [kind, _ABSENT if predicted is None else in_bytes(predicted)]
        rows.append([*row, *([in_units(measured.get(kind, 0))] if stats is not None else [])])
    whole = ["together", in_bytes(explanation.buffers)]
    rows.append([*whole, *([in_units(stats.peak_buffers_bytes)] if stats is not None else [])])
    headers = ["", "predicted", *(["measured"] if stats is not None else [])]
    caption = "Memory of Windrow's own buffers, at most; predicted for a loop that is slower than the loader"
    return table(caption, headers, rows)


# --- time, order, elements -----------------------------------------------------------------------


def _time(stats: Stats, what: str) -> Iterator[str]:
    yield '<div class="charts">'
    if stats.timeline:
        yield report_charts.timeline_chart(stats, what)
    yield report_charts.activities_chart(stats)
    yield "</div>"


def _orders(node: Node) -> tuple[Order, Order] | str:
    """The order of an epoch and of its beginning; or in words why they are not known."""
    try:
        return order_of(node), order_of(node, points=_BEGINNING, beginning=True)
    except Exception as error:  # of a selection map, which is the user's
        return str(error) if isinstance(error, WindrowError) else f"{type(error).__name__}: {error}"


def _order(explanation: Explanation, drawn: tuple[Order, Order] | str, what: str) -> Iterator[str]:
    if explanation.quality is not None:
        first, *others = str(explanation.quality).splitlines()
        lines = "".join(f"<li>{text(line)}</li>" for line in others)
        yield f"<p>{text(first[:1].upper() + first[1:])}:</p><ul>{lines}</ul>"
    if isinstance(drawn, str):
        yield f'<p class="soft">The order can not be drawn: {text(shortened(drawn, 600))}</p>'
        return
    whole, beginning = drawn
    if not len(whole.records):
        yield '<p class="soft">There is no record.</p>'
        return
    yield '<div class="charts">'
    yield report_charts.order_chart("order-epoch", whole, "An epoch", what)
    if len(beginning.records) < len(whole.records):
        yield report_charts.order_chart("order-beginning", beginning, "Its beginning", what)
    yield "</div>"
    if len(whole.sources) > 1:
        rows, start = [], 0
        for number, (name, length) in enumerate(whole.sources[:_MOST_SOURCES], 1):
            named = f"source {number}: {shortened(name, 100)}"
            rows.append([named, f"{start:,} to {start + length - 1:,}" if length else "none"])
            start += length
        yield table("Records of several sources are counted on", ["", "records"], rows)


def _what(node: Node) -> str:
    """What an element of the chain is."""
    while len(node.parents) == 1 and not isinstance(node, BatchNode):
        node = node.parent
    return "batch" if isinstance(node, BatchNode) else "element"


def _seen(explanation: Explanation, stats: Stats | None, node: Node, sample: Sample | None) -> Seen:
    """Bytes of elements that no spec tells: as an iterator has measured them, or as one was made."""
    if stats is not None:
        return seen_of(node, explanation, stats.delivered_bytes / stats.elements, MEASURED)
    if sample is not None and sample.size_bytes is not None:
        return seen_of(node, explanation, sample.size_bytes, MADE)
    return Seen()


def _elements(node: Node, sample: Sample | None, drawn: tuple[Order, Order] | str) -> Iterator[str]:
    if sample is None:
        yield '<p class="soft">None were asked for.</p>'
        return
    sources = {}
    # Places behind a filter are not those of the order.
    filtered = any(isinstance(below, FilterNode) for below in nodes_below(node))
    if not isinstance(drawn, str) and len(drawn[1].sources) > 1 and not filtered:
        sources = sources_of(drawn[1], node)
    yield from report_elements.sample_html(sample, sources)
