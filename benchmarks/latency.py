"""`python -m benchmarks.latency`: what latency does to reading single records, as a picture.

One file of ArrayRecord on the server of `far_server`, read at several latencies: record by record,
and in batches under a global shuffle and a block shuffle. Each measurement is one epoch in a
process of its own; record by record it is the first seconds of one. The figures go to stdout as a
table, with a line of them in words, and the picture to docs/images/remote.png.

The dotted line follows from the latency alone: 64 requests in flight, each for a record.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tqdm import tqdm

from benchmarks import data, far, process
from benchmarks.job import Job
from windrow.errors import missing_extra

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator
except ImportError as error:
    raise missing_extra("benchmarks.latency", "bench") from error

LATENCIES_MS = (0.0, 5.0, 20.0, 50.0, 100.0)
SMALL_MS = (0.0, 1.0, 2.0)
SHOWN_MS = 20.0
"""Requests and bytes are shown at this latency, or at the one next to it."""

_KEPT = ("records_per_s", "requests_per_batch", "received_per_byte")
_EPOCH_S = 60.0
"""Ours reads far ahead: of an epoch that is cut off much would be asked for and never delivered."""

_NOTHING = 0.32  # of the first latency: where none is drawn, on an axis that has no zero
_BEYOND = 1.15  # the last one: where the axis ends
_PICTURE = Path(__file__).parents[1] / "docs" / "images" / "remote.png"
_INK, _FAINT, _PAPER = "#24292f", "#6e7781", "#ffffff"

Figures: TypeAlias = dict[str, dict[float, dict[str, float]]]
"""By name of the way to read, then by latency in ms."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """A way to read the file.

    Args:
        name: What the table calls it.
        label: What is written at its line.
        module: The side that reads.
        order: One of `data.ORDERS`.
        colour: Of its line.
        limit_s: When an epoch ends though it is not done.
    """

    name: str
    label: str
    module: str
    order: str
    colour: str
    limit_s: float = _EPOCH_S


WAYS = (
    Way("block_shuffle", "Windrow, block_shuffle", "ours", "block shuffle", "#bc4c00"),
    Way("global shuffle", "Windrow, global shuffle", "ours", "global shuffle", "#0969da"),
    Way(
        "a request per record",
        "a request per record,\none after another",
        "one_by_one_side",
        "global shuffle",
        "#57606a",
        4.0,
    ),
)


def measured(
    sizes: data.Data, latencies_ms: Sequence[float], repeats: int, *, small: bool
) -> Figures:
    """Medians over the repeats; ways and latencies take turns, so that a busy moment meets all."""
    data.write(sizes, "far_records")
    turns = [(way, ms) for _ in range(repeats) for ms in latencies_ms for way in WAYS]
    runs: dict[tuple[str, float], list[dict[str, float]]] = {}
    for way, ms in (bar := tqdm(turns, unit="run", disable=None)):
        bar.set_description(f"{way.name}, {ms:g} ms")
        there = dataclasses.replace(sizes, far=dataclasses.replace(sizes.far, latency_ms=ms))
        job = Job(there, "far_records", way.order, way.module, small=small, limit_s=way.limit_s)
        runs.setdefault((way.name, ms), []).append(process.ask("measure", job))
    found: Figures = {way.name: {} for way in WAYS}
    for (name, ms), each in runs.items():
        found[name][ms] = {key: statistics.median(run[key] for run in each) for key in _KEPT}
    return found


def loaded(text: str) -> Figures:
    """The figures of `--json`."""
    return {
        name: {float(ms): figures for ms, figures in by_latency.items()}
        for name, by_latency in json.loads(text).items()
    }


def table(found: Figures) -> str:
    """The figures as lines of Markdown."""
    lines = [
        "| latency ms | reads | records/s | requests/batch | received per byte |",
        "|---:|---|---:|---:|---:|",
    ]
    for name, by_latency in found.items():
        for ms, figures in by_latency.items():
            rate, requests, received = (figures[key] for key in _KEPT)
            lines.append(f"| {ms:g} | {name} | {rate:,.0f} | {requests:,.1f} | {received:.2f} |")
    return "\n".join(lines)


def shown(found: Figures) -> float:
    """The latency whose requests and bytes are shown."""
    return min(found[WAYS[0].name], key=lambda ms: abs(ms - SHOWN_MS))


def caption(found: Figures) -> str:
    """The figures of that latency in words."""
    shown_ms = shown(found)
    block, shuffled, single = (found[way.name][shown_ms] for way in WAYS)
    rates = [f"{figures['records_per_s']:,.0f}" for figures in (single, shuffled, block)]
    times = shuffled["records_per_s"] / single["records_per_s"]
    further = block["records_per_s"] / shuffled["records_per_s"]
    return (
        f"At {shown_ms:g} ms: {rates[0]} records per second with a request per record,"
        f" {rates[1]} with a global shuffle ({times:,.0f} times), {rates[2]} with `block_shuffle`"
        f" ({further:.1f} times that)."
    )


# --- the picture ---------------------------------------------------------------------------------


def draw(path: Path, found: Figures, sizes: data.Data) -> None:
    """Rates by latency, and beside them requests and bytes at one latency, as a PNG file.

    The paper is white, whatever the page's is, so that it can be read on dark pages too.
    """
    shown_ms = shown(found)
    figure = Figure(figsize=(11.5, 4.5), facecolor=_PAPER)
    rates = figure.add_axes((0.065, 0.125, 0.545, 0.79))
    _draw_rates(rates, found, f"records per second, of {sizes.record_bytes:,} bytes each")
    above, below = (figure.add_axes((0.77, y, 0.17, 0.3)) for y in (0.615, 0.125))
    _draw_bars(above, found, "requests_per_batch", shown_ms)
    above.set_title(f"requests per batch of {sizes.batch_size}, at {shown_ms:g} ms")
    _draw_bars(below, found, "received_per_byte", shown_ms)
    below.set_title(f"bytes received per byte delivered, at {shown_ms:g} ms")
    for axis in (rates, above, below):
        axis.title.set(fontsize=10.5, color=_INK, fontweight="bold", ha="left", x=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_FAINT)
        axis.tick_params(colors=_INK, labelsize=9.5)
    for axis in (above, below):
        axis.title.set_x(-0.72)
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(left=False)
        axis.set_xticks([])
    figure.savefig(path, dpi=120)


def _draw_rates(axis: Any, found: Figures, title: str) -> None:
    latencies_ms = sorted({ms for by_latency in found.values() for ms in by_latency})
    axis.set(xscale="log", yscale="log", xlabel="latency of a request (ms)", title=title)
    at = [ms or _NOTHING * latencies_ms[1] for ms in latencies_ms]
    axis.set_xlim(at[0] / 1.25, at[-1] * _BEYOND)
    axis.set_xticks(at, [f"{ms:g}" for ms in latencies_ms])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.label.set(color=_INK, fontsize=10.5)
    axis.grid(axis="y", color="#d0d7de", lw=0.8)
    axis.set_axisbelow(True)
    for way in WAYS:
        rates = [found[way.name][ms]["records_per_s"] for ms in latencies_ms]
        axis.plot(at[:2], rates[:2], color=way.colour, lw=1.6, ls=(0, (2, 2)))
        axis.plot(at[1:], rates[1:], color=way.colour, lw=2.4)
        axis.plot(at, rates, color=way.colour, marker="o", ms=6, ls="none")
        _write(axis, way.label, (at[2], rates[2]), 8, color=way.colour, fontweight="bold")
    axis.set_ylim(None, 2 * axis.get_ylim()[1])
    # The axis is broken between no latency and the first one.
    middle = (at[0] * at[1]) ** 0.5
    foot = axis.get_xaxis_transform()
    axis.text(middle, 0, "//", transform=foot, ha="center", va="center", color=_FAINT)
    ends = (at[1], at[-1] * _BEYOND)
    allowed = [far.REQUESTS * 1e3 / ms for ms in ends]
    axis.plot(ends, allowed, color=_FAINT, lw=1.4, ls=":")
    across, up = np.diff(axis.transData.transform(list(zip(ends, allowed, strict=True))), axis=0)[0]
    slope = {"rotation": np.degrees(np.arctan2(up, across)), "rotation_mode": "anchor"}
    text = f"limit of {far.REQUESTS} requests in flight, a record each"
    _write(axis, text, (ends[0], allowed[0]), -19, color=_FAINT, **slope)


def _write(axis: Any, text: str, at: tuple[float, float], above: float, **look: Any) -> None:
    """Text that begins over a point, so many points above it."""
    paper = {"facecolor": _PAPER, "edgecolor": "none", "pad": 0.5}
    beside = {"textcoords": "offset points", "fontsize": 10.5, "bbox": paper}
    axis.annotate(text, at, (0, above), **beside, **look)


def _draw_bars(axis: Any, found: Figures, key: str, shown_ms: float) -> None:
    values = [found[way.name][shown_ms][key] for way in WAYS]
    for place, (way, value) in enumerate(zip(WAYS, values, strict=True)):
        axis.barh(place, value, color=way.colour, height=0.62)
        text = f"{value:.2f}" if key == "received_per_byte" else f"{value:.0f}"
        beside = {"textcoords": "offset points", "va": "center"}
        axis.annotate(text, (value, place), (4, 0), color=_INK, fontsize=10.5, **beside)
    axis.set_yticks(range(len(WAYS)), [way.name for way in WAYS])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.15 * max(values))


# --- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency")
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--repeats", type=int, default=1, help="measurements of each point [1]")
    parser.add_argument(
        "--picture", type=Path, default=_PICTURE, help="PNG to write [docs/images/remote.png]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="draw those of such a file")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {args.repeats}")
    with tempfile.TemporaryDirectory(prefix="windrow-latency-") as folder:
        sizes = data.small(folder) if args.small else data.Data(folder)
        if args.from_json:
            found = loaded(args.from_json.read_text())
        else:
            latencies_ms = SMALL_MS if args.small else LATENCIES_MS
            found = measured(sizes, latencies_ms, args.repeats, small=args.small)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    print(caption(found))
    draw(args.picture, found, sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
