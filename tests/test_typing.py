"""Type checkers accept right programs, and refuse wrong ones at the line that is wrong.

A wrong line ends with `# error: `, the error's code in mypy and the rule's name in pyright. Nothing here runs.
"""

from __future__ import annotations

import ast
import collections
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import forward_types

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = sorted((ROOT / "tests" / "typing_programs").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
_MARK = re.compile(r"# error: (?P<mypy>[\w-]+), (?P<pyright>\w+)$")


def expected(checker: str) -> dict[tuple[str, int], str]:
    """The code of the error at a line of a program."""
    found = {}
    for path in PROGRAMS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            mark = _MARK.search(line)
            if mark is not None:
                found[path.stem, number] = mark[checker]
    return found


def output(*command: str, paths: list[Path]) -> str:
    forward_types.write()  # for modules that are newer than the environment
    done = subprocess.run(
        [sys.executable, "-m", *command, *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def errors_of_mypy() -> Iterator[tuple[str, int, str]]:
    for line in output("mypy", "--output", "json", paths=PROGRAMS).splitlines():
        found = json.loads(line)
        if found["severity"] == "error":
            yield Path(found["file"]).stem, found["line"], found["code"]


def errors_of_pyright() -> Iterator[tuple[str, int, str]]:
    paths = PROGRAMS + EXAMPLES
    command = ("basedpyright", "--outputjson", "--pythonpath", sys.executable)
    for found in json.loads(output(*command, paths=paths))["generalDiagnostics"]:
        if found["severity"] == "error":
            line = found["range"]["start"]["line"] + 1
            yield Path(found["file"]).stem, line, found.get("rule", found["message"])


def check(checker: str, errors: Iterator[tuple[str, int, str]]) -> None:
    found = collections.defaultdict(set)
    for program, line, code in errors:
        found[program, line].add(code)
    wanted = expected(checker)
    assert found.keys() == wanted.keys()
    assert {place: code for place, code in wanted.items() if code not in found[place]} == {}


def test_each_statement_of_the_wrong_programs_is_marked() -> None:
    text = (ROOT / "tests" / "typing_programs" / "wrong" / "programs.py").read_text(
        encoding="utf-8"
    )
    _, *wrong = (each.lineno for each in ast.parse(text).body if isinstance(each, ast.Expr))
    assert len(wrong) >= 40
    assert {("programs", line) for line in wrong} <= expected("mypy").keys()


@pytest.mark.jobs
def test_mypy_refuses_the_wrong_lines_and_no_others() -> None:
    check("mypy", errors_of_mypy())


@pytest.mark.jobs
@pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None, reason="make test-pyright installs it"
)
def test_pyright_refuses_the_wrong_lines_and_no_others() -> None:
    check("pyright", errors_of_pyright())
