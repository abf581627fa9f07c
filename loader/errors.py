"""Every error Windrow raises on purpose.

Each class is a `WindrowError` and also the builtin that people already catch. Each can be made from
one message alone, so that it survives pickling: errors cross processes. Pickling also keeps its
attributes.

    WindrowError
    ├── PlanError (ValueError)               a chain that cannot be built as written
    ├── ArgumentError (TypeError)            an argument of the wrong type
    ├── SourceError (ValueError)             data that is not what the source needs
    ├── NotFoundError (FileNotFoundError)    a path, glob or URL that names nothing
    ├── RecordIndexError (IndexError)        a record or element that does not exist
    ├── ReadError (OSError)                  a record or chunk that cannot be read or is damaged
    ├── ElementError (ValueError)            elements that do not fit together, or what a function returned
    ├── StateError (ValueError)              an iterator's state that does not fit
    ├── ClosedError (ValueError)             an iterator used after it was closed
    ├── WorkerError (RuntimeError)           a worker process that died, hangs or cannot be started
    ├── ConversionError (RuntimeError)       a conversion that is unfinished, or cannot be done
    └── MissingExtraError (ImportError)      an optional dependency that is not installed

Four mistakes have one class here and another builtin in Grain. Their classes derive from both:
`ArgumentValueError` (ArgumentError, PlanError), `EmptyPathsError` (NotFoundError, SourceError),
`StateIndexError` (StateError, RecordIndexError) and `UnsupportedTransformError` (ArgumentError,
NotImplementedError).
"""

from __future__ import annotations

import re
from typing import Any


class WindrowError(Exception):
    """Base of every error that Windrow raises on purpose."""


class PlanError(WindrowError, ValueError):
    """The chain cannot be built as it is written: a wrong size, seed, weight or combination."""


class ArgumentError(WindrowError, TypeError):
    """An argument is of a type that the call cannot take."""


class SourceError(WindrowError, ValueError):
    """The data behind a source is not what the source needs: not an array, unequal lengths."""


class NotFoundError(WindrowError, FileNotFoundError):
    """A path, glob or URL names nothing."""


class RecordIndexError(WindrowError, IndexError):
    """An index outside the records or elements that exist."""


class ReadError(WindrowError, OSError):
    """A record or a chunk could not be read, or is damaged.

    If they are known, `file` is the file, `offset` its byte at which the damage begins, `records` the
    records `[first, stop)` that are lost with it, and `why` a short description of the damage;
    otherwise they are None. `is_unanswered` says that the data are not at fault: a store that did not
    answer, or chunks that are whole and not supported. Such an error is never a bad record.
    """

    file: str | None
    offset: int | None
    records: tuple[int, int] | None
    why: str | None
    is_unanswered: bool
    rest: Any = None  # a `windrow.sources.chunks.Rest`, which never leaves the process

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "rest"}
        return type(self), self.args, state

    def __init__(
        self,
        *message: object,
        file: str | None = None,
        offset: int | None = None,
        records: tuple[int, int] | None = None,
        why: str | None = None,
        is_unanswered: bool = False,
    ) -> None:
        super().__init__(*message)
        self.file, self.offset, self.records, self.why = file, offset, records, why
        self.is_unanswered = is_unanswered


class ElementError(WindrowError, ValueError):
    """Elements do not fit together in a batch, or a function returned an invalid value."""


class StateError(WindrowError, ValueError):
    """The state is invalid, or it belongs to another chain or other data."""


class ClosedError(WindrowError, ValueError):
    """An iterator was used after `close()`."""


class WorkerError(WindrowError, RuntimeError):
    """A worker process died, took too long or could not be started."""


class ConversionError(WindrowError, RuntimeError):
    """A conversion is unfinished, or cannot be done as asked."""


class MissingExtraError(WindrowError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class ArgumentValueError(ArgumentError, PlanError):
    """A single integer where a slice or a sequence of indices is needed."""


class EmptyPathsError(NotFoundError, SourceError):
    """A list of paths is empty."""


class StateIndexError(StateError, RecordIndexError):
    """The state is at an element that the dataset does not have."""


class UnsupportedTransformError(ArgumentError, NotImplementedError):
    """`apply` got something that no node can run, such as a `TfRandomMap` or a plain function."""


def missing_extra(what: str, extra: str) -> MissingExtraError:
    """The error for `what` needing the optional dependencies of `windrow-data[extra]`."""
    packages = _packages_of(extra)
    way = f"run: pip install {' '.join(packages)}; or in" if packages else "in"
    return MissingExtraError(
        f"{what} needs the packages of windrow-data[{extra}], which are not installed; {way} Windrow's"
        f" folder run: pip install '.[{extra}]'"
    )


def _packages_of(extra: str) -> list[str]:
    """The packages of an extra; empty if Windrow was not installed."""
    from importlib import metadata  # only for errors

    try:
        required = metadata.requires("windrow-data") or []
    except metadata.PackageNotFoundError:
        return []
    found: set[str] = set()
    for requirement in required:
        match = re.match(
            rf"([\w.-]+)(?:\[(.*?)\])?.*extra == ['\"]{re.escape(extra)}['\"]", requirement
        )
        if match is None:
            continue
        if match[1] != "windrow-data":
            found.add(match[1])
            continue
        for other in match[2].split(","):  # an extra that is made of other extras
            found.update(_packages_of(other.strip()))
    return sorted(found)


def missing_package(what: str, package: str) -> MissingExtraError:
    """The error for `what` needing a package that no extra brings."""
    return MissingExtraError(
        f"{what} needs {package}, which is not installed: pip install {package}"
    )
