"""The few figures that the README and the landing page show, taken from the tables of the last benchmarks.

    python -m benchmarks.summary

Run it after `--page` or `--markdown` of other benchmarks changed docs/measurements.md: it writes the table of the README,
and docs/images/speed.svg. A test fails while these are older than the tables.

Invariant: no figure here is written by hand.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import PAGE, placed
from benchmarks.report import table

README: Final = Path(__file__).parents[1] / "README.md"
PICTURE: Final = PAGE.parent / "images" / "speed.svg"
_STEADY: Final = "docs/measurements.md#in-steady-state"
_LAST: Final = "docs/measurements.md#the-last-run"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A case, the peer as the README names it, and where its figure is found in the tables."""

    case: str
    peer: str
    found: Callable[[str], float]
    group: int


def steady(title: str, side: str) -> Callable[[str], float]:
    """Ours over the fastest of the sides that begin with `side`, in a table of the steady state."""

    def found(page: str) -> float:
        section = page.partition(f"\n#### {title}\n")[2].partition("\n####")[0]
        judged = re.search(rf" ([\d.]+) of '{re.escape(side)}", section)
        if judged:
            return float(judged[1])
        rows = re.findall(r"^\| (\S.*?) +\| +([\d.,]+) \|", section, re.MULTILINE)
        speeds = {name: float(value.replace(",", "")) for name, value in rows}
        peers = [speed for name, speed in speeds.items() if name.startswith(side)]
        if not peers:
            raise ValueError(f"benchmarks: no figure of {title!r} and {side!r} in the page")
        return speeds["ours"] / max(peers)

    return found


def last(case: str, side: str) -> Callable[[str], float]:
    """What the column 'ours is' has, in a table of the last run."""

    def found(page: str) -> float:
        row = rf"^\| `{re.escape(case)}` +\| {re.escape(side)}[^|]*\|[^|]*\|[^|]*\| +([\d.]+)x \|"
        value = re.search(row, page, re.MULTILINE)
        if value is None:
            raise ValueError(f"benchmarks: no figure of {case!r} and {side!r} in the page")
        return float(value[1])

    return found


GROUPS: Final = ("epoch after epoch", "one epoch in a new process", "over HTTP, 20 ms of latency")
CASES: Final = (
    Case(
        "Zarr larger than memory, block shuffle",
        "a loop over TensorStore",
        steady("block shuffle, 16 chunks", "expert"),
        0,
    ),
    Case(
        "ArrayRecord, a function per record",
        "Grain",
        steady("ArrayRecord, a function per record, 30,000 records", "Grain"),
        0,
    ),
    Case("packed rows of tokens", "Grain", steady("packed rows, block shuffle", "Grain"), 0),
    Case(
        "windows of a weather field, all in memory",
        "a loop over TensorStore with its cache",
        steady("fields, all in memory, global shuffle", "expert, cache"),
        0,
    ),
    Case(
        "the same, a quarter in memory",
        "that loop, with more memory",
        steady("fields, a quarter in memory, global shuffle", "expert, cache"),
        0,
    ),
    Case(
        "ArrayRecord, global shuffle",
        "Grain",
        last("array_record.global", "Grain, best"),
        1,
    ),
    Case("Zarr, block shuffle", "Grain", last("zarr.block", "Grain, best"), 1),
    Case(
        "ArrayRecord, global shuffle",
        "one request per record",
        last("remote.global", "one by one"),
        2,
    ),
)


def figures(page: str) -> list[tuple[Case, float]]:
    """The cases with their figures, from the tables of a page."""
    return [(case, case.found(page)) for case in CASES]


def shown(times: float) -> str:
    """A figure with as many digits as it is good for; one below 1 is marked."""
    digits = f"{times:.2f}" if times < 5 else f"{times:,.0f}"
    return f"{digits} times" if times >= 1 else f"**{digits}**: slower"


def readme(page: str) -> str:
    """The table of the README."""
    links = (f"[{GROUPS[0]}]({_STEADY})", f"[{GROUPS[1]}]({_LAST})", f"[{GROUPS[2]}]({_LAST})")
    rows, group = [], -1
    for case, times in figures(page):
        rows.append(
            (links[case.group] if case.group != group else "", case.case, case.peer, shown(times))
        )
        group = case.group
    return table(("", "case", "peer, at its best setting", "Windrow is"), rows, left=4)


def signature(page: str) -> str:
    """A line in the picture that changes with its figures."""
    return ", ".join(f"{times:.4g}" for _, times in figures(page))


def picture(page: str) -> Any:
    """The figures as bars, on a logarithmic axis."""
    from matplotlib.figure import Figure

    from tools.draw_pages import COLOURS, GREY, INK, PAPER

    found = figures(page)
    figure = Figure(figsize=(6.6, 4.3), facecolor=PAPER, layout="constrained")
    axis = figure.subplots()
    places = [number + 0.7 * case.group for number, (case, _) in enumerate(found)]
    for place, (case, times) in zip(places, found, strict=True):
        axis.barh(place, times - 1, left=1, color=COLOURS[case.group], height=0.62)
        label = f"{times:.2f}" if times < 5 else f"{times:.0f}"
        axis.text(max(times, 1) * 1.08, place, label, va="center", fontsize=9, color=INK)
    names = [f"{case.case}\n{case.peer}" for case, _ in found]
    axis.set_yticks(places, names, fontsize=8, color=INK)
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
    for group, name in enumerate(GROUPS):
        first = next(p for p, (case, _) in zip(places, found, strict=True) if case.group == group)
        axis.text(
            500, first - 0.62, name, color=COLOURS[group], ha="right", fontsize=9, weight="bold"
        )
    return figure


def main() -> int:
    """Write the table and the picture."""
    from tools.draw_pages import save

    page = PAGE.read_text(encoding="utf-8")
    text = placed(readme(page), README.read_text(encoding="utf-8"), "figures")
    README.write_text(text, encoding="utf-8")
    save(picture(page), PICTURE, signature(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
