"""`windrow.report`: writes a page about a chain, its costs, its order and its elements.

1. `windrow.explain` and `windrow.stats` provide the predicted and the measured figures.
2. The modules `plan`, `charts` and `elements` of this package make the pictures.
3. This module assembles the page and writes it.

Invariant: the file is a whole page or does not exist; the page needs no other file and loads nothing;
nothing that comes from the data or the chain becomes part of its code.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from windrow.core.optional_imports import optional
from windrow.core.text import ABSENT, counted, in_units, listing, shortened
from windrow.errors import (
    ArgumentError,
    ConversionError,
    NotFoundError,
)
from windrow.explain.explanation import Explanation, in_bytes, spec_text
from windrow.iter_dataset import IterDataset
from windrow.iterator import DatasetIterator
from windrow.map_dataset import MapDataset
from windrow.reporting import charts
from windrow.reporting import elements as report_elements
from windrow.reporting.elements import ElementSample
from windrow.reporting.html import facts, page, section, table, text
from windrow.reporting.plan import MADE, MEASURED, ElementBytes, element_bytes, plan_html
from windrow.stats.costs import Amount, SourceCosts, column_text, known
from windrow.stats.stats import Stats
from windrow.transforms.arguments import at_least, integer
from windrow.transforms.nodes import Node

_SUFFIXES: Final = (".html", ".htm")
_MOST_SOURCES: Final = 16


def report(
    ds_or_iterator: MapDataset[Any] | IterDataset[Any] | DatasetIterator[Any],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    elements: int = 8,
) -> Path:
    """Write a page about a chain: its plan, its costs, its order and its first elements.

    The page is one file that needs no network. It shows what `explain()` predicts and, for an
    iterator, what `stats()` has measured alongside.

    Args:
        ds_or_iterator: A dataset, or an iterator, whose position does not change.
        path: The file, which ends in .html; an existing file is replaced.
        title: The heading.
        elements: How many of the first elements to show, or rows of the first batches. They are made
            for the page, in this thread and with the chain's functions; with 0 nothing is read.

    Returns:
        The path of the file.

    Raises:
        ArgumentError: If it is neither a dataset nor an iterator, or the path does not end in .html.
        MissingExtraError: If Plotly or matplotlib is not installed.
        NotFoundError: If the folder of the file does not exist.
        ConversionError: If the file cannot be written.

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
        target, page(title or f"Data report: {_source_names(explanation)}", body, charts.library())
    )
    return target


def _checked(path: str | os.PathLike[str]) -> Path:
    try:
        target = Path(path)
    except TypeError as error:
        raise ArgumentError(f"report: path must be the path of a file, got {path!r}") from error
    if target.suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"report: {target} must end in .html, which browsers open")
    if not target.absolute().parent.is_dir():
        raise NotFoundError(f"report: there is no folder {target.absolute().parent}; make it first")
    return target


def _check_packages() -> None:
    """Check for packages before anything is read, which may take long."""
    for package in ("plotly", "matplotlib"):
        optional(package, "windrow.report", "report")


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
            f"report: {target} cannot be written: {error.strerror or error}"
        ) from error


# --- the parts of the page -----------------------------------------------------------------------


def _body(
    explanation: Explanation, stats: Stats | None, node: Node, title: str, elements: int
) -> Iterator[str]:
    what = _what(node)
    sample = report_elements.sample_of(node, elements) if elements else None
    seen = _element_bytes(explanation, stats, node, sample)
    sections = {"plan": "Plan", "costs": "What it costs"}
    sections |= {"time": "Time"} if stats is not None else {}
    sections |= {"order": "Order"} if explanation.quality is not None else {}
    sections |= {"elements": "Elements"}
    links = "".join(f'<a href="#{name}">{text(words)}</a>' for name, words in sections.items())
    yield f"<header><h1>{text(title)}</h1>"
    yield f'<p class="soft">{text(_source_names(explanation))}</p>'
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
    if explanation.quality is not None:
        yield section("order", sections["order"], [_quality(str(explanation.quality))])
    yield section("elements", sections["elements"], _elements(sample))
    yield "</main>"


def _source_names(explanation: Explanation) -> str:
    """List the sources of the chain briefly."""
    names = [shortened(costs.source, 140) for costs in explanation.epoch]
    if not names:
        names = [line.label for line in explanation.nodes if not line.parents]
    return listing(names, 2)


def _sentence(stats: Stats) -> str:
    said = stats.sentence
    return said[:1].upper() + said[1:] + "."


