"""The test files of Grain's wheel as modules `tests.grain_adapter.wheel.NAME`, over Windrow.

A worker process that unpickles a function of such a module imports it the same way.
"""

from __future__ import annotations

import builtins
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

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


@functools.cache
def _modules() -> dict[str, types.ModuleType]:
    found = names.modules()
    helpers = f"{_NODES}.testing_util".replace("/", ".")
    found[f"grain._src.{helpers}"] = types.ModuleType("testing_util")
    return found


def _import(name: str, namespace: Any = None, own: Any = None, wanted: Any = (), level: int = 0) -> Any:
    """`__import__` of a test module: of Grain what `names` has, of others the usual."""
    if name.partition(".")[0] != "grain":
        return builtins.__import__(name, namespace, own, wanted, level)
    if wanted and "testing_util" in wanted:
        return importlib.import_module(__name__)
    found = _modules()
    if name not in found:
        raise ModuleNotFoundError(f"{name}: not among the names of the adapter", name=name)
    return found[name if wanted else "grain"]


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


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
