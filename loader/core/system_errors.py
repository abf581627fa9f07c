"""Errors that say nothing of damage to stored data.

They are of this process or its machine, of a file system that does not answer, or of a library that lacks
what the data need. A bad sector (EIO) is not among them: it is of the data.
"""

from __future__ import annotations

import errno
import math
import re
from typing import Final

from windrow.core.machine import machine_bytes

_MACHINE: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)
_UNANSWERED: Final = _MACHINE | {
    *(errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN),
    *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ESHUTDOWN),
}
# As Rust and TensorStore write the number of an error, and how the native core says that memory is short.
_NUMBER: Final = re.compile(r"os[ _]error(?: |_code=')(\d+)")
_NO_MEMORY: Final = re.compile(r"\bno memory (?:for|to)\b")
# How it says that memory is short for a record of this size, which may be of the data.
_ASKED: Final = re.compile(r"\bmore memory than there is: ([\d,]+) bytes")
# How TensorStore's messages begin that are not about what it read.
_STATUS: Final = re.compile(
    r"\b(?:UNAVAILABLE|UNAUTHENTICATED|PERMISSION_DENIED|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED): "
)
# How they say that they cannot read what is whole. Damaged chunks give other "unsupported" messages of codecs.
_UNSUPPORTED: Final = re.compile(r"\bUNIMPLEMENTED: |\bvarlength chunks not supported")


def is_of_machine(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that this process or its machine is short of something."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _MACHINE):
        return True
    return error.__cause__ is not None and is_of_machine(error.__cause__)


def is_unanswered(error: BaseException) -> bool:
    """Whether an error, or what caused it, is a reason not to have read a file that is not in the file."""
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in _UNANSWERED
    ):
        return True
    return error.__cause__ is not None and is_unanswered(error.__cause__)


def says_unanswered(why: str) -> bool:
    """The same of the message of the native core or of TensorStore."""
    found = _NUMBER.search(why)
    if found is not None:
        return int(found[1]) in _UNANSWERED
    return _NO_MEMORY.search(why) is not None or _STATUS.search(why) is not None


def is_unsupported(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that the data are whole and cannot be read here."""
    if isinstance(error, NotImplementedError) or _UNSUPPORTED.search(str(error)) is not None:
        return True
    return error.__cause__ is not None and is_unsupported(error.__cause__)


def says_unsupported(why: str) -> bool:
    """The same of the message of TensorStore."""
    return _UNSUPPORTED.search(why) is not None


def lacks_memory(why: str) -> bool:
    """Whether the native core found no memory for a record that a quarter of the machine's would hold.

    A size beyond that is a damaged one.
    """
    found = _ASKED.search(why)
    return found is not None and int(found[1].replace(",", "")) <= machine_bytes() // 4


def refused_bytes(error: BaseException) -> int:
    """The bytes of an array for which NumPy got no memory; 0 where an error is not of this kind."""
    if not isinstance(error, MemoryError):
        return 0
    # NumPy's class is private, its attributes are not.
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    return 0 if shape is None or dtype is None else math.prod(shape) * int(dtype.itemsize)
