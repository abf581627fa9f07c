"""Tracebacks of exceptions that a user's function raised: they begin at the function.

Invariant: an exception that no function of the user raised keeps all of its frames.
"""

from __future__ import annotations

import os
from typing import Final

FULL: Final = "WINDROW_FULL_TRACEBACKS"
"""The environment variable that keeps all frames, if it is not 0."""

_NOTE: Final = "windrow: raised in "
_BETWEEN: Final = frozenset({"windrow", "concurrent", "threading", "contextlib"})


def begin_at_function(error: BaseException) -> None:
    """Leave out the frames between the caller and the user's function that raised the exception."""
    notes = getattr(error, "__notes__", ())
    if os.environ.get(FULL, "0") != "0" or not any(note.startswith(_NOTE) for note in notes):
        return
    found = error.__traceback__
    while found is not None:
        name = str(found.tb_frame.f_globals.get("__name__"))
        if name.partition(".")[0] not in _BETWEEN:
            error.__traceback__ = found
            return
        found = found.tb_next
