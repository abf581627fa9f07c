"""The folder of a cache on disk: a database of SQLite, whose rows are byte ranges of remote files.

1. A transaction is whole or not there, so a process may be killed at any time, and any number of
   processes may use the folder. SQLite asks the disk for no synchronization: after a power failure the
   database may be damaged, which is an error of `DAMAGE`.
2. A row has the checksum of its key and its bytes.
3. `used` is the number of bytes that had ever been written when a row was last used. So the least
   recently used row has the lowest one, and nothing is written as long as rows are only read.
4. Only files of the database are deleted. Processes that use it notice that by `is_current`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
import weakref
import zlib
from pathlib import Path
from typing import Any, Final

from windrow.errors import NotFoundError, ReadError

_NAME: Final = "ranges-2.sqlite"
_FILES: Final = (f"{_NAME}-journal", _NAME)
# Codes of errors: another process was writing for too long; the database is damaged. SQLITE_ERROR may mean
# that a table is missing.
BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
# Another process that writes is waited for as long.
_WAIT_S: Final = 2.0
_SCHEMA: Final = """
PRAGMA page_size = 16384;
PRAGMA auto_vacuum = INCREMENTAL;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS files (file BLOB PRIMARY KEY, url TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept (
    file BLOB, start INTEGER, stop INTEGER, used INTEGER, checksum INTEGER, data BLOB,
    PRIMARY KEY (file, start, stop)
);
CREATE INDEX IF NOT EXISTS by_use ON kept (used);
CREATE TRIGGER IF NOT EXISTS forget AFTER DELETE ON kept
WHEN NOT EXISTS (SELECT 1 FROM kept WHERE file = old.file)
BEGIN DELETE FROM files WHERE file = old.file; END;
COMMIT;
"""
_EVICT: Final = """
DELETE FROM kept WHERE rowid IN (SELECT rowid FROM kept ORDER BY used LIMIT ?)
"""
_EVICTED: Final = 16
_ROUNDS: Final = 8
_VACUUM_PAGES: Final = 1024
_SHOWN_URLS: Final = 20


class CacheDatabase:
    """The open database of a folder. Not thread-safe."""

    def __init__(self, folder: str) -> None:
        """Open it, or make an empty one; the folder exists.

        Raises:
            sqlite3.Error, OSError: If it cannot be opened.
        """
        self._path = os.path.join(folder, _NAME)
        with contextlib.suppress(FileExistsError):  # others may not read it
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._inode = os.stat(self._path).st_ino
        self.rows: Final = sqlite3.connect(
            f"{Path(self._path).as_uri()}?mode=rw",
            timeout=_WAIT_S,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        # A cache is not closed: its database is closed when it is dropped.
        self._close = weakref.finalize(self, self.rows.close)
        self._close.atexit = False
        self.rows.execute("PRAGMA synchronous = OFF")
        if not self.rows.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self.rows.executescript(_SCHEMA)

    def close(self) -> None:
        """Close it."""
        self._close()

    def is_current(self) -> bool:
        """Whether it is still the database of its folder."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except OSError:
            return False

    def newest(self) -> int:
        """Return `used` of the row that was used last; 0 without rows."""
        return int(self.rows.execute("SELECT ifnull(max(used), 0) FROM kept").fetchone()[0])

    def make_room(self, most_bytes: int, size_bytes: int, count: int) -> bool:
        """Delete the least recently used rows, within a transaction.

        Args:
            most_bytes: The most bytes that the database may take.
            size_bytes: The bytes that the new rows will take.
            count: The number of new rows.

        Returns:
            Whether there is room. Only some rows are deleted at a time, so that no call takes long.
        """
        for _ in range(_ROUNDS):
            facts = ("page_size", "page_count", "freelist_count")
            page, pages, free = (self.rows.execute(f"PRAGMA {one}").fetchone()[0] for one in facts)
            if page * pages > most_bytes and free:
                self.rows.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
            if page * (pages - free) + size_bytes <= most_bytes:
                return True
            self.rows.execute(_EVICT, (max(_EVICTED, count),))
        return False


def has_database(folder: str) -> bool:
    """Whether a folder has a database."""
    return os.path.exists(os.path.join(folder, _NAME))


def delete_database(folder: str) -> None:
    """Delete the database of a folder. Raises OSError."""
    for name in _FILES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


def code_of(error: BaseException) -> int:
    """Return the code of an error of SQLite; 0 of another error."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def checksum_of(file: bytes, start: int, stop: int, data: bytes | memoryview) -> int:
    """Compute the checksum of a row."""
    return zlib.crc32(data, zlib.crc32(repr((file, start, stop)).encode()))


def is_whole(checksum: Any, file: Any, start: Any, stop: Any, data: Any) -> bool:
    """Whether a row is as it was written."""
    return isinstance(data, bytes) and checksum == checksum_of(file, start, stop, data)


@dataclasses.dataclass(frozen=True, slots=True)
class KeptUrl:
    """What a cache keeps of one URL.

    Args:
        url: The URL, without secrets.
        ranges: The number of byte ranges.
        bytes: The bytes of these ranges.
    """

    url: str
    ranges: int
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class CacheReport:
    """What a folder keeps.

    Args:
        folder: The folder.
        urls: What is kept of each URL, the most bytes first.
        disk_bytes: Bytes of the disk that it takes.
        damaged: Ranges that were damaged, and are deleted; None if they were not checked.
        cleared: Whether all was deleted.
    """

    folder: str
    urls: tuple[KeptUrl, ...]
    disk_bytes: int
    damaged: int | None = None
    cleared: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        ranges, size = sum(one.ranges for one in self.urls), sum(one.bytes for one in self.urls)
        lines = [
            f"{self.folder}: {ranges:,} ranges of {len(self.urls):,} URLs, {size:,} bytes"
            f" ({self.disk_bytes:,} of the disk)"
        ]
        lines += [
            f"{one.bytes:>16,} {one.ranges:>10,}  {one.url}" for one in self.urls[:_SHOWN_URLS]
        ]
        if len(self.urls) > _SHOWN_URLS:
            lines.append(f"and {len(self.urls) - _SHOWN_URLS:,} URLs more")
        if self.damaged is not None:
            lines.append(f"{self.damaged:,} damaged ranges" + (", deleted" if self.damaged else ""))
        if self.cleared:
            lines.append("all deleted")
        return "\n".join(lines)


def cache_report(folder: str, *, verify: bool = False, clear: bool = False) -> CacheReport:
    """Report what the folder of a cache keeps.

    Args:
        folder: The folder, the `cache_dir` of `RemoteOptions`.
        verify: Compare all bytes with their checksums, and delete damaged ranges.
        clear: Delete everything.

    Raises:
        NotFoundError: If there is no such folder.
        ReadError: If its database cannot be read.
    """
    if not os.path.isdir(folder):
        raise NotFoundError(f"{folder} is not a folder; give the cache_dir of RemoteOptions")
    urls, damaged = list[KeptUrl](), 0
    disk_bytes = sum(
        512 * os.stat(os.path.join(folder, name)).st_blocks
        for name in os.listdir(folder)
        if name in _FILES
    )
    try:
        if has_database(folder):
            with contextlib.closing(CacheDatabase(folder)) as database:
                urls, damaged = _urls(database), _delete_damaged(database) if verify else 0
    except (OSError, sqlite3.Error) as error:
        if code_of(error) not in DAMAGE or not (verify or clear):
            raise ReadError(
                f"{folder} cannot be read: {error}; what is damaged is deleted by"
                f" windrow cache {folder} --verify",
                file=folder,
            ) from error
        damaged, clear = 1, True
    if clear:
        delete_database(folder)
    return CacheReport(folder, tuple(urls), disk_bytes, damaged if verify else None, clear)


def _urls(database: CacheDatabase) -> list[KeptUrl]:
    return [
        KeptUrl(*row)
        for row in database.rows.execute(
            "SELECT url, count(*), sum(stop - start) AS size FROM kept JOIN files USING (file)"
            " GROUP BY url ORDER BY size DESC, url"
        )
    ]


def _delete_damaged(database: CacheDatabase) -> int:
    """Delete rows whose bytes are not as they were written; return how many there were."""
    rows = database.rows.execute("SELECT rowid, file, start, stop, checksum, data FROM kept")
    damaged = [
        (number,)
        for number, file, start, stop, checksum, data in rows
        if not is_whole(checksum, file, start, stop, data)
    ]
    database.rows.executemany("DELETE FROM kept WHERE rowid = ?", damaged)
    return len(damaged)
