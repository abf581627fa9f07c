"""Reasons: what errors of TensorStore and zarr-python say, for people.

Invariant: settings that a library appends to its errors are left out: they may hold credentials.
"""

from __future__ import annotations

import re
from typing import Final

_NOISE: Final = r"(?s) \[(?:tensorstore_spec|source locations|transform|domain|x-amz[\w-]*)=.*"
# As TensorStore says that a server refused to answer, and what to do then.
_REFUSED: Final = r"PERMISSION_DENIED|UNAUTHENTICATED|HTTP code 40[13]|code='40[13]'"


def reason(error: BaseException) -> str:
    """What TensorStore says, without the settings it appends."""
    if isinstance(error, TimeoutError):
        said = str(error) or "no answer in time"
        return f"{said}; check the network, the address and your credentials"
    said = re.sub(_NOISE, "", str(error)).strip().rstrip(".")
    if re.search(_REFUSED, said):
        return f"{said}; check your credentials (storage_options), and that they may read it"
    return said


def file_in(error: BaseException) -> str | None:
    """The local file that an error of TensorStore is about, if it names one."""
    found = re.search(r'local file "((?:[^"\\]|\\.)*)"', str(error))
    return None if found is None else re.sub(r"\\(.)", r"\1", found[1])
