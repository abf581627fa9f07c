"""A run as a document for machines, and as tables that people read.

Invariant: nothing stands in them that was not measured in the run they are made of.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, OURS, Measured
from benchmarks.criteria import Verdict

_PACKAGES = (
    "windrow-data", "numpy", "tensorstore", "array-record", "zstandard", "numcodecs", "cramjam",
    "grain", "torch", "datasets", "xarray", "xbatcher", "zarr",
)  # fmt: skip
_TITLES = {
    "array_record": "Rows of ArrayRecord",
    "zarr": "Rows of Zarr in chunks of 256",
    "shards": "Rows of Zarr shards, an inner chunk for each",
    "raw": "Rows of uncompressed Zarr",
    "tokens": "Windows of tokens",
    "fields": "Windows of fields over time",
    "patches": "Patches of a volume",
    "remote": "Over HTTP, 20 ms for each request",
    "convert": "Converted folders",
    "chain": "Nothing to read",
    "workers": "Functions in worker processes",
    "checkpoint": "Saving and restoring",
}
_BEGIN, _END = "<!-- tables of the last run -->", "<!-- end of the tables -->"
_HEAD = (
    "case", "side", "records/s", "range", "ours is", "MB/s", "CPU-s/GB", "memory MB",
    "first batch ms", "reads",
)  # fmt: skip
_FIGURES = ("mb_per_s", "cpu_s_per_gb", "memory_mb", "first_batch_ms", "reads")
_COUNTED = "requests_per_batch"

_LATENCIES = {
    "open_ms": "opening ms",
    "requests": "requests",
    "first_batch_ms": "first batch ms",
    "set_state_us": "set_state us",
    "get_state_us": "get_state us",
    "state_bytes": "bytes",
}


def document(
    results: Sequence[Measured],
    verdicts: Sequence[Verdict],
    others: Sequence[Mapping[str, object]],
    *,
    where: str,
    skipped: Sequence[str],
    sizes: Mapping[str, object],
) -> dict[str, Any]:
    """Everything of a run, ready for JSON, units in the keys.

    Args:
        results: What was measured.
        verdicts: What it was judged by.
        others: Results of the index shuffle and of the import.
        where: The machine before the run.
        skipped: Who was left out, and why.
        sizes: The sizes of the data, and how often each side was measured.
    """
    return {
        "machine": where,
        "versions": _versions(),
        "page_cache": "warm",
        "sizes": dict(sizes),
        "skipped": list(skipped),
        "results": [_result(result) for result in results],
        "criteria": [
            {
                **dataclasses.asdict(verdict.criterion),
                "case": verdict.case,
                "values": verdict.values,
                "median": verdict.median,
                "is_met": verdict.is_met,
            }
            for verdict in verdicts
        ],
        "others": [dict(other) for other in others],
    }


def _result(result: Measured) -> dict[str, Any]:
    names = list(dict.fromkeys(name for figures in result.rounds for name in figures))
    figures = {name: _summary([r[name] for r in result.rounds if name in r]) for name in names}
    return {
        "case": result.case,
        "side": result.side,
        "setting": result.setting,
        "tried_records_per_s": result.tried,
        **figures,
    }


def _summary(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": list(values),
    }


def machine() -> str:
    """The processor, its cores, and what it is doing now."""
    return f"{_processor()}, {os.cpu_count()} cores, load before the run {os.getloadavg()[0]:.1f}"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    for line in facts.read_text().splitlines() if facts.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def markdown(run: Mapping[str, Any]) -> str:
    """The tables of a document, as Markdown."""
    sizes = run["sizes"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    head = (
        f"{run['machine']}; {versions}. {sizes['records']:,} records of {sizes['record_bytes']:,}"
        f" bytes, batches of {sizes['batch_size']}, {sizes['repeats']} repeats; page cache warm."
    )
    if sizes["is_small"]:
        head = f"A tiny run: its figures say nothing. {head}"
    parts = [head, *_wanted(run["criteria"])]
    for group, title in _TITLES.items():
        names = {case.name: case.shows for case in CASES if case.group == group}
        rows = [result for result in run["results"] if result["case"] in names]
        if rows:
            measured = dict.fromkeys(result["case"] for result in rows)
            shown = "; ".join(f"`{name}`: {names[name]}" for name in measured)
            parts += [f"### {title}", f"{shown}."]
            rates = [row for row in rows if "records_per_s" in row]
            others = [row for row in rows if "records_per_s" not in row]
            parts += [_rates(rates)] * bool(rates) + [_latencies(others)] * bool(others)
    parts += _others(run["others"])
    if run["skipped"]:
        parts.append("Left out:\n\n" + "\n".join(f"- {line}" for line in run["skipped"]))
    return "\n\n".join(parts) + "\n"


def placed(tables: str, page: str) -> str:
    """A page with the tables between its marks; the tables alone if it has no marks."""
    found = between(tables, page, begin=_BEGIN, end=_END)
    return tables if found is None else found


def between(text: str, page: str, *, begin: str, end: str) -> str | None:
    """`page` with `text` between two marks; None if it lacks them."""
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        return None
    text = text.rstrip("\n")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def put_into_page(path: Path, text: str, *, begin: str, end: str) -> None:
    """Put a text between two lines of a page; a page without them ends the program."""
    page = between(text, path.read_text(), begin=begin, end=end)
    if page is None:
        raise SystemExit(f"{path} has no line {begin}")
    path.write_text(page)


def _wanted(criteria: Sequence[Mapping[str, Any]]) -> list[str]:
    if not criteria:
        return []
    rows = []
    for found in criteria:
        least = found["at_least"] is not None
        bound = f"{'≥' if least else '≤'} {_number(found['at_least' if least else 'at_most'])}"
        values = f"{_number(found['median'])} ({_range(found['values'])})"
        met = "yes" if found["is_met"] else "**no**"
        rows.append((f"`{found['case']}`", found["what"], bound, values, met))
    head = ("case", "what", "wanted", "measured median (range)", "met")
    return ["### What is wanted", table(head, rows, left=2)]


def _rates(results: Sequence[Mapping[str, Any]]) -> str:
    ours = {r["case"]: r["records_per_s"]["median"] for r in results if r["side"] == OURS}
    # Only a server counts them.
    counted = [_COUNTED] * any(_COUNTED in result for result in results)
    figures, head = [*_FIGURES, *counted], [*_HEAD, *("requests/batch" for _ in counted)]
    rows = []
    for result in results:
        rate = result["records_per_s"]
        mine = ours.get(result["case"])
        ratio = (
            "" if mine is None or result["side"] == OURS else f"{_ratio(mine / rate['median'])}x"
        )
        name = f"**{OURS}**" if result["side"] == OURS else result["side"]
        setting = _setting(result)
        cells = [_number(result[key]["median"]) if key in result else "-" for key in figures]
        spread = _range(rate["values"])
        median = _number(rate["median"])
        rows.append((f"`{result['case']}`", f"{name}{setting}", median, spread, ratio, *cells))
    return table(head, rows, left=2)


def _setting(result: Mapping[str, Any]) -> str:
    """The setting in brackets, unless the side is called after it."""
    setting = result["setting"]
    return f" ({setting})" if setting and setting not in result["side"] else ""


def _latencies(results: Sequence[Mapping[str, Any]]) -> str:
    """What sides take for single things, those that were measured."""
    figures = {
        key: head for key, head in _LATENCIES.items() if any(key in result for result in results)
    }
    rows = []
    for result in results:
        cells = [
            f"{_number(result[key]['median'])} ({_range(result[key]['values'])})"
            if key in result
            else "-"
            for key in figures
        ]
        setting = _setting(result)
        rows.append((f"`{result['case']}`", f"{result['side']}{setting}", *cells))
    return table(("case", "side", *figures.values()), rows, left=2)


def _others(others: Sequence[Mapping[str, Any]]) -> list[str]:
    orders = [
        (
            f"{other['length']:.3g}",
            f"{other['block']:,}",
            _number(other["ns_per_index"]),
            _number(other["grain_ns_per_index"]),
            _number(other["floor_ns_per_index"]),
        )
        for other in others
        if other["case"] == "orders"
    ]
    parts = []
    if orders:
        head = ("length", "asked at once", "ours ns/index", "Grain's call", "a copy")
        parts += ["### Index shuffle", table(head, orders, left=0)]
    for other in others:
        if other["case"] == "import":
            parts.append(
                f"`{other['ours']}` takes {other['ours_s']} s and {other['ours_mib']} MiB,"
                f" `{other['peer']}` {other['peer_s']} s and {other['peer_mib']} MiB."
            )
    return parts


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Aligned lines of a Markdown table; its first `left` columns begin at the left."""
    every = [head, *rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(head))]

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
    return "\n".join([line(head), "|" + "|".join(rule) + "|", *map(line, rows)])


def _range(values: Sequence[float]) -> str:
    return f"{_number(min(values))} to {_number(max(values))}"


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
