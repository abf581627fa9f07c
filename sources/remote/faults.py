"""Faults: a short description of a failed request, and whether the fault may pass.

Errors of libraries are recognised by the names of their classes: the libraries need not be
installed, and their errors move between modules.

1. A `RequestError` holds strings only, not the error of a library, which repeats URLs and credentials.
2. Only `transient` decides whether a request is made again.
"""

from __future__ import annotations

import collections
import errno
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from windrow.core.redaction import Redaction, shown_url
from windrow.errors import NotFoundError, ReadError, SourceError, WindrowError

# The reason of a failure, as far as the error and its way out depend on it.
Cause = Literal["missing", "denied", "changed", "network", "unusable", "other"]

TRANSIENT_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_MISSING_STATUS: Final = frozenset({404, 410})
_DENIED_STATUS: Final = frozenset({401, 403, 407})
_TRANSIENT_CODES: Final = frozenset(
    {
        *("SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "Throttling"),
        *("ThrottlingException", "TooManyRequests", "RequestThrottled", "BandwidthLimitExceeded"),
        *("IncompleteBody", "ServerBusy"),
    }
)
_MISSING_CODES: Final = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchVersion", "NotFound"})
_DENIED_CODES: Final = frozenset(
    {
        *("AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
        *("InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed", "AllAccessDisabled"),
    }
)
# By the name of an error's class or of a base class: the description, the cause, and whether the
# fault may pass. The first class of the error's method resolution order that is listed decides.
_BY_NAME: Final[dict[str, tuple[str, Cause, bool]]] = {
    "ClientConnectorDNSError": ("host not found", "network", True),
    "gaierror": ("host not found", "network", True),
    "ClientConnectorCertificateError": ("certificate refused", "other", False),
    "SSLCertVerificationError": ("certificate refused", "other", False),
    "ConnectionTimeoutError": ("timeout", "network", True),
    "ConnectTimeoutError": ("timeout", "network", True),
    "SocketTimeoutError": ("stalled", "network", True),
    "ReadTimeoutError": ("stalled", "network", True),
    "ServerTimeoutError": ("stalled", "network", True),
    "ConnectionResetError": ("reset", "network", True),
    "ServerDisconnectedError": ("connection closed", "network", True),
    "ConnectionClosedError": ("connection closed", "network", True),
    "ClientPayloadError": ("cut short", "network", True),
    "IncompleteReadError": ("cut short", "network", True),
    "IncompleteRead": ("cut short", "network", True),
    "ResponseStreamingError": ("cut short", "network", True),
    "TransferEncodingError": ("cut short", "network", True),
    "ClientConnectorError": ("no connection", "network", True),
    "EndpointConnectionError": ("no connection", "network", True),
    "ClientConnectionError": ("connection broken", "network", True),
    "HTTPClientError": ("connection broken", "network", True),
    "ConnectionError": ("connection broken", "network", True),
    # An S3 server under load sends malformed XML.
    "ResponseParserError": ("answer not understood", "network", True),
    "EOFError": ("cut short", "network", True),
    "TimeoutError": ("timeout", "network", True),
    "Timeout": ("timeout", "network", True),
    "FileNotFoundError": ("not found", "missing", False),
    "NotADirectoryError": ("not found", "missing", False),
    "IsADirectoryError": ("a folder", "missing", False),
    "PermissionError": ("not allowed", "denied", False),
    "NoCredentialsError": ("no credentials", "denied", False),
    "PartialCredentialsError": ("no credentials", "denied", False),
    "CredentialRetrievalError": ("no credentials", "denied", False),
    "TokenRetrievalError": ("no credentials", "denied", False),
    "GoogleAuthError": ("no credentials", "denied", False),
}
_TRANSIENT_ERRNO: Final = frozenset(
    {
        *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT),
        *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EAGAIN),
    }
)
_DETAIL_CHARACTERS: Final = 300


class RequestError(Exception):
    """A request failed."""

    def __init__(
        self,
        kind: str,
        *,
        cause: Cause,
        transient: bool = False,
        detail: str = "",
        code: str = "",
        retry_after_s: float = 0.0,
    ) -> None:
        """Describe the fault.

        Args:
            kind: A short description, such as "status 503"; faults are counted by it.
            cause: The reason, as far as the error for the user depends on it.
            transient: Whether the fault may pass.
            detail: The library's message, without secrets.
            code: The server's own error code, such as "SlowDown".
            retry_after_s: The pause that the server requests.
        """
        super().__init__(kind)
        self.kind, self.cause, self.transient = kind, cause, transient
        self.detail, self.code, self.retry_after_s = detail, code, retry_after_s


def status_fault(status: int, *, code: str = "", retry_after_s: float = 0.0) -> RequestError:
    """The fault of an answer with that HTTP status, and the server's `code` if it gave one."""
    cause: Cause = "other"
    transient = status in TRANSIENT_STATUS or code in _TRANSIENT_CODES
    if code in _MISSING_CODES or (status in _MISSING_STATUS and code not in _DENIED_CODES):
        cause, transient = "missing", False
    elif code in _DENIED_CODES or status in _DENIED_STATUS:
        cause, transient = "denied", False
    elif transient:
        cause = "network"
    named = code if code and not code.isdigit() else ""
    return RequestError(
        f"status {status} {named}".rstrip() if status else f"error {code}",
        cause=cause,
        transient=transient,
        code=named,
        retry_after_s=retry_after_s,
    )


