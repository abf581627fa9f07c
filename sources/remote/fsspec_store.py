"""Stores that fsspec reads: protocols and storage options that the native core lacks.

1. Each process opens a file system once per protocol and set of arguments in the URL. File systems of HTTP, S3
   and Google Cloud Storage are instances of our own, so instances that other code opened keep their settings.
2. A request that fails in a way that may pass is made again after a pause, `retries` times; by a patient
   fetch for `outage_s`. One that does not end is left behind after its time.
3. Versions come from a file's metadata, which are asked again after the last part.
"""

from __future__ import annotations

import collections
import contextvars
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Final, TypeVar

from windrow.core.cancellation import current_scope, stopped
from windrow.core.redaction import Redaction, shown_url
from windrow.core.threads import DaemonPool
from windrow.errors import ArgumentError, MissingExtraError, WindrowError, missing_extra
from windrow.sources.remote.faults import RequestError, as_fault
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.remote.stores import Arrivals, Fetched, HeldBytes, Part, What

T = TypeVar("T")
_EXTRAS: Final = {
    **dict.fromkeys(("http", "https"), "http"),
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
}
# The fields of a file's metadata that change when the file is replaced.
_VERSION_KEYS: Final = (
    *("ETag", "etag", "generation", "md5Hash", "checksum", "content_md5", "CRC", "ino"),
    *("mtime", "created", "modified", "updated", "LastModified", "last_modified", "modify"),
    *("date_time", "header_offset", "mtime_ns"),
)
# Synchronous file systems that several threads may use at once. Others, such as FTP and archives, have
# one connection, or one position in one open file.
_CONCURRENT: Final = frozenset({"memory", "local", "file"})
_ABSENT: Final = (FileNotFoundError, NotADirectoryError)
# Not the module's own generator: a pause must not change the numbers that a user draws from it.
_draw: Final = random.Random()


def missing_package(what: str, url: str, error: ImportError) -> MissingExtraError:
    """Make the error for a URL whose file system is not installed.

    Args:
        what: The subject of the message: what the user wanted to do.
        url: The URL, which may be a chain of several URLs.
        error: The error of fsspec.
    """
    protocols = [part.partition("://")[0] for part in url.split("::")]
    extra = next((_EXTRAS[name] for name in protocols if name in _EXTRAS), None)
    if extra is not None:
        return missing_extra(what, extra)
    return MissingExtraError(f"{what} needs another package: {error}")


