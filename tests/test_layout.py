"""The folders, the import names, the stubs and the examples in docstrings stay in step."""

from __future__ import annotations

import ast
import doctest
import functools
import graphlib
import importlib
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import windrow
from tests.rooms import FACADES, ROOMS, may_import, room_of
from tools import forward_types

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = SETTINGS["tool"]["setuptools"]["package-dir"]


def module_files() -> dict[str, Path]:
    """File of each module by import name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).glob("*.py")):
            found[package if path.stem == "__init__" else f"{package}.{path.stem}"] = path
    return found


MODULES = module_files()


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    """Modules of the package that `path` imports anywhere, `from a import b` as `a` or `a.b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: import by the full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in MODULES else str(node.module) for name in names)
    return frozenset(found & set(MODULES))


def test_every_folder_with_modules_is_a_package() -> None:
    tops = ("loader", "sources", "transforms", "converters")
    found = [path.parent for top in tops for path in (ROOT / top).rglob("*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in found} == set(FOLDERS.values())
    assert set(SETTINGS["tool"]["setuptools"]["packages"]) == set(FOLDERS)


def test_no_module_of_the_loader_hides_a_folder() -> None:
    inner = {package.removeprefix("windrow.") for package in FOLDERS}
    here = {path.stem for path in (ROOT / "loader").glob("*.py")}
    assert not inner & here


def test_stubs_are_in_step() -> None:
    assert forward_types.differences() == []


def test_stubs_out_of_step_are_named_and_mended(tmp_path: Path) -> None:
    (tmp_path / "loader").mkdir()
    (tmp_path / "loader" / "__init__.py").touch()
    (tmp_path / "loader" / "errors.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.setuptools.package-dir]\nwindrow = "loader"\n', encoding="utf-8"
    )
    stub = tmp_path / "typings" / "windrow" / "errors.pyi"
    forward_types.write(tmp_path)
    assert stub.read_text(encoding="utf-8") == "from loader.errors import *\n"
    assert forward_types.differences(tmp_path) == []
    stub.rename(stub.with_name("gone.pyi"))
    stub.with_name("__init__.pyi").write_text("x: int\n", encoding="utf-8")
    assert forward_types.differences(tmp_path) == [
        "typings/windrow/gone.pyi: no module of that name",
        "typings/windrow/__init__.pyi: must be 'from loader import *'",
        "typings/windrow/errors.pyi: missing",
    ]
    forward_types.write(tmp_path)
    assert forward_types.differences(tmp_path) == []


# PyTorch is not in the environment: tests/chain/test_torch.py imports this module with a stand-in.
IMPORTED = sorted(set(MODULES) - {"windrow.torch"})


WITH_EXAMPLES = [name for name in IMPORTED if ">>> " in MODULES[name].read_text(encoding="utf-8")]


def test_modules_are_imported_from_this_checkout() -> None:
    # An environment of another checkout would silently test that one's code.
    found = {module: importlib.import_module(module).__file__ for module in IMPORTED}
    assert {m: Path(str(file)).resolve() for m, file in found.items()} == {
        module: MODULES[module] for module in IMPORTED
    }


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_docstring_examples(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write a file
    result = doctest.testmod(
        importlib.import_module(module),
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.failed == 0


def test_rooms_know_only_rooms_below_them() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        for other in imports_of(path) - {module}
        if not may_import(module, other)
    ]
    assert wrong == []


def test_the_table_of_rooms_points_down_and_names_what_exists() -> None:
    order = list(ROOMS)
    for room, below in ROOMS.items():
        assert all(order.index(other) < order.index(room) for other in below), room
    assert set(ROOMS) | FACADES <= set(MODULES)
    assert {room_of(module) for module in MODULES} == set(ROOMS)
    # A package is a room, or holds nothing but rooms.
    assert set(FOLDERS) - set(ROOMS) == {"windrow.converters"}


def test_no_subpackage_hides_a_public_function() -> None:
    # Importing windrow.inspect would replace the function of that name.
    inner = {package.removeprefix("windrow.") for package in FOLDERS}
    assert not inner & {name for name in dir(windrow) if callable(getattr(windrow, name))}


def cycle_of(graph: dict[str, set[str]]) -> list[str]:
    """Return the names of a cycle in `graph`, the first one also at the end; empty without one."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_imports_have_no_cycle() -> None:
    # Imports inside functions count too: that is where a cycle hides.
    graph = {name: set(imports_of(path) - {name}) for name, path in MODULES.items()}
    assert cycle_of(graph) == []
    # With one more import, the same graph has a cycle.
    assert "windrow.errors" in graph["windrow.iterator"]
    graph["windrow.errors"] = {"windrow.iterator"}
    assert {"windrow.errors", "windrow.iterator"} <= set(cycle_of(graph))


def test_the_oldest_versions_are_those_that_are_allowed() -> None:
    lines = (ROOT / "tools" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    oldest = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    project = SETTINGS["project"]
    needed = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, texts in needed.items():
        for one in map(Requirement, texts):
            name = canonicalize_name(one.name)
            if name in oldest:
                assert one.specifier.contains(oldest[name]), one
            else:  # tools, and what is not installed with the extra dev
                assert extra in ("dev", "dev-tfds", "tfds", "bench", "examples"), one
