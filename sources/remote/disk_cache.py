"""A cache of bytes of remote files in a folder of a local disk, shared by all processes of a host.

1. Bytes are kept under the URL, the settings that lead to another store, the version and size of the
   file, and their place in it. A file without a version is not kept.
2. Bytes are compared with their checksum, which covers their key, at each read. Damaged bytes are
   deleted, and a database that SQLite finds damaged is deleted and made again.
3. The database takes at most `most_bytes` of the disk. The least recently used ranges are deleted.
4. No method raises an error of the disk. The cache then warns once, and pauses.
5. No secret is stored: keys are hashes, and URLs are stored as they are shown to people.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.core.redaction import shown_url, without_secrets
from windrow.sources.remote.cache_folder import (
    BUSY,
    DAMAGE,
    CacheDatabase,
    checksum_of,
    code_of,
    delete_database,
    has_database,
    is_whole,
)
from windrow.sources.remote.remote_file import RemoteFile

T = TypeVar("T")
IntArray = npt.NDArray[np.int64]

_LONGEST_URL: Final = 2000
# SQLite takes no blobs of a billion bytes.
_MOST_BYTES: Final = 1 << 29
_PAUSE_S: Final = 10.0
# Bytes of a range in the indices of the database, and of a call in pages that are not full.
_ROW_BYTES: Final = 128
_CALL_BYTES: Final = 1 << 17
_HASH_BYTES: Final = 12
# A range that is used is noted when its age is more than one of these parts of the cache.
_AGES: Final = 16
_FIND: Final = """
SELECT rowid, used < ?, checksum, data FROM kept WHERE file = ? AND start = ? AND stop = ?
"""
_INSERT: Final = """
INSERT OR REPLACE INTO kept (file, start, stop, checksum, data, used) VALUES (?, ?, ?, ?, ?, ?)
"""
_Row: TypeAlias = tuple[bytes, int, int, int, memoryview]
_log = logging.getLogger("windrow.remote")


@dataclasses.dataclass(slots=True)
class _KeptRanges:
    """What was found: bytes of ranges, and rows of the database to note as used, or to delete."""

    data: list[bytes | None]
    newest: int = 0
    old: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    damaged: list[tuple[int]] = dataclasses.field(default_factory=list)

    def note(self, database: CacheDatabase) -> None:
        """Note what was used, and delete what is damaged."""
        with database.rows as rows:
            rows.execute("BEGIN IMMEDIATE")
            rows.executemany("UPDATE kept SET used = ? WHERE rowid = ?", self.old)
            rows.executemany("DELETE FROM kept WHERE rowid = ?", self.damaged)


class DiskCache:
    """Keeps byte ranges of remote files in a folder. Thread-safe."""

    def __init__(
        self, folder: str, most_bytes: int, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            folder: The folder; it is made when it is first needed.
            most_bytes: The most bytes of the disk that the folder takes.
            settings: Storage options; those that may lead to another store are part of the keys.
        """
        self._folder, self._most_bytes = folder, most_bytes
        self._settings = json.dumps(without_secrets(settings or {}))
        self._lock = threading.Lock()
        self._database: CacheDatabase | None = None
        self._is_made = self._warned = False
        self._pause_until_s = {"get": 0.0, "put": 0.0}

    def get(self, file: RemoteFile, begin: IntArray, end: IntArray) -> Sequence[bytes | None]:
        """Return the bytes of ranges `[begin, end)`; None for others."""
        wanted = list(zip(begin.tolist(), end.tolist(), strict=True))
        found = _KeptRanges([None] * len(wanted))
        if file.has_version:
            self._try("get", partial(self._find, found, _key(file, self._settings), wanted))
        if found.old or found.damaged:
            self._try("put", found.note)
        return found.data

    def put(
        self, file: RemoteFile, begin: IntArray, end: IntArray, start: int, data: bytes
    ) -> None:
        """Keep ranges `[begin, end)` from `data`, which begins at `start`."""
        size = int((end - begin).sum())
        if not file.has_version or not 0 < size <= min(_MOST_BYTES, self._most_bytes // 4):
            return
        key, view, rows = _key(file, self._settings), memoryview(data), list[_Row]()
        for first, stop in zip(begin.tolist(), end.tolist(), strict=True):
            part = view[first - start : stop - start]
            rows.append((key, first, stop, checksum_of(key, first, stop, part), part))
        self._try("put", partial(self._write, rows, shown_url(file.url)[:_LONGEST_URL], size))

    def knows(self, url: str) -> bool:
        """Whether bytes of the URL may be kept, of any version."""
        place = _key(RemoteFile(url, 0), self._settings)[:_HASH_BYTES]
        bounds = place, place + b"\xff" * (_HASH_BYTES + 1)
        query = "SELECT 1 FROM files WHERE file BETWEEN ? AND ?"
        found = self._try("get", lambda database: database.rows.execute(query, bounds).fetchone())
        return found is not None

    def _find(
        self,
        found: _KeptRanges,
        key: bytes,
        wanted: Sequence[tuple[int, int]],
        database: CacheDatabase,
    ) -> None:
        with database.rows as rows:
            rows.execute("BEGIN")
            found.newest = database.newest()
            oldest = found.newest - self._most_bytes // _AGES
            for at, (start, stop) in enumerate(wanted):
                row = rows.execute(_FIND, (oldest, key, start, stop)).fetchone()
                if row is None:
                    continue
                number, is_old, checksum, data = row
                if not is_whole(checksum, key, start, stop, data):
                    found.damaged.append((number,))
                    continue
                found.data[at] = data
                if is_old:
                    found.old.append((found.newest, number))

    def _write(self, new: list[_Row], url: str, size: int, database: CacheDatabase) -> None:
        # A page has at most one range of more than half of it.
        needed = 2 * (size + _ROW_BYTES * len(new)) + _CALL_BYTES
        with database.rows as rows:
            rows.execute("BEGIN IMMEDIATE")
            if database.make_room(self._most_bytes // 8 * 7, needed, len(new)):
                used = database.newest() + size
                rows.execute("INSERT OR IGNORE INTO files VALUES (?, ?)", (new[0][0], url))
                rows.executemany(_INSERT, ((*row, used) for row in new))

    def _try(self, call: str, work: Callable[[CacheDatabase], T]) -> T | None:
        """Do work on the database; None where no database is, or after an error.

        An error begins a pause of such calls: when a disk is full, what is kept can still be read.
        """
        with self._lock:
            if time.monotonic() < self._pause_until_s[call]:
                return None
            try:
                if call == "put" or has_database(self._folder):
                    return work(self._opened())
            except (OSError, sqlite3.Error) as error:
                self._pause_until_s[call] = time.monotonic() + _PAUSE_S
                self._failed(error)
        return None

    def _opened(self) -> CacheDatabase:
        if self._database is not None and not self._database.is_current():
            self._close()
        if self._database is None:
            if not self._is_made:
                # Only once: a folder that vanished may be a disk that is not mounted any more.
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
                self._is_made = True
            self._database = CacheDatabase(self._folder)
        return self._database

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None

    def _failed(self, error: OSError | sqlite3.Error) -> None:
        is_replaced = self._database is not None and not self._database.is_current()
        self._close()
        if code_of(error) in DAMAGE and not is_replaced:
            with contextlib.suppress(OSError):
                delete_database(self._folder)
        if not self._warned and code_of(error) not in BUSY:
            self._warned = True
            _log.warning(
                "the cache in %s failed (%s); reading continues without it, and it is tried again"
                " every %.0f s",
                *(self._folder, error, _PAUSE_S),
            )


def _key(file: RemoteFile, settings: str) -> bytes:
    """A hash of the place of a file, and one of its version."""
    place = hashlib.sha256(json.dumps([file.url, settings]).encode()).digest()
    version = json.dumps([place.hex(), file.version, file.size_bytes])
    return place[:_HASH_BYTES] + hashlib.sha256(version.encode()).digest()[:_HASH_BYTES]
