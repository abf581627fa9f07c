"""URLs of arrays: which library reads them, and fsspec's options as TensorStore takes them.

TensorStore reads http(s), s3 and gs fast, with retries of its own, and knows fewer options than
fsspec. So a URL goes to TensorStore where all that was given can be said to it, and else to
zarr-python, over byte ranges that fsspec reads.

Invariant: no option is left out that says who asks, where, or how to be billed. Settings of
fsspec's own buffers and listings are.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

import tensorstore as ts

from windrow.errors import ArgumentError

_ALIASES: Final = {"gcs": "gs", "s3a": "s3"}
_OF_TENSORSTORE: Final = ("http", "https", "s3", "gs")
# TensorStore knows them, but its memory is a new one for each context.
_OF_FSSPEC: Final = ("memory",)
# What follows the last | of a URL, where it opens no array but other keys.
ADAPTERS: Final = ("zip", "ocdbt", "gzip", "byte-range")
# How fsspec buffers and lists, which changes nothing of what is read.
_BUFFERS: Final = frozenset(
    {
        *("block_size", "default_block_size", "cache_type", "default_cache_type", "cache_options"),
        *("default_fill_cache", "fill_cache_on_open", "max_concurrency", "use_listings_cache"),
        *("listings_expiry_time", "max_paths", "skip_instance_cache", "asynchronous", "loop"),
        *("simple_links", "same_scheme", "size_policy", "cache_timeout", "consistency"),
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How a URL is read.

    Args:
        spec: What TensorStore opens, as JSON: of a key-value store, or of an array where the URL
            names one by its last adapter. None where fsspec reads it.
        is_array: Whether `spec` is that of an array.
        why: Why fsspec reads it, in words.
    """

    spec: Mapping[str, Any] | None = dataclasses.field(repr=False)
    is_array: bool = False
    why: str = ""


class _UnknownError(Exception):
    """An option that TensorStore has no setting for."""


def way_of(what: str, url: str, storage_options: Mapping[str, Any] | None) -> Way:
    """How the array, group or key-value store at `url` is read.

    Args:
        what: Name of the source, for messages.
        url: Not a local path.
        storage_options: As fsspec takes them.

    Raises:
        ArgumentError: If only TensorStore reads such URLs, and it has no setting for an option.
        ValueError: If TensorStore can not parse the URL.
    """
    base, bar, adapters = url.partition("|")
    protocol = base.partition("::")[0].partition("://")[0]
    protocol = _ALIASES.get(protocol, protocol)
    last = adapters.rpartition("|")[2].partition(":")[0]
    is_array = bool(bar) and last not in ADAPTERS
    if not bar and ("::" in base or protocol in _OF_FSSPEC):
        return Way(None, why=f"fsspec protocol {protocol!r}")
    if not bar and protocol not in _OF_TENSORSTORE and _is_known(protocol):
        return Way(None, why=f"fsspec protocol {protocol!r}")
    try:
        settings, base = _settings(protocol, base, storage_options or {})
    except _UnknownError as option:
        if bar:
            raise ArgumentError(
                f"{what}: TensorStore, which reads what follows a | in a URL, has no setting for"
                f" the storage option {option}; leave it out, or chain file systems as fsspec"
                " does, such as 'zip://::s3://bucket/a.zip'"
            ) from None
        return Way(None, why=f"TensorStore has no storage option {option}")
    whole = base + bar + adapters
    spec = (ts.Spec(whole) if is_array else ts.KvStore.Spec(whole)).to_json()
    return Way(_with_settings(spec, settings), is_array)


