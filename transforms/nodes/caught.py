"""Which errors make a row a bad one, and what a node of a stream does with such a row.

Invariant: errors of the chain, of this process and of the machine never do.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from windrow.core.system_errors import is_of_machine
from windrow.errors import (
    ArgumentError,
    ClosedError,
    MissingExtraError,
    NotFoundError,
    PlanError,
    ReadError,
    RecordIndexError,
    SourceError,
    StateError,
    WorkerError,
)

# Errors of the chain, of this process or of the machine: no other record would be better.
NEVER: Final = (
    *(ArgumentError, PlanError, SourceError, NotFoundError, RecordIndexError, MissingExtraError),
    *(StateError, ClosedError, WorkerError, MemoryError, RecursionError),
)
"""Errors that are always raised."""


def is_bad(error: BaseException, errors: tuple[type[Exception], ...]) -> bool:
    """Whether an error, of these classes, makes a row a bad one."""
    # The sources know which of their errors are of the data: damaged sizes may ask for too much memory.
    is_other = error.is_unanswered if isinstance(error, ReadError) else is_of_machine(error)
    return isinstance(error, errors) and not isinstance(error, NEVER) and not is_other


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Catch:
    """Makes a node of a stream drop an element for which its function raises.

    Args:
        errors: The classes of errors that count.
        token: The `on_bad` node that has them.
    """

    errors: tuple[type[Exception], ...]
    token: int

    def takes(self, error: BaseException) -> bool:
        """Whether this error drops an element."""
        return is_bad(error, self.errors)
