"""The charts of a report: figures for Plotly, each with a description for readers who do not see it.

The page sets the colours of text and grid, since it knows whether it is light or dark. Only lines and
bars have colours of their own, which are visible on both.

Invariant: figures are plain values with finite numbers, and hold no names of the chain or of the data,
since Plotly parses names as HTML.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.core.optional_imports import optional
from windrow.core.text import counted
from windrow.explain.explanation import in_bytes
from windrow.stats.costs import Amount, SourceCosts, known
from windrow.stats.stats import Stats

_READING: Final = "#3f8ecf"
_MAPPING: Final = "#d9822b"
_WAITING: Final = "#c2528b"
_PREDICTED: Final = "#8b9bb0"
# The scale is made for the blocks up to this quantile: the first may take a hundred times as long.
_TYPICAL: Final = 0.98

MANY: Final = {"batch": "batches", "element": "elements"}


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """A chart that the page draws.

    Args:
        name: Its id in the page.
        figure: The `data` and `layout` for Plotly.
        height_px: Its height; its width follows the page.
        alt: What it shows, as text.
        caption: The line below it.
    """

    name: str
    figure: Mapping[str, Any]
    height_px: int
    alt: str
    caption: str


def timeline_chart(stats: Stats, what: str) -> Chart:
    """Draw milliseconds per element of reading, mapping and waiting, one below the other.

    Args:
        stats: Statistics with a timeline of at least one block.
        what: The word for an element.
    """
    blocks = stats.timeline
    counts = np.array([max(1, block.elements) for block in blocks])
    edges = np.concatenate([[0], np.cumsum([block.elements for block in blocks])])
    edges += max(0, stats.elements - int(edges[-1]))  # earlier blocks are forgotten
    spent = {
        "reading": (_READING, [block.reading_s for block in blocks]),
        "mapping": (_MAPPING, [block.mapping_s for block in blocks]),
        "the loop waits": (_WAITING, [block.waited_s for block in blocks]),
    }
    subplots = optional("plotly.subplots", "windrow.report", "report")
    figure = subplots.make_subplots(
        rows=3, shared_xaxes=True, vertical_spacing=0.1, subplot_titles=list(spent)
    )
    limit, means = 0.0, []
    for row, (name, (colour, spent_s)) in enumerate(spent.items(), 1):
        each_ms = 1e3 * np.array(spent_s) / counts
        limit = max(limit, 1.4 * float(np.quantile(each_ms, _TYPICAL)))
        means.append(f"{name} {in_time(float(each_ms.mean()) / 1e3)}")
        figure.add_scatter(
            row=row, col=1, name=name, mode="lines", fill="tozeroy", fillcolor=f"rgba{(*bytes.fromhex(colour[1:]), 0.35)}",
            x=edges.tolist(), y=[*each_ms.tolist(), float(each_ms[-1])],
            line={"shape": "hv", "width": 1.2, "color": colour},
            hovertemplate=f"{what} %{{x}}<br>{name}: %{{y:.3~f}} ms<extra></extra>",
        )  # fmt: skip
    layout = _layout(left=64)
    figure.update_xaxes(layout["xaxis"])
    figure.update_yaxes(
        layout["yaxis"] | {"range": [0, limit or 1.0], "nticks": 4, "ticksuffix": " ms"}
    )
    figure.update_xaxes(title_text=f"{what} given to the loop", row=3)
    del layout["xaxis"], layout["yaxis"]
    figure.update_layout(layout, template="none")
    span = f"{MANY[what]} {edges[0]:,} to {edges[-1] - 1:,}"
    return Chart(
        "timeline",
        json.loads(figure.to_json()),
        430,
        f"Time per {what} over {span}, on average: {'; '.join(means)}.",
        f"Time per {what}, for {span} in {counted(len(blocks), 'block')}. Reading and mapping run"
        " ahead of the loop and in parallel; the loop waits only for what is not ready in time."
        " The slowest blocks may lie beyond the scale.",
    )


def bytes_chart(
    predicted: Sequence[SourceCosts], measured: Sequence[SourceCosts], what: str, note: str
) -> Chart:
    """Draw the bytes per element of all sources: stored, decoded and delivered.

    Args:
        predicted: Predicted costs per element.
        measured: Measured costs per element; empty if nothing was measured.
        what: The word for an element.
        note: What a reader must know to compare the two.
    """
    sums = {"predicted": _sums(predicted)} | ({"measured": _sums(measured)} if measured else {})
    # A source in memory stores and decodes nothing.
    kinds = [kind for kind in sums["predicted"] if any(s[kind].high for s in sums.values())]
    data = [
        {
            "type": "bar", "orientation": "h", "name": name, "cliponaxis": False, "y": kinds,
            "x": [found[kind].middle for kind in kinds],
            "text": [in_bytes(found[kind]) for kind in kinds],
            "marker": {"color": colour}, "hovertemplate": "%{y}: %{text}",
        }
        for (name, found), colour in zip(sums.items(), (_PREDICTED, _READING), strict=False)
    ]  # fmt: skip
    layout = _layout(left=10, top=34)
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    layout["xaxis"] |= {
        "title": {"text": f"bytes per {what}"}, "tickformat": "~s", "ticksuffix": "B",
        "rangemode": "tozero",
    }  # fmt: skip
    layout |= {"barmode": "group", "showlegend": len(data) > 1}
    parts = "; ".join(
        f"{kind} {name} {in_bytes(found[kind])}" for name, found in sums.items() for kind in kinds
    )
    return Chart(
        "bytes",
        {"data": data, "layout": layout},
        120 + 31 * len(data) * max(1, len(kinds)),
        f"Bytes per {what}: {parts}.",
        f"Bytes per {what}, all sources together. {note}".strip(),
    )


def _sums(costs: Sequence[SourceCosts]) -> dict[str, Amount]:
    """Sum the bytes of all sources by kind; an unknown amount counts as 0."""
    return {
        kind: sum((known(getattr(c, f"{kind}_bytes")) for c in costs), start=Amount.exactly(0))
        for kind in ("stored", "decoded", "delivered")
    }


def in_time(seconds: float) -> str:
    """Format a duration for people."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * 0.9995:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1e3 else f"{seconds:,.0f} s"
    return "0 s" if seconds <= 0 else f"{seconds * 1e9:.3g} ns"


def _layout(*, left: int, top: int = 28) -> dict[str, Any]:
    """The layout that all charts share, with the background and the font of the page."""
    axis = {"automargin": True, "zeroline": False, "gridcolor": "#888"}
    # Invisible ticks keep the labels off the bars.
    ticks = {"ticks": "outside", "ticklen": 6, "tickcolor": "rgba(0,0,0,0)"}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, Segoe UI, sans-serif", "size": 12},
        "margin": {"l": left, "r": 14, "t": top, "b": 44},
        "hovermode": "closest",
        "dragmode": "zoom",
        "showlegend": False,
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        "xaxis": {**axis, "title": {"standoff": 8}, "nticks": 6, "tickangle": 0},
        "yaxis": {**axis, **ticks},
    }
