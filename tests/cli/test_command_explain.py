"""`windrow explain` and `windrow report` of a dataset that a module names."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from windrow.cli.main import BAD_ARGUMENTS, DONE, main

PROGRAM = """
import numpy as np
import windrow

dataset = windrow.MapDataset.source(np.arange(100)).shuffle(seed=1).batch(10)
stream = dataset.to_iter_dataset()
number = 5

def make(size=4):
    return windrow.MapDataset.range(20).batch(size)

def needs(size):
    return make(size)

class Chains:
    small = make()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working folder."""
    name = f"program_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.parametrize(
    ("name", "elements"), [("dataset", 10), ("stream", 10), ("make", 5), ("Chains.small", 5)]
)
def test_a_dataset_is_explained(
    program: str, name: str, elements: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{program}:{name}", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["nodes"][-1]["length"] == elements
    assert main(["explain", f"{program}:{name}"]) == DONE
    assert "source" in capsys.readouterr().out


def test_a_report_is_written(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", f"{program}:dataset", "page.html", "--title", "Numbers"]) == DONE
    assert capsys.readouterr().out == "page.html\n"
    assert "Numbers" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("program", "write module:dataset, where dataset is a variable or a function"),
        ("no_such_module_here:x", "No module named 'no_such_module_here'"),
        ("{}:absent", "has no attribute 'absent'"),
        ("{}:number", "is of type int, and must be a MapDataset or an IterDataset"),
        ("{}:needs", "must be a function that needs no argument: missing a required argument"),
    ],
)
def test_what_names_no_dataset_is_refused(
    program: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", text.format(program)]) == BAD_ARGUMENTS
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_mistyped_command_names_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explian", "x:y"]) == BAD_ARGUMENTS
    assert "Did you mean 'explain'?" in capsys.readouterr().err
    assert main(["qqqq"]) == BAD_ARGUMENTS
    assert "Did you mean" not in capsys.readouterr().err


def test_a_file_in_place_of_a_module_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for path, way in (
        ("prog.py", "write prog:ds"),
        ("./prog.py", "write prog:ds"),
        (f"{os.getcwd()}/jobs/prog.py", "write jobs.prog:ds"),
        ("/jobs/prog.py", "cd to /jobs, and write prog:ds"),
    ):
        assert main(["explain", f"{path}:ds"]) == BAD_ARGUMENTS
        said = f"'{path}:ds' names a file, not a module; {way}"
        assert said in " ".join(capsys.readouterr().err.split())
