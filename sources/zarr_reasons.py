"""Reasons: what errors of TensorStore and zarr-python say, for people.

Invariant: settings that a library appends to its errors are left out, and what a server wrote in
its answer: they may hold credentials.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from windrow.errors import WindrowError

P = ParamSpec("P")
T = TypeVar("T")

_NOISE: Final = r"(?s) \[(?:tensorstore_spec|source locations|transform|domain|x-amz[\w-]*|http_response_body)=.*"
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


def is_refused(error: BaseException) -> bool:
    """Whether a server answered that something may not be read."""
    return re.search(r"HTTP code 403|code='403'|status 403", str(error)) is not None


def bare(fn: Callable[P, T]) -> Callable[P, T]:
    """`fn`, whose errors that hide what they came of do not keep it either.

    An error raised `from None` is printed alone, and still has what was being handled as its
    context, in which those look who report errors: settings, with headers.
    """

    @functools.wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        except WindrowError as error:
            if error.__suppress_context__ and error.__cause__ is None:
                error.__context__ = None
            raise

    return called


def file_in(error: BaseException) -> str | None:
    """The local file that an error of TensorStore is about, if it names one."""
    found = re.search(r'local file "((?:[^"\\]|\\.)*)"', str(error))
    return None if found is None else re.sub(r"\\(.)", r"\1", found[1])
