"""`tools.house` counts what it says, on a toy house."""

from __future__ import annotations

import ast
import collections
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rooms import BUDGETS, OTHER_BUDGETS
from tools import house

# Modules that may dispatch on classes of nodes, and the places where all of them do.
MOST_MODULES, MOST_ARMS = 6, 45
MOST_LINES = 599
MOST_SPARE = 50  # lines of a room's budget that it need not use
LEAST_DOCUMENTED = 0.97  # of public classes, functions and methods
SETTINGS = """
[tool.setuptools.package-dir]
windrow = "loader"
"windrow.core" = "loader/core"
"windrow.transforms" = "transforms"
"""
FILES = {
    "loader/__init__.py": "",
    "loader/core/__init__.py": "",
    "loader/core/tools.py": "from windrow.transforms.nodes import Node\n\nclass Box: ...\n",
    "loader/run.py": (
        "from windrow.transforms.nodes import MapNode, Node\n\n"
        "class _Box: ...\n\n"
        "def run(node: Node) -> int:\n"
        "    match node:\n"
        "        case MapNode():\n"
        "            return 1\n"
        "    if isinstance(node, (int, MapNode)):\n"
        "        return 2\n"
        "    return {MapNode: 3, int: 4}[type(node)]\n"
    ),
    "transforms/__init__.py": "",
    "transforms/nodes.py": "class Node: ...\n\n\nclass MapNode(Node): ...\n",
}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(SETTINGS, encoding="utf-8")
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_a_toy_house_is_measured(toy: Path) -> None:
    found = house.House.of(toy)
    assert {m.name: m.lines for m in found.modules.values() if m.lines} == {
        "windrow.core.tools": 3,
        "windrow.run": 11,
        "windrow.transforms.nodes": 4,
    }
    assert [(a.name, b.name) for a, b in found.arrows()] == [
        ("windrow.run", "windrow.transforms.nodes"),
        ("windrow.core.tools", "windrow.transforms.nodes"),
    ]
    assert found.arms(found.modules["windrow.run"], found.node_classes()) == [7, 9, 11]
    assert {n: w for n, w in found.classes().items() if len(w) > 1} == {
        "Box": ["windrow.run", "windrow.core.tools"]
    }


def test_circles_are_found_in_functions_and_behind_strings(toy: Path) -> None:
    assert house.House.of(toy).in_circles() == set()
    with (toy / "transforms" / "nodes.py").open("a") as nodes:
        nodes.write("\ndef late() -> None:\n    from windrow.core import tools\n")
    both = {"windrow.transforms.nodes", "windrow.core.tools"}
    assert house.House.of(toy).in_circles() == both
    with (toy / "loader" / "core" / "tools.py").open("a") as tools:
        tools.write("\nimport importlib\n\nimportlib.import_module('windrow.run')\n")
    assert house.House.of(toy).in_circles() == {*both, "windrow.run"}


def test_no_room_exceeds_its_budget_and_budgets_fall_with_their_rooms() -> None:
    lines = house.here().lines()
    assert set(lines) == set(BUDGETS)
    assert {room: lines[room] for room in lines if lines[room] > BUDGETS[room]} == {}
    spare = {room: BUDGETS[room] for room in lines if lines[room] < BUDGETS[room] - MOST_SPARE}
    assert spare == {}, "python -m tools.house --write"


def test_a_node_has_no_more_methods_than_it_had() -> None:
    methods = house.here().methods_of_node()
    assert {"label", "blocks", "count"} <= methods
    assert len(methods) == OTHER_BUDGETS["methods of Node"], "python -m tools.house --write"


def test_the_measures_on_the_page_are_those_of_the_house() -> None:
    page = (house.HERE / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert house.table(house.here()) in page, "python -m tools.house --write"


def test_a_page_and_budgets_are_written_anew(toy: Path) -> None:
    (toy / "tests").mkdir()
    rooms = toy / "tests" / "rooms.py"
    rooms.write_text('{"windrow": 20, "windrow.core": 3, "windrow.transforms": 1,}\n')
    page = toy / "ARCHITECTURE.md"
    page.write_text(
        "Before.\n\n| room | modules |\n|---|\n| windrow | 1 |\n| in all | 1 |\n\nAfter.\n"
    )
    house.main(["--root", str(toy), "--write"])
    table = house.table(house.House.of(toy))
    assert page.read_text() == f"Before.\n\n{table}\n\nAfter.\n"
    page.write_text(page.read_text().replace("| windrow.core ", "| windrow.gone "))
    house.main(["--root", str(toy), "--write"])
    assert page.read_text() == f"Before.\n\n{table}\n\nAfter.\n"
    assert rooms.read_text() == '{"windrow": 11, "windrow.core": 3, "windrow.transforms": 1,}\n'


def test_few_modules_dispatch_on_nodes() -> None:
    found = house.here()
    nodes = found.node_classes()
    arms = {name: len(found.arms(module, nodes)) for name, module in found.modules.items()}
    modules = {name for name, count in arms.items() if count}
    # The walk of a chain has an arm for each kind of node with random access.
    assert "windrow.engine.index_walk" in modules
    assert len(modules) <= MOST_MODULES, sorted(modules)
    assert sum(arms.values()) <= MOST_ARMS, arms


def test_files_are_under_600_lines() -> None:
    long = {
        str(file.relative_to(house.HERE)): lines
        for folder in ("loader", "sources", "transforms", "converters")
        for file in (house.HERE / folder).rglob("*.py")
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert long == {}


def documented(modules: list[ast.Module]) -> Iterator[tuple[str, bool]]:
    """Yield each public name and whether it has a docstring; a method may inherit one."""
    described = collections.defaultdict[str, set[str]](set)
    bases = collections.defaultdict[str, set[str]](set)
    classes = [
        node for module in modules for node in ast.walk(module) if isinstance(node, ast.ClassDef)
    ]
    for each in classes:
        bases[each.name] |= {house._name(getattr(base, "value", base)) for base in each.bases}
        bases[each.name] |= {house._name(base) for base in each.bases}
        described[each.name] |= {name for name, has in _public(each.body) if has}

    def inherited(of: str, name: str, met: frozenset[str]) -> bool:
        above = bases[of] - met
        return any(name in described[b] or inherited(b, name, met | above) for b in above)

    for module in modules:
        yield from _public(module.body)
    for each in classes:
        if not each.name.startswith("_"):
            for name, has in _public(each.body):
                yield f"{each.name}.{name}", has or inherited(each.name, name, frozenset())


def _public(body: list[ast.stmt]) -> Iterator[tuple[str, bool]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            marks = " ".join(map(ast.unparse, node.decorator_list))
            if not node.name.startswith("_") and "overload" not in marks and "setter" not in marks:
                yield node.name, ast.get_docstring(node) is not None


def test_public_names_have_docstrings() -> None:
    found = list(documented([module.tree for module in house.here().modules.values()]))
    without = [name for name, has in found if not has]
    assert len(found) > 3_000
    assert len(without) <= (1 - LEAST_DOCUMENTED) * len(found), without
    toy = ast.parse(
        "class A:\n def f(self): 'Do.'\n\nclass B(A):\n def f(self): ...\n def g(self): ..."
    )
    assert dict(documented([toy])) == {
        "A": False,
        "B": False,
        "A.f": True,
        "B.f": True,
        "B.g": False,
    }
