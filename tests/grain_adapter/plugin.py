"""Pytest's part: collects files of the wheel, and expects the listed cases to fail."""

from __future__ import annotations

import importlib
import types
from pathlib import Path

import pytest
from absl import flags

from tests.grain_adapter import wheel


class _File(pytest.Module):
    def _getobj(self) -> types.ModuleType:
        return importlib.import_module(f"{wheel.__name__}.{self.path.stem}")


def pytest_configure(config: pytest.Config) -> None:
    """Grain's tests ask for directories of flags."""
    from absl.testing import absltest  # defines the flags

    assert absltest
    flags.FLAGS(["test-grain"])


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """The module of a file, over Windrow."""
    return _File.from_parent(parent, path=module_path)
