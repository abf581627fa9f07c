"""The public names of Grain: of the installed release, and a stored list of the newest one.

`python -m tests.grain_names` prints the names of the installed release as JSON; with the newest
release installed in another environment, its output becomes `tests/data/grain_names.json`.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

STORED = Path(__file__).resolve().parent / "data" / "grain_names.json"
MODULES = (
    "grain",
    "grain.python",
    "grain.transforms",
    "grain.sources",
    "grain.samplers",
    "grain.sharding",
    "grain.multiprocessing",
    "grain.checkpoint",
    "grain.constants",
    "grain.experimental",
)


def walked() -> dict[str, list[str]]:
    """The public names of each module of the installed Grain."""
    modules = {name: importlib.import_module(name) for name in MODULES}
    return {
        name: sorted(public for public in dir(module) if not public.startswith("_"))
        for name, module in modules.items()
    }


def stored() -> tuple[str, dict[str, list[str]]]:
    """The version of the stored list, and its names."""
    found = json.loads(STORED.read_text(encoding="utf-8"))
    return found["version"], found["names"]


def main() -> None:
    """Print the names of the installed release."""
    version = importlib.import_module("grain").__version__
    json.dump({"version": version, "names": walked()}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
