"""Build backend: setuptools, with a Rust compiler that is fetched where none is installed.

`puccinialin` fetches Rust's own installer, and installs to the user's cache folder. If that fails, the
package is built without its native core. `WINDROW_FETCH_RUST=0` fetches nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from setuptools import build_meta

# Hooks of PEP 517 and 660 that build nothing.
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
build_sdist = build_meta.build_sdist

_Settings = Mapping[str, Any] | None


def _fetches_rust() -> bool:
    return shutil.which("cargo") is None and os.environ.get("WINDROW_FETCH_RUST", "1") != "0"


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """The packages that building needs."""
    more = ["puccinialin>=0.1.8"] if _fetches_rust() else []
    return [*build_meta.get_requires_for_build_wheel(config_settings), *more]


def get_requires_for_build_editable(config_settings: _Settings = None) -> list[str]:
    """The packages that an editable build needs."""
    return get_requires_for_build_wheel(config_settings)


def build_wheel(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel; return its name."""
    _prepare()
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_editable(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    """Build an editable wheel; return its name."""
    _prepare()
    name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def _prepare() -> None:
    """Find or fetch a Rust compiler, and say so."""
    if not _fetches_rust():
        there = (
            "with the cargo that is installed" if shutil.which("cargo") else "without a compiler"
        )
        _say(f"Building the native core {there}; it takes some minutes.")
        return
    _say("No Rust compiler is installed: fetching one to the user's cache folder (puccinialin).")
    try:
        from puccinialin import setup_rust

        os.environ.update(setup_rust(program="windrow"))
    except Exception as error:  # no network, or a machine that Rust is not made for
        _say(f"That failed ({error}): Windrow is built without its native core, and reads slower.")


def _say(text: str) -> None:
    print(f"windrow: {text}", file=sys.stderr, flush=True)
