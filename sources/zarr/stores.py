"""Stores: how a source reaches an array or a group, on a local disk or over a network.

`Access` holds the settings, limits, secrets and counts of one source. A `Folder` is a place that
may hold an array or a group: on a local disk, in a key-value store of TensorStore, or in a file
system of fsspec. `MetadataLookup` reads the metadata files of a folder.

Invariants: nothing is connected before it is needed. What is pickled opens again with the same
settings. Only metadata is read here, and a remote store is never listed. Text that went through
`hide` holds no secret, no error shows one, and no wait is longer than its limit.
"""

from __future__ import annotations

import abc
import contextvars
import dataclasses
import json
import math
import os
import threading
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

import tensorstore as ts

from windrow.core.daemon_threads import DaemonThreads
from windrow.core.redaction import HIDDEN, Redaction, shown_url
from windrow.core.text import listing, with_article
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
from windrow.sources.remote.options import as_remote_options
from windrow.sources.remote.outages import Outages
from windrow.sources.remote.paths import LOCAL, joined, what_is_there, zip_url
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.signatures import other_reader, read_by
from windrow.sources.zarr.error_text import bare, is_about_profile, is_refused, reason
from windrow.sources.zarr.in_flight import InFlightLimiter
from windrow.sources.zarr.urls import (
    UrlRoute,
    as_chain,
    headers_of,
    is_remote_spec,
    lists_cheaply,
    parent_url,
    route_of,
    with_slash,
)

if TYPE_CHECKING:
    from windrow.sources.remote.fetcher import Fetcher

T = TypeVar("T")

# Where TensorStore looks for credentials.
_IN_ENVIRONMENT: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# A pool of recently decoded shard indices and chunks, for all arrays of a source.
_POOL: Final = "cache_pool#windrow"
_POOL_BYTES: Final = 32 << 20
_ZARR_FILES: Final = ("zarr.json", ".zarray", ".zgroup")
_MOST_TRIED: Final = 64
_FILES: Final = "zarr.json, .zarray, .zgroup, attributes.json (N5) or info (precomputed)"