def as_fault(error: Exception, redaction: Redaction) -> RequestError:
    """The fault that an `error` of a library stands for."""
    if isinstance(error, RequestError):
        return error
    detail = _detail(error, redaction)
    for one in _chain(error):
        fault = _by_status(one)
        if fault is not None:
            fault.detail = detail
            return fault
    # A body cut short by a reset is a reset. The reset is the error's cause, or only in its message.
    if _is_reset(error):
        return RequestError("reset", cause="network", transient=True, detail=detail)
    for one in _chain(error):
        for kind in type(one).__mro__:
            if kind.__name__ in _BY_NAME:
                description, cause, transient = _BY_NAME[kind.__name__]
                return RequestError(description, cause=cause, transient=transient, detail=detail)
        if isinstance(one, OSError) and one.errno in _TRANSIENT_ERRNO:
            return RequestError("connection broken", cause="network", transient=True, detail=detail)
    if isinstance(error, OSError) and str(error).startswith("Forbidden"):  # gcsfs, for status 403
        return RequestError("status 403", cause="denied", detail=detail)
    return RequestError(type(error).__name__, cause="other", detail=detail)


def _is_reset(error: BaseException) -> bool:
    return "ConnectionResetError" in repr(error) or any(
        isinstance(one, OSError) and one.errno == errno.ECONNRESET for one in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__


def _by_status(error: BaseException) -> RequestError | None:
    """The fault of botocore's ClientError, aiohttp's ClientResponseError or gcsfs's HttpError."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))
        metadata: Any = response.get("ResponseMetadata", {})
        status = int(metadata.get("HTTPStatusCode", 0) or (code if code.isdigit() else 0))
        after = str(metadata.get("HTTPHeaders", {}).get("retry-after", ""))
        return status_fault(status, code=code, retry_after_s=seconds(after))
    name = type(error).__name__
    number = {"ClientResponseError": "status", "HttpError": "code"}
    for kind in type(error).__mro__:
        if kind.__name__ in number:
            value = getattr(error, number[kind.__name__], None)
            if isinstance(value, int | str) and str(value).isdigit() and int(value):
                return status_fault(int(value))
            return RequestError(name, cause="other")
    return None


def seconds(text: str) -> float:
    """The seconds of a header Retry-After; 0 if it is empty or a date."""
    return float(text) if text.strip().isdigit() else 0.0


def _detail(error: Exception, redaction: Redaction) -> str:
    text = " ".join(redaction.hide(str(error)).split())
    if len(text) > _DETAIL_CHARACTERS:
        text = text[:_DETAIL_CHARACTERS] + "..."
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def failure(
    what: str,
    url: str,
    where: str,
    faults: Sequence[RequestError],
    took_s: float,
    redaction: Redaction,
) -> WindrowError:
    """The error for the user, after the last attempt.

    Args:
        what: The name of the reader.
        url: The file, or the folder.
        where: The part of it that was requested, such as "bytes [0, 100)"; may be empty.
        faults: The faults of all attempts; the last one decides the class of the error.
        took_s: Seconds of all attempts, with the pauses.
        redaction: Hides secrets.
    """
    last = faults[-1]
    shown = redaction.hide(shown_url(url))
    about = f"{what}: {shown}" + (f", {where}," if where else "")
    counted = collections.Counter(fault.kind for fault in faults)
    kinds = ", ".join(f"{kind} ({n})" if len(faults) > 1 else kind for kind, n in counted.items())
    attempts = "1 attempt" if len(faults) == 1 else f"{len(faults)} attempts"
    tried = f"{attempts} in {took_s:.1f} s: {kinds}"
    detail = f" ({redaction.hide(last.detail)})" if last.detail else ""
    if last.cause == "missing":
        return NotFoundError(
            f"{about} was not found; {tried}{detail}. Check the URL, and that"
            " storage_options name the right endpoint"
        )
    if last.cause == "unusable":
        return SourceError(f"{about} cannot be read: {last.detail}; {tried}")
    if last.cause == "changed":
        text = f"{about} has changed since it was opened: {last.detail}. {_CHANGED}"
        return ReadError(text, file=shown, why="changed")
    text = f"{about} could not be read; {tried}{detail}. {_WAYS_OUT.get(last.cause, _OTHER)}"
    return ReadError(text, file=shown, why=last.kind)


_CHANGED: Final = (
    "None of its bytes are used. Make a new source to read the file as it is now; do not replace"
    " files that are being read"
)
_OTHER: Final = "Try the URL with fsspec.open and the same storage_options"
_WAYS_OUT: Final[dict[Cause, str]] = {
    "denied": (
        "Give valid credentials in storage_options, or renew expired ones; a store that does not let"
        " you list it gives the same answer for a file that does not exist"
    ),
    "network": (
        "Check the network and the host's name; windrow.sources.RemoteOptions sets timeout_s,"
        " stall_s and retries"
    ),
}
