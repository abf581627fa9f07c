"""Google Cloud Storage: byte ranges by media downloads, with the retries of gcsfs off.

Invariant: the generation and the length in every answer are those of the file, or nothing is
returned.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from windrow.sources.daemons import DaemonThreads
from windrow.sources.far_files import FarFile
from windrow.sources.faults import RequestError
from windrow.sources.remote import RemoteOptions
from windrow.sources.transports import (
    FileSystemTransport,
    Transport,
    What,
    checked,
    object_tail,
    same,
)


class GcsTransport(Transport):
    """Objects of Google Cloud Storage."""

    confirms = True
    serial = False

    def __init__(self, fs: Any, threads: DaemonThreads, options: RemoteOptions) -> None:
        """Of a `GCSFileSystem` that nobody else uses."""
        import aiohttp

        self._fs = fs
        fs.requests_timeout = aiohttp.ClientTimeout(
            total=None, sock_read=options.stall_s, sock_connect=options.timeout_s
        )
        # Below the retries of gcsfs, whose pauses grow to half a minute and are not counted.
        self._request = inspect.unwrap(type(fs)._request)
        self._listed = FileSystemTransport(fs, threads)

    async def tail(self, path: str, size_bytes: int) -> tuple[bytes, int, str]:
        return await object_tail(self._get, path, size_bytes, state=self.state, status_of=_code)

    async def part(self, path: str, start: int, stop: int, file: FarFile) -> bytes:
        data, size, version = await self._get(path, f"bytes={start}-{stop - 1}")
        same(file, size, version)
        return checked(data, stop - start)

    async def whole(self, path: str) -> bytes | None:
        try:
            return (await self._get(path, None))[0]
        except FileNotFoundError:
            return None
        except OSError as error:
            # Where names may not be listed, that is the answer for a name that is not there.
            if not str(error).startswith("Forbidden"):
                raise
            return None

    async def state(self, path: str) -> tuple[int, str]:
        bucket, key, _ = self._fs.split_path(path)
        told = await self._json("b/{}/o/{}", bucket, key, fields="size,generation")
        return int(told["size"]), f"generation {told['generation']}"

    async def what(self, path: str) -> What:
        bucket, key, _ = self._fs.split_path(path)
        try:
            if key and not path.endswith("/"):
                await self._json("b/{}/o/{}", bucket, key, fields="name")
                return "file"
        except FileNotFoundError:
            pass
        try:
            prefix = _prefix(key)
            told = await self._json("b/{}/o", bucket, prefix=prefix, maxResults=1)
        except FileNotFoundError:
            return "nothing"
        return "folder" if told.get("items") else "nothing"

    async def names(self, path: str) -> list[str]:
        bucket, key, _ = self._fs.split_path(path)
        settings = {"prefix": _prefix(key), "delimiter": "/"}
        found: set[str] = set()
        while True:
            told = await self._json("b/{}/o", bucket, **settings)
            found.update(item["name"] for item in told.get("items", ()))
            found.update(told.get("prefixes", ()))
            if "nextPageToken" not in told:
                break
            settings["pageToken"] = told["nextPageToken"]
        if not found:
            raise FileNotFoundError(path)
        # The object that marks the folder is listed, too.
        return sorted(name.removeprefix(settings["prefix"]) for name in found - {_prefix(key)})

    async def glob(self, path: str) -> list[str]:
        return await self._listed.glob(path)

    async def _json(self, path: str, *names: str, **settings: Any) -> Any:
        return json.loads((await self._request(self._fs, "GET", path, *names, **settings))[3])

    async def _get(self, path: str, asked: str | None) -> tuple[bytes, int, str]:
        headers = {"Accept-Encoding": "identity"}
        if asked is not None:
            headers["Range"] = asked
        _, told, _, data = await self._request(self._fs, "GET", self._fs.url(path), headers=headers)
        whole = told.get("Content-Range", "").rpartition("/")[2]
        if asked is not None and not whole and data:
            detail = "the store takes no ranges of it; is it stored compressed?"
            raise RequestError("no ranges", cause="unusable", detail=detail)
        size = int(whole) if whole.isdigit() else len(data)
        generation = told.get("X-Goog-Generation")
        version = (
            f"ETag {told.get('ETag', '')}" if generation is None else f"generation {generation}"
        )
        return data, size, version


def _prefix(key: str) -> str:
    return key.rstrip("/") + "/" if key else ""


def _code(error: Exception) -> int:
    code = str(getattr(error, "code", ""))
    return int(code) if code.isdigit() else 0