class Access:
    """How one source reaches remote stores."""

    def __init__(
        self, what: str, storage_options: Mapping[str, Any] | None = None, remote: Any = None
    ) -> None:
        """Connect to nothing yet.

        Raises:
            ArgumentError: If `storage_options` is not a mapping with string keys, or `remote` is
                not a `RemoteOptions`.
        """
        if storage_options is not None and (
            not isinstance(storage_options, Mapping)
            or not all(isinstance(key, str) for key in storage_options)
        ):
            raise ArgumentError(
                f"{what}: storage_options must be a dict with string keys, as fsspec takes it,"
                f" got {with_article(type(storage_options).__name__)}"
            )
        self.what = what
        self.storage_options = dict(storage_options or {})
        self.options = as_remote_options(remote, what)
        self.reached = False
        """Whether a URL was opened with these settings."""
        self._sent: set[str] = set()
        self._expected = False
        self._restart()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.what, self.storage_options, self.options, self._sent, self._expected

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.what, self.storage_options, self.options, self._sent, self._expected = state
        self.reached = True
        self._restart()

    def _restart(self) -> None:
        self.stats = RemoteStats()
        self._redaction = Redaction(self.storage_options)
        outages = Outages(self.what, self.options, self.stats, self._redaction)
        self.in_flight = InFlightLimiter(self.options, self.stats, outages)
        # The fetcher counts its requests, and waits for stores, itself.
        self.fetches = InFlightLimiter(self.options, RemoteStats())
        self._threads = DaemonThreads()
        self._lock = threading.Lock()
        self._fetcher: Fetcher | None = None
        self._expect()
        self._context: ts.Context | None = None

    def expect_answers(self) -> None:
        """Wait for stores that are away from now on, also in pickled copies: all have answered."""
        self._expected = True
        self._expect()

    def _expect(self) -> None:
        if self._expected:
            self.in_flight.expect()
            self.fetches.expect()
            if self._fetcher is not None:
                self._fetcher.expect_answers()

    def hide(self, text: str) -> str:
        """`text` without secrets."""
        from_environment = (os.environ.get(name, "") for name in _IN_ENVIRONMENT)
        for sent in (*self._sent, *(value for value in from_environment if value)):
            text = text.replace(sent, HIDDEN)
        return self._redaction.hide(text)

    def reason(self, error: BaseException) -> str:
        """The reason of an error, for people, without secrets."""
        profile = self.storage_options.get("profile")
        if profile is not None and is_about_profile(error):
            return (
                f"AWS's files of settings (~/.aws/config and ~/.aws/credentials) have no profile"
                f" {profile!r} with credentials ({self.hide(reason(error))})"
            )
        return self.hide(reason(error))

    @bare
    def route(self, url: str) -> UrlRoute:
        """Which library reads `url`, and with which settings.

        Raises:
            ArgumentError: If no library can read it with these options.
            SourceError: If it cannot be parsed.
        """
        self.reached = True
        try:
            cached = self.options.cache_dir is not None
            route = route_of(self.what, url, self.storage_options, cached=cached)
        except ValueError as error:
            if "unsupported URL scheme" in str(error):
                raise ArgumentError(
                    f"{self.what}: neither TensorStore nor fsspec knows the protocol"
                    f" {url.partition('://')[0]!r}; they know file, memory, http, s3, gs, zip and"
                    " others (fsspec.available_protocols() lists them)"
                ) from None
            raise SourceError(
                f"{self.what}: {self.hide(repr(url))} cannot be opened: {self.reason(error)}"
            ) from None
        for header in headers_of(route.spec):
            name, _, value = header.partition(": ")
            if name.lower() == "authorization":
                self._sent |= {value, value.rpartition(" ")[2]}
        return route

    # --- TensorStore -----------------------------------------------------------------------------

    @property
    def context(self) -> ts.Context:
        """TensorStore's limits, retries and caches, shared by all arrays of the source."""
        with self._lock:
            if self._context is None:
                self._context = self._new_context()
            return self._context

    def _new_context(self) -> ts.Context:
        options = self.options
        # curl's own limits, for the whole process; TensorStore reads them at its first request.
        seconds = str(max(1, math.ceil(options.stall_s)))
        os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", seconds)
        os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
        connect = str(max(1, math.ceil(min(options.timeout_s, options.stall_s))))
        os.environ.setdefault("TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS", connect)
        limit = {"limit": options.max_requests}
        retries = {
            "max_retries": options.retries,
            "initial_delay": f"{max(0.001, options.backoff_s)}s",
            "max_delay": f"{max(0.001, options.max_backoff_s)}s",
        }
        settings: dict[str, Any] = {_POOL: {"total_bytes_limit": _POOL_BYTES}}
        for driver in ("http", "s3", "gcs"):
            settings[f"{driver}_request_concurrency"] = limit
            settings[f"{driver}_request_retries"] = retries
        return ts.Context(settings)

    def opened(self, spec: Any) -> ts.KvStore:
        """The key-value store of a spec.

        Raises:
            ValueError: If it cannot be opened.
            TimeoutError: If that takes too long.
        """
        return ts.KvStore.open(spec, context=self.context).result(timeout=self.options.longest_s)

    def read(self, store: ts.KvStore, key: str) -> bytes | None:
        """The value at `key`; None if it is absent. Waits.

        Raises:
            ValueError: If it cannot be read.
            TimeoutError: If that takes too long.
        """
        answer = self.in_flight.start(lambda: store.read(key), where=self.place(store)).result()
        return bytes(answer.value) if answer.state == "value" else None

    def place(self, store: ts.KvStore) -> str:
        """The URL of a store, for people."""
        try:
            return self.hide(shown_url(str(store.url)))
        except (NotImplementedError, ValueError):
            return "an open KvStore"

    @property
    def sharded(self) -> dict[str, Any]:
        """Settings that keep TensorStore from reading the index of a shard for each chunk.

        A shard that was written again is read again: each read names the version that it expects.
        """
        return {"cache_pool": _POOL, "recheck_cached_data": "open"}

    # --- fsspec ----------------------------------------------------------------------------------

    @property
    def fetcher(self) -> Fetcher:
        """Reads byte ranges through fsspec."""
        from windrow.sources.remote.fetcher import Fetcher

        with self._lock:
            if self._fetcher is None:
                self._fetcher = Fetcher(self.what, self.storage_options, self.options, self.stats)
                self._expect()
            return self._fetcher

    def run(self, fn: Callable[[], T]) -> Future[T]:
        """Run `fn`, which may wait, in a thread of its own."""
        return self._threads.submit(contextvars.copy_context().run, fn)


