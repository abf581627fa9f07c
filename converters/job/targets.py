"""Targets: the place that a conversion writes to, a local folder or a URL.

Files are known by names relative to the target, with `/`. On a local disk a file comes under its
name by a rename; in an object store by an upload that is complete or does not happen.

Local files go to the disk while they grow (write-back), so that syncing them at their end is short.
Otherwise the kernel would leave the bytes in its cache for seconds, and the sync would wait for all.

Invariant: a file under its name is complete, and nothing outside the target is ever written or
removed, whatever links lie in it. The content and the safety of a file do not depend on write-back:
only `os.fsync` guarantees them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import fsspec
from fsspec.core import url_to_fs

from windrow.core.redaction import Redaction, shown_url
from windrow.errors import ArgumentError, ConversionError, ReadError, WindrowError
from windrow.sources.remote.fsspec_store import missing_package
from windrow.sources.remote.paths import is_remote, local_path

# The folder of all files that only an unfinished target has.
WORK: Final = "_windrow_work"
_INCOMING: Final = f"{WORK}/incoming"

# The sizes of more remote files than these are listed, and not requested one by one.
_ASKED_ONE_BY_ONE: Final = 8
# A temporary name has the end of the file's name, so that it is never too long.
_SHOWN_OF_NAME: Final = 40

# The fewest new bytes of a file for a call.
_WRITEBACK_BYTES: Final = 4 << 20

Bytes = bytes | bytearray | memoryview


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A folder to write into: a prefix of an object store, or a folder of any file system of fsspec.

    Picklable; raises ConversionError if it cannot be written.
    """

    url: str = dataclasses.field(repr=False)
    options: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def local(self) -> str | None:
        """The path of the folder, if it is on a local disk."""
        return None

    def shown(self, name: str = "") -> str:
        """Return the place of `name` for messages, without secrets."""
        return shown_url(f"{self.url}/{name}" if name else self.url)

    def listed(self, name: str = "") -> list[str]:
        """Return the sorted names in the folder `name`; empty if there is no such folder."""
        fs, path = self._at(name)
        found: list[str] = []
        with self._reading(name):
            fs.invalidate_cache()
            found = fs.ls(path, detail=False)
        names = {
            entry.rstrip("/").rpartition("/")[2] for entry in found if entry.rstrip("/") != path
        }
        return sorted(names - {""})

    def size(self, name: str) -> int | None:
        """Bytes of the file `name`, or None if there is no such file."""
        info = self._info(name)
        return None if info is None else _file_bytes(info)

    def is_there(self, name: str) -> bool:
        """Return whether there is such a file, or such a folder that is not empty."""
        info = self._info(name)
        if info is None or info["type"] != "directory":
            return info is not None
        fs, path = self._at(name)
        with self._reading(name):
            # Some file systems keep folders whose files are all removed.
            return any(files for _, _, files in fs.walk(path))
        return False

    def _info(self, name: str) -> dict[str, Any] | None:
        fs, path = self._at(name)
        with self._reading(name):
            fs.invalidate_cache()
            found: dict[str, Any] = fs.info(path)
            return found
        return None

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """The `size` of each of many files."""
        names = list(names)
        if len(names) <= _ASKED_ONE_BY_ONE:
            return {name: self.size(name) for name in names}
        fs, root = self._at("")
        found: dict[str, Any] = {}
        with self._reading(""):
            fs.invalidate_cache()
            found = fs.find(root, detail=True)
        there = {path: _file_bytes(info) for path, info in found.items()}
        return {name: there.get(f"{root}/{name}") for name in names}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Bytes `[start, stop)` of a file, or None if there is no such file; ReadError if damaged."""
        fs, path = self._at(name)
        with self._reading(name):
            whole = start == 0 and stop is None
            data: bytes = fs.cat_file(path) if whole else fs.cat_file(path, start=start, end=stop)
            return data
        return None

    def write(self, name: str, data: Bytes) -> None:
        """Write a whole file."""
        fs, path = self._at(name)
        with self._writing(name):
            fs.pipe_file(path, bytes(data))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file, unless there is one of that name; whether it was written."""
        # Look first: some file systems do not know this mode, and would overwrite the file.
        if self.size(name) is not None:
            return False
        fs, path = self._at(name)
        with self._writing(name):
            try:
                fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
        return True

    @contextlib.contextmanager
    def incoming(self, name: str) -> Iterator[str]:
        """Give a local path to write `name` to, for `put`; files left there are removed afterwards."""
        base = name.rpartition("/")[2][-_SHOWN_OF_NAME:]
        with tempfile.TemporaryDirectory(prefix="windrow-") as folder:
            yield os.path.join(folder, base)

    def put(self, path: str, name: str) -> None:
        """Give the complete local file at `path` (of `incoming`) the name `name`."""
        fs, far = self._at(name)
        with self._writing(name):
            fs.put_file(path, far)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that exist, and the folders that this leaves empty."""
        for name in names:
            fs, path = self._at(name)
            with self._writing(name), contextlib.suppress(FileNotFoundError):
                fs.rm_file(path)

    def remove_all(self, name: str) -> None:
        """Remove a file, or a folder and all in it, if it exists."""
        fs, path = self._at(name)
        with self._writing(name), contextlib.suppress(FileNotFoundError):
            fs.invalidate_cache()
            fs.rm(path, recursive=True)

    def _at(self, name: str) -> tuple[Any, str]:
        fs, root = file_system(
            self.url, self.options, f"output {self.shown()}", "writing", ConversionError
        )
        return fs, f"{root.rstrip('/')}/{name}" if name else root.rstrip("/")

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Raise errors as ours, except that something is not there, which ends the context."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            pass
        except Exception as error:
            if getattr(error, "errno", None) == errno.ENAMETOOLONG:
                return
            raise ReadError(
                f"{self.shown(name)}: cannot be read: {type(error).__name__}: {self._hide(error)}"
            ) from self._cause(error)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise ConversionError(
                f"{self.shown(name)}: cannot be written: {type(error).__name__}:"
                f" {self._hide(error)}; check the place and the rights, and run it again:"
                " what is finished is kept"
            ) from self._cause(error)

    def _hide(self, error: Exception) -> str:
        return Redaction(self.options).hide(str(error))

    def _cause(self, error: Exception) -> Exception | None:
        """Return `error`, as the cause of our error; None if it contains a secret."""
        return safe_cause(error, self.options)


@dataclasses.dataclass(frozen=True, slots=True)
class LocalTarget(Target):
    """A folder on a local disk, or on one that is mounted."""

    @property
    def local(self) -> str:
        return self.url

    def path(self, name: str) -> str:
        """The path of `name`."""
        return os.path.join(self.url, *name.split("/")) if name else self.url

    def shown(self, name: str = "") -> str:
        return self.path(name)

    def _at(self, name: str) -> tuple[Any, str]:
        return fsspec.filesystem("file"), self.path(name)

    def write(self, name: str, data: Bytes) -> None:
        with self.incoming(name) as temporary:
            try:
                with open(temporary, "wb") as file:
                    file.write(data)
            except OSError as error:
                raise unwritable(self.path(name), error) from error
            self.put(temporary, name)

    def create(self, name: str, data: bytes) -> bool:
        path = self.own(name)
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
        base = name.rpartition("/")[2][-_SHOWN_OF_NAME:]
        path = self.own(f"{_INCOMING}/{uuid.uuid4().hex}-{base}")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            yield path
        except WindrowError:  # some are OSErrors too
            raise
        except OSError as error:
            raise unwritable(self.path(name), error) from error
        finally:
            with contextlib.suppress(OSError):
                os.remove(path)

    def put(self, path: str, name: str) -> None:
        final = self.own(name)
        try:
            # A file that has its name has its bytes, even if the machine goes down now.
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.makedirs(os.path.dirname(final), exist_ok=True)
            os.replace(path, final)
        except OSError as error:
            raise unwritable(final, error) from error

    def move(self, name: str, final: str) -> None:
        """Give a file, or a folder and all in it, another name; it replaces what has that name."""
        source, goal = self.own(name), self.own(final)
        try:
            if os.path.isdir(source) and os.path.isdir(goal):
                # A run that was killed in the middle of it left some there already.
                for entry in os.listdir(source):
                    self.move(f"{name}/{entry}", f"{final}/{entry}")
                os.rmdir(source)
            else:
                os.makedirs(os.path.dirname(goal), exist_ok=True)
                os.replace(source, goal)
        except OSError as error:
            raise unwritable(goal, error) from error

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.own(name)
            with _removing(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.remove(path)
            parent = os.path.dirname(path)
            while parent != self.url:
                try:
                    os.rmdir(parent)
                except OSError:  # not empty, or not there
                    break
                parent = os.path.dirname(parent)

    def remove_all(self, name: str) -> None:
        path = self.own(name)
        with _removing(path), contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.remove(path)

    def own(self, name: str) -> str:
        """The path of `name`, to be written or removed.

        Raises:
            ConversionError: If a link on the way to it leads out of the target.
        """
        path = self.path(name)
        root, folder = os.path.realpath(self.url), os.path.realpath(os.path.dirname(path))
        if os.path.commonpath([root, folder]) != root:
            raise ConversionError(
                f"output {self.url}: {name} lies behind a link to {folder}, outside of it, where"
                " nothing is written or removed; convert into another folder"
            )
        return path


@contextlib.contextmanager
def _removing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConversionError(
            f"{path}: cannot be removed: {error.strerror or error}; remove it yourself, and run it"
            " again"
        ) from error


def target_of(
    output: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Target:
    """Return the target that `output` names, a path or a URL of fsspec.

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
        return Target(name.rstrip("/"), dict(storage_options or {}))
    root = os.path.abspath(local_path(name, what="output"))
    if os.path.exists(root) and not os.path.isdir(root):
        raise ConversionError(f"output {root}: is a file; name a folder")
    return LocalTarget(root)


