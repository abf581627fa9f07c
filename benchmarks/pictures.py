"""The pictures of docs that show figures, and the table of the README: made of docs/measurements.json.

    python -m benchmarks.pictures

The paper of pictures is white, whatever the page's is, so that they can be read on dark pages too.

Invariant: no figure here is written by hand.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks import cases, far, report
from benchmarks.report import DOCS, KEPT, Told, placed, results_of, table
from windrow.errors import missing_extra

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator
except ImportError as error:
    raise missing_extra("benchmarks.pictures", "bench") from error

INK, FAINT, RULE, PAPER = "#24292f", "#6e7781", "#d0d7de", "#ffffff"
README: Final = Path(__file__).parents[1] / "README.md"
SPEED: Final = DOCS / "images" / "speed.svg"
REMOTE: Final = DOCS / "images" / "remote.png"


def style(axis: Any, *, grid: str = "y") -> None:
    """The look of an axis."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(FAINT)
    axis.tick_params(colors=INK, labelsize=9.5)
    axis.grid(axis=grid, color=RULE, lw=0.8)
    axis.set_axisbelow(True)


def title(axis: Any, text: str) -> None:
    """The title of an axis."""
    axis.set_title(text, fontsize=10.5, color=INK, fontweight="bold", loc="left")


def write(
    axis: Any, text: str, at: tuple[float, float], above: float, colour: str, **look: Any
) -> None:
    """Write text that begins `above` points over a point."""
    look = {"fontsize": 9.5, "fontweight": "bold", "color": colour, **look}
    axis.annotate(text, at, (0, above), textcoords="offset points", **look)


# --- the README, and speed.svg -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A row of the README: its case and peer in words, and whose figure it is."""

    group: int
    what: str
    peer: str
    case: str
    side: str


_STEADY: Final = "docs/measurements.md#in-steady-state"
_EPOCH: Final = "docs/measurements.md#one-epoch"
_HTTP: Final = "docs/measurements.md#over-http-20-ms-for-each-request"
GROUPS: Final = (
    ("epoch after epoch", _STEADY),
    ("one epoch in a new process", _EPOCH),
    ("over HTTP, 20 ms of latency", _HTTP),
)
ROWS: Final = (
    Row(
        0,
        "Zarr larger than memory, block shuffle",
        "a loop over TensorStore",
        "steady.block",
        "expert",
    ),
    Row(0, "ArrayRecord, a function per record", "Grain", "steady.function_30k", "Grain"),
    Row(0, "packed rows of tokens", "Grain", "steady.packed", "Grain"),
    Row(
        0,
        "windows of a weather field, all in memory",
        "a loop over TensorStore with its cache",
        "steady.fields",
        "expert, cache",
    ),
    Row(
        0,
        "the same, a quarter in memory",
        "that loop, with more memory",
        "steady.fields_quarter",
        "expert, cache",
    ),
    Row(1, "ArrayRecord, global shuffle", "Grain", "array_record.global", "Grain"),
    Row(1, "Zarr, block shuffle", "Grain", "zarr.block", "Grain"),
    Row(2, "ArrayRecord, global shuffle", "one request per record", "remote.global", "one by one"),
)


def figures(kept: Told) -> list[tuple[Row, float]]:
    """The rows with their figures.

    Raises:
        ValueError: If there is none of a row.
    """
    every, found = cases.every(), []
    for row in ROWS:
        times = report.times(every[row.case][1], results_of(kept[row.case]), row.side)
        if times is None:
            raise ValueError(f"benchmarks: no figure of {row.case} and {row.side!r}")
        found.append((row, times))
    return found


def shown(times: float) -> str:
    """A figure with as many digits as it is good for; one below 1 is marked."""
    digits = f"{times:.2f}" if times < 5 else f"{times:,.0f}"
    return f"{digits} times" if times >= 1 else f"**{digits}**: slower"


def readme(kept: Told) -> str:
    """The table of the README."""
    rows, group = [], -1
    for row, times in figures(kept):
        name, link = GROUPS[row.group]
        first = f"[{name}]({link})" if row.group != group else ""
        rows.append((first, row.what, row.peer, shown(times)))
        group = row.group
    return table(("", "case", "peer, at its best setting", "Windrow is"), rows, left=4)


def signature(kept: Told) -> str:
    """A line in the picture that changes with its figures."""
    return ", ".join(f"{times:.4g}" for _, times in figures(kept))


