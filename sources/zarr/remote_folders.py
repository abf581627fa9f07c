"""Folders that are not on a local disk: over a network, in an archive, or in an open store.

A folder lies in a key-value store of TensorStore, in a file system of fsspec, or in an open store of
zarr-python that has no path or URL, such as a session of Icechunk: such a store is read by its own
methods, in the event loop of zarr-python. `RangeObjects` are the objects of an array at a URL.

Invariants: a remote store is never listed, and no error shows a secret. Open stores are asked for keys of Zarr
alone, since they may refuse others; a session of Icechunk that may still change is refused.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import tensorstore as ts

from windrow.core.native import native
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
from windrow.sources.remote.paths import joined
from windrow.sources.remote.remote_file import ByteRange, RemoteFile
from windrow.sources.zarr.error_text import single
from windrow.sources.zarr.folders import Folder, StoredObjects
from windrow.sources.zarr.stores import Access, bare
from windrow.sources.zarr.urls import (
    as_chain,
    is_remote_spec,
    lists_cheaply,
    parent_url,
    with_slash,
)

METADATA: Final = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
_SHOWN_CHARACTERS: Final = 100
# Limits of the remembered shards: their number, and the bytes of their indices.
_MOST_FILES: Final = 1 << 16
_MOST_BYTES: Final = 32 << 20
_LOCKS: Final = 256


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoreFolder(Folder, StoredObjects):
    """A folder in a key-value store of TensorStore: any URL that it opens. Python reads whole objects only."""

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
            return self.whole(key)
        except (ValueError, RuntimeError, OSError) as error:
            why = f"{self.where}{key} cannot be read: {self.access.reason(error)}"
            raise SourceError(f"{self.what}: {why}") from None

    def whole(self, key: str) -> bytes | None:
        return self.access.read(self.store, key)

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        data = self.whole(key)
        return None if data is None else data[start:stop]

    def listed(self) -> list[str] | None:
        if is_remote_spec(self.store.spec().to_json()):
            return self.names_known() or None
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
            known=self.known_below(path),
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
    """A folder at a URL, that is read by byte ranges."""

    what: str
    where: str
    url: str = dataclasses.field(repr=False)
    access: Access
    known: tuple[str, ...] = ()

    def at(self, url: str, known: tuple[str, ...]) -> RemoteFolder:
        """The folder at another URL of the same file system."""
        return RemoteFolder(self.what, self.access.hide(_folder_url(url)), url, self.access, known)

    def kvstore(self) -> Any:
        spec = self.access.route(self.url).spec
        return None if spec is None else with_slash(spec)

    @bare
    def read(self, key: str) -> bytes | None:
        try:
            return self.access.fetcher.read_small(joined(self.url, key))
        except ReadError as error:
            why = self.access.reason(error)
            raise SourceError(f"{self.what}: {self.where}{key} cannot be read: {why}") from None

    def listed(self) -> list[str] | None:
        if self.known:
            return self.names_known()
        if not lists_cheaply(self.url):
            return None
        names = self.access.fetcher.names_in(self.url)
        return sorted(name.rstrip("/") for name in names if name.endswith("/"))

    def child(self, path: str) -> RemoteFolder:
        return self.at(joined(self.url, path), self.known_below(path))

    def parent(self) -> tuple[RemoteFolder, str] | None:
        split = parent_url(self.url)
        return None if split is None else (self.at(split[0], ()), split[1])


def _folder_url(url: str) -> str:
    """The URL of a folder for people, without a query; credentials are not hidden yet."""
    url = joined(url, "")
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


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
    if route.spec is None or (native() is not None and "|" not in value):
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


# --- open stores of zarr-python ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class OpenedStore:
    """A node of an open store of zarr-python. Pickles if the store does.

    Args:
        store: The `zarr.abc.store.Store`.
        path: Path of the node in it; '' for its root.
        shown: The store, for people.
        version: What the store calls the state of its data, for fingerprints; '' if it has no such name.
    """

    store: Any = dataclasses.field(repr=False)  # it may hold credentials
    path: str
    shown: str
    version: str = ""


def opened_store(what: str, store: Any, path: str) -> OpenedStore:
    """The node at `path` of an open store of zarr-python.

    Raises:
        ArgumentError: If it is a session of Icechunk that may be written to.
    """
    kind = type(store)
    if kind.__module__.partition(".")[0] != "icechunk":
        shown = str(store)
        if len(shown) > _SHOWN_CHARACTERS or "\n" in shown:
            shown = f"{kind.__name__}({id(store):#x})"
        return OpenedStore(store, path, shown)
    session = store.session
    if not session.read_only:
        raise ArgumentError(
            f"{what}: the session of Icechunk may be written to, so that its data has no name; commit it, and"
            " open the group from repo.readonly_session('main')"
        )
    snapshot = str(session.snapshot_id)
    return OpenedStore(store, path, f"{kind.__name__}({snapshot})", f"snapshot {snapshot}")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OpenedFolder(Folder, StoredObjects):
    """A node of an open store of zarr-python as a folder."""

    what: str
    opened: OpenedStore
    access: Access
    known: tuple[str, ...] = ()

    @property
    def where(self) -> str:  # type: ignore[override]
        path = f"{self.opened.path}/" if self.opened.path else ""
        return self.access.hide(f"{self.opened.shown}/{path}")

    @bare
    def read(self, key: str) -> bytes | None:
        try:
            return self.whole(key) if key in METADATA else None
        except OSError as error:
            why = self.access.reason(error)
            raise SourceError(f"{self.what}: {self.where}{key} cannot be read: {why}") from None

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
        from zarr.core.buffer import default_buffer_prototype

        wanted: Any = OffsetByteRequest(start) if start else None
        if start < 0:
            wanted = SuffixByteRequest(-start)
        elif stop is not None:
            wanted = RangeByteRequest(start, stop)
        read = self.opened.store.get(self._at(key), default_buffer_prototype(), wanted)
        found = self._waited(read)
        return None if found is None else bytes(found.to_bytes())

    @bare
    def listed(self) -> list[str] | None:
        store = self.opened.store
        if not store.supports_listing:
            return self.names_known() or None

        async def listing() -> set[str]:
            return {name.strip("/") async for name in store.list_dir(self.opened.path)}

        try:
            return sorted(self._waited(listing()) - {*METADATA})
        except OSError as error:
            why = self.access.reason(error)
            raise SourceError(f"{self.what}: {self.where} cannot be listed: {why}") from None

    def _waited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What the store answers. Raises OSError if it cannot, or not in time."""
        from zarr.core.sync import sync

        timeout_s = self.access.options.longest_s
        try:
            return sync(coroutine, timeout=timeout_s)
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout_s:,.1f} s") from None
        except Exception as raised:  # each store has errors of its own
            error = single(raised)
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            raise OSError(f"{type(error).__name__}: {said}") from error

    def _at(self, path: str) -> str:
        return f"{self.opened.path}/{path}" if self.opened.path else path

    def child(self, path: str) -> OpenedFolder:
        opened = dataclasses.replace(self.opened, path=self._at(path))
        return dataclasses.replace(self, opened=opened, known=self.known_below(path))

    def parent(self) -> tuple[OpenedFolder, str] | None:
        up, _, name = self.opened.path.rpartition("/")
        if not name:
            return None
        opened = dataclasses.replace(self.opened, path=up)
        return dataclasses.replace(self, opened=opened, known=()), name