# --- folders -------------------------------------------------------------------------------------


class Folder(abc.ABC):
    """A place that may hold an array or a group."""

    what: str
    """Name of the source, for messages."""
    where: str
    """The place, for people."""
    known: tuple[str, ...] = ()
    """Paths to look for if the folder cannot be listed; else empty."""
    url: str | None = None
    """The URL for fsspec; None if it is unknown."""
    access: Access | None = None
    """How it is reached; None on a local disk."""
    opened: Any = None
    """The `OpenedStore` that holds it; None elsewhere."""

    @abc.abstractmethod
    def read(self, key: str) -> bytes | None:
        """The file `key`; None if it is absent. Raises SourceError if it cannot be read."""

    @abc.abstractmethod
    def listed(self) -> list[str] | None:
        """Names of the folders in it, sorted; None if listing them could take very long."""

    @abc.abstractmethod
    def child(self, path: str) -> Folder:
        """The folder at `path`, names joined by `/`."""

    @abc.abstractmethod
    def parent(self) -> tuple[Folder, str] | None:
        """The folder that holds this one, and the name of this one in it."""

    def kvstore(self) -> Any:
        """The key-value store that TensorStore opens; None if fsspec reads the folder."""
        return None

    def local(self) -> str | None:
        """The folder of a local disk; None elsewhere."""
        return None

    def absent(self) -> NotFoundError:
        """The error if it holds neither array nor group."""
        return NotFoundError(
            f"{self.what}: {self.where} is not a Zarr array or group: it has no {_FILES}; check the"
            " URL, and that you may read it"
        )


def metadata_of(folder: Folder, key: str) -> dict[str, Any] | None:
    """The JSON object in the file `key`; None if there is no such file.

    Raises:
        SourceError: If it cannot be read or is not a JSON object.
    """
    raw = folder.read(key)
    if raw is None:
        return None
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{folder.what}: {key} in {folder.where} is not JSON: {error}; copy or write it again"
        ) from error
    if not isinstance(meta, dict):
        raise SourceError(
            f"{folder.what}: {key} in {folder.where} is not a JSON object; write it again"
        )
    return meta


