"""Storage options of fsspec users, as settings of the native core's object stores.

An option that identifies or bills the caller, or says where to read, is translated, or the URL is read
through fsspec: none is dropped. Options of fsspec's buffers and listings are dropped.
"""

from __future__ import annotations

import base64
import configparser
import dataclasses
import functools
import json
import os
import re
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from windrow.core.native import native

WEB: Final = ("http", "https")
_STORES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az"}
# How fsspec buffers and lists, which does not change the data.
BUFFERS: Final = frozenset(
    {
        *("block_size", "default_block_size", "cache_type", "default_cache_type", "cache_options"),
        *("default_fill_cache", "fill_cache_on_open", "max_concurrency", "use_listings_cache"),
        *("listings_expiry_time", "max_paths", "skip_instance_cache", "asynchronous", "loop"),
        *("simple_links", "same_scheme", "size_policy", "cache_timeout", "consistency", "encoded"),
    }
)
_AWS_KEYS: Final = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
# What names credentials that the core finds by itself.
_AWS_ELSEWHERE: Final = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_ENDPOINT_URL_STS"),
)
# Servers on machines of a cloud that give credentials; elsewhere nothing answers at these addresses.
_AWS_MACHINE: Final = ("169.254.169.254", 80)
_GOOGLE_MACHINE: Final = ("metadata.google.internal", 80)
_LOOK_S: Final = 1.0


class UntranslatedError(Exception):
    """An option for which the core has no setting."""


@dataclasses.dataclass(frozen=True, slots=True)
class CoreSettings:
    """A store of the core, and a path in it.

    Args:
        url: The bucket, container, host, or a whole URL.
        path: The object; empty if the URL names it already.
        options: Settings of the store by name; they may hold secrets.
        headers: Headers of HTTP.
    """

    url: str
    path: str
    options: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    headers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)

    @property
    def is_web(self) -> bool:
        """Whether it is a server of HTTP, and no object store."""
        return self.url.startswith(("http://", "https://"))


def core_settings(url: str, storage_options: Mapping[str, Any]) -> CoreSettings:
    """Translate a URL and its storage options.

    Raises:
        UntranslatedError: If fsspec must read the URL; it holds the reason.
    """
    protocol, mark, rest = url.partition("://")
    if not mark or "::" in url or protocol not in (*WEB, *_STORES):
        raise UntranslatedError(f"the protocol {protocol!r}")
    given = {k: v for k, v in storage_options.items() if k not in BUFFERS and v is not None}
    if protocol in WEB:
        return _web(url, given)
    bucket, _, key = rest.partition("/")
    if "//" in f"/{key}" or "@" in bucket or {".", ".."} & set(key.split("/")):
        raise UntranslatedError("such a path")
    kind = _STORES[protocol]
    options = {"s3": _s3, "gs": _gs, "az": _az}[kind](bucket, given)
    if given:
        raise UntranslatedError(f"the storage option {next(iter(given))!r}")
    found = tuple((name, value) for name, value in options.items() if value)
    return CoreSettings(f"{kind}://{bucket}", key.rstrip("/"), found)


