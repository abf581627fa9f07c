"""Opens the fsspec file system of a URL and chooses its transport.

1. Each process opens a file system once per protocol and set of arguments in the URL.
2. The file systems of HTTP, S3 and Google Cloud Storage are instances of our own, so instances that
   other code opened keep their settings.
3. Every error is a `WindrowError` that holds no secret, except errors of connecting (to FTP, or to
   an archive in a store), which pass through.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from windrow.core.redaction import Redaction, shown_url
from windrow.core.threads import DaemonPool
from windrow.errors import ArgumentError, MissingExtraError, WindrowError, missing_extra
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.transports import (
    GcsTransport,
    HttpTransport,
    S3Transport,
    Transport,
)

_EXTRAS: Final = {
    **dict.fromkeys(("http", "https"), "http"),
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
}
# Opening these makes no request. Opening Google Cloud Storage requests a token.
_QUIET: Final = frozenset({"http", "https", "s3", "s3a", "memory", "file", "local"})
# The most URLs whose transports are remembered.
_MOST_URLS: Final = 100_000
_DNS_CACHE_S: Final = 60


def missing_package(what: str, url: str, error: ImportError) -> MissingExtraError:
    """Make the error for a URL whose file system is not installed.

    Args:
        what: The subject of the message: what the user wanted to do.
        url: The URL, which may be a chain of several URLs.
        error: The error of fsspec.
    """
    protocols = [part.partition("://")[0] for part in url.split("::")]
    extra = next((_EXTRAS[name] for name in protocols if name in _EXTRAS), None)
    if extra is not None:
        return missing_extra(what, extra)
    return MissingExtraError(f"{what} needs another package: {error}")


class FileSystems:
    """Opens and keeps the file systems of URLs."""

    def __init__(
        self,
        what: str,
        storage_options: Mapping[str, Any],
        options: RemoteOptions,
        *,
        redaction: Redaction,
    ) -> None:
        """Open no file system yet."""
        self._what, self._storage_options, self._options = what, storage_options, options
        self._redaction = redaction
        self._lock = threading.Lock()
        self.threads = DaemonPool(None, "windrow-files")
        """Threads for calls that block."""
        self._transports: dict[Any, tuple[Any, Transport]] = {}
        self._by_url: dict[str, tuple[Transport, str]] = {}
        self._opened: set[str] = set()

    def known(self, url: str) -> tuple[Transport, str] | None:
        """Return the result of an earlier `open` of the URL."""
        return self._by_url.get(url)

    def is_quiet(self, url: str) -> bool:
        """Whether opening the file system makes no request."""
        protocol = url.partition("://")[0]
        return "::" not in url and (protocol in _QUIET or protocol in self._opened)

    def open(self, url: str) -> tuple[Transport, str]:
        """Return the transport of the URL, and the path for it.

        Raises:
            ArgumentError: If the protocol is unknown, or does not take the options.
            MissingExtraError: If its package is not installed.
        """
        if not self.is_quiet(url):
            # No lock: opening may take forever, and other threads must not wait for it.
            return self._remembered(url, self._open(url))
        with self._lock:
            return self._by_url.get(url) or self._remembered(url, self._open(url))

    def _remembered(self, url: str, opened: tuple[Transport, str]) -> tuple[Transport, str]:
        if len(self._by_url) >= _MOST_URLS:
            self._by_url.clear()
        return self._by_url.setdefault(url, opened)

    def _open(self, url: str) -> tuple[Transport, str]:
        classes = [self._class(url, part) for part in url.split("::")]
        first = url.split("::")[0]
        plain = "::" not in url
        key: Any = (first.partition("://")[0], repr(classes[0]._get_kwargs_from_urls(first)))
        if plain and key in self._transports:
            fs, transport = self._transports[key]
            return transport, str(fs._strip_protocol(url))
        fs, path = self._file_system(url, self._settings(url, plain))
        if not plain:
            key = id(fs)  # the entry keeps `fs` alive, so no other file system has its id
        made = fs, self._transport(fs, plain)
        if plain and _EXTRAS.get(key[0]) == "gcs":
            self._opened.add(key[0])  # one file system for all its URLs
        return self._transports.setdefault(key, made)[1], path

    def _class(self, url: str, part: str) -> Any:
        import fsspec

        protocol = part.partition("://")[0] if "://" in part else part
        if "://" not in part and ("::" not in url or not re.fullmatch("[a-z]+", part)):
            protocol = "file"  # to fsspec a single word in a chain is a protocol, all else a path
        what = f"{self._what}: reading {shown_url(url)}"
        error: WindrowError
        try:
            return fsspec.get_filesystem_class(protocol)
        except ImportError as missing:
            error = missing_package(what, protocol, missing)
        except ValueError:
            error = ArgumentError(
                f"{what}: fsspec does not know the protocol {protocol!r}; it knows file, memory, http,"
                " s3, gs, zip and others (fsspec.available_protocols() lists them)"
            )
        raise error

    def _settings(self, url: str, plain: bool) -> dict[str, Any]:
        # Copies: fsspec adds to the settings of one protocol in a chain.
        settings = {
            key: dict(value) if isinstance(value, Mapping) else value
            for key, value in self._storage_options.items()
        }
        if plain:
            extra = _EXTRAS.get(url.partition("://")[0])
            if extra == "http":
                return {**_http_settings(), **settings, "skip_instance_cache": True}
            if extra == "s3":
                # As TensorStore takes it for Zarr; s3fs wants it among the settings of its client.
                if region := settings.pop("region_name", None):
                    client = settings.get("client_kwargs") or {}
                    settings["client_kwargs"] = {"region_name": region, **client}
                return {**settings, **_s3_settings(settings, self._options)}
            if extra == "gcs":
                return {**settings, "use_listings_cache": False, "skip_instance_cache": True}
        return settings

    def _file_system(self, url: str, settings: dict[str, Any]) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        try:
            fs, path = url_to_fs(url, **settings)
        except (TypeError, ValueError, KeyError) as error:
            detail = self._redaction.hide(f"{type(error).__name__}: {error}")
        else:
            return fs, str(path)
        raise ArgumentError(
            f"{self._what}: storage_options with the keys {sorted(self._storage_options)} do not fit"
            f" {shown_url(url)}: {detail}; give the options that fsspec takes for this protocol"
        )

    def _transport(self, fs: Any, plain: bool) -> Transport:
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        extras = {_EXTRAS.get(protocol) for protocol in protocols}
        if plain and "http" in extras:
            return HttpTransport(fs, self.threads, self._options)
        if plain and "s3" in extras:
            return S3Transport(fs, self.threads)
        if plain and "gcs" in extras:
            return GcsTransport(fs, self.threads, self._options)
        return Transport(fs, self.threads)


def _http_settings() -> dict[str, Any]:
    """Settings of an `HTTPFileSystem` that no other code shares, and that limits no requests."""

    async def client(**kwargs: Any) -> Any:
        import aiohttp

        if "connector" not in kwargs:
            # The fetcher counts requests before they reach the connector. A limit of the connector
            # would be a second queue, in which a request's time runs out.
            kwargs["connector"] = aiohttp.TCPConnector(limit=0, ttl_dns_cache=_DNS_CACHE_S)
        kwargs.pop("loop", None)  # the session takes the loop on which it is made
        return aiohttp.ClientSession(**kwargs)

    return {"get_client": client, "use_listings_cache": False, "skip_instance_cache": True}


def _s3_settings(storage_options: Mapping[str, Any], options: RemoteOptions) -> dict[str, Any]:
    """Settings of an `S3FileSystem`: the user's, with our limits and without retries."""
    config = dict(storage_options.get("config_kwargs") or {})
    config |= {
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": max(options.max_requests, 1),
        "connect_timeout": options.timeout_s,
        "read_timeout": options.stall_s,
    }
    # An instance of our own: instances that other code uses keep their settings.
    return {"config_kwargs": config, "use_listings_cache": False, "skip_instance_cache": True}
