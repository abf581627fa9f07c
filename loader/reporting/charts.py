"""The charts of a report: figures for Plotly, each with a description for readers who do not see it.

The page sets the colours of text and grid, since it knows whether it is light or dark. Only lines, bars
and dots have colours of their own, which are visible on both.

Invariant: numbers are finite, and a chart has as many points as its caption says.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core.optional_imports import optional
from windrow.core.text import counted, shortened
from windrow.reporting.html import chart
from windrow.stats.costs import Amount, SourceCosts, known
from windrow.stats.stats import BlockTimes, Stats

FloatArray = npt.NDArray[np.float64]

_READING: Final = "#3f8ecf"
_MAPPING: Final = "#d9822b"
_WAITING: Final = "#c2528b"
_LOOP: Final = "#3a9a6c"
_PREDICTED: Final = "#8b9bb0"
_MARK: Final = "#7a828c"
_MOST_BARS: Final = 14
# Shorter parts of the time do not get a bar of their own.
_SEEN: Final = 0.005

MANY: Final = {"batch": "batches", "element": "elements"}

# Times above this quantile are cut off: the first batch may take a hundred times as long as others.
_TYPICAL: Final = 0.98
_MOST_COUNTED: Final = 1_000
# Blocks that a timeline keeps; the last elements that the loop was given may be missing from it.
_KEPT_BLOCKS: Final = 1_000


def _plotly(module: str) -> Any:
    return optional(f"plotly.{module}", "windrow.report", "report")


def library() -> str:
    """Return the JavaScript that draws the charts."""
    found: str = _plotly("offline").get_plotlyjs()
    # Nothing in it may end the script that holds it.
    return found.replace("</script", "<\\/script")


# --- time ----------------------------------------------------------------------------------------


def timeline_chart(stats: Stats, what: str) -> str:
    """Draw milliseconds per element of reading, mapping and waiting, one below the other.

    Args:
        stats: Figures with a timeline of at least one block.
        what: The word for an element.
    """
    blocks = stats.timeline
    lanes = {
        "reading": (_READING, _per_element([block.reading_s for block in blocks], blocks)),
        "mapping": (_MAPPING, _per_element([block.mapping_s for block in blocks], blocks)),
        "the loop waits": (_WAITING, _per_element([block.waited_s for block in blocks], blocks)),
    }
    ends = np.cumsum([block.elements for block in blocks]).astype(np.float64)
    edges = np.concatenate([[0.0], ends])
    if len(blocks) >= _KEPT_BLOCKS:  # earlier ones are forgotten
        edges += max(0.0, stats.elements - ends[-1])
    most = max(float(values.max()) for _, values in lanes.values())
    counts = [min(max(1, block.elements), _MOST_COUNTED) for block in blocks]
    usual = max(
        float(np.quantile(np.repeat(values, counts), _TYPICAL)) for _, values in lanes.values()
    )
    limit = usual * 1.4 if 0 < usual * 3 < most else most * 1.08 or 1.0
    figure = _plotly("subplots").make_subplots(
        rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.09, subplot_titles=list(lanes)
    )
    for row, (name, (colour, values)) in enumerate(lanes.items(), 1):
        # A step for each block, and one more point to end the last.
        steps = np.append(values, values[-1])
        line = {"shape": "hv", "width": 1.2, "color": colour}
        hover = f"{what} %{{x}}<br>{name}: %{{y:.3~f}} ms<extra></extra>"
        figure.add_scatter(
            x=edges, y=steps, mode="lines", line=line, fill="tozeroy", row=row, col=1,
            name=name, hovertemplate=hover, fillcolor=_faint(colour),
        )  # fmt: skip
        figure.update_yaxes(range=[0, limit], row=row, col=1, nticks=4, ticksuffix=" ms")
    figure.update_xaxes(title_text=f"{what} given to the loop", row=3, col=1)
    for annotation in figure.layout.annotations:
        annotation.update(x=0, xanchor="left", font={"size": 13})
    totals = "; ".join(
        f"{name} {in_time(float(values.mean()) / 1e3)}" for name, (_, values) in lanes.items()
    )
    first, last = edges[0], edges[-1]
    span = (
        f"{MANY[what]} {round(first):,} to {round(last) - 1:,}"
        if last - first > 1
        else f"one {what}"
    )
    cut = f" Beyond the scale: up to {in_time(most / 1e3)}." if most > limit else ""
    return chart(
        "timeline",
        _dressed(figure, left=64),
        430,
        f"Time per {what} over {span}, on average: {totals}.",
        f"Time per {what}, for {span} in {counted(len(blocks), 'block')}. Reading and mapping run"
        " ahead of the loop and in parallel; the loop waits only for what is not ready in time."
        f"{cut}",
    )


def _per_element(times_s: Sequence[float], blocks: Sequence[BlockTimes]) -> FloatArray:
    return np.array(
        [
            1e3 * time_s / max(1, block.elements)
            for time_s, block in zip(times_s, blocks, strict=True)
        ]
    )


def activities_chart(stats: Stats) -> str:
    """Draw how the loop and the loader spent their time."""
    named = [("the loop's own work", stats.loop_s, _LOOP)]
    waits = {
        name: spent
        for name, spent in stats.waited_for.items()
        if spent > max(_SEEN * stats.passed_s, 0.1 * _SEEN * stats.waited_s)
    }
    named += [(f"waits for {name}", spent, _WAITING) for name, spent in waits.items()]
    if not waits:
        named.append(("waits for data", stats.waited_s, _WAITING))
    named.append(("reading", stats.reading_s, _READING))
    named += [(name, spent, _MAPPING) for name, spent in stats.mapping_s.items()]
    named.append(("all is ready, no room for more", stats.blocked_s, _PREDICTED))
    shown = named[:_MOST_BARS]
    # Plotly parses names as HTML.
    names = [html.escape(shortened(name, 30), quote=False) for name, _, _ in shown]
    passed_s = stats.passed_s or 1.0
    longest_s = max(spent for _, spent, _ in shown) or 1.0
    figure = _plotly("graph_objects").Figure()
    figure.add_bar(
        orientation="h",
        y=list(range(len(shown))),
        # Plotly draws neither bar nor text for a length of 0.
        x=[max(spent, 1e-6 * longest_s) for _, spent, _ in shown],
        text=[f"{in_time(spent)}, {spent / passed_s:.0%}" for _, spent, _ in shown],
        # The text fits on one side or the other, also on a phone.
        textposition=["inside" if spent > 0.5 * longest_s else "outside" for _, spent, _ in shown],
        textangle=0,
        marker={"color": [colour for _, _, colour in shown]},
        customdata=names,
        hovertemplate="%{customdata}: %{text}<extra></extra>",
        cliponaxis=False,
    )
    # Rows go by number, since two names may be shortened to the same string.
    figure.update_yaxes(
        autorange="reversed", automargin=True, tickvals=list(range(len(shown))), ticktext=names
    )
    figure.update_xaxes(
        range=[0, longest_s * 1.04], tickformat="~s", ticksuffix="s", nticks=5, tickangle=0
    )
    parts = "; ".join(f"{name} {in_time(spent)}" for name, spent, _ in shown)
    return chart(
        "activities",
        _dressed(figure, left=10),
        90 + 34 * len(shown),
        f"Where {in_time(stats.passed_s)} went: {parts}.",
        f"Time spent in the {in_time(stats.passed_s)} since the first request. The loop (first"
        " rows) and the loader (the others) work at the same time, the loader on several threads.",
    )


def in_time(seconds: float) -> str:
    """Format a duration for people."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * 0.9995:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1e3 else f"{seconds:,.0f} s"
    return "0 s" if seconds <= 0 else f"{seconds * 1e9:.3g} ns"


