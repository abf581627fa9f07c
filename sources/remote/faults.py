"""Faults: a short description of a failed request, and whether the fault may pass.

Errors of libraries are recognised by the names of their classes: the libraries need not be
installed, and their errors move between modules.

1. A `RequestError` holds strings only, not the error of a library, which repeats URLs and credentials.
2. Only the cause decides whether a request is made again: faults of the network may pass.
"""

from __future__ import annotations

import errno
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from windrow.core.redaction import Redaction, shown_url
from windrow.core.text import listing
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError, WindrowError

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
# Names of error classes, or of their base classes, by the description and the cause of the fault. The
# first class of the error's method resolution order that is listed decides.
_NAMES: Final[dict[tuple[str, Cause], str]] = {
    ("host not found", "network"): "ClientConnectorDNSError gaierror",
    ("certificate refused", "other"): "ClientConnectorCertificateError SSLCertVerificationError",
    ("timeout", "network"): "ConnectionTimeoutError ConnectTimeoutError TimeoutError Timeout",
    ("stalled", "network"): "SocketTimeoutError ReadTimeoutError ServerTimeoutError",
    ("reset", "network"): "ConnectionResetError",
    ("connection closed", "network"): "ServerDisconnectedError ConnectionClosedError",
    ("cut short", "network"): "ClientPayloadError IncompleteReadError IncompleteRead EOFError"
    " ResponseStreamingError TransferEncodingError",
    ("no connection", "network"): "ClientConnectorError EndpointConnectionError",
    ("connection broken", "network"): "ClientConnectionError HTTPClientError ConnectionError",
    # An S3 server under load sends malformed XML.
    ("answer not understood", "network"): "ResponseParserError",
    ("not found", "missing"): "FileNotFoundError NotADirectoryError",
    ("a folder", "missing"): "IsADirectoryError",
    ("not allowed", "denied"): "PermissionError",
    ("no credentials", "denied"): "NoCredentialsError PartialCredentialsError GoogleAuthError"
    " CredentialRetrievalError TokenRetrievalError",
}
_BY_NAME: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_TRANSIENT_ERRNO: Final = frozenset(
    {
        *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT),
        *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EAGAIN),
    }
)
# Faults that may pass, of a store that answers.
_ANSWERED: Final = frozenset({"cut short", "wrong range", "changed", "answer not understood"})
_DETAIL_CHARACTERS: Final = 300
_PLAIN: Final = Redaction({})


class RequestError(Exception):
    """A request failed."""

    def __init__(
        self,
        kind: str,
        *,
        cause: Cause,
        detail: str = "",
        code: str = "",
    ) -> None:
        """Describe the fault.

        Args:
            kind: A short description, such as "status 503"; faults are counted by it.
            cause: The reason, as far as a retry and the error for the user depend on it.
            detail: The library's message, without secrets.
            code: The server's own error code, such as "SlowDown".
        """
        super().__init__(kind)
        self.kind, self.cause, self.detail, self.code = kind, cause, detail, code
        self.tried = ""
        """How often the request was made, if the detail does not say so."""

    @property
    def is_outage(self) -> bool:
        """Whether the store has not answered, not even wrongly."""
        return self.cause == "network" and self.kind not in _ANSWERED


def status_fault(status: int, *, code: str = "") -> RequestError:
    """Describe an answer with an HTTP status, and the server's `code`."""
    cause: Cause = "other"
    if code in _MISSING_CODES or (status in _MISSING_STATUS and code not in _DENIED_CODES):
        cause = "missing"
    elif code in _DENIED_CODES or status in _DENIED_STATUS:
        cause = "denied"
    elif status in TRANSIENT_STATUS or code in _TRANSIENT_CODES:
        cause = "network"
    named = code if code and not code.isdigit() else ""
    return RequestError(
        f"status {status} {named}".rstrip() if status else f"error {code}",
        cause=cause,
        code=named,
    )


