"""The cases of Grain's tests that fail here, with reasons: `listed.toml`, and as a table for the docs."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from pathlib import Path
from typing import Any

_PLACE = Path(__file__).with_name("listed.toml")


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases of one file with one reason; some depend on the speed of the machine and may pass."""

    file: str
    internal: bool
    reason: str
    tests: tuple[str, ...]
    varies: bool = False


@dataclasses.dataclass(frozen=True)
class Listed:
    """What `listed.toml` holds.

    Args:
        cases: The number of cases of each file.
        words: Grain's pattern of a message, and the pattern of Windrow's.
        groups: The cases that fail.
    """

    cases: dict[str, int]
    words: dict[str, str]
    groups: tuple[Group, ...]

    def groups_of_cases(self) -> dict[tuple[str, str], Group]:
        """The group of each case, by file and name."""
        return {(group.file, test): group for group in self.groups for test in group.tests}

    def count(self, file: str, *, internal: bool) -> int:
        """The cases of a file that test an internal of Grain, or that fail for another reason."""
        found = [g for g in self.groups if g.file == file and g.internal is internal]
        return sum(len(group.tests) for group in found)

    def rows(self) -> list[str]:
        """The rows of the table in `docs/grain.md`: what passes of each file, and why the rest fails."""
        found = []
        for file, cases in sorted(self.cases.items()):
            internal, other = (self.count(file, internal=kind) for kind in (True, False))
            reasons = [f"{len(g.tests)}: {g.reason}" for g in self.groups if g.file == file]
            passed = cases - internal - other
            found.append(
                f"| `{file}` | {cases:,} | {passed:,} | {internal} | {other} | {'; '.join(reasons)} |"
            )
        return found


@functools.cache
def read() -> Listed:
    """The stored table."""
    found: dict[str, Any] = tomllib.loads(_PLACE.read_text(encoding="utf-8"))
    groups = [Group(**{**each, "tests": tuple(each["tests"])}) for each in found["listed"]]
    return Listed(found["cases"], found["words"], tuple(groups))