def basic(user: str, password: str) -> str:
    """The header Authorization for a user."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def web_headers(given: dict[str, Any], url: str) -> tuple[dict[str, str], str]:
    """Take headers and users from options, and a user from the URL; return the headers and the rest of it.

    Raises:
        UntranslatedError: If the credentials are not a user and a password.
    """
    headers: dict[str, str] = {}
    client = given.pop("client_kwargs", None) or {}
    if not isinstance(client, Mapping):
        raise UntranslatedError("the storage option 'client_kwargs'")
    client = dict(client)
    for options in (client, given):
        headers.update(options.pop("headers", None) or {})
        auth = options.pop("auth", None)
        if auth is not None:
            # aiohttp.BasicAuth is a tuple, and aiohttp need not be installed.
            if not isinstance(auth, tuple) or len(auth) < 2:
                raise UntranslatedError("the storage option 'auth'")
            headers["Authorization"] = basic(str(auth[0]), str(auth[1]))
    if client:
        raise UntranslatedError(f"the storage option {next(iter(client))!r}")
    named = re.match(r"(https?://)([^/?#]*)@", url)
    if named is not None:
        user, _, password = named[2].partition(":")
        parts = urllib.parse.unquote(user), urllib.parse.unquote(password)
        headers.setdefault("Authorization", basic(*parts))
        url = named[1] + url[named.end() :]
    return headers, url


def _web(url: str, given: dict[str, Any]) -> CoreSettings:
    headers, url = web_headers(given, url.partition("#")[0])
    if given:
        raise UntranslatedError(f"the storage option {next(iter(given))!r}")
    # Bytes have fixed places only in what is not compressed.
    sent = (*headers.items(), ("Accept-Encoding", "identity"))
    protocol, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    # Paths of the core have no empty or escaped parts, and no query.
    if re.search(r"//|\?|%2[fF]|(^|/)\.{1,2}(/|$)|/$", path) or "?" in host:
        return CoreSettings(url, "", headers=sent)
    return CoreSettings(f"{protocol}://{host}", path, headers=sent)


# ---- S3


def _s3(bucket: str, given: dict[str, Any]) -> dict[str, str]:
    client = given.pop("client_kwargs", None) or {}
    if not isinstance(client, Mapping):
        raise UntranslatedError("the storage option 'client_kwargs'")
    both = {**client, **given}
    given.clear()
    profile = both.pop("profile", None) or os.environ.get("AWS_PROFILE") or "default"
    found = {"aws_endpoint": _endpoint(both), "aws_region": _first(both, "region_name", "region")}
    if both.pop("requester_pays", None):
        found["aws_request_payer"] = "true"
    if both.pop("anon", None):
        found["aws_skip_signature"] = "true"
        for name in ("key", "secret", "token", *_AWS_KEYS):
            both.pop(name, None)
    else:
        named = [
            _first(both, *names)
            for names in zip(("key", "secret", "token"), _AWS_KEYS, strict=True)
        ]
        found |= _s3_credentials(named, profile)
    for name, usual in (("use_ssl", True), ("version_aware", False)):
        if both.get(name) is usual:
            del both[name]
    given.update(both)
    if given:
        return found  # refused by the caller
    if not found["aws_region"]:
        environ = os.environ
        found["aws_region"] = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION", "")
    found["aws_region"] = found["aws_region"] or _aws_file("config", profile).get("region", "")
    if not found["aws_region"]:
        found["aws_region"] = "us-east-1" if found["aws_endpoint"] else _region_of(bucket)
    return found


def _endpoint(both: dict[str, Any]) -> str:
    given = _first(both, "endpoint_url")
    return given or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _first(options: dict[str, Any], *names: str) -> str:
    """Take the options of these names; return the first that has a value."""
    values = [options.pop(name, None) for name in names]
    return next((str(value) for value in values if value), "")


def _s3_credentials(named: list[str], profile: str) -> dict[str, str]:
    """Find credentials where botocore looks for them: in options, the environment, files, the machine."""
    if any(named):
        return dict(zip(_AWS_KEYS, named, strict=True))
    keys = [os.environ.get(name.upper(), "") for name in _AWS_KEYS]
    if all(keys[:2]) and profile == "default":
        return dict(zip(_AWS_KEYS, keys, strict=True))
    elsewhere = {name.lower(): os.environ.get(name, "") for name in _AWS_ELSEWHERE}
    if any(elsewhere.values()) and profile == "default":
        return elsewhere
    kept = {**_aws_file("config", profile), **_aws_file("credentials", profile)}
    if all(kept.get(name) for name in _AWS_KEYS[:2]):
        return {name: kept.get(name, "") for name in _AWS_KEYS}
    if (
        profile != "default"
        or {"role_arn", "sso_session", "sso_start_url", "credential_process"} & kept.keys()
    ):
        # botocore knows more ways, and renews what expires.
        raise UntranslatedError(f"the profile {profile!r} of AWS")
    if not _answers(_AWS_MACHINE):
        raise UntranslatedError("no credentials that Windrow finds")
    return {}


@functools.lru_cache(4)
def _parsed(path: str, changed_ns: int) -> configparser.RawConfigParser:
    """Parse a file as it was at a time: each URL of a store asks for it."""
    parser = configparser.RawConfigParser()
    parser.read(path)
    return parser


def _aws_file(name: str, profile: str) -> dict[str, str]:
    """The settings of a profile in a file of AWS."""
    variable = {"config": "AWS_CONFIG_FILE", "credentials": "AWS_SHARED_CREDENTIALS_FILE"}[name]
    path = os.path.expanduser(os.environ.get(variable, f"~/.aws/{name}"))
    try:
        parser = _parsed(path, os.stat(path).st_mtime_ns)
    except (OSError, configparser.Error, UnicodeDecodeError):
        return {}
    section = next((s for s in (profile, f"profile {profile}") if parser.has_section(s)), None)
    return {} if section is None else dict(parser.items(section))


@functools.lru_cache(1024)
def _region_of(bucket: str) -> str:
    core: Any = native()
    try:
        return str(core.bucket_region(bucket, 10.0))
    except ValueError:
        return "us-east-1"  # the read reports what is wrong


@functools.cache
def _answers(address: tuple[str, int]) -> bool:
    """Whether a server of the machine's cloud answers."""
    try:
        socket.create_connection(address, _LOOK_S).close()
    except OSError:
        return False
    return True


