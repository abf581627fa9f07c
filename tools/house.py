"""Measures the house: modules, lines, imports and names, room by room.

    python -m tools.house            the table of this checkout
    python -m tools.house --write    writes it into ARCHITECTURE.md, and lowers budgets in tests/rooms.py
    python -m tools.house --root DIR that of another one
    python -m tools.house --names    the class names that mean two things, and where
    python -m tools.house --arms     the places that dispatch on node classes

A room is a package. An arrow is an import from a module of one room to a module of another; a back
edge is an arrow that `tests/rooms.py` does not allow. A module is in a circle if it imports itself through
others, in functions and by names as strings too. An arm is a place that dispatches on a class of
node: a `case`, an `isinstance`, or a key of a table. A name is ambiguous if two modules define a class
of that name, leading underscores aside. The methods of `Node` are those of its bases too.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import functools
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tabulate import tabulate

from tests.rooms import ROOMS, may_import

HERE = Path(__file__).resolve().parent.parent
_LAST_ROW = "in all"
_NODES = "windrow.transforms.nodes"
_BY_NAME = ("import_module", "optional")  # functions that import a module by its name


@dataclasses.dataclass(frozen=True)
class Module:
    """A module of the package: its import name, its room, its lines and its syntax tree."""

    name: str
    room: str
    lines: int
    tree: ast.Module


@dataclasses.dataclass(frozen=True)
class House:
    """All modules of a checkout."""

    modules: dict[str, Module]

    @classmethod
    def of(cls, root: Path) -> House:
        """Read the checkout at `root`."""
        settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        folders = settings["tool"]["setuptools"]["package-dir"]
        modules = {}
        for room, folder in folders.items():
            for path in sorted((root / folder).glob("*.py")):
                name = room if path.stem == "__init__" else f"{room}.{path.stem}"
                stub = path.with_suffix(".pyi")  # lists the names of a facade
                files = [path, *([stub] if stub.exists() else [])]
                text = "".join(file.read_text(encoding="utf-8") for file in files)
                modules[name] = Module(name, room, text.count("\n"), ast.parse(text))
        return cls(modules)

    @functools.cached_property
    def _imports(self) -> dict[str, set[str]]:
        return {name: self._imports_of(module) for name, module in self.modules.items()}

    def imports(self, module: Module) -> set[str]:
        """Modules of the package that `module` imports anywhere, in functions too, and by their names as strings."""
        return self._imports[module.name]

    def _imports_of(self, module: Module) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found.add(full if full in self.modules else str(node.module))
            elif isinstance(node, ast.Call) and _name(node.func) in _BY_NAME and node.args:
                found.add(ast.unparse(node.args[0]).strip("'"))
        return (found & set(self.modules)) - {module.name}

    def in_circles(self) -> set[str]:
        """The modules on a circle of imports, and those between two circles."""
        imports = self._imports
        while True:
            needed = set().union(*imports.values())
            left = {
                name: found & imports.keys()
                for name, found in imports.items()
                if name in needed and found & imports.keys()
            }
            if left == imports:
                return set(left)
            imports = left

    def lines(self) -> collections.Counter[str]:
        """The lines of each room."""
        found = collections.Counter[str]()
        for module in self.modules.values():
            found[module.room] += module.lines
        return found

    def arrows(self) -> Iterator[tuple[Module, Module]]:
        """Pairs of modules of two rooms, of which the first imports the second."""
        for module in self.modules.values():
            for name in sorted(self.imports(module)):
                if self.modules[name].room != module.room:
                    yield module, self.modules[name]

    def classes(self) -> dict[str, list[str]]:
        """The modules that define a class of a name, leading underscores aside."""
        found = collections.defaultdict(list)
        for module in self.modules.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    found[node.name.lstrip("_")].append(module.name)
        return found

    def methods_of_node(self) -> set[str]:
        """Names of the methods that `Node` has, its own and those of its bases."""
        classes = {
            node.name: node
            for module in self.modules.values()
            if module.room == _NODES
            for node in module.tree.body
            if isinstance(node, ast.ClassDef)
        }
        found, waiting = set[str](), ["Node"]
        while waiting:
            if node := classes.get(waiting.pop()):
                waiting.extend(map(_name, node.bases))
                found.update(each.name for each in node.body if isinstance(each, ast.FunctionDef))
        return {name for name in found if not name.startswith("__")}

    def node_classes(self) -> set[str]:
        """Names of the classes that derive from `Node`, and `Node` itself."""
        bases = {
            node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
            for module in self.modules.values()
            for node in module.tree.body
            if isinstance(node, ast.ClassDef)
        }
        found = {"Node"}
        while more := {name for name, above in bases.items() if above & found} - found:
            found |= more
        return found

    def arms(self, module: Module, nodes: set[str]) -> list[int]:
        """Lines of a module that dispatch on a class of node."""
        return sorted(line for each in ast.walk(module.tree) for line in _arms(each, nodes))


@functools.cache
def here() -> House:
    """The modules of this checkout, read once."""
    return House.of(HERE)


def _arms(node: ast.AST, nodes: set[str]) -> Iterator[int]:
    if isinstance(node, ast.MatchClass) and _name(node.cls) in nodes:
        yield node.lineno
    elif isinstance(node, ast.Call) and _name(node.func) in ("isinstance", "issubclass"):
        kinds = node.args[1]
        parts = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
        if any(_name(part) in nodes for part in parts):
            yield node.lineno
    elif isinstance(node, ast.Dict):
        yield from (key.lineno for key in node.keys if key is not None and _name(key) in nodes)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def table(house: House) -> str:
    """Tabulate the measures of all rooms."""
    nodes = house.node_classes()
    twice = {name: where for name, where in house.classes().items() if len(where) > 1}
    arrows = list(house.arrows())
    circles = house.in_circles()
    order = {room: number for number, room in enumerate(ROOMS)}
    rooms = sorted({m.room for m in house.modules.values()}, key=lambda r: (order.get(r, 99), r))
    rows: list[tuple[str, ...]] = []
    sums = [0] * 8
    for room in rooms:
        inside = [module for module in house.modules.values() if module.room == room]
        figures = [
            len(inside),
            sum(module.lines for module in inside),
            max(module.lines for module in inside),
            sum(a.room == room for a, _ in arrows),
            sum(a.room == room and not may_import(a.name, b.name) for a, b in arrows),
            sum(module.name in circles for module in inside),
            sum(len(house.arms(module, nodes)) for module in inside),
            sum(any(house.modules[w].room == room for w in where) for where in twice.values()),
        ]
        rows.append((room, *(f"{figure:,}" for figure in figures)))
        sums = [
            max(a, b) if i == 2 else a + b
            for i, (a, b) in enumerate(zip(sums, figures, strict=True))
        ]
    sums[-1] = len(twice)
    rows.append((_LAST_ROW, *(f"{figure:,}" for figure in sums)))
    heads = (
        "room",
        "modules",
        "lines",
        "longest",
        "arrows",
        "back edges",
        "in circles",
        "arms",
        "ambiguous names",
    )
    measures = tabulate(rows, heads, tablefmt="github", colalign=("left", *["right"] * 8))
    return f"{measures}\n\n`Node` has {len(house.methods_of_node())} methods."


def written(page: str, house: House) -> str:
    """Write the measures of a house into the text of a page."""
    rows = re.compile(
        rf"^\| room +\| +modules.*?^\| {_LAST_ROW} [^\n]*$(\n\n`Node` has \d+ methods.)?",
        re.DOTALL | re.MULTILINE,
    )
    return rows.sub(lambda _: table(house), page)


def lowered(rooms: str, house: House) -> str:
    """Lower the budgets in the text of `tests/rooms.py` to what the house has."""
    lines = {**house.lines(), "methods of Node": len(house.methods_of_node())}

    def budget(found: re.Match[str]) -> str:
        return f'"{found[1]}": {min(int(found[2]), lines[found[1]])},'

    return re.sub(r'"([A-Za-z_. ]+)": (\d+),', budget, rooms)


def main(argv: Sequence[str] | None = None) -> None:
    """Print what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--root", type=Path, default=HERE, help="the checkout [this one]")
    parser.add_argument("--write", action="store_true", help="write the page and the budgets")
    parser.add_argument("--names", action="store_true", help="list ambiguous class names")
    parser.add_argument("--arms", action="store_true", help="list places that dispatch on nodes")
    options = parser.parse_args(argv)
    house = House.of(options.root)
    if options.write:
        for name, change in (("ARCHITECTURE.md", written), ("tests/rooms.py", lowered)):
            path = options.root / name
            path.write_text(change(path.read_text(encoding="utf-8"), house), encoding="utf-8")
    elif options.names:
        for name, where in sorted(house.classes().items()):
            if len(where) > 1:
                print(f"{name}: {', '.join(where)}")
    elif options.arms:
        nodes = house.node_classes()
        for module in house.modules.values():
            if lines := house.arms(module, nodes):
                print(f"{module.name}: {len(lines)} (lines {', '.join(map(str, lines))})")
    else:
        print(table(house))


if __name__ == "__main__":
    main()