class FsspecStore:
    """A file system of fsspec. Its calls run in daemon threads; only paths of HTTP have a protocol."""

    confirms = False

    def __init__(self, fs: Any, options: RemoteOptions, stats: RemoteStats) -> None:
        """Request nothing yet."""
        self._fs, self._options, self._stats = fs, options, stats
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        serial = not _is_asynchronous(fs) and not _CONCURRENT & protocols
        self._at_once = 1 if serial else options.max_requests
        self._threads = DaemonPool(self._at_once, "windrow-files")
        self._held = HeldBytes(options.in_flight_bytes)

    def fetch(self, parts: Sequence[Part], *, patient: bool) -> Iterator[Arrivals]:
        """Yield parts as they arrive. After the last one, yield a fault for a file that has changed."""
        calls = [partial(self._part, part) for part in parts]
        weights = [part.weight_bytes for part in parts]
        for arrival in self._each(calls, patient, weights):
            yield [arrival]
        places = {
            (part.path, part.version): place for place, part in enumerate(parts) if part.version
        }
        states = [partial(self._state, path) for path, _ in places]
        for number, state in self._each(states, patient):
            (_, version), place = list(places.items())[number]
            if isinstance(state, RequestError):
                yield [(place, state)]
            elif _named(*state) != version:
                detail = f"it was {version} and is {_named(*state)}"
                yield [(place, RequestError("changed", cause="changed", detail=detail))]

    def _each(
        self, calls: Sequence[Callable[[], T]], patient: bool, weights: Sequence[int] = ()
    ) -> Iterator[tuple[int, T | RequestError]]:
        """Yield the place of each call and its result or fault, as they end; a few run at a time.

        Those that run, of all callers, have `in_flight_bytes` of `weights` at most, or there is one.
        """
        weights = weights or [0] * len(calls)
        waiting = collections.deque(enumerate(calls))
        running: dict[Future[Any], tuple[int, float]] = {}
        ended, scope = threading.Event(), current_scope()
        halt: Future[None] = Future()
        if scope is not None:
            scope.add(halt, partial(_end, halt, ended))
        longest_s = self._options.longest_s + (self._options.outage_s if patient else 0.0)
        try:
            while waiting or running:
                while waiting and len(running) < self._at_once:
                    if not self._held.take(weights[waiting[0][0]], wait=not running):
                        break
                    place, call = waiting.popleft()
                    context = contextvars.copy_context()
                    job = self._threads.submit(context.run, self._tried, call, ended, patient)
                    running[job] = place, time.monotonic() + longest_s
                left_s = min(due for _, due in running.values()) - time.monotonic()
                done, _ = wait([*running, halt], max(0.0, left_s), FIRST_COMPLETED)
                if halt in done:
                    raise stopped()
                late = [job for job, (_, due) in running.items() if due <= time.monotonic()]
                for job in [*done, *(job for job in late if job not in done)]:
                    place, _ = running.pop(job)
                    self._held.give(weights[place])
                    if job in done:
                        yield place, job.result()
                    else:  # its thread is left behind
                        self._stats.fault("timeout")
                        fault = RequestError("timeout", cause="network")
                        fault.tried = f"1 attempt in {longest_s:.1f} s"
                        yield place, fault
        finally:
            ended.set()
            self._held.give(sum(weights[place] for place, _ in running.values()))
            if scope is not None:
                scope.remove(halt)

    def _tried(
        self, call: Callable[[], T], ended: threading.Event, patient: bool
    ) -> T | RequestError:
        """The result of a call, made again after faults that may pass; or the last fault."""
        options, began_s, faults = self._options, time.monotonic(), list[RequestError]()
        while True:
            self._stats.request(again=bool(faults))
            once_s = time.monotonic()
            try:
                found = call()
                self._stats.took(time.monotonic() - once_s)
                return found
            except Exception as error:
                if isinstance(error, WindrowError):
                    raise
                faults.append(as_fault(error))
            self._stats.fault(faults[-1].kind)
            took_s = time.monotonic() - began_s
            waits = patient and faults[-1].is_outage and took_s < options.outage_s
            if ended.is_set() or faults[-1].cause != "network":
                break
            if len(faults) > options.retries and not waits:
                break
            most_s = min(options.max_backoff_s, options.backoff_s * 2.0 ** min(64, len(faults) - 1))
            ended.wait(_draw.uniform(0.0, most_s))
        attempts = f"{len(faults)} attempts" if len(faults) > 1 else "1 attempt"
        faults[-1].tried = f"{attempts} in {took_s:.1f} s"
        return faults[-1]

    # ---- calls of fsspec, which raise its errors

    def _part(self, part: Part) -> Fetched:
        if part.start is not None and part.stop is not None:
            data = self._call("cat_file", part.path, part.start, part.stop)
            return Fetched(_checked(data, part.stop - part.start), 0, part.version)
        if part.stop is None and not part.versioned:
            data = bytes(self._call("cat_file", part.path))
            return Fetched(data, len(data), "")
        size, *version = self._state(part.path)
        if part.stop is not None:
            start = max(0, size - part.stop)
            data = b"" if start == size else self._call("cat_file", part.path, start, size)
            return Fetched(_checked(data, size - start), size, _named(size, *version))
        data = bytes(self._call("cat_file", part.path))
        if [size, *version] != [*self._state(part.path)] or size != len(data):
            raise RequestError("changed", cause="network", detail="it changed while it was read")
        return Fetched(data, size, _named(size, *version))

    def _state(self, path: str) -> tuple[int, str]:
        """The length of a file and its version."""
        # A cached listing describes the file as it was.
        self._fs.invalidate_cache(self._fs._parent(path))
        info = self._call("info", path)
        if info.get("type") == "directory":
            raise RequestError("a folder", cause="missing", detail="it is a folder")
        size = info.get("size")
        if size is None:
            raise RequestError("no size", cause="unusable", detail="its length is not known")
        version = [f"{key} {info[key]}" for key in _VERSION_KEYS if info.get(key) is not None]
        return int(size), ", ".join(version)

    def _call(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._fs, method)(*args)
        except KeyError as error:  # versions of fsspec say so that an archive has no such file
            raise FileNotFoundError(*error.args) from error

    def _alone(self, call: Callable[[], T]) -> T:
        ((_, found),) = self._each([call], patient=False)
        if isinstance(found, RequestError):
            raise found
        return found

    def what(self, path: str) -> What:
        """Find what a path names."""

        def ask() -> What:
            self._fs.invalidate_cache(self._fs._parent(path))
            try:
                info = self._call("info", path)
            except _ABSENT:
                return "nothing"
            return "folder" if info.get("type") == "directory" else "file"

        return self._alone(ask)

    def names(self, path: str) -> list[str]:
        """List the names in a folder, sorted; folders end in a slash."""

        def ask() -> list[str]:
            self._fs.invalidate_cache(path)
            names = set()
            for info in self._call("ls", path, True):
                name = str(info["name"]).rstrip("/").rpartition("/")[2]
                # A store also lists the object that marks the folder.
                if name and str(info["name"]).strip("/") != path.strip("/"):
                    names.add(name + "/" * (info.get("type") == "directory"))
            return sorted(names)

        return self._alone(ask)

    def glob(self, path: str) -> list[str]:
        """List the paths that match a pattern, sorted."""

        def ask() -> list[str]:
            self._fs.invalidate_cache()
            return sorted(self._call("glob", path))

        return self._alone(ask)