# ---- Google Cloud Storage, Azure


def _gs(bucket: str, given: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    endpoint = given.pop("endpoint_url", None) or os.environ.get("STORAGE_EMULATOR_HOST", "")
    if endpoint:
        found["google_base_url"] = endpoint if "://" in endpoint else f"http://{endpoint}"
    token, anonymous = given.pop("token", None), given.pop("anon", None)
    given.pop("project", None)  # it is billed only where the requester pays
    if given.get("requester_pays") is False:
        del given["requester_pays"]
    if token == "anon" or anonymous or (endpoint and token is None):
        found["google_skip_signature"] = "true"
    elif isinstance(token, Mapping):
        found["google_service_account_key"] = json.dumps(dict(token))
    elif isinstance(token, str) and os.path.isfile(token):
        found["google_application_credentials"] = token
    elif token not in (None, "google_default", "cloud"):
        raise UntranslatedError("the storage option 'token'")
    elif path := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        found["google_application_credentials"] = path
    elif not os.path.isfile(
        os.path.expanduser("~/.config/gcloud/application_default_credentials.json")
    ) and not _answers(_GOOGLE_MACHINE):
        found["google_skip_signature"] = "true"  # a public bucket needs none
    return found


def _az(bucket: str, given: dict[str, Any]) -> dict[str, str]:
    names = {
        "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
        "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    }
    names |= {"sas_token": "AZURE_STORAGE_SAS_TOKEN", "tenant_id": "AZURE_STORAGE_TENANT_ID"}
    names |= {
        "client_id": "AZURE_STORAGE_CLIENT_ID",
        "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
    }
    found = {
        f"azure_storage_{name}": str(given.pop(name, None) or os.environ.get(variable, ""))
        for name, variable in names.items()
    }
    connection = given.pop("connection_string", None) or os.environ.get(
        "AZURE_STORAGE_CONNECTION_STRING", ""
    )
    parts = dict(part.split("=", 1) for part in connection.split(";") if "=" in part)
    for name, part in {"account_name": "AccountName", "account_key": "AccountKey"}.items():
        found[f"azure_storage_{name}"] = found[f"azure_storage_{name}"] or parts.get(part, "")
    found["azure_storage_endpoint"] = given.pop("endpoint_url", None) or parts.get(
        "BlobEndpoint", ""
    )
    found["azure_storage_sas_token"] = found["azure_storage_sas_token"] or parts.get(
        "SharedAccessSignature", ""
    )
    if given.pop("anon", None):
        found["azure_skip_signature"] = "true"
    return found