# --- bytes ---------------------------------------------------------------------------------------


def bytes_chart(
    predicted: Sequence[SourceCosts], measured: Sequence[SourceCosts], what: str, note: str
) -> str:
    """Draw the bytes per element of all sources: stored, decoded and delivered.

    Args:
        predicted: Predicted costs per element.
        measured: Measured costs per element; empty if nothing was measured.
        what: The word for an element.
        note: What a reader must know to compare the two.
    """
    bars = {"predicted": _sums(predicted)} | ({"measured": _sums(measured)} if measured else {})
    # A source in memory stores and decodes nothing.
    seen = {kind for sums in bars.values() for kind, amount in sums.items() if amount.high}
    bars = {
        name: {kind: amount for kind, amount in sums.items() if kind in seen}
        for name, sums in bars.items()
    }
    figure = _plotly("graph_objects").Figure()
    parts = []
    for (name, sums), colour in zip(bars.items(), (_PREDICTED, _READING), strict=False):
        middles = [amount.middle for amount in sums.values()]
        spans = [(amount.high - amount.low) / 2 for amount in sums.values()]
        labels = [amount.in_units() for amount in sums.values()]
        parts += [f"{kind} {name} {label}" for kind, label in zip(sums, labels, strict=True)]
        figure.add_bar(
            orientation="h", name=name, y=list(sums), x=middles, text=labels, cliponaxis=False,
            textposition="auto", marker={"color": colour}, hovertemplate="%{y}: %{text}",
            insidetextanchor="start",  # off the marks of intervals
            error_x={"type": "data", "array": spans, "visible": any(spans), "color": _MARK},
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", automargin=True, type="category")
    figure.update_xaxes(
        title_text=f"bytes per {what}", tickformat="~s", ticksuffix="B", rangemode="tozero",
        nticks=6, tickangle=0,
    )  # fmt: skip
    figure.update_layout(barmode="group", showlegend=len(bars) > 1)
    return chart(
        "bytes",
        _dressed(figure, left=10, top=34),
        80 + 62 * len(bars) * max(1, len(bars["predicted"])) // 2 + 40,
        f"Bytes per {what}: {'; '.join(parts)}.",
        f"Bytes per {what}, all sources together. {note}".strip(),
    )


def _sums(costs: Sequence[SourceCosts]) -> dict[str, Amount]:
    """Sum the bytes of all sources by kind; a kind that one of them does not report is left out."""
    stored = [each.stored_bytes for each in costs]
    found = {}
    if stored and None not in stored:
        found["stored"] = sum((s for s in stored if s is not None), start=Amount.exactly(0))
    found["decoded"] = sum((known(each.decoded_bytes) for each in costs), start=Amount.exactly(0))
    found["delivered"] = sum(
        (known(each.delivered_bytes) for each in costs), start=Amount.exactly(0)
    )
    return found


# --- all -----------------------------------------------------------------------------------------


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.35)"


def _dressed(figure: Any, *, left: int, top: int = 28, right: int = 14) -> dict[str, Any]:
    """Return a figure as plain values, with the background and the font of the page."""
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, Segoe UI, sans-serif", "size": 12},
        margin={"l": left, "r": right, "t": top, "b": 44},
        hovermode="closest",
        dragmode="zoom",
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
    )
    if figure.layout.showlegend is None:
        figure.update_layout(showlegend=False)
    figure.update_xaxes(automargin=True, zeroline=False, gridcolor="#888", title_standoff=8)
    figure.update_yaxes(zeroline=False, gridcolor="#888")
    # Invisible ticks keep the labels off the bars and dots.
    figure.update_yaxes(ticks="outside", ticklen=6, tickcolor="rgba(0,0,0,0)")
    values: dict[str, Any] = json.loads(figure.to_json())
    return values
