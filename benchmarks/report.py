"""Figures as JSON, and as the tables of docs.

docs/measurements.json keeps the figures of the last run of each case; the tables between the marks of
pages are made of it, by `keep` or by `python -m benchmarks.report`.

Invariant: nothing stands in them that was not measured.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks import cases
from benchmarks.harness import FLOOR, OURS, Case, Measured, Regime, Results, judged, ratios

Told: TypeAlias = dict[str, dict[str, Any]]
"""By case: `run`, the machine and the versions; `sides`, as `Measured.to_json` tells them."""

DOCS: Final = Path(__file__).parents[1] / "docs"
KEPT: Final = DOCS / "measurements.json"
SECTIONS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "steady": ("measurements.md", ("steady",)),
    "epoch": ("measurements.md", ("array_record", "zarr", "shards", "raw")),
    "remote": ("measurements.md", ("remote",)),
    "workers": ("measurements.md", ("workers",)),
    "chains": ("measurements.md", ("chain", "state")),
    "conversions": ("measurements.md", ("convert",)),
    "tfds": ("measurements.md", ("tfds",)),
    "explaining": ("measurements.md", ("explaining",)),
    "from_grain": ("grain.md", ("from_grain",)),
    "advice": ("explain.md", ("advice",)),
    "devices": ("jax.md", ("devices",)),
    "accelerator": ("jax.md", ("accelerator",)),
    "hosts": ("scaling.md", ("hosts",)),
}
"""The tables of docs by their marks: the page, and the groups of cases that they have."""

_PACKAGES: Final = (
    "windrow-data", "numpy", "tensorstore", "array-record", "zstandard", "numcodecs", "grain", "torch",
    "datasets", "xarray", "xbatcher", "zarr",
)  # fmt: skip
_HEADS: Final = {
    "records_per_s": "records/s",
    "mb_per_s": "MB/s",
    "of_floor": "of the floor",
    "cpu_of_floor": "CPU, of the floor's",
    "cpu_s_per_gb": "CPU-s/GB",
    "seconds": "seconds",
    "cpu_s": "CPU-s",
    "memory_mb": "memory MB",
    "peak_mb": "peak MB",
    "first_batch_ms": "first batch ms",
    "requests_per_batch": "requests/batch",
}
"""The columns of rates, those that any side has; other metrics have columns of their own."""

_UNSHOWN: Final = ("ended_after", "requests", "received_per_byte")


# --- JSON ----------------------------------------------------------------------------------------


def told(found: Mapping[str, Results], where: str) -> Told:
    """What was measured, ready for JSON."""
    return {
        name: {"run": where, "sides": {side: each.to_json() for side, each in results.items()}}
        for name, results in found.items()
    }


def results_of(case: Mapping[str, Any]) -> Results:
    """The sides of a case."""
    return {side: Measured.of(each) for side, each in case["sides"].items()}


def machine() -> str:
    """The processor, its cores and what it does now, and the versions of packages."""
    versions = [f"python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    load = f"{os.cpu_count()} cores, load before the run {os.getloadavg()[0]:.1f}"
    return f"{_processor()}, {load}; {', '.join(versions)}"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    for line in facts.read_text().splitlines() if facts.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def keep(run: Told) -> None:
    """Keep the figures of a run, and make the tables of all pages anew."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    lines = (f"{json.dumps(name)}: {json.dumps(case)}" for name, case in (kept | run).items())
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for page in dict.fromkeys(page for page, _ in SECTIONS.values()):
        path = DOCS / page
        text = path.read_text(encoding="utf-8")
        path.write_text(with_tables(page, text, kept | run), encoding="utf-8")


def with_tables(page: str, text: str, kept: Told) -> str:
    """A page with the tables of whose cases all have figures that are kept."""
    every = {name: case for name, (_, case) in cases.every().items()}
    for mark, (where, groups) in SECTIONS.items():
        some = {name: case for name, case in every.items() if case.group in groups}
        if where == page and some.keys() <= kept.keys():
            text = placed(markdown(kept, some), text, mark)
    return text


