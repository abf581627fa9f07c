"""Packages that are large or optional, imported when they are first used.

Invariant: importing `windrow.sources` or `windrow.converters` imports neither Apache Beam, nor protobuf, nor
google-crc32c. A package that is not installed raises an error that names the extra to install.
"""

from __future__ import annotations

import importlib
from typing import Any

from windrow.errors import MissingExtraError, missing_extra


def optional(module: str, purpose: str, extra: str = "beam") -> Any:
    """Import and return an optional module that `purpose` needs.

    Args:
        module: Its full import name.
        purpose: What the user asked for; the error message begins with it.
        extra: The extra of Windrow that installs it.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if module.startswith("google.protobuf"):  # a core dependency, unless the user removed it
            raise MissingExtraError(
                f"{purpose} needs protobuf, which is not installed: pip install 'protobuf>=5'"
            ) from error
        raise missing_extra(purpose, extra) from error
