"""Folders: places that may hold an array or a group, on a local disk or over a network.

A `Folder` lies on a local disk, in a key-value store of TensorStore, or in a file system of fsspec.
`MetadataLookup` reads the metadata files of a folder.

Invariants: only metadata is read to find arrays, and a remote store is never listed. No error shows a
secret.
"""

from __future__ import annotations

import abc
import dataclasses
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import tensorstore as ts

from windrow.core.text import listing
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.sources.remote.paths import LOCAL, joined, what_is_there, zip_url
from windrow.sources.signatures import other_reader, read_by
from windrow.sources.zarr.error_text import bare, is_refused
from windrow.sources.zarr.stored_objects import StoredObjects
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.urls import (
    as_chain,
    is_remote_spec,
    lists_cheaply,
    parent_url,
    with_slash,
)

T = TypeVar("T")

_ZARR_FILES: Final = ("zarr.json", ".zarray", ".zgroup")
_MOST_TRIED: Final = 64
_FILES: Final = "zarr.json, .zarray, .zgroup, attributes.json (N5) or info (precomputed)"


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
class LocalFolder(Folder, StoredObjects):
    """A folder of a local disk; `where` is an absolute path."""

    what: str
    where: str

    def read(self, key: str) -> bytes | None:
        try:
            return self.whole(key)
        except OSError as error:
            raise SourceError(
                f"{self.what}: {self.file(key)} cannot be read: {error.strerror or error}"
            ) from error

    def whole(self, key: str) -> bytes | None:
        return self.part(key, 0, None)

    def file(self, key: str) -> str:
        return os.path.join(self.where, *key.split("/"))

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        try:
            with open(self.file(key), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin, end, _ = slice(start, stop).indices(size)
                file.seek(begin)
                return file.read(max(0, end - begin))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

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
