"""Figures of cases with their bounds: as a table, and between the marks of docs/measurements.md.

Invariant: cases take turns in every round, and a figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.report import between, table

# What a case gives, from a folder of its own and the share of the full size.
Run: TypeAlias = Callable[[Path, float], Mapping[str, Any]]

PAGE: Final = Path(__file__).parents[1] / "docs" / "measurements.md"


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a case, and its bound, if it has one; `most` says that it is from above."""

    case: str
    what: str
    key: str
    bound: float | None
    most: bool = False

    def is_met(self, value: float) -> bool:
        """Whether `value` is within the bound."""
        if self.bound is None:
            return True
        return value <= self.bound if self.most else value >= self.bound


def markdown(figures: Sequence[Figure], found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The figures of the cases in `found`, and whether their medians are within the bounds."""
    rows = []
    for figure in figures:
        values = [float(run[figure.key]) for run in found.get(figure.case, ())]
        if not values:
            continue
        median = statistics.median(values)
        shown = f"{median:.3g} ({min(values):.3g} to {max(values):.3g})"
        bound = met = "-"
        if figure.bound is not None:
            bound = f"{'≤' if figure.most else '≥'} {figure.bound:g}"
            met = "yes" if figure.is_met(median) else "**no**"
        rows.append((figure.case, figure.what, bound, shown, met))
    return table(("case", "what", "wanted", "measured median (range)", "met"), rows, left=2)


def placed(text: str, page: str, name: str) -> str:
    """`page` with `text` between the marks of that name.

    Raises:
        ValueError: If the page lacks them.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    found = between(text, page, begin=begin, end=end)
    if found is None:
        raise ValueError(f"benchmarks: the page has no marks {begin} and {end}")
    return found


def measured(
    cases: Mapping[str, Run], folder: Path, *, rounds: int, share: float
) -> dict[str, list[Mapping[str, Any]]]:
    """What each case gives, round by round; told on stderr meanwhile."""
    found: dict[str, list[Mapping[str, Any]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, run in cases.items():
            place = folder / case.replace(" ", "-").replace(",", "")
            place.mkdir(parents=True, exist_ok=True)
            found[case].append(run(place, share))
            print(json.dumps({"case": case, **found[case][-1]}), file=sys.stderr, flush=True)
    return found


def command(
    name: str,
    about: str | None,
    *,
    cases: Mapping[str, Run],
    figures: Sequence[Figure],
    argv: Sequence[str] | None,
) -> int:
    """The program `python -m benchmarks.NAME`: run cases, print their table, put it into the page.

    Args:
        name: Of the module, and of the marks in the page.
        about: What `--help` says.
        cases: All there are.
        figures: What is told of them.
        argv: The arguments; None for those of the process.
    """
    parser = argparse.ArgumentParser(prog=f"benchmarks.{name}", description=about)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(cases)}; by default all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes [1]")
    parser.add_argument("--folder", type=Path, help="keeps the data written for it; else a new one")
    parser.add_argument(
        "--page", action="store_true", help="put the table into docs/measurements.md"
    )
    given = parser.parse_args(argv)
    unknown = set(given.cases) - set(cases)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    chosen = {case: cases[case] for case in given.cases or cases}
    with tempfile.TemporaryDirectory(prefix=f"windrow-{name}-") as temporary:
        folder = given.folder or Path(temporary)
        text = markdown(figures, measured(chosen, folder, rounds=given.rounds, share=given.share))
    print(text)
    if given.page:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(placed(text, page, name), encoding="utf-8")
    return 0
