"""HTTP: byte ranges with requests of our own, on the session of fsspec's file system.

1. A part is taken only from an answer of status 206 whose Content-Range is the one asked for, or
   cut out of a short answer of status 200; both must have the file's length and its ETag (its
   Last-Modified where it has no ETag).
2. Nothing is decompressed on the way: the bytes are those of the stored file.
"""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from windrow.sources.daemons import DaemonThreads
from windrow.sources.far_files import FarFile
from windrow.sources.faults import RequestError, seconds, status_fault
from windrow.sources.remote import RemoteOptions
from windrow.sources.transports import FileSystemTransport, Transport, What, checked, same

_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_DNS_CACHE_S: Final = 60


def http_settings() -> dict[str, Any]:
    """Settings of an `HTTPFileSystem` that nobody else uses, and that limits no requests."""

    async def client(**kwargs: Any) -> Any:
        import aiohttp

        if "connector" not in kwargs:
            # Requests are counted before they reach it; its own limit would be a second queue, in
            # which a request's time runs out.
            kwargs["connector"] = aiohttp.TCPConnector(limit=0, ttl_dns_cache=_DNS_CACHE_S)
        kwargs.pop("loop", None)  # the session takes the one it is made on
        return aiohttp.ClientSession(**kwargs)

    return {"get_client": client, "use_listings_cache": False, "skip_instance_cache": True}


