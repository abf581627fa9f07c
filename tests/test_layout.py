"""The folders, the import names, the stubs and the examples in docstrings stay in step."""

from __future__ import annotations

import ast
import doctest
import graphlib
import importlib
import tomllib
from pathlib import Path

import pytest

from tools import forward_types

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = SETTINGS["tool"]["setuptools"]["package-dir"]

# What each folder may know of the package, beside itself. `windrow` is the loader: it knows all.
MAY_IMPORT = {
    "windrow.transforms": {"windrow.errors"},
    "windrow.sources": {"windrow.errors"},
    "windrow.converters": {
        "windrow.errors",
        "windrow.progress",
        "windrow.sources",
        "windrow.transforms",
    },
}


def module_files() -> dict[str, Path]:
    """File of each module by import name, found in the folders at any depth."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            inner = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *inner))] = path
    return found


MODULES = module_files()


def package_of(module: str) -> str:
    """Name of the package, of the four, that holds `module`."""
    return max((p for p in FOLDERS if f"{module}.".startswith(f"{p}.")), key=len)


def imports_of(path: Path) -> set[str]:
    """Modules of the package that `path` imports anywhere, `from a import b` as `a` or `a.b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: import by the full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in MODULES else str(node.module) for name in names)
    return found & set(MODULES)


def test_every_folder_with_modules_is_a_package() -> None:
    holding = {path.parent.relative_to(ROOT).as_posix() for path in MODULES.values()}
    assert holding == set(FOLDERS.values())
    assert set(SETTINGS["tool"]["setuptools"]["packages"]) == set(FOLDERS)


def test_no_module_of_the_loader_hides_a_folder() -> None:
    inner = {package.removeprefix("windrow.") for package in FOLDERS if package != "windrow"}
    here = {path.stem for path in (ROOT / "loader").iterdir()}
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


@pytest.mark.parametrize("module", MODULES)
def test_module_is_imported_from_this_checkout(module: str) -> None:
    # An environment of another checkout would silently test that one's code.
    file = importlib.import_module(module).__file__
    assert file is not None
    assert Path(file).resolve() == MODULES[module]


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(
        importlib.import_module(module),
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.failed == 0


@pytest.mark.parametrize("module", [m for m in MODULES if package_of(m) in MAY_IMPORT])
def test_folders_know_only_what_lies_below_them(module: str) -> None:
    own = package_of(module)
    foreign = {name for name in imports_of(MODULES[module]) if package_of(name) != own}
    allowed = MAY_IMPORT[own]
    assert {name for name in foreign if not {name, package_of(name)} & allowed} == set()


def test_imports_have_no_cycle() -> None:
    # Imports inside functions count too: that is where a cycle hides.
    graph = {name: imports_of(path) - {name} for name, path in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()
