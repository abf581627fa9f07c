"""Every program on the pages runs and shows what the pages say, and every link leads somewhere.

A page's blocks run in order, in one namespace and in a folder of their own: `python` blocks as they
are, `pycon` blocks as doctests. A comment `<!-- not run: why -->` before a block leaves it out.
"""

from __future__ import annotations

import dataclasses
import doctest
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import windrow
from tests.links import FENCE, LINK, broken_links
from windrow.converters import Manifest
from windrow.errors import StateError

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
GUIDES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
LINKING = [*sorted(ROOT.glob("*.md")), *DOCS]

_NOT_RUN = re.compile(r"<!-- not run: [^>]+ -->\s*\Z")
_PLACEHOLDER = re.compile(r"@[A-Z][A-Z0-9_]*@")
_FLAGS = doctest.ELLIPSIS


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page; `line` counts from 0 and is that of its first line of code."""

    language: str
    text: str
    line: int


def blocks_to_run(page: str) -> Iterator[Block]:
    """The `python` and `pycon` blocks of a page that are to be run."""
    for found in FENCE.finditer(page):
        language = found[1]
        if language in ("python", "pycon") and not _NOT_RUN.search(page[: found.start()]):
            yield Block(language, found[2], page[: found.start(2)].count("\n"))


def run_page(page: str, name: str) -> dict[str, Any]:
    """Run the blocks of a page in order; the names that they have made.

    A doctest that shows something else than the page fails the test.
    """
    names: dict[str, Any] = {"__name__": "program"}
    for block in blocks_to_run(page):
        if block.language == "python":
            # Empty lines before it, so that a traceback names the line of the page.
            code = compile("\n" * block.line + block.text, name, "exec", dont_inherit=True)
            exec(code, names)
        else:
            names = _run_doctest(block, name, names)
    return names


def _run_doctest(block: Block, name: str, names: dict[str, Any]) -> dict[str, Any]:
    test = doctest.DocTestParser().get_doctest(block.text, names, name, name, block.line)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=report.append, clear_globs=False)
    if report or not test.examples:
        pytest.fail("".join(report) or f"{name}, line {block.line}: a block without an example")
    return test.globs


# --- the pages -----------------------------------------------------------------------------------


def _check_converters(names: dict[str, Any], printed: str) -> None:
    assert printed.startswith("1000 ['digits.array_record-00000-of-00004', ")
    assert Manifest.read("digits").records == 1000
    images = zarr.open_array("digits_zarr/image", mode="r")[...]
    assert np.array_equal(np.asarray(images), np.asarray(names["images"]))


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def name_of(path: Path) -> str:
    """The path of a page from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


# What a page's program leaves behind, beside what the page itself shows.
_CHECKS: dict[str, Callable[[dict[str, Any], str], None]] = {"converters.md": _check_converters}


# Pages that need a package. Some of these pages take long.
_NEEDS = {
    "use-with-flax-nnx.md": ("flax",),
    "remote.md": ("icechunk",),
    "monitor-a-run.md": ("opentelemetry", "prometheus_client", "tensorboardX"),
}
_SLOW = ("use-with-flax-nnx.md",)
_RUN = [pytest.param(p, marks=[pytest.mark.jobs] if p.name in _SLOW else []) for p in PAGES]


@pytest.mark.parametrize("path", _RUN, ids=name_of)
def test_the_programs_on_a_page(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in _NEEDS.get(path.name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = run_page(path.read_text(encoding="utf-8"), path.name)
    if path.name in _CHECKS:
        _CHECKS[path.name](names, capsys.readouterr().out)
    # Other tests count threads; the functions of a page keep its names in a cycle.
    for value in names.values():
        if isinstance(value, windrow.DatasetIterator):
            value.close()


def test_links_lead_somewhere_and_no_place_is_left_to_be_filled_in() -> None:
    broken = {name_of(path): broken_links(path) for path in LINKING}
    assert {name: links for name, links in broken.items() if links} == {}
    open_places = {name_of(p): _PLACEHOLDER.findall(p.read_text(encoding="utf-8")) for p in LINKING}
    assert {name: places for name, places in open_places.items() if places} == {}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in DOCS} - {"README.md"}
    assert pages - set(LINK.findall(index)) == set()


def test_the_page_on_stability_names_what_is_public_and_the_states_that_are_read() -> None:
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    public = page.split("## What is public\n")[1].split("\n## ")[0]
    reference = re.findall(r"reference/(\S+)\.md", (ROOT / "mkdocs.yml").read_text())
    assert re.findall(r"`(windrow[.\w]*)`", public) == reference
    (version,) = re.findall(r"the version of its format, now (\d+)", page)
    with pytest.raises(StateError, match=rf"this one reads version {version} alone"):
        iter(windrow.MapDataset.range(1)).set_state({"version": 0})


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "CITATION.cff", "loader/core/native/Cargo.toml"], ids=Path
)
def test_the_version_is_the_same_everywhere(path: str) -> None:
    found = re.search(r'^version(?: = |: )"?([\d.]+)', (ROOT / path).read_text(), flags=re.M)
    assert found is not None
    assert found[1] == windrow.__version__


def test_releases_are_where_the_package_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Releases"] == f"https://pypi.org/project/{project['name']}/"


def test_the_readme_is_short() -> None:
    assert lines_of(ROOT / "README.md") <= 100


@pytest.mark.parametrize("path", GUIDES, ids=name_of)
def test_a_guide_is_short_and_has_a_program_that_runs(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert lines_of(path) <= 80
    assert list(blocks_to_run(page))


# --- the tools of this file ----------------------------------------------------------------------

_PAGE = """# A page

```python
x = 1
```

```pycon
>>> x + 1
2

```

<!-- not run: needs the moon -->
```python
raise SystemExit
```

## Two words, and `code`

```sh
exit 1
```
"""


def test_blocks_share_names_and_others_are_left_out() -> None:
    assert [block.line for block in blocks_to_run(_PAGE)] == [3, 7]
    assert run_page(_PAGE, "page.md")["x"] == 1


def test_a_wrong_output_is_found() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"line 8, in page\.md(.|\n)*Got:\n    2"):
        run_page(_PAGE.replace(">>> x + 1\n2", ">>> x + 1\n3"), "page.md")


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    good = "[a](#a-page) [b](other.md#two-words-and-code) [c](https://example.org/x) [d](.)\n"
    (tmp_path / "other.md").write_text(_PAGE, encoding="utf-8")
    page.write_text(_PAGE + good + "[e](none.md) [f](other.md#none) [g](#none)", encoding="utf-8")
    assert broken_links(page) == ["none.md", "other.md#none", "#none"]