def file_system(
    url: str, options: Mapping[str, Any], what: str, doing: str, kind: type[WindrowError]
) -> tuple[Any, str]:
    """Return the file system of a URL, and the path there.

    Raises:
        MissingExtraError: If no package for its protocol is installed, for `doing` something.
        WindrowError: If it cannot be opened, of this `kind`; the message begins with `what`.
        ArgumentError: If it does not take the options.
    """
    try:
        fs, path = url_to_fs(url, **options)
    except ImportError as error:
        raise missing_package(f"{what}: {doing}", url, error) from error
    except Exception as error:  # each file system has its own for settings that it cannot take
        raised = kind if isinstance(error, OSError) else ArgumentError
        why = Redaction(options).hide(str(error))
        raise raised(f"{what}: cannot be opened: {why}") from safe_cause(error, options)
    return fs, path


def safe_cause(error: Exception, options: Mapping[str, Any] | None) -> Exception | None:
    """Return `error`, as the cause of our error; None if it contains a secret."""
    text = "".join(traceback.format_exception(error))
    return error if Redaction(options).hide(text) == text else None


def unwritable(where: str, error: Exception) -> ConversionError:
    """Return the error for a place that cannot be written."""
    why = getattr(error, "strerror", None) or error
    return ConversionError(
        f"{where}: cannot be written: {why}; make room or choose another folder, and run it again:"
        " what is finished is kept"
    )


def _file_bytes(info: Mapping[str, Any]) -> int | None:
    """Return the size in a file system's facts of a path; None for a folder."""
    size: int | None = None if info["type"] == "directory" else info["size"]
    return size


# Write-back.


def begin_writeback(descriptor: int, first: int, size_bytes: int) -> None:
    """Ask the system to begin writing bytes `[first, first + size_bytes)` of an open file to disk.

    It does not wait, and does nothing if the system has no such call. On Linux, "not needed" begins
    to write the bytes that are not on the disk yet, and leaves them in the cache.
    """
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        with contextlib.suppress(OSError):  # a file system that takes no advice
            advise(descriptor, first, size_bytes, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def growing(path: str) -> Iterator[Callable[[], None]]:
    """Write back the existing local file at `path` while a writer fills it from start to end.

    Yields:
        A function to call when the file may have grown; it writes the new bytes if they are enough.

    Raises:
        OSError: If the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY)
    begun_bytes = 0

    def grew() -> None:
        nonlocal begun_bytes
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes - begun_bytes >= _WRITEBACK_BYTES:
            begin_writeback(descriptor, begun_bytes, size_bytes - begun_bytes)
            begun_bytes = size_bytes

    try:
        yield grew
    finally:
        os.close(descriptor)
