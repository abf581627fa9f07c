"""Runs the tutorials, which are notebooks, and compares what they print with what is stored in them.

    python -m tools.notebooks                   run all; what fails or differs is listed
    python -m tools.notebooks --write images    run some, and store what they show

A tutorial runs in its folder, in a kernel of this Python. Printed lines are compared. Pictures are stored,
but not compared, since their bytes depend on the version of matplotlib.

Exit code: 1 if a tutorial failed or differs, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import nbclient
import nbformat

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
# What a tutorial needs and one environment only has; the others leave the tutorial out.
NEEDS: Final = {"tfds": "tensorflow_datasets"}
_LONGEST_S: Final = 300  # of one cell


def names() -> list[str]:
    """The tutorials, by the names of their files."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def is_for_this_environment(name: str) -> bool:
    """Whether the packages of a tutorial are installed."""
    return name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None


def path_of(name: str) -> Path:
    """The file of a tutorial."""
    return FOLDER / f"{name}.ipynb"


def stored(name: str) -> Any:
    """A tutorial as it is in its file."""
    return nbformat.read(path_of(name), as_version=4)


def executed(notebook: Any) -> Any:
    """The notebook with what a run shows, and without what differs from run to run.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    fresh = nbformat.from_dict(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(
        fresh,
        timeout=_LONGEST_S,
        resources=resources,
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
    ).execute()
    fresh.metadata = notebook.metadata
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
            # Warnings of packages, which name files of this machine, are left out.
            cell.outputs = [x for x in cell.outputs if x.get("name") != "stderr"]
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
    return fresh


def printed(cell: Any) -> str:
    """The lines that a cell shows; a picture has none."""
    lines = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "image/png" not in data:
            lines.append(output.get("text") or data.get("text/plain", ""))
    return "\n".join(line.strip() for line in lines)


def differences(before: Any, after: Any) -> list[str]:
    """The cells of two runs whose printed lines differ, and both of these."""
    found = []
    for old, new in zip(before.cells, after.cells, strict=True):
        if printed(old) != printed(new):
            found.append(f"cell {old.id!r}\n  stored: {printed(old)!r}\n  run:    {printed(new)!r}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run tutorials, and compare or store what they show."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())} [all]")
    parser.add_argument("--write", action="store_true", help="store what the runs show")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(names()):
        parser.error(f"unknown tutorial {', '.join(sorted(unknown))}")
    failed = False
    for name in given.names or names():
        if not is_for_this_environment(name):
            print(f"{name}: left out, since {NEEDS[name]} is not installed", file=sys.stderr)
            continue
        before = stored(name)
        try:
            after = executed(before)
        except nbclient.exceptions.CellExecutionError as error:
            print(f"{name}: {error}")
            failed = True
            continue
        if given.write:
            nbformat.write(after, path_of(name))
        elif found := differences(before, after):
            print(f"{name}: a run shows something else than the file", *found, sep="\n")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
