"""Errors of chunks, and the text of errors from TensorStore and zarr-python, for people.

Invariant: text leaves out the settings that a library appends to its errors, and the body of a
server's answer: both may hold credentials.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from windrow.core.system_errors import says_unanswered, says_unsupported
from windrow.errors import ReadError

_NOISE: Final = r"(?s) \[(?:tensorstore_spec|source locations|transform|domain|x-amz[\w-]*|http_response_body)=.*"
# How TensorStore reports that a server refused a request.
_REFUSED: Final = r"PERMISSION_DENIED|UNAUTHENTICATED|HTTP code 40[13]|code='40[13]'"

# How it reports that a request got no answer.
_NO_NETWORK: Final = "CURL error"
_DAMAGED: Final = (
    "If the file is damaged, copy it again or write these records again; a chain leaves them out by"
    ' .on_bad("skip")'
)
_UNSUPPORTED: Final = (
    "Chunks of this kind are not supported. They are not damaged, so that on_bad does not leave them out:"
    " write the array again without them"
)
_UNANSWERED: Final = "The reason is the machine or its file system, and not the data"


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


def file_in(error: BaseException) -> str | None:
    """The local file that an error of TensorStore names; None if it names none."""
    found = re.search(r'local file "((?:[^"\\]|\\.)*)"', str(error))
    return None if found is None else re.sub(r"\\(.)", r"\1", found[1])


def damaged(
    name: str,
    where: str,
    held: str,
    why: str,
    *,
    file: str | None = None,
    offset: int | None = None,
    records: tuple[int, int] | None = None,
    unanswered: bool = False,
    unsupported: bool = False,
) -> ReadError:
    """The error for a chunk that cannot be read.

    Args:
        name: Name of the array in the source.
        where: Place of the array.
        held: The records in the chunk, as `held_records` writes them.
        why: The reason, with the file.
        file: The file, if it is known.
        offset: The byte of the file at which the chunk begins.
        records: The rows `[first, stop)` in the chunk.
        unanswered: Whether the reason is known not to be the data; `why` may say it too.
        unsupported: Whether the chunk is known to be whole; `why` may say it too.
    """
    named = f"array {name!r}" if name else "the array"
    unsupported = unsupported or says_unsupported(why)
    unanswered = unanswered or says_unanswered(why)
    ending = _UNSUPPORTED if unsupported else _UNANSWERED if unanswered else _DAMAGED
    return ReadError(
        f"{named} in {where}: the chunk that holds {held} cannot be read: {why}. {ending}",
        file=file,
        offset=offset,
        records=records,
        why=why.removeprefix(file or "").lstrip(",: "),
        is_unanswered=unanswered or unsupported,
    )


def held_records(first: int, stop: int) -> str:
    """Records `[first, stop)`, for a message."""
    return f"record {first}" if stop - first <= 1 else f"records {first} to {stop - 1}"


def held_cells(spans: Sequence[tuple[int, int]]) -> str:
    """Cells `[first, stop)` along each axis, for a message."""
    return f"cells [{', '.join(f'{first}:{stop}' for first, stop in spans)}]"


def unreachable(
    name: str, where: str, held: str, why: str, records: tuple[int, int] | None = None
) -> ReadError:
    """The error for a chunk that did not arrive.

    Args:
        name: Name of the array in the source.
        where: Place of the array.
        held: The records in the chunk, as `held_records` writes them.
        why: The reason, and the attempts.
        records: The rows `[first, stop)` in the chunk.
    """
    named = f"array {name!r}" if name else "the array"
    return ReadError(
        f"{named} in {where}: the chunk that holds {held} cannot be read: {why}. If it may arrive"
        " later, resume from a checkpoint, or let RemoteOptions try for longer; to continue without"
        " these records, leave them out by .slice([...])",
        records=records,
        why=why,
        is_unanswered=True,
    )
