"""Folders of arrays: on a local disk, in a key-value store of TensorStore, in a file system of fsspec.

Invariant: metadata is read and nothing else; a store far away is never listed; no error about one
shows a secret, and no wait for one is longer than its limits.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import tensorstore as ts

from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.sources.paths import LOCAL, listing, other_reader, what_is_there
from windrow.sources.secrets import shown_url
from windrow.sources.zarr_access import Access, is_far
from windrow.sources.zarr_reasons import bare, is_refused
from windrow.sources.zarr_urls import above_url, joined_url, lists_cheaply, with_slash

T = TypeVar("T")

_FILES: Final = "zarr.json, .zarray, .zgroup, attributes.json (N5) or info (precomputed)"


class Folder(Protocol):
    """A place that may hold an array or a group."""

    @property
    def what(self) -> str:
        """Name of the source, for messages."""
        ...

    @property
    def where(self) -> str:
        """The place, for people."""
        ...

    @property
    def known(self) -> tuple[str, ...]:
        """Paths of what to look for where it is not listed; empty where it is."""
        ...

    def read(self, key: str) -> bytes | None:
        """The file `key`; None if there is none. Raises SourceError if it can not be read."""
        ...

    def listed(self) -> list[str] | None:
        """Names of the folders in it, sorted; None where to list them could take very long."""
        ...

    def child(self, path: str) -> Folder:
        """The folder at `path`, names joined by `/`."""
        ...

    def above(self) -> tuple[Folder, str] | None:
        """The folder that holds this one, and the name of this one in it."""
        ...

    def kvstore(self) -> Any:
        """What TensorStore opens; None where fsspec reads it."""
        ...

    @property
    def url(self) -> str | None:
        """Where fsspec finds it; None where that was not given."""
        ...

    @property
    def access(self) -> Access | None:
        """How it is reached; None on a local disk."""
        ...

    def local(self) -> str | None:
        """The folder of a local disk; None elsewhere."""
        ...

    def absent(self) -> NotFoundError:
        """The error where it holds neither array nor group."""
        ...


def metadata_of(folder: Folder, key: str) -> dict[str, Any] | None:
    """The JSON object in the file `key`; None if there is no such file.

    Raises:
        SourceError: If it can not be read, or holds no JSON object.
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
            f"{folder.what}: {key} in {folder.where} holds no JSON object; write it again"
        )
    return meta


