"""Folders: places that may hold an array or a group, and the objects of one array.

A `Folder` lies on a local disk, or where `remote_folders.py` reads it. `MetadataLookup` reads the metadata
files of a folder. `StoredObjects` are the objects of one array, by key.

Invariants: only metadata is read to find arrays. Nothing is written. Every read of an object waits, no longer
than its limits allow, and returns None for an object that is not there.
"""

from __future__ import annotations

import abc
import dataclasses
import json
import os
import zipfile
from collections.abc import Callable
from typing import Any, Final, TypeVar

from windrow.core.text import listing
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.sources.remote.paths import LOCAL, what_is_there, zip_url
from windrow.sources.signatures import other_reader, read_by
from windrow.sources.zarr.error_text import is_refused
from windrow.sources.zarr.stores import Access

T = TypeVar("T")

_ZARR_FILES: Final = ("zarr.json", ".zarray", ".zgroup")
_MOST_TRIED: Final = 64
_FILES: Final = "zarr.json, .zarray, .zgroup, attributes.json (N5) or info (precomputed)"


class StoredObjects(abc.ABC):
    """The objects of one array, by key."""

    def whole(self, key: str) -> bytes | None:
        """A whole object."""
        return self.part(key, 0, None)

    @abc.abstractmethod
    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        """The bytes `[start, stop)` of an object, or fewer if it is shorter; None is its end.

        A negative `start` counts from the end.
        """

    def tail(self, key: str, size_bytes: int) -> bytes | None:
        """The last `size_bytes` of an object, or all of a shorter one."""
        return self.part(key, -size_bytes, None)

    def file(self, key: str) -> str | None:
        """The local file of an object; None if it is remote."""
        return None


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

    def names_known(self) -> list[str]:
        """The first names of the paths to look for; empty without any."""
        return sorted({path.partition("/")[0] for path in self.known})

    def known_below(self, path: str) -> tuple[str, ...]:
        """The paths to look for that lie in the folder `path`, relative to it."""
        return tuple(name[len(path) + 1 :] for name in self.known if name.startswith(path + "/"))

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
