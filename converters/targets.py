"""Targets: the place that a conversion writes to, a local folder or a URL.

Files are known by names relative to the target, with `/`. On a local disk a file comes under its
name by a rename; in an object store by an upload that is complete or does not happen.

Invariant: a file under its name is complete, and nothing outside the target is ever touched.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fsspec.core import url_to_fs

from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources.paths import is_remote, local_path
from windrow.sources.secrets import Secrets, shown_url

# Everything that an unfinished target has and a finished one has not lies here.
WORK: Final = "_windrow_work"
_INCOMING: Final = f"{WORK}/incoming"

Bytes = bytes | bytearray | memoryview


class Target(abc.ABC):
    """A folder to write into, somewhere. Picklable; raises ConversionError where it cannot write."""

    @abc.abstractmethod
    def shown(self, name: str = "") -> str:
        """Where `name` is, for people: without secrets."""

    @abc.abstractmethod
    def listed(self, name: str = "") -> list[str]:
        """Names of what lies in the folder `name`, sorted; none where there is no such folder."""

    @abc.abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of the file `name`, or None if there is no such file."""

    @abc.abstractmethod
    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Bytes `[start, stop)` of a file, or None if there is no such file; ReadError if damaged."""

    @abc.abstractmethod
    def write(self, name: str, data: Bytes) -> None:
        """Write a whole file."""

    @abc.abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a file, unless there is one of that name; whether it was written."""

    @abc.abstractmethod
    def incoming(self, name: str) -> contextlib.AbstractContextManager[str]:
        """A local path to write `name` to, for `put`; what is left there afterwards is removed."""

    @abc.abstractmethod
    def put(self, path: str, name: str) -> None:
        """Give the complete local file at `path` (of `incoming`) the name `name`."""

    @abc.abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files, where they are, and the folders that this leaves empty."""

    @abc.abstractmethod
    def remove_folder(self, name: str) -> None:
        """Remove a folder and all in it, where it is."""

    @property
    @abc.abstractmethod
    def local(self) -> str | None:
        """The path of the folder, if it is on a local disk."""


def target_of(
    output: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Target:
    """The target that `output` names, a path or a URL of fsspec.

    Raises:
        ArgumentError: If it is neither.
        ConversionError: If it is a file, or no package for its protocol is installed.
    """
    if not isinstance(output, str | os.PathLike):
        raise ArgumentError(
            f"output {output!r} is {type(output).__name__}; give a path or a URL as str"
        )
    name = os.fspath(output)
    if is_remote(name):
        return FarTarget(name.rstrip("/"), dict(storage_options or {}))
    root = os.path.abspath(local_path(name, what="output"))
    if os.path.exists(root) and not os.path.isdir(root):
        raise ConversionError(f"output {root}: is a file; name a folder")
    return LocalTarget(root)


def unwritable(where: str, error: OSError) -> ConversionError:
    """The error for a place that cannot be written."""
    return ConversionError(
        f"{where}: cannot be written: {error.strerror or error}; make room or choose another folder,"
        " and run it again: what is finished is kept"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LocalTarget(Target):
    """A folder on a local disk, or on one that is mounted."""

    root: str

    @property
    def local(self) -> str:
        return self.root

    def path(self, name: str) -> str:
        """The path of `name`."""
        return os.path.join(self.root, *name.split("/")) if name else self.root

    def shown(self, name: str = "") -> str:
        return self.path(name)

    def listed(self, name: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self.path(name)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ReadError(f"{self.path(name)}: cannot be listed: {error.strerror}") from error

    def size(self, name: str) -> int | None:
        path = self.path(name)
        try:
            return os.path.getsize(path) if os.path.isfile(path) else None
        except OSError:
            return None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        try:
            with open(self.path(name), "rb") as file:
                file.seek(start)
                return file.read(-1 if stop is None else stop - start)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ReadError(f"{self.path(name)}: cannot be read: {error.strerror}") from error

    def write(self, name: str, data: Bytes) -> None:
        with self.incoming(name) as temporary:
            try:
                with open(temporary, "wb") as file:
                    file.write(data)
            except OSError as error:
                raise unwritable(self.path(name), error) from error
            self.put(temporary, name)

    def create(self, name: str, data: bytes) -> bool:
        path = self.path(name)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        except OSError as error:
            raise unwritable(path, error) from error
        return True

    @contextlib.contextmanager
    def incoming(self, name: str) -> Iterator[str]:
        base = name.rpartition("/")[2]
        path = self.path(f"{_INCOMING}/{uuid.uuid4().hex}-{base}")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            yield path
        except OSError as error:
            if isinstance(error, ReadError):
                raise
            raise unwritable(self.path(name), error) from error
        finally:
            with contextlib.suppress(OSError):
                os.remove(path)

    def put(self, path: str, name: str) -> None:
        final = self.path(name)
        try:
            # What has its name has its bytes, even if the machine goes down now.
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self.rename(path, final)
        except OSError as error:
            raise unwritable(final, error) from error

    def rename(self, path: str, final: str) -> None:
        """Give a complete file or folder its final path."""
        try:
            os.makedirs(os.path.dirname(final), exist_ok=True)
            os.replace(path, final)
        except OSError as error:
            raise unwritable(final, error) from error

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.path(name)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.remove(path)
            parent = os.path.dirname(path)
            while parent != self.root and os.path.isdir(parent) and not os.listdir(parent):
                os.rmdir(parent)
                parent = os.path.dirname(parent)

    def remove_folder(self, name: str) -> None:
        shutil.rmtree(self.path(name), ignore_errors=True)


@dataclasses.dataclass(frozen=True, slots=True)
class FarTarget(Target):
    """A prefix of an object store, or a folder of another file system of fsspec."""

    url: str
    options: dict[str, Any] = dataclasses.field(repr=False)

    @property
    def local(self) -> None:
        return None

    def shown(self, name: str = "") -> str:
        return shown_url(f"{self.url}/{name}" if name else self.url)

    def listed(self, name: str = "") -> list[str]:
        fs, path = self._at(name)
        fs.invalidate_cache()
        try:
            found = fs.ls(path, detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._unreadable(name, error) from error
        names = {
            entry.rstrip("/").rpartition("/")[2] for entry in found if entry.rstrip("/") != path
        }
        return sorted(names - {""})

    def size(self, name: str) -> int | None:
        fs, path = self._at(name)
        fs.invalidate_cache()
        try:
            info = fs.info(path)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._unreadable(name, error) from error
        return None if info["type"] == "directory" else info["size"]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        fs, path = self._at(name)
        try:
            whole = start == 0 and stop is None
            data: bytes = fs.cat_file(path) if whole else fs.cat_file(path, start=start, end=stop)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._unreadable(name, error) from error
        return data

    def write(self, name: str, data: Bytes) -> None:
        fs, path = self._at(name)
        with self._writing(name):
            fs.pipe_file(path, bytes(data))

    def create(self, name: str, data: bytes) -> bool:
        fs, path = self._at(name)
        with self._writing(name):
            try:
                fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
        return True

    @contextlib.contextmanager
    def incoming(self, name: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="windrow-") as folder:
            yield os.path.join(folder, name.rpartition("/")[2])

    def put(self, path: str, name: str) -> None:
        fs, far = self._at(name)
        with self._writing(name):
            fs.put_file(path, far)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            fs, path = self._at(name)
            with self._writing(name), contextlib.suppress(FileNotFoundError):
                fs.rm_file(path)

    def remove_folder(self, name: str) -> None:
        fs, path = self._at(name)
        fs.invalidate_cache()
        with self._writing(name), contextlib.suppress(FileNotFoundError):
            fs.rm(path, recursive=True)

    def _at(self, name: str) -> tuple[Any, str]:
        try:
            fs, root = url_to_fs(self.url, **self.options)
        except (ImportError, ValueError) as error:
            raise ConversionError(
                f"output {self.shown()}: cannot be opened: {self._hide(error)}"
            ) from error
        return fs, f"{root.rstrip('/')}/{name}" if name else root.rstrip("/")

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:  # a bucket that does not exist
            raise self._unwritable(name, error) from error
        except FileExistsError:
            raise
        except Exception as error:
            raise self._unwritable(name, error) from error

    def _hide(self, error: Exception) -> str:
        return Secrets(self.options).hide(str(error))

    def _unwritable(self, name: str, error: Exception) -> ConversionError:
        return ConversionError(
            f"{self.shown(name)}: cannot be written: {type(error).__name__}:"
            f" {self._hide(error)}; check the place and the rights, and run it again:"
            " what is finished is kept"
        )

    def _unreadable(self, name: str, error: Exception) -> ReadError:
        return ReadError(
            f"{self.shown(name)}: cannot be read: {type(error).__name__}: {self._hide(error)}"
        )
