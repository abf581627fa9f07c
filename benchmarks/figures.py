"""Figures of cases with their bounds: as a table, and between the marks of docs/performance.md."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.report import table

PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"


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
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"benchmarks: the page has no marks {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