def as_fault(error: Exception, redaction: Redaction = _PLAIN) -> RequestError:
    """Describe an error of a library; `redaction` hides secrets."""
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
        return RequestError("reset", cause="network", detail=detail)
    for one in _chain(error):
        for kind in type(one).__mro__:
            if kind.__name__ in _BY_NAME:
                description, cause = _BY_NAME[kind.__name__]
                return RequestError(description, cause=cause, detail=detail)
        if isinstance(one, OSError) and one.errno in _TRANSIENT_ERRNO:
            return RequestError("connection broken", cause="network", detail=detail)
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
        return status_fault(status, code=code)
    name = type(error).__name__
    number = {"ClientResponseError": "status", "HttpError": "code"}
    for kind in type(error).__mro__:
        if kind.__name__ in number:
            value = getattr(error, number[kind.__name__], None)
            if isinstance(value, int | str) and str(value).isdigit() and int(value):
                return status_fault(int(value))
            return RequestError(name, cause="other")
    return None


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
    fault: RequestError,
    redaction: Redaction,
    *,
    outage_s: float = 0.0,
) -> WindrowError:
    """Make the error for the user.

    Args:
        what: The name of the reader.
        url: The file, or the folder.
        where: The part of it that was requested, such as "bytes [0, 100)"; may be empty.
        fault: What went wrong at fault.
        redaction: Hides secrets.
        outage_s: `RemoteOptions.outage_s`, if the store was waited for.
    """
    shown = redaction.hide(shown_url(url))
    about = f"{what}: {shown}" + (f", {where}," if where else "")
    tried = f"{fault.tried}: {fault.kind}" if fault.tried else fault.kind
    detail = f" ({redaction.hide(fault.detail)})" if fault.detail else ""
    if option := re.search(r"TypeError: .*unexpected keyword argument '(\w+)'", fault.detail):
        return ArgumentError(
            f"{what}: storage_options[{option[1]!r}] is not an option of the file system of {shown};"
            f" it takes {listing(_options_of(url), 30)}"
        )
    if fault.cause == "missing":
        return NotFoundError(
            f"{about} was not found; {tried}{detail}. Check the URL, and that"
            " storage_options name the right endpoint"
        )
    if fault.cause == "unusable":
        return SourceError(f"{about} cannot be read: {_UNUSABLE.get(fault.kind, fault.detail)}")
    if fault.cause == "changed":
        text = f"{about} has changed since it was opened: {fault.detail}. {_CHANGED}"
        return ReadError(text, file=shown, why="changed", is_unanswered=True)
    if outage_s and fault.is_outage:
        detail += f". {waited_for(outage_s)}"
    text = f"{about} could not be read; {tried}{detail}. {_WAYS_OUT.get(fault.cause, _OTHER)}"
    return ReadError(text, file=shown, why=fault.kind, is_unanswered=True)


def waited_for(outage_s: float) -> str:
    """Say that a store was waited for, in an error."""
    return f"It had answered before, so it was waited for (RemoteOptions.outage_s={outage_s:g})"


def _options_of(url: str) -> list[str]:
    """The options that the file system of a URL names."""
    import fsspec  # loaded already, since it has read

    kind = fsspec.get_filesystem_class(url.partition("://")[0].partition("::")[0])
    taken = inspect.signature(kind.__init__).parameters.values()
    own = {"self", "asynchronous", "loop", "fs"}
    plain = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    names = {item.name for item in taken if item.kind in plain} - own
    # s3fs passes the profile on to botocore; the region is Windrow's own.
    return sorted(names | {"profile", "region_name"} if "s3" in kind.protocol else names)


_CHANGED: Final = (
    "None of its bytes are used. Make a new source to read the file as it is now; do not replace"
    " files that are being read"
)
_UNUSABLE: Final = {
    "no ranges": "the server sends the whole file when some of its bytes are requested; serve it from a server"
    " that supports the header Range, or copy it to a local disk",
    "no size": "the server hides its length",
    "compressed": "the server sends it compressed, so its bytes have no fixed places",
}
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
