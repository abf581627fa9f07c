"""Sending functions: by value where other processes cannot import them, or an error that says why."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

from windrow.errors import ArgumentError

# Of the places around what cannot be pickled, the nearest ones tell most.
_PLACES_NAMED = 3
_MOST_DEPTH = 20


def functions_as_bytes(functions: Any) -> bytes:
    """`functions`, in any objects, for `pickle.loads` in a process that has the same modules.

    Raises:
        ArgumentError: If they hold what cannot be pickled; it names what, and where it is.
    """
    try:
        return _pickled(functions)
    except Exception as error:
        places = list(_places(functions, _MOST_DEPTH))[-_PLACES_NAMED:]
        where = f" (found as {', of '.join(reversed(places))})" if places else ""
        raise ArgumentError(
            "the functions of the chain cannot be sent to worker processes:"
            f" {type(error).__name__}: {error}{where}\nMake what they hold and cannot be pickled"
            " (open files, locks, connections) within the function at its first call, or in"
            " worker_init_fn."
        ) from error


@functools.cache
def cloudpickle() -> Any:
    """The package that pickles by value; imported where it is used, since most chains do without."""
    package = importlib.import_module("cloudpickle")
    main = sys.modules.get("__mp_main__")
    if main is not None and main.__name__ == "__mp_main__":
        # The program of a process that multiprocessing spawned: no other process has it so named.
        package.register_pickle_by_value(main)
    return package


def _pickled(value: Any) -> bytes:
    pickled: bytes = cloudpickle().dumps(value, pickle.HIGHEST_PROTOCOL)
    return pickled


def _places(value: Any, depth: int) -> Iterator[str]:
    """The way to what cannot be pickled, from the outside inwards."""
    for place, child in _parts(value):
        try:
            _pickled(child)
        except Exception:  # this is the way
            yield place
            if depth:
                yield from _places(child, depth - 1)
            return


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What pickling `value` pickles, with names for people."""
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
            yield from ((f"an item of a {type(value).__name__}", item) for item in value)
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
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from ((str(key), item) for key, item in part.items())
