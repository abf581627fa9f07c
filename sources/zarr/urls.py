"""URLs of arrays: which library reads them, and fsspec's options in TensorStore's form.

The native core decodes plain arrays of any URL. TensorStore reads the others over http(s), s3 and gs, if it
has a setting for every option that was given. Otherwise zarr-python reads them, over byte ranges. So it does
with a cache on disk, which TensorStore's own requests would not go through.

Invariant: no option is dropped that identifies or bills the caller, or that says where to read.
Settings of fsspec's own buffers and listings are dropped.
"""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

import tensorstore as ts

from windrow.errors import ArgumentError
from windrow.sources.remote.paths import parted
from windrow.sources.remote.settings import BUFFERS, UntranslatedError, web_headers

_ALIASES: Final = {"gcs": "gs", "s3a": "s3"}
_OF_TENSORSTORE: Final = ("http", "https", "s3", "gs")
# TensorStore knows these too, but its memory is a new one for each context.
_OF_FSSPEC: Final = ("memory",)
# After the last | of a URL, these open keys instead of an array.
ADAPTERS: Final = ("zip", "ocdbt", "gzip", "byte-range")
# Drivers of key-value stores that wait for a network.
_REMOTE: Final = frozenset(
    {"http", "s3", "gcs", "gcs_grpc", "tsgrpc_kvstore", "google_cloud_storage"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class UrlRoute:
    """How a URL is read.

    Args:
        spec: The spec for TensorStore, as JSON: of an array if the last adapter of the URL names
            one, else of a key-value store. None if fsspec reads the URL.
        is_array: Whether `spec` is the spec of an array.
        why: The reason why fsspec reads it, for people.
    """

    spec: Mapping[str, Any] | None = dataclasses.field(repr=False)
    is_array: bool = False
    why: str = ""


class _UnknownError(Exception):
    """An option for which TensorStore has no setting."""


def route_of(
    what: str, url: str, storage_options: Mapping[str, Any] | None, *, cached: bool = False
) -> UrlRoute:
    """How the array, group or key-value store at `url` is read.

    Args:
        what: Name of the source, for messages.
        url: The URL; not a local path.
        storage_options: As fsspec takes them.
        cached: Whether there is a cache on disk.

    Raises:
        ArgumentError: If only TensorStore reads such URLs, and it has no setting for an option, or
            there is a cache on disk.
        ValueError: If TensorStore cannot parse the URL.
    """
    base, bar, adapters = url.partition("|")
    protocol = base.partition("::")[0].partition("://")[0]
    protocol = _ALIASES.get(protocol, protocol)
    last = adapters.rpartition("|")[2].partition(":")[0]
    is_array = bool(bar) and last not in ADAPTERS
    if not bar and ("::" in base or protocol in _OF_FSSPEC):
        return UrlRoute(None, why=f"fsspec protocol {protocol!r}")
    if not bar and protocol not in _OF_TENSORSTORE and _is_known(protocol):
        return UrlRoute(None, why=f"fsspec protocol {protocol!r}")
    if cached and protocol in _OF_TENSORSTORE:
        if bar:
            raise ArgumentError(
                f"{what}: RemoteOptions(cache_dir=...) keeps what fsspec reads, and only TensorStore"
                " reads URLs with a |; leave cache_dir out, or chain file systems as fsspec does,"
                " such as 'zip://::s3://bucket/a.zip'"
            )
        return UrlRoute(None, why="RemoteOptions(cache_dir=...)")
    try:
        settings, base = _settings(protocol, base, storage_options or {})
    except _UnknownError as option:
        if bar:
            raise ArgumentError(
                f"{what}: TensorStore reads URLs with a |, and has no setting for the storage option"
                f" {option}; leave it out, or chain file systems as fsspec does, such as"
                " 'zip://::s3://bucket/a.zip'"
            ) from None
        return UrlRoute(None, why=f"TensorStore has no storage option {option}")
    whole = base + bar + adapters
    spec = (ts.Spec(whole) if is_array else ts.KvStore.Spec(whole)).to_json()
    return UrlRoute(_with_settings(spec, settings), is_array)


def as_chain(url: str) -> str | None:
    """A URL such as `file:///a.zip|zip:inner/` as a chain of fsspec; None for another one."""
    base, _, adapter = url.partition("|")
    if not adapter.startswith("zip:") or "|" in adapter:
        return None
    inner = urllib.parse.unquote(adapter.removeprefix("zip:")).strip("/")
    # A local path of fsspec is not quoted.
    return f"zip://{inner}::{urllib.parse.unquote(base) if base.startswith('file:') else base}"


def with_slash(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a key-value store whose path ends with a slash, as a folder."""
    path = spec.get("path", "")
    return {**spec, "path": path if not path or path.endswith("/") else path + "/"}


def _is_known(protocol: str) -> bool:
    """Whether fsspec knows a protocol; the package that reads it need not be installed."""
    import fsspec

    return protocol in fsspec.available_protocols()


def parent_url(url: str) -> tuple[str, str] | None:
    """The URL of the folder above a URL of fsspec, and the last name of the URL."""
    head, rest = parted(url)
    protocol, mark, path = head.rpartition("://")
    up, slash, name = path.rstrip("/").rpartition("/")
    if not name or (not slash and protocol.rpartition("::")[2] not in ("zip", "reference")):
        return None
    return f"{protocol}{mark}{up}{slash}{rest}", name


def lists_cheaply(url: str) -> bool:
    """Whether fsspec lists the folders at `url` with few requests to a network."""
    return url.partition("::")[0].partition("://")[0] in (
        *("memory", "zip", "tar", "libarchive", "file", "local", "reference"),
    )


def _with_settings(spec: Any, settings: Mapping[str, Any]) -> Any:
    """`spec` with settings added to the driver that reads from the network."""
    for inside in ("kvstore", "base"):
        if inside in spec:
            return {**spec, inside: _with_settings(spec[inside], settings)}
    return {**spec, **settings}


def _settings(protocol: str, url: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Settings of TensorStore's driver, and the URL without the parts that became settings."""
    given = {key: value for key, value in options.items() if key not in BUFFERS}
    client = given.pop("client_kwargs", None) or {}
    if not isinstance(client, Mapping):
        raise _UnknownError("'client_kwargs'")
    client = dict(client)
    rest = url.partition("://")[2]
    if protocol in ("http", "https"):
        settings, url = _http(given, client, url)
    elif protocol == "s3":
        settings, url = _s3(given, client), f"s3://{rest}"
    elif protocol == "gs":
        settings, url = _gcs(given), f"gs://{rest}"
    else:
        return {}, url  # TensorStore reports what is wrong with the URL
    left = [repr(key) for key, value in (*given.items(), *client.items()) if value is not None]
    if left:
        raise _UnknownError(left[0])
    return settings, url


def _http(given: dict[str, Any], client: dict[str, Any], url: str) -> tuple[dict[str, Any], str]:
    given["client_kwargs"] = dict(client)
    client.clear()
    try:
        headers, url = web_headers(given, url)
    except UntranslatedError as why:
        raise _UnknownError(str(why).removeprefix("the storage option ")) from None
    return ({"headers": [f"{k}: {v}" for k, v in headers.items()]} if headers else {}), url


def _s3(given: dict[str, Any], client: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if given.pop("anon", None):
        settings["aws_credentials"] = {"type": "anonymous"}
        for name in ("key", "secret", "token", "profile"):
            given.pop(name, None)
    if profile := given.pop("profile", None):
        settings["aws_credentials"] = {"type": "profile", "profile": profile}
    endpoint = client.pop("endpoint_url", None)
    endpoint = given.pop("endpoint_url", None) or endpoint
    if endpoint:
        settings["endpoint"] = endpoint
    for options in (client, given):
        for name in ("region_name", "region"):
            if region := options.pop(name, None):
                settings["aws_region"] = region
    if given.pop("requester_pays", None):
        settings["requester_pays"] = True
    for name in ("use_ssl", "version_aware"):  # these are the defaults
        if given.get(name) is (name == "use_ssl"):
            del given[name]
    return settings


def _gcs(given: dict[str, Any]) -> dict[str, Any]:
    # TensorStore sends no credentials if it finds none.
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


# --- specs of TensorStore ------------------------------------------------------------------------


def drivers(spec: Any) -> set[str]:
    """The drivers in a spec at any depth, since views and adapters have nested specs."""
    if isinstance(spec, dict):
        own = {spec["driver"]} if isinstance(spec.get("driver"), str) else set()
        return own.union(*map(drivers, spec.values()))
    return set().union(*map(drivers, spec)) if isinstance(spec, list) else set()


def is_remote_spec(spec: Any) -> bool:
    """Whether reads of a spec wait for a network."""
    return bool(drivers(spec) & _REMOTE)


def headers_of(spec: Any) -> list[str]:
    """The HTTP headers that a spec sends."""
    for inside in ("kvstore", "base"):
        if isinstance(spec, Mapping) and inside in spec:
            return headers_of(spec[inside])
    return list(spec.get("headers", ())) if isinstance(spec, Mapping) else []