def placed(text: str, page: str, mark: str) -> str:
    """A page with a text between the marks of that name.

    Raises:
        ValueError: If the page lacks them.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"benchmarks: the page has no marks {begin} and {end}")
    text = text.rstrip("\n")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


# --- tables --------------------------------------------------------------------------------------


def markdown(run: Told, some: Mapping[str, Case]) -> str:
    """The tables of cases: what they show, their figures, and what is wanted of them."""
    found = {name: results_of(run[name]) for name in some if name in run}
    if not found:
        return ""
    parts = [*dict.fromkeys(run[name]["run"] for name in found)]
    rated = {name: each for name, each in found.items() if _is_rated(each)}
    parts += [_rates(some, rated)] * bool(rated)
    for group in dict.fromkeys(some[name].group for name in found if name not in rated):
        single = {n: e for n, e in found.items() if n not in rated and some[n].group == group}
        parts.append(_figures(single))
    parts += _wanted(some, found)
    parts.append("\n".join(f"- `{name}`: {some[name].shows}" for name in found))
    return "\n\n".join(part for part in parts if part)


def _is_rated(results: Results) -> bool:
    return any(each.values("records_per_s") or each.values("mb_per_s") for each in results.values())


def rate_of(case: Case) -> str:
    """The metric that sides of a case are compared by: records may differ where streams are endless."""
    return "mb_per_s" if case.regime is Regime.STEADY else "records_per_s"


def times(case: Case, results: Results, side: str) -> float | None:
    """How many times as fast as a side ours is; None if that is not known."""
    if OURS not in results or side == OURS or side not in results:
        return None
    found = results[OURS].values("of_floor") if side == FLOOR else []
    found = found or ratios(rate_of(case), results[OURS], results[side])
    return statistics.median(found) if found else None


def _rates(some: Mapping[str, Case], found: Mapping[str, Results]) -> str:
    every = [each for results in found.values() for each in results.values()]
    metrics = [name for name in _HEADS if any(each.values(name) for each in every)]
    others = [name for each in every for name in _names(each) if name not in metrics]
    metrics += dict.fromkeys(others)
    rows = []
    for name, results in found.items():
        for side, each in results.items():
            ratio = times(some[name], results, side)
            shown = f"**{side}**" if side == OURS else side
            cells = [_cell(each.values(metric)) for metric in metrics]
            spread = _range(each.values(rate_of(some[name])))
            faster = "" if ratio is None else f"{_ratio(ratio)}x"
            rows.append((f"`{name}`", f"{shown}{_setting(each)}", faster, spread, *cells))
    head = ("case", "side", "ours is", "range", *map(heading, metrics))
    return table(head, rows, left=2)


def _figures(found: Mapping[str, Results]) -> str:
    every = [each for results in found.values() for each in results.values()]
    metrics = list(dict.fromkeys(name for each in every for name in _names(each)))
    rows = [
        (f"`{name}`", f"{side}{_setting(each)}", *(_cell(each.values(m)) for m in metrics))
        for name, results in found.items()
        for side, each in results.items()
    ]
    return table(("case", "side", *map(heading, metrics)), rows, left=2)


def _wanted(some: Mapping[str, Case], found: Mapping[str, Results]) -> list[str]:
    rows = []
    for name, results in found.items():
        for bound in some[name].bounds:
            values = judged(bound, results)
            if not values:
                continue
            least = bound.at_least is not None
            limit = bound.at_least if least else bound.at_most
            wanted = f"{'≥' if least else '≤'} {number(limit or 0)}"
            median = statistics.median(values)
            met = "yes" if bound.is_met(median) else "**no**"
            spread = f" ({_range(values)})" if _range(values) else ""
            rows.append((f"`{name}`", bound.what, wanted, f"{number(median)}{spread}", met))
    head = ("case", "what", "wanted", "measured median (range)", "met")
    return [table(head, rows, left=2)] * bool(rows)


def _names(each: Measured) -> list[str]:
    names = dict.fromkeys(name for found in each.rounds for name in found)
    return [name for name in names if name not in _UNSHOWN]


def heading(metric: str) -> str:
    """The head of the column of a metric, units included."""
    return _HEADS.get(metric, metric.replace("_per_", "/").replace("_", " "))


def _setting(each: Measured) -> str:
    return f" ({each.setting})" if each.setting else ""


def _cell(values: Sequence[float]) -> str:
    return number(statistics.median(values)) if values else "-"


def _range(values: Sequence[float]) -> str:
    return f"{number(min(values))} to {number(max(values))}" if len(set(values)) > 1 else ""


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def number(value: float) -> str:
    """A figure with as many digits as it is good for."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Aligned lines of a Markdown table; its first `left` columns begin at the left.

    Columns without anything in them are left out.
    """
    used = [at for at in range(len(head)) if any(row[at] for row in rows)]
    every = [[row[at] for at in used] for row in (head, *rows)]
    widths = [max(len(row[at]) for row in every) for at in range(len(used))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "| " + " | ".join(cells) + " |"

    rule = [
        "-" * (width + 2) if at < left else "-" * (width + 1) + ":"
        for at, width in enumerate(widths)
    ]
    return "\n".join([line(every[0]), "|" + "|".join(rule) + "|", *map(line, every[1:])])


def main() -> int:
    """Make the tables anew."""
    keep({})
    return 0


if __name__ == "__main__":
    sys.exit(main())
