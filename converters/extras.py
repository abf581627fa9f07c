"""Optional packages, imported when they are first used.

Invariant: importing `windrow.converters` imports neither Apache Beam, nor protobuf, nor
google-crc32c. What is not installed is an error that names the extra to install.
"""

from __future__ import annotations

import importlib
from typing import Any

from windrow.errors import missing_extra


def optional(module: str, purpose: str) -> Any:
    """The optional module called `module`, which `purpose` needs.

    Args:
        module: Its full import name.
        purpose: What the user asked for, the subject of the error message.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(purpose, "beam") from error