class Look:
    """Reads files of a folder, one of which may tell what it holds.

    S3 refuses what is not there to those who may not list a bucket. So a file that is refused counts
    as one that is not there; `refused` has the error, for where no other file is found either.
    """

    def __init__(self, folder: Folder) -> None:
        """Read nothing yet."""
        self._folder = folder
        self.refused: SourceError | ReadError | None = None

    def read(self, key: str) -> bytes | None:
        """The file `key`; None if there is none, or it is refused."""
        return self._unless_refused(lambda: self._folder.read(key))

    def metadata(self, key: str) -> dict[str, Any] | None:
        """As `metadata_of`; None if the file is refused."""
        return self._unless_refused(lambda: metadata_of(self._folder, key))

    def beside(self, key: str) -> dict[str, Any] | None:
        """As `metadata`, of a file that adds to one that was found.

        Raises:
            SourceError, ReadError: If it alone is refused: without it values would be others.
        """
        if self.refused is None:
            return metadata_of(self._folder, key)
        return self.metadata(key)

    def _unless_refused(self, read: Callable[[], T | None]) -> T | None:
        try:
            return read()
        except (SourceError, ReadError) as error:
            if self._folder.access is None or not is_refused(error):
                raise
            self.refused = self.refused or error
            return None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LocalFolder:
    """A folder of a local disk; `where` is an absolute path."""

    what: str
    where: str

    @property
    def known(self) -> tuple[str, ...]:
        return ()

    def read(self, key: str) -> bytes | None:
        try:
            with open(os.path.join(self.where, key), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise SourceError(
                f"{self.what}: {os.path.join(self.where, key)} can not be read:"
                f" {error.strerror or error}"
            ) from error

    def listed(self) -> list[str] | None:
        own = os.path.join(os.path.realpath(self.where), "")
        with os.scandir(self.where) as entries:
            # A link to a folder above would be a group in itself, without end.
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

    def above(self) -> tuple[LocalFolder, str] | None:
        up, name = os.path.split(self.where)
        return (LocalFolder(self.what, up), name) if name else None

    def kvstore(self) -> Any:
        return {"driver": "file", "path": self.where + "/"}

    @property
    def url(self) -> None:
        return None

    @property
    def access(self) -> None:
        return None

    def local(self) -> str | None:
        return self.where

    def absent(self) -> NotFoundError:
        if not os.path.exists(self.where):
            return NotFoundError(
                f"{self.what}: {self.where} does not exist; {what_is_there(self.where)}"
            )
        if not os.path.isdir(self.where):
            return NotFoundError(
                f"{self.what}: {self.where} is a file, not the folder of a Zarr array or group; give"
                " the folder that holds zarr.json or .zarray"
                f"{other_reader([os.path.basename(self.where)], 'ZarrDataSource')}"
            )
        found = LOCAL.names_in(self.where)
        return NotFoundError(
            f"{self.what}: {self.where} is no Zarr array or group: it has no {_FILES}; it holds"
            f" {listing(found)}{other_reader(found, 'ZarrDataSource')}"
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoreFolder:
    """A folder in a key-value store of TensorStore: any URL that it opens."""

    what: str
    where: str
    store: Any = dataclasses.field(repr=False)  # its keys are those of the folder
    access: Access
    known: tuple[str, ...] = ()  # paths of what to look for where it can not be listed
    spec: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)  # of a URL
    url: str | None = dataclasses.field(default=None, repr=False)

    @bare
    def read(self, key: str) -> bytes | None:
        try:
            return self.access.read(self.store, key)
        except (ValueError, RuntimeError, OSError) as error:
            why = f"{self.where}{key} can not be read: {self.access.reason(error)}"
            raise SourceError(f"{self.what}: {why}") from None

    def listed(self) -> list[str] | None:
        if is_far(self.store.spec().to_json()):
            return sorted({path.partition("/")[0] for path in self.known}) or None
        try:
            keys = self.store.list().result(timeout=self.access.options.longest_s)
        except (ValueError, RuntimeError, OSError) as error:
            raise SourceError(
                f"{self.what}: {self.where} can not be listed: {self.access.reason(error)}"
            ) from None
        texts = (key.decode("utf-8", "replace") for key in keys)
        return sorted({text.partition("/")[0] for text in texts if "/" in text} - {""})

    def child(self, path: str) -> StoreFolder:
        return dataclasses.replace(
            self,
            where=f"{self.where}{path}/",
            store=self.store / f"{path}/",
            known=_below(self.known, path),
            url=None if self.url is None else joined_url(self.url, path),
        )

    def above(self) -> tuple[StoreFolder, str] | None:
        path = self.store.path.rstrip("/")
        up, slash, name = path.rpartition("/")
        shown = self.where.rstrip("/")
        if not name or not shown.endswith(name):
            return None
        store = self.store.copy()
        store.path = up + slash
        held = None if self.url is None else above_url(self.url)
        url = None if held is None else held[0]
        folder = dataclasses.replace(
            self, where=shown.removesuffix(name), store=store, known=(), url=url
        )
        return folder, name

    def kvstore(self) -> Any:
        if self.spec is not None:
            return {**self.spec, "path": self.store.path}
        return self.store.spec(retain_context=True)

    def local(self) -> str | None:
        return None

    def absent(self) -> NotFoundError:
        return _absent(self.what, self.where)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FarFolder:
    """A folder in a file system of fsspec."""

    what: str
    url: str = dataclasses.field(repr=False)
    access: Access
    why: str
    known: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return self.access.hide(_folder_of(self.url))

    def read(self, key: str) -> bytes | None:
        return self.access.fetcher.read_small(joined_url(self.url, key))

    def listed(self) -> list[str] | None:
        if self.known:
            return sorted({path.partition("/")[0] for path in self.known})
        if not lists_cheaply(self.url):
            return None
        names = self.access.fetcher.names_in(self.url)
        return sorted(name.rstrip("/") for name in names if name.endswith("/"))

    def child(self, path: str) -> FarFolder:
        url, known = joined_url(self.url, path), _below(self.known, path)
        return dataclasses.replace(self, url=url, known=known)

    def above(self) -> tuple[FarFolder, str] | None:
        found = above_url(self.url)
        if found is None:
            return None
        return dataclasses.replace(self, url=found[0], known=()), found[1]

    def kvstore(self) -> None:
        return None

    def local(self) -> None:
        return None

    def absent(self) -> NotFoundError:
        return _absent(self.what, self.where)


def _folder_of(url: str) -> str:
    """The URL of a folder for people, but for credentials: without a query."""
    url = joined_url(url, "")
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


def _below(known: tuple[str, ...], path: str) -> tuple[str, ...]:
    return tuple(name[len(path) + 1 :] for name in known if name.startswith(path + "/"))


def _absent(what: str, where: str) -> NotFoundError:
    return NotFoundError(
        f"{what}: {where} is no Zarr array or group: it has no {_FILES}; check the URL,"
        " and that you may read it"
    )


@bare
def store_folder(
    what: str, value: Any, access: Access, known: tuple[str, ...] = ()
) -> StoreFolder | FarFolder:
    """The folder of a URL, or of an open `ts.KvStore`.

    Args:
        what: Name of the source, for messages.
        value: The URL or store.
        access: How it is reached.
        known: Paths in it of what to look for where it can not be listed.

    Raises:
        ArgumentError: If a URL can not be opened with the storage options.
        SourceError: If it can not be opened.
    """
    if isinstance(value, ts.KvStore):
        store = value
        if store.path and not store.path.endswith("/"):
            store = store / "/"
        try:
            where = shown_url(str(store.url))
        except (NotImplementedError, ValueError):
            where = "an open KvStore"
        return StoreFolder(
            what, where if where.endswith("/") else where + "/", store, access, known
        )
    way = access.way(value)
    if way.spec is None:
        return FarFolder(what, value, access, way.why, known)
    spec = with_slash(way.spec)
    try:
        store = access.opened(spec)
    except (ValueError, RuntimeError, OSError) as error:
        raise SourceError(
            f"{what}: {access.hide(repr(value))} can not be opened: {access.reason(error)}"
        ) from None
    url = None if "|" in value else value
    where = access.hide(value if url is None else _folder_of(url))
    if not where.endswith(("/", ":")):
        where += "/"
    return StoreFolder(what, where, store, access, known, spec, url)
