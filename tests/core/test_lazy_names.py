"""Facades import each name of their stubs when it is first used, and nothing else."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tools import forward_types

FACADES = [
    name
    for name, path in forward_types.modules().items()
    if (forward_types.ROOT / path).with_suffix(".pyi").exists()
]


@pytest.mark.parametrize("facade", FACADES)
def test_each_name_of_a_facade_is_there(facade: str) -> None:
    module = importlib.import_module(facade)
    assert len(set(module.__all__)) == len(module.__all__) > 0
    assert {*module.__all__} <= {*dir(module)}
    found: dict[str, object] = {}
    exec(f"from {facade} import *", found)
    assert {name: getattr(module, name) for name in module.__all__}.items() <= found.items()
    with pytest.raises(AttributeError, match=f"module '{facade}' has no attribute 'nothing'"):
        _ = module.nothing


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a package with a facade, whose parts say when they are imported."""
    folder = tmp_path / "toy_facade"
    folder.mkdir()
    lazy = "from windrow.core.lazy_names import lazy_names\n"
    (folder / "__init__.py").write_text(
        f"{lazy}__getattr__, __dir__, __all__ = lazy_names(__name__)\n"
    )
    (folder / "__init__.pyi").write_text(
        "from toy_facade import parts as parts\n"
        "from toy_facade.parts import Kept, first as first\n"
        "from toy_facade.parts import renamed as other\n"
        "second = Kept\n"
        "version: str\n"
    )
    (folder / "parts.py").write_text("Kept, first, renamed = 1, 2, 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("toy_facade", "toy_facade.parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "toy_facade"


def test_a_name_means_what_the_stub_says(toy: str) -> None:
    facade = importlib.import_module(toy)
    assert facade.__all__ == ["parts", "first", "second"]
    assert {"parts", "first", "second"} <= {*dir(facade)}
    assert "toy_facade.parts" not in sys.modules
    assert (facade.second, facade.first) == (1, 2)
    assert facade.parts is sys.modules["toy_facade.parts"]
    assert vars(facade)["second"] == 1  # kept, so that it is looked up once
    for private in ("Kept", "renamed", "other", "version"):
        with pytest.raises(AttributeError, match="no attribute"):
            getattr(facade, private)


def test_a_facade_without_its_stub_says_so(toy: str, tmp_path: Path) -> None:
    (tmp_path / toy / "__init__.pyi").unlink()
    with pytest.raises(FileNotFoundError, match=r"__init__\.pyi"):
        importlib.import_module(toy)
