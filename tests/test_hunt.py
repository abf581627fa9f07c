"""The hunt for failing examples: a planted bug is found, and its seed finds it again."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import hypothesis
import pytest

from tests import hypothesis_profiles
from tools import hunt

# A bug that one example in 50 meets, and a test that a hunt does not run.
PLANTED = """
    from hypothesis import given, strategies as st

    @given(number=st.integers(0, 2**32))
    def test_planted(number):
        assert number % 50 != 7 or number < 1000

    def test_without_hypothesis():
        raise AssertionError
"""


def toy(folder: Path, program: str) -> Path:
    (folder / "conftest.py").write_text("import tests.hypothesis_profiles\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    report\n    tfds\n")
    file = folder / "test_toy.py"
    file.write_text(textwrap.dedent(program))
    return file


def test_the_profile_of_the_tests_draws_the_same_examples_everywhere() -> None:
    usual = hypothesis.settings.get_profile("windrow")
    assert (usual.derandomize, usual.database, usual.deadline) == (True, None, None)
    wide = hypothesis.settings.get_profile("hunt")
    assert (wide.derandomize, wide.database, wide.print_blob) == (False, None, True)
    assert wide.max_examples > usual.max_examples
    with_usual = hypothesis_profiles.examples(50)
    hypothesis.settings.load_profile("hunt")
    try:
        assert hypothesis_profiles.examples(50) > with_usual == 25
    finally:
        hypothesis.settings.load_profile("windrow")


@pytest.mark.jobs
def test_a_planted_bug_is_found_and_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(toy(tmp_path, PLANTED))
    assert hunt.main(["--seed", "1", "--minutes", "10", "--workers", "0", file]) == 1
    output = capsys.readouterr().out
    (seed,) = re.findall(r"To repeat it: make hunt SEED=(\d+)", output)
    assert f"seed {seed} ..." in output
    assert "reproduce_failure" in output
    assert "test_without_hypothesis" not in output
    assert "Hypothesis Statistics" not in output
    (example,) = set(re.findall(r"number=(\d+)", output))
    assert int(example) % 50 == 7

    assert hunt.main(["--seed", seed, "--workers", "0", file]) == 1
    again = capsys.readouterr().out
    assert f"round 1: seed {seed} ..." in again
    assert set(re.findall(r"number=(\d+)", again)) == {example}
