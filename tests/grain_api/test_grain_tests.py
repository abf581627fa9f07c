"""What of Grain's own tests fails is listed once, and the documentation says the same."""

from __future__ import annotations

from pathlib import Path

from tests.grain_adapter import listed

_DOCS = Path(__file__).resolve().parents[2] / "docs" / "grain.md"
# Fewer public cases pass than is asked for, because of defects and limits of Grain: the reasons are in the table.
_BELOW = {"data_loader", "interleave", "prefetch", "process_prefetch", "rebatch", "samplers"}


def test_the_documented_table_is_the_list() -> None:
    text = _DOCS.read_text(encoding="utf-8")
    _, _, after = text.partition(
        "| file | cases | pass | internal | defects | others that fail | why |\n"
    )
    found = after.partition("\n\n")[0].splitlines()[1:]
    assert found == listed.read().rows()


def test_each_case_is_listed_once_and_belongs_to_a_counted_file() -> None:
    table = listed.read()
    every = [(group.file, test) for group in table.groups for test in group.tests]
    assert len(set(every)) == len(every)
    assert {file for file, _ in every} <= set(table.cases)
    assert all(group.reason and group.tests for group in table.groups)


def _below(*failing: str) -> set[str]:
    """The files in which cases of these kinds are more than one and more than 3% of the public ones."""
    table, below = listed.read(), set()
    for file, cases in table.cases.items():
        failed = sum(table.count(file, kind) for kind in failing)
        if failed > max(1, (cases - table.count(file, "internal")) * 3 // 100):
            below.add(file)
    return below


def test_nearly_all_public_cases_of_a_file_pass() -> None:
    assert _below("defect", "other") == _BELOW
    # Which worker makes which element, and frames of workers as objects.
    assert _below("other") == {"process_prefetch"}
