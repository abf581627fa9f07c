"""The picture of `benchmarks.hosts`: time of a plan and requests to the store over the number of hosts.

The paper is white, whatever the page's is, so that it can be read on dark pages too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windrow.errors import missing_extra

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise missing_extra("benchmarks.hosts", "bench") from error

_INK, _FAINT, _RULE, _PAPER = "#24292f", "#6e7781", "#d0d7de", "#ffffff"
_COLOURS = {
    "global shuffle": "#0969da",
    "block shuffle": "#1a7f37",
    "lanes": "#bc4c00",
    "filtered lanes": "#bf3989",
    "packed rows": "#8250df",
}


def draw(path: Path, found: Sequence[Mapping[str, Any]]) -> None:
    """Write the picture of some figures as a PNG file."""
    figure = Figure(figsize=(11.5, 4), facecolor=_PAPER)
    left = figure.add_axes((0.062, 0.14, 0.41, 0.74))
    right = figure.add_axes((0.553, 0.14, 0.41, 0.74))
    for kind, colour in _COLOURS.items():
        own = [each for each in found if each["kind"] == kind]
        hosts = [each["hosts"] for each in own]
        label = f"{kind}, per 1,000 documents" if kind == "packed rows" else kind
        left.plot(hosts, [each["plan_ms"] for each in own], "o-", color=colour, label=label)
        right.plot(hosts, [each["read_again"] for each in own], "o-", color=colour, label=kind)
    left.axhline(1, color=_FAINT, lw=1.2, ls=":")
    left.set_title("measured: planning of a step, ms", fontsize=10.5, color=_INK, loc="left")
    right.set_title(
        "simulated: times a chunk is read in an epoch", fontsize=10.5, color=_INK, loc="left"
    )
    for axis in (left, right):
        axis.set(xscale="log", yscale="log")
        axis.set_xticks([1, 16, 256, 4_096], ["1", "16", "256", "4,096"])
        axis.minorticks_off()
        axis.set_xlabel("hosts", color=_INK, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_FAINT)
        axis.tick_params(colors=_INK, labelsize=9.5)
        axis.grid(axis="y", color=_RULE, lw=0.8)
        axis.legend(frameon=False, fontsize=9.5, labelcolor=_INK)
    figure.savefig(path, dpi=120)
