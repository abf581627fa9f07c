"""S3: byte ranges by `get_object`, with the retries of s3fs and botocore off.

Invariant: the ETag and the length in every answer are those of the file, or nothing is returned.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def s3_settings(storage_options: Mapping[str, Any], options: RemoteOptions) -> dict[str, Any]:
    """Settings of an `S3FileSystem`: those of the user, with limits and retries of ours."""
    config = dict(storage_options.get("config_kwargs") or {})
    config |= {
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": max(options.max_requests, 1),
        "connect_timeout": options.timeout_s,
        "read_timeout": options.stall_s,
    }
    # An instance of our own: those that others use keep their settings.
    return {"config_kwargs": config, "use_listings_cache": False, "skip_instance_cache": True}


class S3Transport(Transport):
    """Objects of S3 and of what speaks like it."""

    confirms = True
    serial = False

    def __init__(self, fs: Any, threads: DaemonThreads) -> None:
        """Of an `S3FileSystem` that nobody else uses."""
        self._fs = fs
        fs.retries = 1  # ours pause with a random part, are counted, and know what may pass
        self._listed = FileSystemTransport(fs, threads)

    async def tail(self, path: str, size_bytes: int) -> tuple[bytes, int, str]:
        return await object_tail(self._get, path, size_bytes, state=self.state, status_of=_status)

    async def part(self, path: str, start: int, stop: int, file: FarFile) -> bytes:
        data, _, _ = await self._get(path, f"bytes={start}-{stop - 1}", file)
        return checked(data, stop - start)

    async def whole(self, path: str) -> bytes | None:
        try:
            return (await self._get(path, None))[0]
        except Exception as error:
            code, status = _code(error), _status(error)
            # Where names may not be listed, that is the answer for a key that is not there.
            if status == 404 or code in ("NoSuchKey", "NoSuchBucket", "AccessDenied"):
                return None
            raise

    async def state(self, path: str) -> tuple[int, str]:
        bucket, key, version_id = self._fs.split_path(path)
        more = {"VersionId": version_id} if version_id else {}
        told = await self._fs._call_s3("head_object", Bucket=bucket, Key=key, **more)
        return int(told["ContentLength"]), f"ETag {told.get('ETag', '')}"

    async def what(self, path: str) -> What:
        return await self._listed.what(path)

    async def names(self, path: str) -> list[str]:
        return await self._listed.names(path)

    async def glob(self, path: str) -> list[str]:
        return await self._listed.glob(path)

    async def _get(
        self, path: str, asked: str | None, file: FarFile | None = None
    ) -> tuple[bytes, int, str]:
        bucket, key, version_id = self._fs.split_path(path)
        more = {"VersionId": version_id} if version_id else {}
        if asked is not None:
            more["Range"] = asked
        told = await self._fs._call_s3("get_object", Bucket=bucket, Key=key, **more)
        body = told["Body"]
        try:
            length, version = int(told["ContentLength"]), f"ETag {told.get('ETag', '')}"
            whole = str(told.get("ContentRange", "")).rpartition("/")[2]
            size = int(whole) if whole.isdigit() else length
            if asked is not None and not whole and length > 0:
                raise RequestError(
                    "no ranges", cause="unusable", detail="the store takes no ranges"
                )
            if file is not None:
                same(file, size, version)  # before a body that nobody wants
            return checked(bytes(await body.read()), length), size, version
        finally:
            body.close()


def _client_error(error: Exception) -> dict[str, Any]:
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            return response
    return {}


def _code(error: Exception) -> str:
    return str(_client_error(error).get("Error", {}).get("Code", ""))


def _status(error: Exception) -> int:
    return int(_client_error(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
