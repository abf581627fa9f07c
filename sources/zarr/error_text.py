"""Text of errors from TensorStore and zarr-python, for people.

Invariant: it leaves out the settings that a library appends to its errors, and the body of a
server's answer: both may hold credentials.
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
# How TensorStore reports that a server refused a request.
_REFUSED: Final = r"PERMISSION_DENIED|UNAUTHENTICATED|HTTP code 40[13]|code='40[13]'"

# How it reports that a request got no answer.
_NO_NETWORK: Final = "CURL error"


def reason(error: BaseException) -> str:
    """The message of an error, without the settings that TensorStore appends."""
    if isinstance(error, TimeoutError):
        said = str(error) or "no answer in time"
        return f"{said}; check the network, the address and your credentials"
    said = re.sub(_NOISE, "", str(error)).strip().rstrip(".")
    if re.search(_REFUSED, said):
        return f"{said}; check your credentials (storage_options), and that they may read it"
    if re.search(_NO_NETWORK, said):
        return f"{said}; check the network and the host's name; windrow.sources.RemoteOptions sets retries"
    return said


def single(error: Exception) -> Exception:
    """The first of the errors that zarr-python raises as one group; another error as it is."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def is_about_profile(error: BaseException) -> bool:
    """Whether TensorStore found no credentials in the profile that it was given."""
    return "Failed to create credentials provider" in str(error)


def is_refused(error: BaseException) -> bool:
    """Whether a server refused access."""
    return re.search(r"HTTP code 403|code='403'|status 403", str(error)) is not None


def is_about_index(error: BaseException) -> bool:
    """Whether the index of a shard is damaged as a whole, and not only the entry of one chunk."""
    return "reading shard index" in str(error) and "shard index entry" not in str(error)


def bare(fn: Callable[P, T]) -> Callable[P, T]:
    """Make errors that `fn` raises `from None` drop their context too.

    Such an error is printed alone, but keeps the original error as its context. Tools that report
    errors look there, and would find settings with headers.
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
    """The local file that an error of TensorStore names; None if it names none."""
    found = re.search(r'local file "((?:[^"\\]|\\.)*)"', str(error))
    return None if found is None else re.sub(r"\\(.)", r"\1", found[1])
