"""The native core: code in Rust that reads, decodes and copies without the interpreter's lock.

`windrow.core._native` is built with the package from the crate in `loader/core/native/`, where there
is a Rust compiler. Without it Windrow gives the same values by TensorStore and other packages, more
slowly. `WINDROW_NATIVE=0` in the environment makes Windrow do without it.

Invariant: nothing else imports `windrow.core._native`.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

CRATE: Final = Path(__file__).with_suffix("")
_MODULE: Final = "windrow.core._native"
_FNV_START: Final = 0xCBF2_9CE4_8422_2325
_FNV_PRIME: Final = 0x0100_0000_01B3


@functools.cache
def native() -> Any | None:
    """The native core; None where it was not built, with a warning, or is switched off."""
    if os.environ.get("WINDROW_NATIVE") == "0":
        return None
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        warnings.warn(
            f"Windrow's native core cannot be imported ({error}), so reading is slower. With a Rust"
            " compiler (https://rustup.rs), installing windrow-data anew builds it;"
            " WINDROW_NATIVE=0 in the environment does without it and without this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def buffer_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory with a dtype that has a buffer, which dates and small floats have not."""
    if array.dtype.isbuiltin == 1 and array.dtype.kind not in "mM":
        return array
    return array.view(f"V{array.dtype.itemsize}")


def sources_hash(crate: Path = CRATE) -> str:
    """The hash of the crate's sources, which the core has as `SOURCES` if it was built from them.

    FNV-1a with 64 bits over the name and the bytes of each file, names in order, in hexadecimal.
    """
    files = [crate / "Cargo.toml", crate / "Cargo.lock", crate / "build.rs"]
    files += (crate / "src").rglob("*.rs")
    found = _FNV_START
    for name, file in sorted((file.relative_to(crate).as_posix(), file) for file in files):
        for byte in name.encode() + file.read_bytes():
            found = ((found ^ byte) * _FNV_PRIME) & (2**64 - 1)
    return f"{found:016x}"
