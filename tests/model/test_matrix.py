"""Every method after every method: what the model gives, or a refusal that `refused.txt` has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model import matrix


@pytest.mark.parametrize("line", matrix.LINES)
def test_every_method_after_every_method(line: str) -> None:
    wrong, refused = matrix.looked_at(line)
    if wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)
    again = "python -m tests.model.matrix --write"
    assert ", ".join(refused) == matrix.pinned().get(line, ""), f"if it is right: {again}"


def test_what_is_refused_has_no_line_of_other_methods() -> None:
    assert set(matrix.pinned()) <= set(matrix.LINES)


def test_the_model_stays_short_enough_to_read() -> None:
    modules = ("base", "datasets", "streams", "trees")
    text = "".join(Path(__file__).with_name(f"{name}.py").read_text() for name in modules)
    assert sum(not line.isspace() for line in text.splitlines(keepends=True)) <= 600