class HttpTransport(Transport):
    """Files of HTTP servers."""

    confirms = True
    serial = False

    def __init__(self, fs: Any, threads: DaemonThreads, options: RemoteOptions) -> None:
        """Of an `HTTPFileSystem` that nobody else uses."""
        import aiohttp

        self._fs, self._options = fs, options
        self._listed = FileSystemTransport(fs, threads)
        # The whole request has a timer already, around this.
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_read=options.stall_s, sock_connect=options.timeout_s
        )
        self._kwargs = {k: v for k, v in fs.kwargs.items() if k not in ("headers", "timeout")}
        self._headers = {**fs.kwargs.get("headers", {}), "Accept-Encoding": "identity"}

    async def tail(self, path: str, size_bytes: int) -> tuple[bytes, int, str]:
        async with await self._get(path, f"bytes=-{size_bytes}") as answer:
            size = _all_bytes(answer)
            if answer.status == 416:
                if size == 0:
                    return b"", 0, _version(answer)
            elif answer.status == 206 and size is not None:
                length = min(size, size_bytes)
                _check_range(answer, size - length, size)
                return checked(await answer.read(), length), size, _version(answer)
            else:
                _check_status(answer)
                if answer.status == 206:
                    raise RequestError(
                        "no size", cause="unusable", detail="the server hides its length"
                    )
                if self._is_short(size):
                    data = await answer.read()
                    checked(data, len(data) if size is None else size)
                    return data[-size_bytes:], len(data), _version(answer)
        if size is None:
            raise _no_ranges()
        # A server that takes no ranges from the end may take them from the beginning.
        return await self._tail_from(path, size, size_bytes)

    async def _tail_from(self, path: str, size: int, size_bytes: int) -> tuple[bytes, int, str]:
        start = max(0, size - size_bytes)
        async with await self._get(path, f"bytes={start}-{size - 1}") as answer:
            if answer.status == 200:
                raise _no_ranges()
            _check_status(answer)
            _check_range(answer, start, size)
            return checked(await answer.read(), size - start), size, _version(answer)

    async def part(self, path: str, start: int, stop: int, file: FarFile) -> bytes:
        async with await self._get(path, f"bytes={start}-{stop - 1}") as answer:
            _check_status(answer)
            size = _all_bytes(answer)
            same(file, file.size_bytes if size is None else size, _version(answer))
            if answer.status == 206:
                _check_range(answer, start, stop)
                return checked(await answer.read(), stop - start)
            if not self._is_short(size):
                raise _no_ranges()
            return checked(await answer.read(), file.size_bytes)[start:stop]

    async def whole(self, path: str) -> bytes | None:
        async with await self._get(path, None) as answer:
            # S3 answers so for a key that is not there, where its names may not be listed.
            hidden = answer.status == 403 and "x-amz-request-id" in answer.headers
            if answer.status in (404, 410) or hidden:
                return None
            _check_status(answer)
            data: bytes = await answer.read()
            size = answer.content_length
            return checked(data, len(data) if size is None else size)

    async def state(self, path: str) -> tuple[int, str]:
        async with await self._get(path, "bytes=0-0") as answer:
            size = _all_bytes(answer)
            if answer.status != 416:
                _check_status(answer)
            if size is None:
                raise RequestError(
                    "no size", cause="unusable", detail="the server hides its length"
                )
            return size, _version(answer)

    async def what(self, path: str) -> What:
        if not path.endswith("/"):
            async with await self._get(path, "bytes=0-0") as answer:
                if answer.status not in (404, 410, 416):
                    _check_status(answer)
                # A server leads from a folder without a slash to the one with it.
                if answer.status == 416 or (
                    answer.status in (200, 206) and not answer.url.path.endswith("/")
                ):
                    return "folder" if await self._is_page(answer, path) else "file"
        return "folder" if await self._holds(path) else "nothing"

    async def _is_page(self, answer: Any, path: str) -> bool:
        """Whether the answer is a list of what lies under `path`."""
        return answer.content_type == "text/html" and await self._holds(path)

    async def _holds(self, path: str) -> bool:
        try:
            return bool(await self.names(path))
        except Exception as error:
            status = getattr(error, "status", None)
            if isinstance(error, FileNotFoundError) or status in (404, 410, 405):
                return False
            raise

    async def names(self, path: str) -> list[str]:
        folder = path.rstrip("/") + "/"
        found = set()
        for info in await self._fs._ls_real(folder, detail=True):
            rest = str(info["name"]).removeprefix(folder)
            name, slash, deeper = rest.partition("/")
            # Links that sort the list, to other folders, and to this one, are no names in it.
            if rest != info["name"] and name.strip(".") and not deeper and "?" not in name:
                found.add(_unquoted(name) + slash)
        return sorted(found)

    async def glob(self, path: str) -> list[str]:
        return await self._listed.glob(path)

    async def _get(self, path: str, asked: str | None) -> Any:
        session = self._fs._session or await self._fs.set_session()
        headers: Mapping[str, str] = self._headers
        if asked is not None:
            headers = {**self._headers, "Range": asked}
        return session.get(
            self._fs.encode_url(path), headers=headers, timeout=self._timeout, **self._kwargs
        )

    def _is_short(self, size: int | None) -> bool:
        """Whether a whole file is no more than a part may be."""
        return size is not None and size <= self._options.max_request_bytes


def _unquoted(name: str) -> str:
    return urllib.parse.unquote(html.unescape(name))


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
    told = answer.headers.get("Content-Range", "")
    found = _RANGE.fullmatch(told)
    if found is None or int(found[1]) != start or int(found[2]) != stop - 1:
        raise RequestError(
            "wrong range",
            cause="network",
            transient=True,
            detail=f"bytes [{start:,}, {stop:,}) were asked for, the answer has {told!r}",
        )


def _all_bytes(answer: Any) -> int | None:
    """How long the whole file is, where the answer tells."""
    if answer.status == 200:
        return None if answer.content_length is None else int(answer.content_length)
    told = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return int(told) if told.isdigit() else None


def _version(answer: Any) -> str:
    etag = answer.headers.get("ETag")
    if etag is not None:
        return f"ETag {etag}"
    modified = answer.headers.get("Last-Modified")
    return "" if modified is None else f"of {modified}"


def _no_ranges() -> RequestError:
    return RequestError(
        "no ranges",
        cause="unusable",
        detail=(
            "the server sends the whole file when bytes of it are asked for; serve it from one"
            " that supports the header Range, or copy it to a local disk"
        ),
    )
