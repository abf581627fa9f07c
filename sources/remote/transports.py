"""Transports: how to request bytes and names from one file system.

1. `part` returns exactly the bytes requested, of the given version of the file, or raises.
2. Where an answer does not state the version of the file (`confirms` is False), the caller requests
   `state` again after the last part, and discards the parts if the version has changed.
3. Bytes are as stored in the file: nothing is decompressed on the way.
4. Errors of libraries pass through; the caller turns them into faults. Retries of libraries are off.
"""

from __future__ import annotations

import abc
import html
import inspect
import json
import re
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final, Literal

from windrow.core.threads import DaemonPool
from windrow.sources.remote.faults import RequestError, as_fault, seconds, status_fault
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.remote_file import RemoteFile

# What a path names.
What = Literal["file", "folder", "nothing"]
# The fields of a file's metadata that change when the file is replaced.
_VERSION_KEYS: Final = (
    *("ETag", "etag", "generation", "md5Hash", "checksum", "content_md5", "CRC", "ino"),
    *("mtime", "created", "modified", "updated", "LastModified", "last_modified", "modify"),
    *("date_time", "header_offset", "mtime_ns"),
)
# Synchronous file systems that several threads may use at once. Others, such as FTP and archives, have
# one connection, or one position in one open file.
_CONCURRENT: Final = frozenset({"memory", "local", "file"})
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def is_asynchronous(fs: Any) -> bool:
    """Whether the coroutines of `fs` run on fsspec's loop."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    # A folder of another file system, which may be of the other kind.
    inner = getattr(fs, "fs", None)
    if isinstance(inner, AbstractFileSystem) and not is_asynchronous(inner):
        return False
    return isinstance(fs, AsyncFileSystem) and bool(fs.async_impl) and not fs.asynchronous


def same(file: RemoteFile, size_bytes: int, version: str) -> None:
    """Refuse another version of the file."""
    if size_bytes != file.size_bytes:
        detail = f"it had {file.size_bytes:,} bytes and has {size_bytes:,}"
    elif version != file.version:
        detail = f"it was {file.version or 'without a version'} and is {version or 'without one'}"
    else:
        return
    raise RequestError("changed", cause="changed", detail=detail)


def _checked(data: bytes, size_bytes: int) -> bytes:
    """`data`, if it has the expected length."""
    if len(data) != size_bytes:
        detail = f"{len(data):,} bytes came instead of {size_bytes:,}"
        raise RequestError("cut short", cause="network", detail=detail)
    return data


def _range_header(start: int, stop: int) -> str:
    return f"bytes={start}-{stop - 1}"


def _total(content_range: str) -> int | None:
    """The length of the whole file by a Content-Range; None if it does not state one."""
    total = content_range.rpartition("/")[2]
    return int(total) if total.isdigit() else None


def _no_size(detail: str) -> RequestError:
    return RequestError("no size", cause="unusable", detail=detail)


def _no_ranges(detail: str) -> RequestError:
    return RequestError("no ranges", cause="unusable", detail=detail)


class Transport:
    """Any file system of fsspec; synchronous ones run in daemon threads.

    Only paths of HTTP have a protocol.
    """

    confirms = False
    """Whether every answer states the version of the file that it belongs to."""
    serial: bool
    """Whether only one request may be made at a time."""

    def __init__(self, fs: Any, threads: DaemonPool) -> None:
        """Wrap a file system; subclasses wrap one that is not shared."""
        self._fs, self._threads = fs, threads
        self._asynchronous = is_asynchronous(fs)
        protocols = fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)
        self.serial = not self._asynchronous and not _CONCURRENT & set(protocols)
        self._turn = threading.Lock()

    async def tail(self, path: str, size_bytes: int) -> tuple[bytes, int, str]:
        """Read the last bytes of a file, its length and version."""
        size, version = await self.state(path)
        start = max(0, size - size_bytes)
        data = b"" if start == size else await self._call("cat_file", path, start, size)
        return _checked(data, size - start), size, version

    async def part(self, path: str, start: int, stop: int, file: RemoteFile) -> bytes:
        """Read bytes `[start, stop)` of the file, at least one."""
        return _checked(await self._call("cat_file", path, start, stop), stop - start)

    async def whole(self, path: str) -> bytes | None:
        """Read all of a small file; None if it does not exist."""
        if self.confirms:
            found = await self.whole_version(path)
            return None if found is None else found[0]
        try:
            return bytes(await self._call("cat_file", path))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    async def whole_version(self, path: str) -> tuple[bytes, str] | None:
        """Read a small file and its version; None without it."""
        try:
            before = await self.state(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        data = await self.whole(path)
        if data is not None and (before != await self.state(path) or before[0] != len(data)):
            raise RequestError("changed", cause="network", detail="it changed while it was read")
        return None if data is None else (data, before[1])

    async def state(self, path: str) -> tuple[int, str]:
        """Ask for the length of the file and its version."""
        # A cached listing describes the file as it was.
        self._fs.invalidate_cache(self._fs._parent(path))
        info = await self._call("info", path)
        if info.get("type") == "directory":
            raise RequestError("a folder", cause="missing", detail="it is a folder")
        size = info.get("size")
        if size is None:
            raise _no_size("its length is not known")
        version = [f"{key} {info[key]}" for key in _VERSION_KEYS if info.get(key) is not None]
        return int(size), ", ".join(version)

    async def what(self, path: str) -> What:
        """Whether the path names a file or a folder."""
        self._fs.invalidate_cache(self._fs._parent(path))
        try:
            info = await self._call("info", path)
        except (FileNotFoundError, NotADirectoryError):
            return "nothing"
        return "folder" if info.get("type") == "directory" else "file"

    async def names(self, path: str) -> list[str]:
        """List the names in the folder, sorted; folders end in a slash."""
        self._fs.invalidate_cache(path)
        names = set()
        for info in await self._call("ls", path, True):
            name = str(info["name"]).rstrip("/").rpartition("/")[2]
            # A store also lists the object that marks the folder.
            if name and str(info["name"]).strip("/") != path.strip("/"):
                names.add(name + "/" * (info.get("type") == "directory"))
        return sorted(names)

    async def glob(self, path: str) -> list[str]:
        """List the paths that match the pattern, sorted."""
        self._fs.invalidate_cache()
        return sorted(await self._call("glob", path))

    async def _call(self, method: str, *args: Any) -> Any:
        if self._asynchronous:
            return await getattr(self._fs, "_" + method)(*args)
        if self.serial:
            return await self._threads.call(self._call_in_turn, method, *args)
        return await self._threads.call(getattr(self._fs, method), *args)

    def _call_in_turn(self, method: str, *args: Any) -> Any:
        # An abandoned call may still run: on one connection two calls would mix their bytes.
        with self._turn:
            try:
                return getattr(self._fs, method)(*args)
            except KeyError as error:  # versions of fsspec say so that an archive has no such file
                raise FileNotFoundError(*error.args) from error


# ---- HTTP


class HttpTransport(Transport):
    """Files of HTTP servers, by requests on the session of fsspec.

    It takes a part only from an answer of status 206 with the Content-Range requested, or cuts it
    out of a short answer of status 200. Both must have the file's length and its ETag (its
    Last-Modified if it has no ETag).
    """

    confirms = True

    def __init__(self, fs: Any, threads: DaemonPool, options: RemoteOptions) -> None:
        super().__init__(fs, threads)
        self._options = options
        self._timeout = _aiohttp_timeout(options)
        self._kwargs = {k: v for k, v in fs.kwargs.items() if k not in ("headers", "timeout")}
        self._headers = {**fs.kwargs.get("headers", {}), "Accept-Encoding": "identity"}

    async def tail(self, path: str, size_bytes: int) -> tuple[bytes, int, str]:
        """Read the last bytes of a file, its length and version."""
        async with await self._get(path, f"bytes=-{size_bytes}") as answer:
            size = _all_bytes(answer)
            if answer.status == 416:
                if size == 0:
                    return b"", 0, _version(answer)
            elif answer.status == 206 and size is not None:
                length = min(size, size_bytes)
                _check_range(answer, size - length, size)
                return _checked(await answer.read(), length), size, _version(answer)
            else:
                _check_status(answer)
                if answer.status == 206:
                    raise _no_size(_HIDDEN_SIZE)
                if self._is_short(size):
                    data = await answer.read()
                    _checked(data, len(data) if size is None else size)
                    return data[-size_bytes:], len(data), _version(answer)
        if size is None:
            raise _no_ranges(_WHOLE_FILES)
        # A server that refuses ranges from the end may accept them from the beginning.
        return await self._tail_from(path, size, size_bytes)

    async def _tail_from(self, path: str, size: int, size_bytes: int) -> tuple[bytes, int, str]:
        start = max(0, size - size_bytes)
        async with await self._get(path, _range_header(start, size)) as answer:
            if answer.status == 200:
                raise _no_ranges(_WHOLE_FILES)
            _check_status(answer)
            _check_range(answer, start, size)
            return _checked(await answer.read(), size - start), size, _version(answer)

    async def part(self, path: str, start: int, stop: int, file: RemoteFile) -> bytes:
        """Read bytes `[start, stop)` of the file, at least one."""
        async with await self._get(path, _range_header(start, stop)) as answer:
            _check_status(answer)
            size = _all_bytes(answer)
            same(file, file.size_bytes if size is None else size, _version(answer))
            if answer.status == 206:
                _check_range(answer, start, stop)
                return _checked(await answer.read(), stop - start)
            if not self._is_short(size):
                raise _no_ranges(_WHOLE_FILES)
            return _checked(await answer.read(), file.size_bytes)[start:stop]

    async def whole_version(self, path: str) -> tuple[bytes, str] | None:
        """Read a small file and its version; None without it."""
        async with await self._get(path, None) as answer:
            # S3 answers 403 for an absent key if the caller may not list names.
            hidden = answer.status == 403 and "x-amz-request-id" in answer.headers
            if answer.status in (404, 410) or hidden:
                return None
            _check_status(answer)
            data: bytes = await answer.read()
            size = answer.content_length
            return _checked(data, len(data) if size is None else size), _version(answer)

    async def state(self, path: str) -> tuple[int, str]:
        """Ask for the length of the file and its version."""
        async with await self._get(path, _range_header(0, 1)) as answer:
            size = _all_bytes(answer)
            if answer.status != 416:
                _check_status(answer)
            if size is None:
                raise _no_size(_HIDDEN_SIZE)
            return size, _version(answer)

    async def what(self, path: str) -> What:
        """Whether the path names a file or a folder."""
        if not path.endswith("/"):
            async with await self._get(path, _range_header(0, 1)) as answer:
                if answer.status not in (404, 410, 416):
                    _check_status(answer)
                # A server redirects from a folder without a slash to the one with it.
                if answer.status == 416 or (
                    answer.status in (200, 206) and not answer.url.path.endswith("/")
                ):
                    listing = answer.content_type == "text/html" and await self._holds(path)
                    return "folder" if listing else "file"
        return "folder" if await self._holds(path) else "nothing"

    async def _holds(self, path: str) -> bool:
        try:
            return bool(await self.names(path))
        except Exception as error:
            status = getattr(error, "status", None)
            if isinstance(error, FileNotFoundError) or status in (404, 410, 405):
                return False
            raise

    async def names(self, path: str) -> list[str]:
        """List the names in the folder, sorted; folders end in a slash."""
        folder = path.rstrip("/") + "/"
        names = set()
        for info in await self._fs._ls_real(folder, detail=True):
            rest = str(info["name"]).removeprefix(folder)
            name, slash, deeper = rest.partition("/")
            # Skip links that sort the list, lead to other folders, or to this one.
            if rest != info["name"] and name.strip(".") and not deeper and "?" not in name:
                names.add(urllib.parse.unquote(html.unescape(name)) + slash)
        return sorted(names)

    async def _get(self, path: str, byte_range: str | None) -> Any:
        session = self._fs._session or await self._fs.set_session()
        headers: Mapping[str, str] = self._headers
        if byte_range is not None:
            headers = {**self._headers, "Range": byte_range}
        return session.get(
            self._fs.encode_url(path), headers=headers, timeout=self._timeout, **self._kwargs
        )

    def _is_short(self, size: int | None) -> bool:
        """Whether a whole file is at most as large as a part may be."""
        return size is not None and size <= self._options.max_request_bytes


_HIDDEN_SIZE: Final = "the server hides its length"
_WHOLE_FILES: Final = (
    "the server sends the whole file when some of its bytes are requested; serve it from a server"
    " that supports the header Range, or copy it to a local disk"
)


def _aiohttp_timeout(options: RemoteOptions) -> Any:
    import aiohttp

    # No total: a timer around the request limits all of it.
    return aiohttp.ClientTimeout(
        total=None, sock_read=options.stall_s, sock_connect=options.timeout_s
    )


def _check_status(answer: Any) -> None:
    status = answer.status
    if status not in (200, 206):
        raise status_fault(status, retry_after_s=seconds(answer.headers.get("Retry-After", "")))
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise RequestError(
            "compressed",
            cause="unusable",
            detail=f"the server sends it compressed ({encoding}), so its bytes have no fixed places",
        )


def _check_range(answer: Any, start: int, stop: int) -> None:
    header = answer.headers.get("Content-Range", "")
    match = _RANGE.fullmatch(header)
    if match is None or int(match[1]) != start or int(match[2]) != stop - 1:
        raise RequestError(
            "wrong range",
            cause="network",
            detail=f"bytes [{start:,}, {stop:,}) were requested, the answer has {header!r}",
        )


def _all_bytes(answer: Any) -> int | None:
    """The length of the whole file, if the answer states it."""
    if answer.status == 200:
        return None if answer.content_length is None else int(answer.content_length)
    return _total(answer.headers.get("Content-Range", ""))


def _version(answer: Any) -> str:
    etag = answer.headers.get("ETag")
    if etag is not None:
        return f"ETag {etag}"
    modified = answer.headers.get("Last-Modified")
    return "" if modified is None else f"of {modified}"


# ---- object stores


class ObjectStoreTransport(Transport, abc.ABC):
    """Objects of a store. Each answer states their version and length."""

    confirms = True

    async def tail(self, path: str, size_bytes: int) -> tuple[bytes, int, str]:
        """Read the last bytes of a file, its length and version."""
        try:
            data, size, version = await self._get(path, f"bytes=-{size_bytes}")
        except Exception as error:
            if not as_fault(error).kind.startswith("status 416"):  # it is an object without bytes
                raise
            size, version = await self.state(path)
            if size:
                raise
            return b"", 0, version
        return _checked(data, min(size, size_bytes)), size, version

    async def part(self, path: str, start: int, stop: int, file: RemoteFile) -> bytes:
        """Read bytes `[start, stop)` of the file, at least one."""
        data, _, _ = await self._get(path, _range_header(start, stop), file)
        return _checked(data, stop - start)

    async def whole_version(self, path: str) -> tuple[bytes, str] | None:
        """Read a small file and its version; None without it."""
        try:
            data, _, version = await self._get(path, None)
            return data, version
        except Exception as error:
            fault = as_fault(error)
            # A store answers 403 for an absent object if the caller may not list names.
            hidden = fault.code == "AccessDenied" or fault.kind == "status 403"
            if fault.cause == "missing" or hidden:
                return None
            raise

    @abc.abstractmethod
    async def _get(
        self, path: str, byte_range: str | None, file: RemoteFile | None = None
    ) -> tuple[bytes, int, str]:
        """Bytes of an object, the length of all of it, and its version; of `file` if it is given."""


class S3Transport(ObjectStoreTransport):
    """Objects of S3, or of a store with its protocol."""

    def __init__(self, fs: Any, threads: DaemonPool) -> None:
        super().__init__(fs, threads)
        # Our retries pause for a random time, are counted, and know transient faults.
        fs.retries = 1

    async def state(self, path: str) -> tuple[int, str]:
        """Ask for the length of the file and its version."""
        answer = await self._fs._call_s3("head_object", **self._object(path))
        return int(answer["ContentLength"]), f"ETag {answer.get('ETag', '')}"

    async def _get(
        self, path: str, byte_range: str | None, file: RemoteFile | None = None
    ) -> tuple[bytes, int, str]:
        more = {} if byte_range is None else {"Range": byte_range}
        answer = await self._fs._call_s3("get_object", **self._object(path), **more)
        body = answer["Body"]
        try:
            length, version = int(answer["ContentLength"]), f"ETag {answer.get('ETag', '')}"
            content_range = str(answer.get("ContentRange", ""))
            if byte_range is not None and not content_range and length > 0:
                raise _no_ranges("the store takes no ranges")
            total = _total(content_range)
            size = length if total is None else total
            if file is not None:
                same(file, size, version)  # before the body, which another version makes useless
            return _checked(bytes(await body.read()), length), size, version
        finally:
            body.close()

    def _object(self, path: str) -> dict[str, str]:
        bucket, key, version_id = self._fs.split_path(path)
        version = {"VersionId": version_id} if version_id else {}
        return {"Bucket": bucket, "Key": key, **version}


class GcsTransport(ObjectStoreTransport):
    """Objects of Google Cloud Storage, by media downloads."""

    def __init__(self, fs: Any, threads: DaemonPool, options: RemoteOptions) -> None:
        super().__init__(fs, threads)
        fs.requests_timeout = _aiohttp_timeout(options)
        # Without gcsfs's retries, whose pauses grow to half a minute and are not counted.
        self._request = inspect.unwrap(type(fs)._request)

    async def state(self, path: str) -> tuple[int, str]:
        """Ask for the length of the file and its version."""
        bucket, key, _ = self._fs.split_path(path)
        answer = await self._json("b/{}/o/{}", bucket, key, fields="size,generation")
        return int(answer["size"]), f"generation {answer['generation']}"

    async def what(self, path: str) -> What:
        """Whether the path names a file or a folder."""
        bucket, key, _ = self._fs.split_path(path)
        try:
            if key and not path.endswith("/"):
                await self._json("b/{}/o/{}", bucket, key, fields="name")
                return "file"
        except FileNotFoundError:
            pass
        try:
            answer = await self._json("b/{}/o", bucket, prefix=_prefix(key), maxResults=1)
        except FileNotFoundError:
            return "nothing"
        return "folder" if answer.get("items") else "nothing"

    async def names(self, path: str) -> list[str]:
        """List the names in the folder, sorted; folders end in a slash."""
        bucket, key, _ = self._fs.split_path(path)
        settings = {"prefix": _prefix(key), "delimiter": "/"}
        names: set[str] = set()
        while True:
            answer = await self._json("b/{}/o", bucket, **settings)
            names.update(item["name"] for item in answer.get("items", ()))
            names.update(answer.get("prefixes", ()))
            if "nextPageToken" not in answer:
                break
            settings["pageToken"] = answer["nextPageToken"]
        if not names:
            raise FileNotFoundError(path)
        # The store also lists the object that marks the folder.
        return sorted(name.removeprefix(settings["prefix"]) for name in names - {_prefix(key)})

    async def _json(self, path: str, *names: str, **settings: Any) -> Any:
        return json.loads((await self._request(self._fs, "GET", path, *names, **settings))[3])

    async def _get(
        self, path: str, byte_range: str | None, file: RemoteFile | None = None
    ) -> tuple[bytes, int, str]:
        headers = {"Accept-Encoding": "identity"}
        if byte_range is not None:
            headers["Range"] = byte_range
        url = self._fs.url(path)
        _, answer, _, data = await self._request(self._fs, "GET", url, headers=headers)
        content_range = answer.get("Content-Range", "")
        if byte_range is not None and not content_range and data:
            raise _no_ranges("the store takes no ranges of it; is it stored compressed?")
        total = _total(content_range)
        size = len(data) if total is None else total
        generation = answer.get("X-Goog-Generation")
        version = (
            f"ETag {answer.get('ETag', '')}" if generation is None else f"generation {generation}"
        )
        if file is not None:
            same(file, size, version)
        return data, size, version


def _prefix(key: str) -> str:
    return key.rstrip("/") + "/" if key else ""