def speed(kept: Told) -> Any:
    """The figures as bars, on a logarithmic axis."""
    from tools.draw_pages import COLOURS, GREY, INK, PAPER

    found = figures(kept)
    figure = Figure(figsize=(6.6, 4.3), facecolor=PAPER, layout="constrained")
    axis: Any = figure.subplots()
    places = [number + 0.7 * row.group for number, (row, _) in enumerate(found)]
    for place, (row, times) in zip(places, found, strict=True):
        axis.barh(place, times - 1, left=1, color=COLOURS[row.group], height=0.62)
        label = f"{times:.2f}" if times < 5 else f"{times:.0f}"
        axis.text(max(times, 1) * 1.08, place, label, va="center", fontsize=9, color=INK)
    axis.set_yticks(places, [f"{row.what}\n{row.peer}" for row, _ in found], fontsize=8, color=INK)
    axis.set(xscale="log", xlim=(0.5, 500), facecolor=PAPER)
    axis.set_xticks([0.5, 1, 2, 5, 10, 50, 200], ["0.5", "1", "2", "5", "10", "50", "200"])
    axis.set_xlabel("times as fast as the peer at its best setting", color=INK, fontsize=9)
    axis.axvline(1, color=INK, linewidth=1)
    axis.minorticks_off()
    axis.tick_params(colors=INK, labelsize=8, length=0)
    axis.grid(axis="x", color=GREY, alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[:].set_visible(False)
    axis.invert_yaxis()
    for number, (name, _) in enumerate(GROUPS):
        first = next(p for p, (row, _) in zip(places, found, strict=True) if row.group == number)
        axis.text(
            500, first - 0.62, name, color=COLOURS[number], ha="right", fontsize=9, weight="bold"
        )
    return figure


# --- latency -------------------------------------------------------------------------------------

WAYS: Final = {
    "block_shuffle": ("Windrow, block_shuffle", "#bc4c00"),
    "global shuffle": ("Windrow, global shuffle", "#0969da"),
    "a request per record": ("a request per record,\none after another", "#57606a"),
}
_NOTHING: Final = 0.32  # of the first latency: where none is drawn, on an axis that has no zero
_SHOWN_MS: Final = 20.0


def by_latency(kept: Told, metric: str) -> dict[str, dict[float, float]]:
    """A metric by the way to read, then by latency in ms."""
    found: dict[str, dict[float, float]] = {way: {} for way in WAYS}
    for name, case in kept.items():
        if name.startswith("latency."):
            for side, each in results_of(case).items():
                ms = float(name.partition(".")[2])
                found[side][ms] = statistics.median(each.values(metric))
    return found


def draw_remote(path: Path, kept: Told) -> None:
    """Records per second by latency, and beside them requests and bytes at 20 ms, as a PNG file."""
    figure = Figure(figsize=(11.5, 4.5), facecolor=PAPER)
    axis: Any = figure.add_axes((0.065, 0.125, 0.545, 0.79))
    rates = by_latency(kept, "records_per_s")
    latencies = sorted(next(iter(rates.values())))
    at = [ms or _NOTHING * latencies[1] for ms in latencies]
    for way, (label, colour) in WAYS.items():
        values = [rates[way][ms] for ms in latencies]
        axis.plot(at[:2], values[:2], color=colour, lw=1.6, ls=(0, (2, 2)))
        axis.plot(at[1:], values[1:], color=colour, lw=2.4)
        axis.plot(at, values, color=colour, marker="o", ms=6, ls="none")
        write(axis, label, (at[2], values[2]), 8, colour)
    limit = [far.REQUESTS * 1e3 / ms for ms in at[1:]]
    axis.plot(at[1:], limit, color=FAINT, lw=1.4, ls=":")
    text = f"limit of {far.REQUESTS} requests in flight, a record each"
    write(axis, text, (at[1], limit[0]), -16, FAINT, fontweight="normal")
    axis.set(xscale="log", yscale="log", xlabel="latency of a request (ms)")
    axis.set_xticks(at, [f"{ms:g}" for ms in latencies])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
    style(axis)
    title(axis, "records per second, of 3 KB each")
    shown_ms = min(latencies, key=lambda ms: abs(ms - _SHOWN_MS))
    for bottom, metric, what in (
        (0.615, "requests_per_batch", "requests per batch"),
        (0.125, "received_per_byte", "bytes received per byte delivered"),
    ):
        bars: Any = figure.add_axes((0.77, bottom, 0.17, 0.3))
        found = by_latency(kept, metric)
        for place, (way, (_, colour)) in enumerate(WAYS.items()):
            value = found[way][shown_ms]
            bars.barh(place, value, color=colour, height=0.62)
            bars.annotate(f"{value:.3g}", (value, place), (4, 0), textcoords="offset points")
        bars.set_yticks(range(len(WAYS)), list(WAYS))
        bars.invert_yaxis()
        bars.set_xticks([])
        style(bars, grid="x")
        title(bars, f"{what}, at {shown_ms:g} ms")
        bars.title.set_x(-0.72)
    figure.savefig(path, dpi=120)


# --- all -----------------------------------------------------------------------------------------


def draw_all(run: Told | None = None) -> None:
    """Write the table of the README and its picture, and the picture of latencies if a run measured them."""
    from tools.draw_pages import save

    kept: Told = json.loads(KEPT.read_text(encoding="utf-8"))
    text = placed(readme(kept), README.read_text(encoding="utf-8"), "figures")
    README.write_text(text, encoding="utf-8")
    save(speed(kept), SPEED, signature(kept))
    if any(name.startswith("latency.") for name in run or ()):
        draw_remote(REMOTE, kept)


if __name__ == "__main__":
    draw_all()
    sys.exit(0)
