"""The cases of Grain's tests that fail here, with reasons: `listed.toml`, and as a table for the docs."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from pathlib import Path
from typing import Any, Literal

_PLACE = Path(__file__).with_name("listed.toml")


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases of one file with one reason.

    Args:
        file: The name of the file.
        kind: Whether the cases test an internal of Grain, a defect or a limit that Windrow does not
            share, or something else.
        reason: Why they fail.
        tests: Their names.
        varies: Whether they depend on the speed of the machine and may pass.
        endless: Whether they would not end, and so are not run.
    """

    file: str
    kind: Literal["internal", "defect", "other"]
    reason: str
    tests: tuple[str, ...]
    varies: bool = False
    endless: bool = False


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

    def count(self, file: str, kind: str) -> int:
        """The cases of a file that fail for reasons of a kind."""
        return sum(len(g.tests) for g in self.groups if g.file == file and g.kind == kind)

    def rows(self) -> list[str]:
        """The rows of the table in `docs/grain.md`: what passes of each file, and why the rest fails."""
        found = []
        for file, cases in sorted(self.cases.items()):
            counts = [self.count(file, kind) for kind in ("internal", "defect", "other")]
            reasons = [f"{len(g.tests)}: {g.reason}" for g in self.groups if g.file == file]
            columns = [f"`{file}`", f"{cases:,}", f"{cases - sum(counts):,}", *map(str, counts)]
            found.append(f"| {' | '.join(columns)} | {'; '.join(reasons)} |")
        return found


@functools.cache
def read() -> Listed:
    """The stored table."""
    found: dict[str, Any] = tomllib.loads(_PLACE.read_text(encoding="utf-8"))
    groups = [Group(**{**each, "tests": tuple(each["tests"])}) for each in found["listed"]]
    return Listed(found["cases"], found["words"], tuple(groups))
