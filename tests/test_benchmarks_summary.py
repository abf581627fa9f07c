"""The figures of the README and of the landing page are those of the tables of the last benchmarks."""

from __future__ import annotations

import pytest

from benchmarks import figures, summary

PAGE = figures.PAGE.read_text(encoding="utf-8")


def test_the_readme_has_the_figures_of_the_tables() -> None:
    readme = summary.README.read_text(encoding="utf-8")
    current = figures.placed(summary.readme(PAGE), readme, "figures")
    assert readme == current, "run python -m benchmarks.summary"


def test_the_picture_has_the_figures_of_the_tables() -> None:
    picture = summary.PICTURE.read_text(encoding="utf-8")
    assert summary.signature(PAGE) in picture, "run python -m benchmarks.summary"


TABLES = """
#### a case

| side         | GB/s | of the floor |
|--------------|-----:|-------------:|
| floor        | 3.00 |         1.00 |
| Grain, one   | 0.05 |         0.02 |
| Grain, two   | 0.10 |         0.03 |
| ours         | 1.20 |         0.40 |

#### another case

| ours         | 1.20 |         0.40 |

Ours: 0.40 of the floor (at least 0.5), 1.25 of 'loop, 2 ahead' (at least 1).

| `a.b`  | **ours**       | 900 | 1 to 2 |         | 1 |
| `a.b`  | Grain (2 more) | 700 | 1 to 2 |   1.29x | 1 |
"""


def test_figures_are_found_in_tables() -> None:
    assert summary.steady("a case", "Grain")(TABLES) == pytest.approx(12)
    assert summary.steady("another case", "loop")(TABLES) == 1.25
    assert summary.last("a.b", "Grain")(TABLES) == 1.29
    with pytest.raises(ValueError, match=r"no figure of 'a\.c' and 'Grain' in the page"):
        summary.last("a.c", "Grain")(TABLES)
    with pytest.raises(ValueError, match="no figure of 'a case' and 'torch' in the page"):
        summary.steady("a case", "torch")(TABLES)


@pytest.mark.parametrize(
    ("times", "text"), [(0.8, "**0.80**: slower"), (1.456, "1.46 times"), (1284, "1,284 times")]
)
def test_a_figure_as_text(times: float, text: str) -> None:
    assert summary.shown(times) == text