def with_slash(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a key-value store as that of a folder in it."""
    path = spec.get("path", "")
    return {**spec, "path": path if not path or path.endswith("/") else path + "/"}


def joined_url(url: str, key: str) -> str:
    """The URL of what is at `key` below a URL of fsspec, which may be a chain."""
    links = url.split("::")
    for k, link in enumerate(links):
        if "://" in link:
            head, mark, query = link, "", ""
            if link.startswith(("http://", "https://")):
                head, mark, query = link.partition("?")
            slash = "" if head.endswith("/") else "/"
            links[k] = f"{head}{slash}{key}{mark}{query}"
            break
    return "::".join(links)


def _is_known(protocol: str) -> bool:
    """Whether fsspec knows a protocol; what reads it need not be installed."""
    import fsspec

    return protocol in fsspec.available_protocols()


def has_file_system(url: str) -> bool:
    """Whether what fsspec needs for a URL is installed."""
    import fsspec  # it takes longer to import than a local array to open

    try:
        fsspec.get_filesystem_class(url.partition("://")[0])
    except (ImportError, ValueError):
        return False
    return True


def above_url(url: str) -> tuple[str, str] | None:
    """The URL of the folder that holds what is at a URL of fsspec, and its name in there."""
    links = url.split("::")
    for k, link in enumerate(links):
        if "://" in link:
            protocol, mark, path = link.partition("://")
            path, question, query = (
                path.partition("?") if protocol.startswith("http") else (path, "", "")
            )
            up, slash, name = path.rstrip("/").rpartition("/")
            if not name or (not slash and protocol != "zip"):
                return None
            links[k] = f"{protocol}{mark}{up}{slash}{question}{query}"
            return "::".join(links), name
    return None


def lists_cheaply(url: str) -> bool:
    """Whether fsspec lists the folders at `url` without asking a network much."""
    return url.partition("://")[0] in (
        *("memory", "zip", "tar", "libarchive", "file", "local", "reference"),
    )


def _with_settings(spec: Any, settings: Mapping[str, Any]) -> Any:
    """`spec` with settings of the driver that reads from the network."""
    for inside in ("kvstore", "base"):
        if inside in spec:
            return {**spec, inside: _with_settings(spec[inside], settings)}
    return {**spec, **settings}


def _settings(protocol: str, url: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Settings of TensorStore's driver, and the URL without what they say."""
    given = {key: value for key, value in options.items() if key not in _BUFFERS}
    client = given.pop("client_kwargs", None) or {}
    if not isinstance(client, Mapping):
        raise _UnknownError("'client_kwargs'")
    client = dict(client)
    rest = url.partition("://")[2]
    if protocol in ("http", "https"):
        found, url = _http(given, client, url)
    elif protocol == "s3":
        found, url = _s3(given, client), f"s3://{rest}"
    elif protocol == "gs":
        found, url = _gcs(given), f"gs://{rest}"
    else:
        return {}, url  # TensorStore says what it thinks of the URL
    left = [repr(key) for key, value in (*given.items(), *client.items()) if value is not None]
    if left:
        raise _UnknownError(left[0])
    return found, url


def _http(given: dict[str, Any], client: dict[str, Any], url: str) -> tuple[dict[str, Any], str]:
    headers: dict[str, str] = {}
    for options in (client, given):
        headers.update(options.pop("headers", None) or {})
        auth = options.pop("auth", None)
        if auth is not None:
            # aiohttp.BasicAuth is a tuple, and aiohttp need not be there.
            if not isinstance(auth, tuple) or len(auth) < 2:
                raise _UnknownError("'auth'")
            headers["Authorization"] = _basic(str(auth[0]), str(auth[1]))
    named = re.match(r"(https?://)([^/?#@]*)@", url)
    if named is not None:
        user, _, password = named[2].partition(":")
        headers.setdefault(
            "Authorization", _basic(urllib.parse.unquote(user), urllib.parse.unquote(password))
        )
        url = named[1] + url[named.end() :]
    given.pop("encoded", None)
    return ({"headers": [f"{k}: {v}" for k, v in headers.items()]} if headers else {}), url


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _s3(given: dict[str, Any], client: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if given.pop("anon", None):
        found["aws_credentials"] = {"type": "anonymous"}
        for name in ("key", "secret", "token", "profile"):
            given.pop(name, None)
    if profile := given.pop("profile", None):
        found["aws_credentials"] = {"type": "profile", "profile": profile}
    endpoint = client.pop("endpoint_url", None)
    endpoint = given.pop("endpoint_url", None) or endpoint
    if endpoint:
        found["endpoint"] = endpoint
    for options in (client, given):
        for name in ("region_name", "region"):
            if region := options.pop(name, None):
                found["aws_region"] = region
    if given.pop("requester_pays", None):
        found["requester_pays"] = True
    for name in ("use_ssl", "version_aware"):  # as they are by default
        if given.get(name) is (name == "use_ssl"):
            del given[name]
    return found


def _gcs(given: dict[str, Any]) -> dict[str, Any]:
    # TensorStore asks without credentials where it finds none.
    anonymous = bool(given.pop("anon", None))
    if given.get("token") in ("anon", "google_default", "cloud") or anonymous:
        given.pop("token", None)
    project, pays = given.pop("project", None), given.pop("requester_pays", None)
    if pays:
        project = pays if isinstance(pays, str) else project
        if not project:
            raise _UnknownError("'requester_pays' without 'project'")
        return {"gcs_user_project": {"project_id": project}}
    return {}
