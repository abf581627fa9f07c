"""Lists the golden files, and computes, reads and writes each."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.golden_chains import recipes
from tests.golden_conversions import conversions
from tests.golden_records import observed

GOLDEN = Path(__file__).resolve().parent / "golden"
CHAINS = "chains"
# For each file except the file of chains: the function that computes it from the stores in a folder.
PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {"conversions": conversions}


@functools.cache
def part(name: str) -> dict[str, Any]:
    """What a golden file holds."""
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return found


def computed(name: str, folder: Path) -> dict[str, Any]:
    """Return what the file would hold by this code, of the stores in a folder."""
    if name != CHAINS:
        return PARTS[name](folder)
    return {
        name: {"recipe": recipe, **observed(recipe, folder)} for name, recipe in recipes().items()
    }


def write(found: Mapping[str, Any]) -> None:
    """Write the files: one line for each entry, so that a change shows which one it is of."""
    for name, entries in found.items():
        lines = [
            f"{json.dumps(key)}: {json.dumps(entry, sort_keys=name != CHAINS)}"
            for key, entry in entries.items()
        ]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        (GOLDEN / f"{name}.json").write_text(text, encoding="utf-8")
