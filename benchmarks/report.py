"""Results as a table that people read.

Invariant: nothing stands in it that was not measured in the run it is printed for.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

_PACKAGES = ("windrow", "grain", "array-record", "tensorstore", "numpy")
_UNITS = {"records_per_s": "records/s", "_ms": "ms", "_us": "us"}
_COLUMNS = (
    "what",
    "unit",
    "ours",
    "Grain",
    "ratio",
    "Grain's best",
    "ratio",
    "expert",
    "floor",
    "of floor",
    "MB ours",
    "MB Grain",
)


def header(*, repeats: int, is_small: bool) -> str:
    """The machine, the versions and the method, in a few lines."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    rounds = (
        f"A tiny run of {repeats} round(s): its figures say nothing."
        if is_small
        else f"Medians of {repeats} rounds after one that warms up, sides in turn; page cache warm."
    )
    return (
        f"{_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f};"
        f" Python {platform.python_version()}, {versions}\n"
        f"{rounds} ratio: how many times better ours is.\n"
        "MB: peak memory of the process, workers included; in brackets, what came after the"
        " imports.\n"
    )


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    for line in facts.read_text().splitlines() if facts.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def table(results: Sequence[Mapping[str, object]]) -> str:
    """The results as aligned lines of a Markdown table."""
    rows = [_COLUMNS, *(_row(result) for result in results)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _row(result: Mapping[str, object]) -> tuple[str, ...]:
    if result["case"] == "import":
        return _plain("import; peer: NumPy, TensorStore", "s", result["ours_s"], result["peer_s"])
    if result["case"] == "orders":
        return _plain(
            str(result["chain"]),
            "ns/index",
            result["ns_per_index"],
            result["grain_ns_per_index"],
            floor=result["floor_ns_per_index"],
        )
    metric = str(result["metric"])
    unit = next(unit for end, unit in _UNITS.items() if metric.endswith(end))
    best = f"{_number(result[f'peer_best_{metric}'])} ({str(result['peer_best']).split(', ')[1]})"
    rate = metric.endswith("_per_s")
    what = str(result["chain"]) if rate else f"{result['chain']}: {metric.rpartition('_')[0]}"
    return (
        what,
        unit,
        _number(result[f"ours_{metric}"]),
        _number(result[f"peer_{metric}"]),
        f"{result['ratio']}x",
        best,
        f"{result['ratio_to_peer_best']}x",
        _number(result.get(f"expert_{metric}")),
        _number(result.get(f"floor_{metric}")),
        _number(result.get("ratio_to_floor")),
        f"{_number(result['ours_peak_mb'])} ({_number(result['ours_above_imports_mb'])})",
        f"{_number(result['peer_peak_mb'])} ({_number(result['peer_above_imports_mb'])})",
    )


def _plain(
    what: str, unit: str, ours: object, peer: object, *, floor: object = None
) -> tuple[str, ...]:
    """A row of figures that are better when smaller, and have no memory of their own."""
    ratio, of_floor = _over(peer, ours), _over(floor, ours)
    cost = (_number(ours), _number(peer), f"{ratio}x" if ratio else "")
    return (what, unit, *cost, "", "", "", _number(floor), _number(of_floor), "", "")


def _over(value: object, ours: object) -> float | None:
    if isinstance(value, (int, float)) and isinstance(ours, (int, float)):
        return float(f"{value / ours:.3g}")
    return None


def _number(value: object) -> str:
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
