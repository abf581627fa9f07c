"""The test files of Grain's wheel as modules `tests.grain_adapter.wheel.NAME`, over Windrow.

A worker process that unpickles a function of such a module imports it the same way.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import cloudpickle

from tests.grain_adapter import names

# A module is a package where it has this.
__path__: list[str] = []
_NODES: Final = "python/dataset/transformations"
_FOLDERS: Final = {
    **dict.fromkeys(("base_test", "dataset_test", "elastic_iterator_test"), "python/dataset"),
    **dict.fromkeys(("data_loader_test", "samplers_test"), "python"),
    "index_shuffle_test": "python/experimental/index_shuffle/python",
    "sharding_test": "core",
}


def file_of(name: str) -> Path:
    """The file of a test module in the installed wheel."""
    (root,) = importlib.util.find_spec("grain").submodule_search_locations  # type: ignore[union-attr,misc]
    return Path(root) / "_src" / _FOLDERS.get(name, _NODES) / f"{name}.py"


_modules = functools.cache(names.modules)


def _parameterized_class(values: Sequence[dict[str, Any]]) -> Callable[[type[Any]], type[Any]]:
    """As in the package of that name: a subclass for each dict, in place of the class."""

    def made(base: type[Any]) -> type[Any]:
        for number, attributes in enumerate(values):
            name = f"{base.__name__}_{number}"
            made_class = cast(Any, type(base))(name, (base,), {**vars(base), **attributes})
            setattr(sys.modules[base.__module__], name, made_class)
        for name in [name for name in vars(base) if name.startswith("test")]:
            delattr(base, name)
        return base

    return made


# `reload` lets Grain's modules see whether JAX is there, which Windrow never asks.
_OTHERS: Final = {
    "importlib": types.SimpleNamespace(reload=lambda module: module),
    "parameterized": types.SimpleNamespace(parameterized_class=_parameterized_class),
}


def _import(
    name: str, namespace: Any = None, own: Any = None, wanted: Any = (), level: int = 0
) -> Any:
    """`__import__` of a test module: of Grain what `names` has, of others the usual."""
    if name in _OTHERS:
        return _OTHERS[name]
    if name.partition(".")[0] != "grain":
        return builtins.__import__(name, namespace, own, wanted, level)
    if wanted and "testing_util" in wanted:
        importlib.import_module(f"{__name__}.testing_util")
        return sys.modules[__name__]
    found = _modules()
    if name not in found:
        raise ModuleNotFoundError(f"{name}: not among the names of the adapter", name=name)
    return found[name if wanted else "grain"]


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        cloudpickle.register_pickle_by_value(module)
        super().exec_module(module)
        # Grain's own build has the classes that are tested by a class which is only a base.
        for name in [name for name in vars(module) if name.endswith("TestBase")]:
            base = getattr(module, name)
            base.__test__ = False
            start = unittest.TestCase.setUpClass
            own = {"__module__": module.__name__, "setUpClass": start, "__test__": True}
            setattr(module, name[1:-4], type(base)(name[1:-4], (base,), own))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != __name__:
            return None
        place = str(file_of(name))
        return importlib.util.spec_from_file_location(
            fullname, place, loader=_Loader(fullname, place)
        )


sys.meta_path.append(_Finder())