def _end(halt: Future[None], ended: threading.Event) -> None:
    ended.set()
    if not halt.done():
        halt.set_result(None)


def _checked(data: Any, size_bytes: int) -> bytes:
    if len(data) != size_bytes:
        detail = f"{len(data):,} bytes came instead of {size_bytes:,}"
        raise RequestError("cut short", cause="network", detail=detail)
    return bytes(data)


def _named(size_bytes: int, version: str) -> str:
    """The version of a file; its length if its metadata state none."""
    return version or f"{size_bytes} bytes"


def _is_asynchronous(fs: Any) -> bool:
    """Whether several threads may use `fs`, since its requests run on fsspec's loop."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    # A folder of another file system, which may be of the other kind.
    inner = getattr(fs, "fs", None)
    if isinstance(inner, AbstractFileSystem) and not _is_asynchronous(inner):
        return False
    return isinstance(fs, AsyncFileSystem) and bool(fs.async_impl) and not fs.asynchronous


# ---- opening


class FileSystems:
    """Opens and keeps the file systems of URLs."""

    def __init__(
        self,
        what: str,
        storage_options: Mapping[str, Any],
        options: RemoteOptions,
        *,
        stats: RemoteStats,
        redaction: Redaction,
    ) -> None:
        """Open no file system yet."""
        self._what, self._storage_options, self._options = what, storage_options, options
        self._stats, self._redaction = stats, redaction
        self._stores: dict[Any, tuple[Any, FsspecStore]] = {}

    def open(self, url: str) -> tuple[FsspecStore, str]:
        """Return the store of a URL, and the path in it. Opening may connect.

        Raises:
            ArgumentError: If the protocol is unknown, or does not take the options.
            MissingExtraError: If its package is not installed.
        """
        classes = [self._class(url, part) for part in url.split("::")]
        first = url.split("::")[0]
        plain = "::" not in url
        key: Any = (first.partition("://")[0], repr(classes[0]._get_kwargs_from_urls(first)))
        if plain and key in self._stores:
            fs, store = self._stores[key]
            return store, str(fs._strip_protocol(url))
        fs, path = self._file_system(url, self._settings(url, plain))
        if not plain:
            key = id(fs)  # the entry keeps `fs` alive, so no other file system has its id
        made = fs, FsspecStore(fs, self._options, self._stats)
        return self._stores.setdefault(key, made)[1], path

    def _class(self, url: str, part: str) -> Any:
        import fsspec

        protocol = part.partition("://")[0] if "://" in part else part
        if "://" not in part and ("::" not in url or not re.fullmatch("[a-z]+", part)):
            protocol = "file"  # to fsspec a single word in a chain is a protocol, all else a path
        what = f"{self._what}: reading {shown_url(url)}"
        error: WindrowError
        try:
            return fsspec.get_filesystem_class(protocol)
        except ImportError as missing:
            error = missing_package(what, protocol, missing)
        except ValueError:
            error = ArgumentError(
                f"{what}: fsspec does not know the protocol {protocol!r}; it knows file, memory, http,"
                " s3, gs, zip and others (fsspec.available_protocols() lists them)"
            )
        raise error

    def _settings(self, url: str, plain: bool) -> dict[str, Any]:
        # Copies: fsspec adds to the settings of one protocol in a chain.
        settings = {
            key: dict(value) if isinstance(value, Mapping) else value
            for key, value in self._storage_options.items()
        }
        extra = _EXTRAS.get(url.partition("://")[0]) if plain else None
        if extra == "http":
            import aiohttp

            limits = {"total": self._options.timeout_s, "sock_read": self._options.stall_s}
            client = {"timeout": aiohttp.ClientTimeout(**limits)}
            settings["client_kwargs"] = {**client, **(settings.get("client_kwargs") or {})}
        if extra == "s3":
            limits = {"connect_timeout": self._options.timeout_s}
            limits |= {"read_timeout": self._options.stall_s}
            settings["config_kwargs"] = {**limits, **(settings.get("config_kwargs") or {})}
            if region := settings.pop("region_name", None):
                client = settings.get("client_kwargs") or {}
                settings["client_kwargs"] = {"region_name": region, **client}
        if extra is not None:
            return {**settings, "use_listings_cache": False, "skip_instance_cache": True}
        return settings

    def _file_system(self, url: str, settings: dict[str, Any]) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        try:
            fs, path = url_to_fs(url, **settings)
        except (TypeError, ValueError, KeyError) as error:
            detail = self._redaction.hide(f"{type(error).__name__}: {error}")
        else:
            return fs, str(path)
        raise ArgumentError(
            f"{self._what}: storage_options with the keys {sorted(self._storage_options)} do not fit"
            f" {shown_url(url)}: {detail}; give the options that fsspec takes for this protocol"
        )
