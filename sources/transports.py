"""Transports: how bytes and names are asked of one file system.

1. `part` returns exactly the bytes asked for, of the version of the file that was given, or raises.
2. Where an answer does not say which version it is of (`confirms` is False), the caller asks `state`
   again after the last part, and throws the parts away when it is another.
3. Errors of libraries pass through: the caller turns them into faults.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from windrow.sources.daemons import DaemonThreads
from windrow.sources.far_files import FarFile
from windrow.sources.faults import RequestError

# What a name is.
What = Literal["file", "folder", "nothing"]
# Of what a file system tells about a file, what changes when the file is replaced.
_VERSION_KEYS: Final = (
    *("ETag", "etag", "generation", "md5Hash", "checksum", "content_md5", "CRC", "ino"),
    *("mtime", "created", "modified", "updated", "LastModified", "last_modified", "modify"),
    *("date_time", "header_offset", "mtime_ns"),
)
# Synchronous file systems that several threads may use at once. Others, such as FTP, have one
# connection, or one place in one open file.
_CONCURRENT: Final = frozenset({"memory", "local", "file", "zip"})


class Transport(abc.ABC):
    """One file system, asked from its event loop. Paths are without the protocol, but for HTTP."""

    confirms: bool
    """Whether every answer says which version of the file it is of."""
    serial: bool
    """Whether only one request may be made at a time."""

    @abc.abstractmethod
    async def tail(self, path: str, size_bytes: int) -> tuple[bytes, int, str]:
        """The last bytes, how long the file is, and its version."""

    @abc.abstractmethod
    async def part(self, path: str, start: int, stop: int, file: FarFile) -> bytes:
        """The bytes `[start, stop)` of the file, which are within it and at least one."""

    @abc.abstractmethod
    async def whole(self, path: str) -> bytes | None:
        """All of a small file; None where there is none."""

    @abc.abstractmethod
    async def state(self, path: str) -> tuple[int, str]:
        """How long the file is and its version, as they are now."""

    @abc.abstractmethod
    async def what(self, path: str) -> What:
        """Whether the path names a file or a folder."""

    @abc.abstractmethod
    async def names(self, path: str) -> list[str]:
        """What lies in the folder, sorted; names of folders end in a slash."""

    @abc.abstractmethod
    async def glob(self, path: str) -> list[str]:
        """The paths that fit the pattern, sorted."""


async def object_tail(
    get: Callable[[str, str], Awaitable[tuple[bytes, int, str]]],
    path: str,
    size_bytes: int,
    *,
    state: Callable[[str], Awaitable[tuple[int, str]]],
    status_of: Callable[[Exception], int],
) -> tuple[bytes, int, str]:
    """`Transport.tail` of an object store: a request for the last bytes tells size and version.

    Args:
        get: Asks for a range of an object; its bytes, how long all of it is, and its version.
        path: The object.
        size_bytes: How many bytes, at most.
        state: `Transport.state`.
        status_of: The status that an error is about.
    """
    try:
        data, size, version = await get(path, f"bytes=-{size_bytes}")
    except Exception as error:
        if status_of(error) != 416:  # so an object without bytes is answered
            raise
        size, version = await state(path)
        if size:
            raise
        return b"", 0, version
    return checked(data, min(size, size_bytes)), size, version


class FileSystemTransport(Transport):
    """Any file system of fsspec: asynchronous ones on the loop, others in daemon threads."""

    confirms = False

    def __init__(self, fs: Any, threads: DaemonThreads) -> None:
        """Of a file system of fsspec."""
        self._fs, self._threads = fs, threads
        self._asynchronous = is_asynchronous(fs)
        protocols = fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)
        self.serial = not self._asynchronous and not _CONCURRENT & set(protocols)
        self._turn = threading.Lock()

    async def tail(self, path: str, size_bytes: int) -> tuple[bytes, int, str]:
        size, version = await self.state(path)
        start = max(0, size - size_bytes)
        data = b"" if start == size else await self._call("cat_file", path, start, size)
        return checked(data, size - start), size, version

    async def part(self, path: str, start: int, stop: int, file: FarFile) -> bytes:
        return checked(await self._call("cat_file", path, start, stop), stop - start)

    async def whole(self, path: str) -> bytes | None:
        try:
            return bytes(await self._call("cat_file", path))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    async def state(self, path: str) -> tuple[int, str]:
        # A listing that was kept tells of the file as it was.
        self._fs.invalidate_cache(self._fs._parent(path))
        info = await self._call("info", path)
        if info.get("type") == "directory":
            raise RequestError("a folder", cause="missing", detail="it is a folder")
        size = info.get("size")
        if size is None:
            raise RequestError("no size", cause="unusable", detail="its length is not known")
        found = [f"{key} {info[key]}" for key in _VERSION_KEYS if info.get(key) is not None]
        return int(size), ", ".join(found)

    async def what(self, path: str) -> What:
        self._fs.invalidate_cache(self._fs._parent(path))
        try:
            info = await self._call("info", path)
        except (FileNotFoundError, NotADirectoryError):
            return "nothing"
        return "folder" if info.get("type") == "directory" else "file"

    async def names(self, path: str) -> list[str]:
        self._fs.invalidate_cache(path)
        found = set()
        for info in await self._call("ls", path, True):
            name = str(info["name"]).rstrip("/").rpartition("/")[2]
            # A store lists the object that marks the folder, too.
            if name and str(info["name"]).strip("/") != path.strip("/"):
                found.add(name + "/" * (info.get("type") == "directory"))
        return sorted(found)

    async def glob(self, path: str) -> list[str]:
        self._fs.invalidate_cache()
        return sorted(await self._call("glob", path))

    async def _call(self, method: str, *args: Any) -> Any:
        if self._asynchronous:
            return await getattr(self._fs, "_" + method)(*args)
        if self.serial:
            return await self._threads.call(self._call_alone, method, *args)
        return await self._threads.call(getattr(self._fs, method), *args)

    def _call_alone(self, method: str, *args: Any) -> Any:
        # A call that was left behind may go on: on one connection two would mix their bytes.
        with self._turn:
            return getattr(self._fs, method)(*args)


def is_asynchronous(fs: Any) -> bool:
    """Whether the coroutines of `fs` run on fsspec's loop."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    inner = getattr(fs, "fs", None)  # of a folder of another one, which may be of the other kind
    if isinstance(inner, AbstractFileSystem) and not is_asynchronous(inner):
        return False
    return isinstance(fs, AsyncFileSystem) and bool(fs.async_impl) and not fs.asynchronous


def checked(data: bytes, size_bytes: int) -> bytes:
    """`data`, if it is as long as it must be."""
    if len(data) != size_bytes:
        raise RequestError(
            "cut short",
            cause="network",
            transient=True,
            detail=f"{len(data):,} bytes came instead of {size_bytes:,}",
        )
    return data


def same(file: FarFile, size_bytes: int, version: str) -> None:
    """Refuse another version of the file."""
    if size_bytes != file.size_bytes:
        detail = f"it had {file.size_bytes:,} bytes and has {size_bytes:,}"
    elif version != file.version:
        detail = f"it was {file.version or 'without a version'} and is {version or 'without one'}"
    else:
        return
    raise RequestError("changed", cause="changed", detail=detail)
