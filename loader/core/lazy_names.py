"""Names of a facade, each imported when it is first used.

The stub next to a facade, such as `__init__.pyi`, is the one list of its names. Type checkers and editors read it, and
so does `lazy_names`, so that a process imports only what it uses. As in every stub, `from place import name as name`
makes a name public, and so does `name = other` for a name under which another one is imported.

Invariant: a name is at run time what it is for a type checker.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module that has a stub next to it.

    Args:
        module: The `__name__` of the module, which is being imported.
    """
    facade = sys.modules[module]
    places = _places(facade)

    def found(name: str) -> Any:
        if name not in places:
            from windrow.core.absent_names import absent  # for errors alone

            raise absent(module, name)
        place, its_name = places[name]
        if place == module:  # one of its own modules
            return importlib.import_module(f"{place}.{its_name}")
        value = getattr(importlib.import_module(place), its_name)
        setattr(facade, name, value)
        return value

    names = list(places)
    return found, lambda: sorted({*vars(facade), *names}), names


def _places(facade: Any) -> dict[str, tuple[str, str]]:
    """The module of each name in the stub of a facade, and its name there."""
    is_package = hasattr(facade, "__path__")
    package, _, last = facade.__name__.rpartition(".")
    place = (facade.__name__, "__init__.pyi") if is_package else (package, f"{last}.pyi")
    stub = pkgutil.get_data(*place)
    if stub is None:
        raise ImportError(f"{facade.__name__}: {place[1]} cannot be read")
    imported, public = {}, {}
    for line in ast.parse(stub).body:
        match line:
            case ast.ImportFrom(module=str(origin), names=names):
                imported.update({alias.name: (origin, alias.name) for alias in names})
                public.update(
                    {each.name: imported[each.name] for each in names if each.asname == each.name}
                )
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other)):
                public[name] = imported[other]
    return public
