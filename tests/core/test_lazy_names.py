"""Facades import each name of their stubs when it is first used, and nothing else."""

from __future__ import annotations

import importlib

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
