"""All cases, by the module that declares them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final

from benchmarks.harness import Case

TOPICS: Final = (
    "benchmarks.rows",
    "benchmarks.windows",
    "benchmarks.remote",
    "benchmarks.chains",
    "benchmarks.packing",
    "benchmarks.from_grain",
    "benchmarks.explaining",
    "benchmarks.conversions",
    "benchmarks.tfds",
    "benchmarks.hosts",
    "benchmarks.devices",
    "benchmarks.accelerator",
)


def every() -> dict[str, tuple[str, Case]]:
    """The module and the case of each name."""
    found: dict[str, tuple[str, Case]] = {}
    for topic in TOPICS:
        cases: Sequence[Case] = importlib.import_module(topic).CASES
        found |= {case.name: (topic, case) for case in cases}
    return found


def chosen(names: Sequence[str]) -> dict[str, tuple[str, Case]]:
    """The cases of these names and groups, in their order.

    Raises:
        ValueError: If no case and no group has a name; the message lists the groups.
    """
    cases = every()
    groups = dict.fromkeys(case.group for _, case in cases.values())
    unknown = sorted(set(names) - set(cases) - set(groups))
    if unknown:
        raise ValueError(f"no such case: {', '.join(unknown)}; choose from {', '.join(groups)}")
    return {
        name: (topic, case)
        for name, (topic, case) in cases.items()
        if name in names or case.group in names
    }
