"""Pages of the documentation site that are made of other files: tutorials, examples, and the reference.

MkDocs calls `on_startup`, `on_files` and `on_page_markdown` (see `hooks` in mkdocs.yml). A tutorial, which is a
notebook, becomes a page with its stored outputs, so that MkDocs checks its links as those of other pages. An example
becomes a page with its docstring as text and its program below; a module becomes a page with its public names.
"""

from __future__ import annotations

import ast
import importlib
import re
import shutil
from pathlib import Path
from typing import Any, Final

import nbconvert
import nbformat
from mkdocs.structure.files import File

ROOT: Final = Path(__file__).resolve().parent.parent

MODULES: Final = (
    "windrow",
    "windrow.sources",
    "windrow.transforms",
    "windrow.converters",
    "windrow.checkpoint",
    "windrow.errors",
)
# Of this section mkdocstrings knows the plural only, and shows it as code.
_EXAMPLE_TITLE: Final = re.compile(r"^( +Example):$", re.MULTILINE)
# A link from a page of docs/ to a program, to a tutorial, and to a page that the site lacks.
_EXAMPLE: Final = re.compile(r"\]\(\.\./((?:\.\./)*)examples/(\w+)\.py\)")
_TUTORIAL: Final = re.compile(r"\]\(((?:\.\./)*(?:tutorials/)?\w+)\.ipynb\)")
# A picture in a paragraph of its own.
_PICTURE: Final = re.compile(r"^(!\[[^]]*\]\(([^)\s]+)\))$", re.MULTILINE)
_OUTSIDE: Final = re.compile(r"\[([^]]*)\]\((?:\.\./)+(?:README|CHANGELOG)\.md\)")


def on_startup(**_: Any) -> None:
    """Lay out the packages under their import names, where mkdocstrings reads them."""
    place = ROOT / "build" / "packages" / "windrow"
    shutil.rmtree(place, ignore_errors=True)
    others = shutil.ignore_patterns("native", "__pycache__", "*.so")
    shutil.copytree(ROOT / "loader", place, ignore=others)
    for folder in ("sources", "transforms", "converters"):
        shutil.copytree(ROOT / folder, place / folder, ignore=others)
    for path in place.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(_EXAMPLE_TITLE.sub(r"\1s:", text), encoding="utf-8")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        if path.stem != "__init__":
            page = example_page(path)
            files.append(File.generated(config, f"examples/{path.stem}.md", content=page))
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        page, pictures = tutorial_page(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    for module in MODULES:
        page = reference_page(module)
        files.append(File.generated(config, f"reference/{module}.md", content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to programs lead to their pages, and pictures to themselves: phones show them small."""
    markdown = _TUTORIAL.sub(r"](\1.md)", _EXAMPLE.sub(r"](\1examples/\2.md)", markdown))
    return _PICTURE.sub(r"[\1](\2)", _OUTSIDE.sub(r"\1", markdown))


def tutorial_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook, and its pictures by the names that the page has for them."""
    notebook = nbformat.read(path, as_version=4)
    named = {"unique_key": path.stem}
    page, found = nbconvert.MarkdownExporter().from_notebook_node(notebook, resources=named)
    title, _, rest = page.lstrip().partition("\n")
    link = f"[Download this notebook]({path.stem}.ipynb){{: download }}, and run it in `docs/tutorials` of a clone."
    return f"{title}\n\n{link}\n{rest}", found["outputs"]


def example_page(path: Path) -> str:
    """The page of a program: its docstring, and the program itself."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    text = ast.get_docstring(tree) or ""
    title, _, rest = text.partition("\n")
    return f"# {title.rstrip('.')}\n{rest}\n\n```python title={path.name!r}\n{source}```\n"


def reference_page(module: str) -> str:
    """The page of a module: each public name with its docstring."""
    found = importlib.import_module(module)
    lines = [f"# `{module}`", "", (found.__doc__ or "").strip(), ""]
    for name in public_names(found):
        value = getattr(found, name)
        if type(value).__name__ == "module":
            continue  # a page of its own, or names of Grain
        home = getattr(value, "__module__", None) or ""
        if home.startswith("windrow"):
            lines += [f"::: {home}.{value.__qualname__}", ""]
        else:
            lines += [f"### {name}", "", f"`{name} = {value!r}`", ""]
    return "\n".join(lines)


def public_names(module: Any) -> list[str]:
    """The names of `__all__`; of a module without it the classes and functions that it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )
