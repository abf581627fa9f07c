"""Pytest's part: collects files of the wheel, and expects the listed cases to fail."""

from __future__ import annotations

import importlib
import re
import types
import unittest
from pathlib import Path
from typing import Any

import pytest
from absl import flags
from absl.testing import absltest

from tests.grain_adapter import listed, wheel


class _File(pytest.Module):
    def _getobj(self) -> types.ModuleType:
        return importlib.import_module(f"{wheel.__name__}.{self.path.stem}")


def pytest_configure(config: pytest.Config) -> None:
    """Grain's tests ask flags for folders, and look for Grain's words in messages."""
    assert absltest.__name__, "it defines the flags"
    flags.FLAGS(["test-grain"])
    words = listed.read().words
    expected = unittest.TestCase.assertRaisesRegex

    def with_our_words(self: Any, error: Any, pattern: Any, *args: Any, **options: Any) -> Any:
        text = pattern if isinstance(pattern, str) else pattern.pattern
        return expected(self, error, words.get(text, pattern), *args, **options)

    def literal(self: Any, error: Any, message: str, *args: Any, **options: Any) -> Any:
        return with_our_words(self, error, words.get(message, re.escape(message)), *args, **options)

    searched = unittest.TestCase.assertRegex

    def found(self: Any, text: Any, pattern: Any, *args: Any) -> None:
        searched(self, text, words.get(pattern, pattern), *args)

    unittest.TestCase.assertRegex = found  # type: ignore[assignment,method-assign]
    unittest.TestCase.assertRaisesRegex = with_our_words  # type: ignore[assignment,method-assign]
    absltest.TestCase.assertRaisesWithLiteralMatch = literal  # type: ignore[assignment,method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """The module of a file, over Windrow."""
    return _File.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect the listed cases to fail, and all cases that were counted to be there."""
    table = listed.read()
    groups = table.groups_of_cases()
    found: dict[str, int] = {}
    for item in items:
        file = item.path.stem.removesuffix("_test")
        found[file] = found.get(file, 0) + 1
        group = groups.get((file, item.nodeid.partition("::")[2]))
        if group is not None:
            runs, strict = not group.endless, not group.varies
            item.add_marker(pytest.mark.xfail(reason=group.reason, run=runs, strict=strict))
    changed = {file: count for file, count in found.items() if table.cases.get(file) != count}
    if changed:
        raise pytest.UsageError(f"listed.toml counts other cases: found {changed}")
