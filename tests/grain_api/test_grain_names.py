"""Every public name of Grain is there with its signature, or answered with a sentence.

docs/grain.md has a table of all of them, which is held to what is found here.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import grain
import pytest

import windrow
from tests import grain_names
from windrow.core.absent_names import ABSENT

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "grain.md").read_text(encoding="utf-8")
INSTALLED = grain_names.walked()
VERSION, NEWEST = grain_names.stored()
# Signatures that differ, and why.
OTHER_SIGNATURES = {
    "ShapeDtypeStruct": "Grain's has the properties of its protocol as defaults",
}


def counterpart(module: str) -> Any:
    """Our module for one of Grain's."""
    return importlib.import_module(module.replace("grain", "windrow", 1))


def is_there(module: str, name: str) -> bool:
    """Whether a name is there; a name of Grain that is not must be answered with a sentence."""
    ours = counterpart(module)
    if hasattr(ours, name):
        return True
    with pytest.raises(AttributeError) as caught:
        getattr(ours, name)
    assert str(caught.value) == f"{ours.__name__} has no {name}, which Grain has: {ABSENT[name]}"
    return False


def result_of(names: dict[str, list[str]]) -> dict[str, tuple[set[str], set[str]]]:
    """For each module the names that are there, and those that are answered with a sentence."""
    found = {}
    for module, public in names.items():
        there = {name for name in public if is_there(module, name)}
        found[module] = there, set(public) - there
    return found


def table() -> dict[str, tuple[set[str], set[str]]]:
    """The same from docs/grain.md."""
    section = PAGE.split("## Every name\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(grain[.\w]*)` \| (.*) \| (.*) \|$", section, flags=re.M)
    cells = {module: (there, absent) for module, there, absent in rows}
    return {
        module: (set(re.findall(r"`(\w+)`", there)), set(re.findall(r"`(\w+)`", absent)))
        for module, (there, absent) in cells.items()
    }


@pytest.mark.parametrize("names", [INSTALLED, NEWEST], ids=["installed", VERSION])
def test_the_page_names_what_is_there(names: dict[str, list[str]]) -> None:
    assert table() == result_of(names)


def test_the_stored_list_is_that_of_its_version() -> None:
    if grain.__version__ == VERSION:
        assert NEWEST == INSTALLED
    assert set(NEWEST) == set(grain_names.MODULES)


def test_sentences_name_a_section_that_exists() -> None:
    for name, sentence in ABSENT.items():
        pages = re.findall(r"docs/\w+\.md", sentence)
        assert pages or "to_json()" in sentence, name
        for page in pages:
            text = (ROOT / page).read_text(encoding="utf-8")
            for title in re.findall(r"'([^']+)' in docs", sentence):
                assert re.search(rf"^#+ {title}$", text, flags=re.M), sentence


def test_a_name_that_nobody_has_is_no_name_of_grain() -> None:
    for module in ("windrow", "windrow.python", "windrow.experimental", "windrow.multiprocessing"):
        with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
            importlib.import_module(module).nothing  # noqa: B018
    with pytest.raises(AttributeError, match="which Grain has: workers get arrays through shared"):
        getattr(windrow.sources, "SharedMemoryDataSource")  # noqa: B009 - a type checker knows


def parameters(made: Any) -> dict[str, inspect.Parameter] | None:
    """The parameters that a call of something takes; None where that is not known."""
    try:
        return dict(inspect.signature(made).parameters)
    except (TypeError, ValueError):
        return None


def same_default(ours: Any, theirs: Any) -> bool:
    """Whether a default is Grain's; of objects that both libraries make it is enough to be there."""
    plain = (type(None), bool, int, float, str, bytes, tuple)
    if isinstance(ours, plain) or isinstance(theirs, plain):
        return type(ours) is type(theirs) and ours == theirs
    return (ours is inspect.Parameter.empty) == (theirs is inspect.Parameter.empty)


def same_signature(ours: Any, theirs: Any) -> bool:
    """Whether a call that Grain takes is one that we take: names, order, kinds and defaults."""
    wanted, given = parameters(theirs), parameters(ours)
    if wanted is None or given is None:
        return True
    for number, (name, each) in enumerate(wanted.copy().items()):
        if each.kind is inspect.Parameter.POSITIONAL_ONLY:  # its name does not count
            given = {
                name if at == number else own: one for at, (own, one) in enumerate(given.items())
            }
    own = [name for name in given if name in wanted]
    more = [each for name, each in given.items() if name not in wanted]
    optional = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return (
        own == list(wanted)
        and all(
            given[name].kind == each.kind
            and (
                each.default is inspect.Parameter.empty
                or same_default(given[name].default, each.default)
            )
            for name, each in wanted.items()
        )
        and all(
            each.default is not inspect.Parameter.empty or each.kind in optional for each in more
        )
    )


@pytest.mark.parametrize("module", grain_names.MODULES)
def test_signatures_are_grains(module: str) -> None:
    theirs, ours = importlib.import_module(module), counterpart(module)
    other = [
        name
        for name in INSTALLED[module]
        if is_there(module, name)
        and callable(getattr(theirs, name))
        and not same_signature(getattr(ours, name), getattr(theirs, name))
    ]
    assert other == [name for name in INSTALLED[module] if name in OTHER_SIGNATURES]


@pytest.mark.parametrize(
    "kind", ["MapDataset", "IterDataset", "DatasetIterator", "DataLoaderIterator"]
)
def test_methods_are_grains(kind: str) -> None:
    theirs, ours = getattr(grain, kind), getattr(windrow, kind)
    public = [name for name in dir(theirs) if not name.startswith("_")]
    assert [name for name in public if not hasattr(ours, name)] == []
    other = [
        name
        for name in public
        if callable(getattr(theirs, name))
        and not same_signature(getattr(ours, name), getattr(theirs, name))
    ]
    assert other == []


def test_modules_are_found_without_being_imported() -> None:
    assert windrow.python.experimental is windrow.experimental
    found = getattr(windrow.python, "PyGrainCheckpointSave")  # noqa: B009
    assert found is windrow.checkpoint.CheckpointSave
    assert windrow.python.MapTransform is windrow.transforms.Map
    assert grain.constants.META_FEATURES == windrow.constants.META_FEATURES
    for name in INSTALLED["grain.constants"]:
        assert getattr(grain.constants, name) == getattr(windrow.constants, name)
