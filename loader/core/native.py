"""The native core: code in Rust that reads, decodes and copies without the interpreter's lock.

`windrow.core._native` is built with the package from the crate in `loader/core/native/`, where there
is a Rust compiler. Without it Windrow gives the same values by TensorStore and other packages, more
slowly, or refuses. `WINDROW_NATIVE=0` in the environment makes Windrow do without it.

Invariant: nothing else imports `windrow.core._native`.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from typing import Any, Final

import numpy.typing as npt

from windrow.errors import MissingExtraError

_MODULE: Final = "windrow.core._native"
_TO_BUILD: Final = "With Rust (https://rustup.rs), installing windrow-data anew builds it"


@functools.cache
def native() -> Any | None:
    """The native core; None where it was not built, with a warning, or is switched off."""
    if os.environ.get("WINDROW_NATIVE") == "0":
        return None
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        warnings.warn(
            f"Windrow's native core cannot be imported ({error}), so reading is slower. {_TO_BUILD};"
            " WINDROW_NATIVE=0 in the environment does without it and without this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def needed(what: str) -> Any:
    """The native core, for what nothing else does.

    Raises:
        MissingExtraError: If it was not built, or is switched off.
    """
    core = native()
    if core is None:
        raise MissingExtraError(
            f"{what} needs Windrow's native core, which was not built or is switched off by"
            f" WINDROW_NATIVE=0. {_TO_BUILD}"
        )
    return core


def buffer_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory with a dtype that has a buffer, which dates and small floats have not."""
    if array.dtype.isbuiltin == 1 and array.dtype.kind not in "mM":
        return array
    return array.view(f"V{array.dtype.itemsize}")
