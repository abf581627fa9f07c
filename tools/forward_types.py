"""Writes the stubs that let static tools find the four folders by their import names.

Packages are mapped to folders of other names (`loader/` is `windrow`), which only the import
system of an installed package knows. Each stub under `typings/` forwards to one real module, so a
class has one identity for mypy and pyright, and its source is the real file; a facade's own stub, which
lists its names, is copied. The stubs are not in git:
`make` writes them with the environment, and `make lint` anew.

Invariant: the stubs are a function of the folders and of `pyproject.toml` alone.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUBS = Path("typings")


def package_folders(root: Path = ROOT) -> dict[str, str]:
    """Folder of each package by its import name, as `pyproject.toml` maps them."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    folders: dict[str, str] = settings["tool"]["setuptools"]["package-dir"]
    return folders


def modules(root: Path = ROOT) -> dict[str, Path]:
    """File of each module, relative to the root, by import name; a package is its `__init__`."""
    found = {}
    for package, folder in package_folders(root).items():
        for path in sorted((root / folder).glob("*.py")):
            name = package if path.stem == "__init__" else f"{package}.{path.stem}"
            found[name] = path.relative_to(root)
    return found


def stubs(root: Path = ROOT) -> dict[Path, str]:
    """Text of each stub, by its path relative to the root."""
    packages = package_folders(root)
    texts = {}
    for name, path in modules(root).items():
        is_package = name in packages
        real = path.parent if is_package else path.with_suffix("")
        where = STUBS.joinpath(*name.split("."))
        stub = where / "__init__.pyi" if is_package else where.with_suffix(".pyi")
        own = (root / path).with_suffix(".pyi")
        forward = f"from {'.'.join(real.parts)} import *\n"
        texts[stub] = own.read_text(encoding="utf-8") if own.exists() else forward
    return texts


def write(root: Path = ROOT) -> None:
    """Bring `typings/` in step: write each stub that differs, remove those of modules that are gone."""
    wanted = stubs(root)
    for path in (root / STUBS).rglob("*.pyi"):
        if path.relative_to(root) not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # What is in step stays as it is: type checkers look at the times of files.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
