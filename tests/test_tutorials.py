"""Each tutorial runs, prints what is stored in its file, and is short enough to be read in ten minutes."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")


from tests.links import broken_links
from tools import notebooks

NAMES = notebooks.names()
# At 200 words a minute, and a line of code takes 2 seconds.
MOST_MINUTES = 10


def prose(name: str) -> str:
    cells = notebooks.stored(name).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.mark.jobs
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.tfds] if x in notebooks.NEEDS else []) for x in NAMES],
)
def test_a_tutorial_runs_and_prints_what_it_shows(name: str) -> None:
    before = notebooks.stored(name)
    assert notebooks.differences(before, notebooks.executed(before)) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_has_its_outputs_and_no_errors(name: str) -> None:
    cells = [cell for cell in notebooks.stored(name).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert {x.output_type for x in outputs} <= {"stream", "display_data", "execute_result"}
    assert sum("image/png" in x.get("data", {}) for x in outputs) >= 2
    assert sum(bool(notebooks.printed(cell)) for cell in cells) >= 3
    assert all(cell.execution_count is None for cell in cells)


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_is_read_in_ten_minutes(name: str) -> None:
    code = [c.source for c in notebooks.stored(name).cells if c.cell_type == "code"]
    lines = sum(len(source.splitlines()) for source in code)
    assert len(prose(name).split()) / 200 + lines * 2 / 60 <= MOST_MINUTES
    assert "At the end you have\n\n- " in prose(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_links_of_a_tutorial(name: str) -> None:
    assert broken_links(notebooks.path_of(name), prose(name)) == []


def test_the_site_has_every_tutorial() -> None:
    site = (notebooks.FOLDER.parents[1] / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r"tutorials/(\w+)\.md", site)) == NAMES