class MetadataLookup:
    """Reads the metadata files of one folder; some of them may be absent.

    S3 refuses to say that a file is absent if the caller may not list the bucket. So a refused file
    counts as absent; `refused` keeps the error, in case no other file is found either.
    """

    def __init__(self, folder: Folder) -> None:
        """Read nothing yet."""
        self._folder = folder
        self.refused: SourceError | ReadError | None = None

    def read(self, key: str) -> bytes | None:
        """The file `key`; None if it is absent or refused."""
        return self._unless_refused(lambda: self._folder.read(key))

    def metadata(self, key: str) -> dict[str, Any] | None:
        """The JSON object in the file `key`, as `metadata_of`; None if the file is refused."""
        return self._unless_refused(lambda: metadata_of(self._folder, key))

    def attributes(self) -> dict[str, Any] | None:
        """The attributes of Zarr v2, in `.zattrs`, of an array or group that was found.

        Raises:
            SourceError, ReadError: If only this file is refused: without it values would differ.
        """
        if self.refused is None:
            return metadata_of(self._folder, ".zattrs")
        return self.metadata(".zattrs")

    def _unless_refused(self, read: Callable[[], T | None]) -> T | None:
        try:
            return read()
        except (SourceError, ReadError) as error:
            if self._folder.access is None or not is_refused(error):
                raise
            self.refused = self.refused or error
            return None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LocalFolder(Folder):
    """A folder of a local disk; `where` is an absolute path."""

    what: str
    where: str

    def read(self, key: str) -> bytes | None:
        try:
            with open(os.path.join(self.where, key), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise SourceError(
                f"{self.what}: {os.path.join(self.where, key)} cannot be read:"
                f" {error.strerror or error}"
            ) from error

    def listed(self) -> list[str] | None:
        own = os.path.join(os.path.realpath(self.where), "")
        with os.scandir(self.where) as entries:
            # A link to an enclosing folder would be a group in itself, without end.
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir()
                and not (
                    entry.is_symlink()
                    and own.startswith(os.path.join(os.path.realpath(entry.path), ""))
                )
            )

    def child(self, path: str) -> LocalFolder:
        return LocalFolder(self.what, os.path.join(self.where, *path.split("/")))

    def parent(self) -> tuple[LocalFolder, str] | None:
        up, name = os.path.split(self.where)
        return (LocalFolder(self.what, up), name) if name else None

    def kvstore(self) -> Any:
        return {"driver": "file", "path": self.where + "/"}

    def local(self) -> str | None:
        return self.where

    def absent(self) -> NotFoundError:
        if not os.path.exists(self.where):
            there = what_is_there(self.where, reads=read_by("ZarrDataSource"))
            return NotFoundError(f"{self.what}: {self.where} does not exist; {there}")
        if not os.path.isdir(self.where):
            if zipfile.is_zipfile(self.where):
                return NotFoundError(
                    f"{self.what}: {self.where} is a zip file; if it holds a Zarr array or group, give"
                    f" {zip_url(self.where)!r}"
                )
            return NotFoundError(
                f"{self.what}: {self.where} is a file, not the folder of a Zarr array or group;"
                " give the folder that holds zarr.json or .zarray"
                f"{other_reader([os.path.basename(self.where)], 'ZarrDataSource')}"
            )
        names = LOCAL.names_in(self.where)
        for name in names[:_MOST_TRIED]:
            inner = os.path.join(self.where, name)
            if any(os.path.isfile(os.path.join(inner, key)) for key in _ZARR_FILES):
                return NotFoundError(
                    f"{self.what}: {self.where} is not a Zarr array or group, and holds"
                    f" {listing(names)}; did you mean {inner}?"
                )
        return NotFoundError(
            f"{self.what}: {self.where} is not a Zarr array or group: it has no {_FILES}; it holds"
            f" {listing(names)}{other_reader(names, 'ZarrDataSource')}"
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoreFolder(Folder):
    """A folder in a key-value store of TensorStore: any URL that it opens."""

    what: str
    where: str
    store: Any = dataclasses.field(repr=False)  # its keys are names in the folder
    access: Access
    known: tuple[str, ...] = ()
    spec: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)  # of a URL
    url: str | None = dataclasses.field(default=None, repr=False)

    @bare
    def read(self, key: str) -> bytes | None:
        try:
            return self.access.read(self.store, key)
        except (ValueError, RuntimeError, OSError) as error:
            why = f"{self.where}{key} cannot be read: {self.access.reason(error)}"
            raise SourceError(f"{self.what}: {why}") from None

    def listed(self) -> list[str] | None:
        if is_remote_spec(self.store.spec().to_json()):
            return sorted({path.partition("/")[0] for path in self.known}) or None
        try:
            keys = self.store.list().result(timeout=self.access.options.longest_s)
        except (ValueError, RuntimeError, OSError) as error:
            raise SourceError(
                f"{self.what}: {self.where} cannot be listed: {self.access.reason(error)}"
            ) from None
        paths = (key.decode("utf-8", "replace") for key in keys)
        return sorted({path.partition("/")[0] for path in paths if "/" in path} - {""})

    def child(self, path: str) -> StoreFolder:
        return dataclasses.replace(
            self,
            where=f"{self.where}{path}/",
            store=self.store / f"{path}/",
            known=known_below(self.known, path),
            url=None if self.url is None else joined(self.url, path),
        )

    def parent(self) -> tuple[StoreFolder, str] | None:
        path = self.store.path.rstrip("/")
        up, slash, name = path.rpartition("/")
        shown = self.where.rstrip("/")
        if not name or not shown.endswith(name):
            return None
        store = self.store.copy()
        store.path = up + slash
        split = None if self.url is None else parent_url(self.url)
        url = None if split is None else split[0]
        folder = dataclasses.replace(
            self, where=shown.removesuffix(name), store=store, known=(), url=url
        )
        return folder, name

    def kvstore(self) -> Any:
        if self.spec is not None:
            return {**self.spec, "path": self.store.path}
        return self.store.spec(retain_context=True)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RemoteFolder(Folder):
    """A folder in a file system of fsspec."""

    what: str
    where: str
    url: str = dataclasses.field(repr=False)
    access: Access
    known: tuple[str, ...] = ()

    def at(self, url: str, known: tuple[str, ...]) -> RemoteFolder:
        """The folder at another URL of the same file system."""
        return RemoteFolder(self.what, self.access.hide(_folder_url(url)), url, self.access, known)

    def read(self, key: str) -> bytes | None:
        return self.access.fetcher.read_small(joined(self.url, key))

    def listed(self) -> list[str] | None:
        if self.known:
            return sorted({path.partition("/")[0] for path in self.known})
        if not lists_cheaply(self.url):
            return None
        names = self.access.fetcher.names_in(self.url)
        return sorted(name.rstrip("/") for name in names if name.endswith("/"))

    def child(self, path: str) -> RemoteFolder:
        return self.at(joined(self.url, path), known_below(self.known, path))

    def parent(self) -> tuple[RemoteFolder, str] | None:
        split = parent_url(self.url)
        return None if split is None else (self.at(split[0], ()), split[1])


