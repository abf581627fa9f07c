"""The folders, the import names, the stubs, and the examples in docstrings stay in step."""

from __future__ import annotations

import ast
import doctest
import importlib
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import windrow
from tests.rooms import FACADES, ROOMS, may_import, room_of
from tools import forward_types, house

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
HOUSE = house.here()


def test_imports_are_by_the_full_name() -> None:
    relative = [
        name
        for name, module in HOUSE.modules.items()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_every_folder_with_modules_is_a_package() -> None:
    tops = ("loader", "sources", "transforms", "converters")
    found = [path.parent for top in tops for path in (ROOT / top).rglob("*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in found} == set(FOLDERS.values())
    assert set(SETTINGS["tool"]["setuptools"]["packages"]) == set(FOLDERS)


def test_no_module_of_the_loader_hides_a_folder() -> None:
    inner = {package.removeprefix("windrow.") for package in FOLDERS}
    here = {path.stem for path in (ROOT / "loader").glob("*.py")}
    assert not inner & here


def test_stubs_are_brought_in_step(tmp_path: Path) -> None:
    (tmp_path / "loader").mkdir()
    (tmp_path / "loader" / "__init__.py").touch()
    (tmp_path / "loader" / "errors.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.setuptools.package-dir]\nwindrow = "loader"\n', encoding="utf-8"
    )
    folder = tmp_path / "typings" / "windrow"
    folder.mkdir(parents=True)
    (folder / "gone.pyi").touch()
    (folder / "__init__.pyi").write_text("x: int\n", encoding="utf-8")
    forward_types.write(tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {
        "__init__.pyi": "from loader import *\n",
        "errors.pyi": "from loader.errors import *\n",
    }
    forward_types.write(tmp_path)  # nothing to do
    assert len(list(folder.iterdir())) == 2


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
        f"{name} imports {other}"
        for name, module in HOUSE.modules.items()
        for other in HOUSE.imports(module)
        if not may_import(name, other)
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


def test_imports_have_no_circle() -> None:
    # Imports inside functions, and by names as strings, count too: that is where a circle hides.
    assert HOUSE.in_circles() == set()


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
