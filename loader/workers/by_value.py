"""Pickles functions by value if other processes cannot import them."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from typing import Any


def functions_as_bytes(functions: Any) -> bytes:
    """Pickle `functions`, in any objects, for a process that has the same modules.

    Raises:
        Exception: What pickling raised, of any type, if they hold a value that cannot be pickled.
    """
    try:
        return pickled_by_value(functions)
    except Exception as error:
        error.add_note(
            f"windrow: the functions of the chain cannot be sent to worker processes: {error}"
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