def _facts(
    explanation: Explanation, stats: Stats | None, seen: ElementBytes, what: str
) -> Iterator[tuple[str, str, str]]:
    batches = explanation.batches
    endless = "for ever" if explanation.is_endless else ""
    yield (
        f"{charts.MANY[what]} per epoch",
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
        yield "shuffle: variance ratio", f"{ratio:.3g}", "1 is a global shuffle"
    if stats is not None:
        rate = stats.elements / stats.passed_s if stats.passed_s else 0.0
        yield (
            "given to the loop",
            f"{stats.elements:,}",
            f"{charts.MANY[what]}, {rate:,.4g} per second",
        )
        share = stats.waited_s / stats.passed_s if stats.passed_s else 0.0
        yield "the loop waited", f"{share:.0%}", f"of {charts.in_time(stats.passed_s)}"


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
    "chunks": "chunks they lie in",
    "reads": "reads",
    "hits": "chunks used again",
    "stored_bytes": "bytes stored",
    "decoded_bytes": "bytes decoded",
    "delivered_bytes": "bytes delivered",
    "decoded_per_delivered": "decoded per delivered",
    "held_bytes": "bytes of chunks held, at most",
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
        yield charts.bytes_chart(explanation.batch, each, what, note)
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
            f" {counted(given, what)}.</p>"
        )
    if explanation.unknown:
        lines = "".join(f"<li>{text(line)}</li>" for line in explanation.unknown)
        yield f"<h3>Not known</h3><ul>{lines}</ul>"


def _compared(explanation: Explanation, stats: Stats, what: str) -> str:
    """Explain how the mean of an epoch compares with the run so far."""
    predicted = f"Predicted is the mean of an epoch{_of_how_many(explanation, what)}."
    pairs = zip(stats.sources, explanation.batch, strict=False)
    read_for = max(round(_asked_for(found, one, stats.elements)) for found, one in pairs)
    note = (
        f"{predicted} Measured covers the {counted(read_for, what)} that were read for so far; the"
        f" loop was given {stats.elements:,} of them."
    )
    if explanation.batches is not None and read_for >= explanation.batches.low:
        return note
    decoded, whole = (
        sum(known(costs.decoded_bytes).middle for costs in several)
        for several in (stats.sources, explanation.epoch)
    )
    if not decoded or not whole or explanation.batches is None:
        return note
    share, given = decoded / whole, read_for / explanation.batches.middle
    if share < 1.05 * given:
        return note
    return (
        f"{note} A chunk is read for its first record and serves later {charts.MANY[what]} too:"
        f" {share:.0%} of an epoch's bytes are decoded for {given:.0%} of its"
        f" {charts.MANY[what]}. The longer the run, the closer the two get."
    )


def _of_how_many(explanation: Explanation, what: str) -> str:
    batches = explanation.batches
    return "" if batches is None else f" of {batches} {charts.MANY[what]}"


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
        cells = [column_text(name, getattr(costs, name)) for _, costs in columns]
        if set(cells) - {ABSENT, "0", in_units(0)}:
            rows.append([words, *cells])
    so_far = "" if measured is None else f"; measured over {counted(round(asked_for), what)}"
    caption = f"Source {number + 1}: {shortened(epoch.source, 160)}{so_far}"
    return table(caption, ["", *(name for name, _ in columns)], rows, groups=groups)


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


def _memory_table(explanation: Explanation, stats: Stats | None) -> str:
    measured = {} if stats is None else dict(stats.peak_by)
    kinds = list(dict.fromkeys([*explanation.buffers_by, *measured]))
    rows = []
    for kind in kinds:
        predicted = explanation.buffers_by.get(kind)
        row = [kind, ABSENT if predicted is None else in_bytes(predicted)]
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
        yield charts.timeline_chart(stats, what)
    yield charts.activities_chart(stats)
    yield "</div>"


def _quality(lines: str) -> str:
    """Return how good the order is, a line each."""
    first, *others = lines.splitlines()
    rest = "".join(f"<li>{text(line)}</li>" for line in others)
    return f"<p>{text(first[:1].upper() + first[1:])}:</p><ul>{rest}</ul>"


def _what(node: Node) -> str:
    """Return the word for an element of the chain: batch or element."""
    while len(node.parents) == 1 and node.group_size is None:
        node = node.parent
    return "element" if node.group_size is None else "batch"


def _element_bytes(
    explanation: Explanation, stats: Stats | None, node: Node, sample: ElementSample | None
) -> ElementBytes:
    """Return the bytes of elements without a spec: measured, or taken from the first element."""
    if stats is not None:
        return element_bytes(node, explanation, stats.delivered_bytes / stats.elements, MEASURED)
    if sample is not None and sample.size_bytes is not None:
        return element_bytes(node, explanation, sample.size_bytes, MADE)
    return ElementBytes()


def _elements(sample: ElementSample | None) -> Iterator[str]:
    if sample is None:
        yield '<p class="soft">None were asked for.</p>'
        return
    yield from report_elements.sample_html(sample)
