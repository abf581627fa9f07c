"""Folders of arrays: on a local disk, and in any key-value store that TensorStore opens.

Invariant: metadata is read and nothing else; a store that is not local is never listed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

import tensorstore as ts

from windrow.errors import NotFoundError, SourceError
from windrow.sources.paths import folder_listing, what_is_there
from windrow.sources.zarr_read import reason

# TensorStore tries for many minutes to reach a store that is not there.
ANSWER_S = 60.0
_LOCAL_STORES: Final = ("file", "memory")
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
        """What TensorStore opens."""
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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LocalFolder:
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
            )
        return NotFoundError(
            f"{self.what}: {self.where} is no Zarr array or group: it has no {_FILES}; it holds"
            f" {folder_listing(self.where)}"
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoreFolder:
    """A folder in a key-value store of TensorStore: any URL that it opens."""

    what: str
    where: str
    store: Any  # its keys are those of the folder
    known: tuple[str, ...] = ()  # paths of what to look for where it can not be listed

    def read(self, key: str) -> bytes | None:
        try:
            found = self.store.read(key).result(timeout=ANSWER_S)
        except (ValueError, RuntimeError, OSError) as error:
            raise SourceError(
                f"{self.what}: {self.where}{key} can not be read: {reason(error)}"
            ) from error
        return bytes(found.value) if found.state == "value" else None

    def listed(self) -> list[str] | None:
        if not _is_local(self.store.spec().to_json()):
            return sorted({path.partition("/")[0] for path in self.known}) or None
        try:
            keys = self.store.list().result(timeout=ANSWER_S)
        except (ValueError, RuntimeError, OSError) as error:
            raise SourceError(
                f"{self.what}: {self.where} can not be listed: {reason(error)}"
            ) from error
        texts = (key.decode("utf-8", "replace") for key in keys)
        return sorted({text.partition("/")[0] for text in texts if "/" in text} - {""})

    def child(self, path: str) -> StoreFolder:
        known = tuple(name[len(path) + 1 :] for name in self.known if name.startswith(path + "/"))
        return StoreFolder(self.what, f"{self.where}{path}/", self.store / f"{path}/", known)

    def above(self) -> tuple[StoreFolder, str] | None:
        path = self.store.path.rstrip("/")
        up, slash, name = path.rpartition("/")
        shown = self.where.rstrip("/")
        if not name or not shown.endswith(name):
            return None
        store = self.store.copy()
        store.path = up + slash
        return StoreFolder(self.what, shown.removesuffix(name), store), name

    def kvstore(self) -> Any:
        return self.store.spec(retain_context=True)

    def local(self) -> str | None:
        return None

    def absent(self) -> NotFoundError:
        return NotFoundError(
            f"{self.what}: {self.where} is no Zarr array or group: it has no {_FILES}; check the URL,"
            " and that you may read it"
        )


def store_folder(what: str, value: Any, known: tuple[str, ...] = ()) -> StoreFolder:
    """The folder of a URL, or of an open `ts.KvStore`.

    Args:
        what: Name of the source, for messages.
        value: The URL or store.
        known: Paths in it of what to look for where it can not be listed.

    Raises:
        SourceError: If a URL can not be opened.
    """
    if isinstance(value, ts.KvStore):
        store = value
        if store.path and not store.path.endswith("/"):
            store = store / "/"
        try:
            where = str(store.url)
        except (NotImplementedError, ValueError):
            where = "an open KvStore"
        return StoreFolder(what, where if where.endswith("/") else where + "/", store, known)
    url = value if value.endswith(("/", ":")) else value + "/"
    try:
        return StoreFolder(what, url, ts.KvStore.open(url).result(timeout=ANSWER_S), known)
    except (ValueError, RuntimeError, OSError) as error:
        raise SourceError(f"{what}: {value!r} can not be opened: {reason(error)}") from error


def _is_local(spec: Any) -> bool:
    """Whether keys lie in this machine's memory or files, below any adapters."""
    while isinstance(spec, Mapping):
        if "base" not in spec:
            return spec.get("driver") in _LOCAL_STORES
        spec = spec["base"]
    return isinstance(spec, str) and spec.startswith(("file:", "memory:"))
