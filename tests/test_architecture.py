"""ARCHITECTURE.md names what exists, and its list of files to edit has tests of each kind."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.rooms import ROOMS

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
# What shows for each kind that the list is enough: toys of nodes, sources and formats.
SHOWN = {
    "a node": "tests/transforms/test_page_nodes.py",
    "a source": "tests/sources/test_sources_foreign.py",
    "a format of the command line": "tests/inspection/test_opening.py",
    "a codec of local Zarr chunks": "tests/sources/zarr/test_zarr_native.py",
    "a conversion": "tests/converters/test_converters_declared.py",
    "a cost per source (chunks, reads, bytes)": "tests/stats/test_stats_reads.py",
    "another statistic (time or memory of an iterator)": "tests/stats/test_stats.py",
}


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def named_paths(text: str) -> list[str]:
    """Paths in backticks: files of Python or Markdown, and folders of the four at the root."""
    words = re.findall(r"`([\w./{}, *-]+)`", text)
    tops = ("loader", "sources", "transforms", "converters", "tests", "engine", "core", "workers")
    return [w for w in words if w.split("/")[0] in tops and ("/" in w) and " " not in w]


def existing(path: str) -> bool:
    """Whether a path exists, from the root or from `loader/`."""
    return (ROOT / path).exists() or (ROOT / "loader" / path).exists()


def test_the_page_has_at_most_250_lines() -> None:
    assert PAGE.count("\n") <= 250


def test_every_path_on_the_page_exists() -> None:
    paths = named_paths(PAGE)
    assert len(paths) > 40
    assert [path for path in paths if not existing(path)] == []


def test_every_room_is_on_the_page() -> None:
    drawn = section("The rooms")
    missing = [
        room
        for room in ROOMS
        if (inner := room.removeprefix("windrow").lstrip("."))
        and not all(part in drawn for part in inner.split("."))
    ]
    assert missing == []


def test_every_kind_of_thing_to_add_has_a_test() -> None:
    rows = re.findall(r"^\| (an?(?:other)? [^|]+?) \|", section("To add X, edit these"), flags=re.M)
    assert rows == list(SHOWN)
    assert [path for path in SHOWN.values() if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("sources/signatures.py", "Signature"),
        ("loader/formats/table.py", "Format"),
        ("transforms/nodes/base.py", "Node"),
        ("sources/base.py", "BatchedSource"),
        ("loader/stats/costs.py", "SourceCosts"),
        ("loader/cli/convert.py", "CONVERSIONS"),
        ("converters/job/declared.py", "OPTIONS"),
        ("sources/zarr/metadata.py", "PLAIN_CODECS"),
        ("sources/zarr/codecs.py", "COMPRESSORS"),
        ("sources/chunks.py", "LaidOutSource"),
        ("sources/chunks.py", "Scattered"),
        ("loader/explain/explanation.py", "_COLUMNS"),
        ("loader/explain/explanation.py", "_BYTES"),
        ("loader/stats/read_counters.py", "ReadCounters"),
        ("loader/stats/stats.py", "Stats"),
        ("loader/metrics.py", "_COSTS"),
    ],
)
def test_the_files_to_edit_hold_what_is_edited(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    tables = {
        node.target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert name in classes | tables