# --- the objects of an array at a URL ------------------------------------------------------------


class RangeObjects(StoredObjects):
    """Objects at a URL, by byte ranges. Thread-safe.

    The end of a shard is read once. Later ranges must have the same version, so that a shard that
    is written again is an error and never a mixture. With a cache on disk this holds for every object
    but metadata: the store is asked for its version once.
    """

    def __init__(self, access: Access, url: str) -> None:
        self._access, self._url = access, url
        self._lock = threading.Lock()
        self._by_key = tuple(threading.Lock() for _ in range(_LOCKS))
        self._files: collections.OrderedDict[str, RemoteFile] = collections.OrderedDict()
        self._ends: collections.OrderedDict[str, bytes] = collections.OrderedDict()
        self._bytes = 0  # of the ends

    def whole(self, key: str) -> bytes | None:
        fetcher, url = self._access.fetcher, joined(self._url, key)
        # Metadata are read again to find out whether they have changed.
        if not fetcher.has_cache or is_metadata(key):
            return fetcher.read_small(url)
        file = self._files.get(key)
        if file is not None:
            return fetcher.read_kept(ByteRange(file, 0, file.size_bytes))
        found = fetcher.read_whole(url)
        if found is None:
            return None
        self._remember(key, found[0], b"")
        return found[1]

    def _known_tail(self, key: str, size_bytes: int) -> bytes | None:
        """As `tail`, if that is known already; else None."""
        with self._lock:
            file, end = self._files.get(key), self._ends.get(key)
            if file is None or end is None or len(end) < min(size_bytes, file.size_bytes):
                return None
            self._ends.move_to_end(key)
            return end[len(end) - min(size_bytes, len(end)) :]

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        file = self._files.get(key)
        if file is None:
            if self.tail(key, 1) is None:
                return None
            file = self._files[key]
        end = file.size_bytes if stop is None else min(stop, file.size_bytes)
        wanted = ByteRange(file, min(start, end), end)
        return self._access.fetcher.read_kept(wanted)

    def tail(self, key: str, size_bytes: int) -> bytes | None:
        # Many chunks of a shard are read at once, and only one of these reads fetches its end.
        with self._by_key[hash(key) % len(self._by_key)]:
            return self._tail(key, size_bytes)

    def _tail(self, key: str, size_bytes: int) -> bytes | None:
        known = self._known_tail(key, size_bytes)
        if known is not None:
            return known
        try:
            (tail,) = self._access.fetcher.tails([joined(self._url, key)], size_bytes)
        except NotFoundError:
            return None
        self._remember(key, tail.file, tail.data)
        return tail.data

    def _remember(self, key: str, file: RemoteFile, end: bytes) -> None:
        with self._lock:
            known = self._files.setdefault(key, file)
            if known != file:
                raise ReadError(
                    f"{self._access.what}: {file.shown} has changed since it was first read: it was"
                    f" {known.version or 'without a version'} and is {file.version or 'without one'}"
                    ". Make the source again",
                    is_unanswered=True,
                )
            self._bytes += len(end) - len(self._ends.pop(key, b""))
            self._ends[key] = end
            while self._bytes > _MOST_BYTES and len(self._ends) > 1:
                self._bytes -= len(self._ends.popitem(last=False)[1])
            while len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)


def is_metadata(key: str) -> bool:
    """Whether the key of an object names metadata."""
    return key.rpartition("/")[2] in METADATA
