"""The programs of docs/tfds.md, which build a dataset first, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "tfds.md"
PROGRAMS = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.tfds
def test_programs_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "program"}
    page = PAGE.read_text(encoding="utf-8")
    for found in PROGRAMS.finditer(page):
        # Empty lines before it, so that a traceback names the line of the page.
        lines = "\n" * page[: found.start(1)].count("\n")
        exec(compile(lines + found[1], PAGE.name, "exec"), names)
    assert {"Digits", "batches", "parts", "rows"} <= set(names)
