"""Pickles functions by value if other processes cannot import them, and explains failures."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

# An error names the nearest places around a value that cannot be pickled.
_PLACES_NAMED = 3
_MOST_DEPTH = 20
_ITEM = "an item of a"


def functions_as_bytes(functions: Any) -> bytes:
    """Pickle `functions`, in any objects, for a process that has the same modules.

    Raises:
        Exception: What pickling raised, of any type, if they hold a value that cannot be pickled; a
            note says where it is.
    """
    try:
        return pickled_by_value(functions)
    except Exception as error:
        found = _places(functions, _MOST_DEPTH)
        # The outermost tuples are Windrow's own.
        named = itertools.dropwhile(lambda place: place.startswith(_ITEM), found)
        places = list(named)[-_PLACES_NAMED:]
        where = f" (found as {', of '.join(reversed(places))})" if places else ""
        error.add_note(
            f"windrow: the functions of the chain cannot be sent to worker processes: {error}{where}"
            "\nMake values that cannot be pickled (open files, locks, connections) within the"
            " function at its first call, or in worker_init_fn."
        )
        raise


@functools.cache
def cloudpickle() -> Any:
    """The package that pickles by value, imported at its first use: most chains do not need it."""
    package = importlib.import_module("cloudpickle")
    main = sys.modules.get("__mp_main__")
    if main is not None and main.__name__ == "__mp_main__":
        # The main module of a process that multiprocessing spawned: other processes lack this name.
        package.register_pickle_by_value(main)
    return package


def pickled_by_value(value: Any) -> bytes:
    """Pickle `value`; functions and classes of `__main__`, lambdas and closures go by value.

    Raises:
        Exception: Pickling may raise any type.
    """
    pickled: bytes = cloudpickle().dumps(value, pickle.HIGHEST_PROTOCOL)
    return pickled


def _places(value: Any, depth: int) -> Iterator[str]:
    """Yield the places on the path to the value that cannot be pickled, the outermost first."""
    for place, child in _parts(value):
        try:
            pickled_by_value(child)
        except Exception:  # it is in here
            if not _is_ours(value):
                yield place
            if depth:
                yield from _places(child, depth - 1)
            return


def _is_ours(value: Any) -> bool:
    """Whether a value is an object of Windrow, whose attributes users do not know."""
    return type(value).__module__.partition(".")[0] == "windrow"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The values that pickling `value` pickles, with names for people."""
    match value:
        case types.FunctionType():
            name = f"function {value.__qualname__!r}"
            variables = dict(value.__globals__)
            used = {key: variables[key] for key in value.__code__.co_names if key in variables}
            for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                used[key] = cell.cell_contents
            for key, found in used.items():
                if not isinstance(found, types.ModuleType):
                    yield f"variable {key!r} of {name}", found
            yield f"a default of {name}", (value.__defaults__, value.__kwdefaults__)
        case types.MethodType():
            yield f"the object of method {value.__qualname__!r}", value.__self__
        case functools.partial():
            yield "the function of a partial", value.func
            yield "an argument of a partial", (value.args, value.keywords)
        case list() | tuple() | set() | frozenset():
            yield from ((f"{_ITEM} {type(value).__name__}", item) for item in value)
        case dict():
            yield from ((f"item {key!r} of a dict", item) for key, item in value.items())
        case type():
            return
        case _:
            name = f"{type(value).__name__!r} object"
            yield from ((f"attribute {key!r} of a {name}", item) for key, item in _state(value))


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        state = value.__getstate__()
    except Exception:  # whatever a type's own way of pickling raises
        return
    if isinstance(state, list) and dataclasses.is_dataclass(value):
        # The state of a frozen dataclass with slots: values in the order of its fields.
        fields = [field.name for field in dataclasses.fields(value)]
        state = dict(zip(fields, state, strict=False))
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from ((str(key), item) for key, item in part.items())
