"""File systems: from a URL to what reads it, by fsspec.

1. A file system is opened once per protocol and what the URL says about it, in each process.
2. Those of HTTP, S3 and Google Cloud Storage are instances of our own: what others opened keeps
   its settings.
3. Every error is a `WindrowError` that holds no secret, but for errors of connecting (of FTP, or of
   an archive in a store), which pass through.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

from windrow.errors import ArgumentError, MissingExtraError, WindrowError, missing_extra
from windrow.sources.daemons import DaemonThreads
from windrow.sources.remote import RemoteOptions
from windrow.sources.secrets import Secrets, shown_url
from windrow.sources.transports import FileSystemTransport, Transport

_EXTRAS: Final = {
    **dict.fromkeys(("http", "https"), "http"),
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
}
# Opening these asks nobody anything. That of Google Cloud Storage asks for a token.
_QUIET: Final = frozenset({"http", "https", "s3", "s3a", "memory", "file", "local"})
# So many URLs are remembered.
_MOST_URLS: Final = 100_000


def missing_package(what: str, url: str, error: ImportError) -> MissingExtraError:
    """The error for a URL, or a protocol, whose file system is not installed.

    Args:
        what: What the user asked for, the subject of the message.
        url: The URL, which may be a chain of several.
        error: What fsspec said.
    """
    protocols = [part.partition("://")[0] for part in url.split("::")]
    extra = next((_EXTRAS[name] for name in protocols if name in _EXTRAS), None)
    if extra is not None:
        return missing_extra(what, extra)
    return MissingExtraError(f"{what} needs another package: {error}")


class FileSystems:
    """Opens the file systems of URLs and keeps them."""

    def __init__(
        self,
        what: str,
        storage_options: Mapping[str, Any],
        options: RemoteOptions,
        *,
        secrets: Secrets,
    ) -> None:
        """Open none yet."""
        self._what, self._given, self._options = what, storage_options, options
        self._secrets = secrets
        self._lock = threading.Lock()
        self._threads = DaemonThreads()
        self._transports: dict[Any, tuple[Any, Transport]] = {}
        self._found: dict[str, tuple[Transport, str]] = {}
        self._opened: set[str] = set()

    @property
    def threads(self) -> DaemonThreads:
        """Threads for calls that block."""
        return self._threads

    def known(self, url: str) -> tuple[Transport, str] | None:
        """What `open` returned for it."""
        return self._found.get(url)

    def is_quiet(self, url: str) -> bool:
        """Whether opening the file system asks nobody anything."""
        protocol = url.partition("://")[0]
        return "::" not in url and (protocol in _QUIET or protocol in self._opened)

    def open(self, url: str) -> tuple[Transport, str]:
        """What reads the URL, and the path it is asked for.

        Raises:
            ArgumentError: If the protocol is not known, or the options do not fit it.
            MissingExtraError: If its package is not installed.
        """
        if not self.is_quiet(url):
            # No lock: it may take for ever, and others must not wait for it.
            return self._kept(url, self._open(url))
        with self._lock:
            return self._found.get(url) or self._kept(url, self._open(url))

    def _kept(self, url: str, found: tuple[Transport, str]) -> tuple[Transport, str]:
        if len(self._found) >= _MOST_URLS:
            self._found.clear()
        return self._found.setdefault(url, found)

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
            key = id(fs)  # the entry keeps it alive, so that no other has its id
        made = fs, self._transport(fs, plain)
        if plain and _EXTRAS.get(key[0]) == "gcs":
            self._opened.add(key[0])  # one for all its URLs
        return self._transports.setdefault(key, made)[1], path

    def _class(self, url: str, part: str) -> Any:
        import fsspec

        protocol = part.partition("://")[0] if "://" in part else part
        if "://" not in part and "::" not in url:
            protocol = "file"
        what = f"{self._what}: reading {shown_url(url)}"
        error: WindrowError
        try:
            return fsspec.get_filesystem_class(protocol)
        except ImportError as missing:
            error = missing_package(what, protocol, missing)
        except ValueError:
            error = ArgumentError(
                f"{what}: fsspec knows no protocol {protocol!r}; it knows such as file, memory,"
                " http, s3, gs and zip (fsspec.available_protocols() lists them)"
            )
        raise error

    def _settings(self, url: str, plain: bool) -> dict[str, Any]:
        # Copies: fsspec adds to the settings of one protocol in a chain.
        settings = {
            key: dict(value) if isinstance(value, Mapping) else value
            for key, value in self._given.items()
        }
        if plain:
            extra = _EXTRAS.get(url.partition("://")[0])
            if extra == "http":
                from windrow.sources.http_transport import http_settings

                return {**http_settings(), **settings, "skip_instance_cache": True}
            if extra == "s3":
                from windrow.sources.s3_transport import s3_settings

                return {**settings, **s3_settings(settings, self._options)}
            if extra == "gcs":
                return {**settings, "use_listings_cache": False, "skip_instance_cache": True}
        return settings

    def _file_system(self, url: str, settings: dict[str, Any]) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        try:
            fs, path = url_to_fs(url, **settings)
        except (TypeError, ValueError, KeyError) as error:
            detail = self._secrets.hide(f"{type(error).__name__}: {error}")
        else:
            return fs, str(path)
        raise ArgumentError(
            f"{self._what}: storage_options with the keys {sorted(self._given)} do not fit"
            f" {shown_url(url)}: {detail}; give those that fsspec takes for this protocol"
        )

    def _transport(self, fs: Any, plain: bool) -> Transport:
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        extras = {_EXTRAS.get(protocol) for protocol in protocols}
        if plain and "http" in extras:
            from windrow.sources.http_transport import HttpTransport

            return HttpTransport(fs, self._threads, self._options)
        if plain and "s3" in extras:
            from windrow.sources.s3_transport import S3Transport

            return S3Transport(fs, self._threads)
        if plain and "gcs" in extras:
            from windrow.sources.gcs_transport import GcsTransport

            return GcsTransport(fs, self._threads, self._options)
        return FileSystemTransport(fs, self._threads)