def _folder_url(url: str) -> str:
    """The URL of a folder for people, without a query; credentials are not hidden yet."""
    url = joined(url, "")
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


def known_below(known: tuple[str, ...], path: str) -> tuple[str, ...]:
    """The `known` paths that lie in the folder `path`, relative to it."""
    return tuple(name[len(path) + 1 :] for name in known if name.startswith(path + "/"))


@bare
def store_folder(
    what: str, value: Any, access: Access, known: tuple[str, ...] = ()
) -> StoreFolder | RemoteFolder:
    """The folder of a URL, or of an open `ts.KvStore`.

    Args:
        what: Name of the source, for messages.
        value: The URL or store.
        access: How it is reached.
        known: Paths to look for in it if it cannot be listed.

    Raises:
        ArgumentError: If a URL cannot be opened with the storage options.
        SourceError: If it cannot be opened.
    """
    if isinstance(value, ts.KvStore):
        store = value
        if store.path and not store.path.endswith("/"):
            store = store / "/"
        where = access.place(store)
        where = where if where.endswith("/") else where + "/"
        return StoreFolder(what, where, store, access, known)
    route = access.route(value)
    if route.spec is None:
        return RemoteFolder(what, access.hide(_folder_url(value)), value, access, known)
    spec = with_slash(route.spec)
    try:
        store = access.opened(spec)
    except (ValueError, RuntimeError, OSError) as error:
        raise SourceError(
            f"{what}: {access.hide(repr(value))} cannot be opened: {access.reason(error)}"
        ) from None
    url = None if "|" in value else value
    where = access.hide(value if url is None else _folder_url(url))
    if not where.endswith(("/", ":")):
        where += "/"
    chain = as_chain(value)
    if chain is not None and not access.storage_options and _has_names_twice(store, access):
        return RemoteFolder(what, access.hide(_folder_url(chain)), chain, access, known)
    return StoreFolder(what, where, store, access, known, spec, url)


def _has_names_twice(store: ts.KvStore, access: Access) -> bool:
    """Whether TensorStore refuses a zip file for that; to others the last file of a name counts."""
    try:
        access.read(store, "zarr.json")
    except (ValueError, RuntimeError, OSError) as error:
        return "Duplicate filename" in str(error)
    return False
