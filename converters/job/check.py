"""Checking a converted folder against its manifest: names, sizes, checksums and counts of files.

The files are read as bytes, each once. `windrow.verify` decodes them.

Invariant: nothing outside the folder is read, whatever its manifest says, and nothing is written. The
report lists wrong files; a folder that cannot be checked is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
from fsspec.core import url_to_fs

from windrow.converters.job.folder import checksum_of
from windrow.converters.job.inputs import files_below
from windrow.converters.job.manifest import MANIFEST_NAME, Manifest, OutputFile
from windrow.converters.job.stages import check_integer
from windrow.converters.job.targets import WORK, Target, target_of
from windrow.core.machine import usable_cores
from windrow.core.progress import ProgressMeter, ShowProgress
from windrow.core.text import bad_lines
from windrow.core.threads import DaemonPool
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.paths import (
    LOCAL,
    joined,
    options_for,
    refuse_unfinished,
    what_is_there,
)
from windrow.sources.signatures import ARRAY_RECORD, TFRECORD, ZARR
from windrow.sources.zarr.error_text import is_refused

if TYPE_CHECKING:
    from windrow.sources.remote.fetcher import Fetcher

WHAT: Final = "check"
_REMOTE_BLOCK_BYTES: Final = 8 << 20
# Threads for a remote folder, where every read waits for a network.
_REMOTE_THREADS: Final = 8
# Formats whose readers take a whole folder.
_RECORDS: Final = (ARRAY_RECORD, TFRECORD)
_CHUNK: Final = r"c|(c[/.])?\d+([/.]\d+)*"


@dataclasses.dataclass(frozen=True, slots=True)
class BadFile:
    """A file that differs from the manifest; `name` is relative to the folder, with `/`."""

    name: str
    error: str

    def __str__(self) -> str:
        return f"{self.name}: {self.error}"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check` for a converted folder.

    Attributes:
        folder: Where it is, without secrets.
        format: The format that the conversion wrote, from the manifest.
        records: The number of converted records, from the manifest.
        files: Files that the manifest lists.
        read_bytes: Bytes of files that were read.
        is_listed: Whether the folder could be listed. If not, files that the manifest does not
            list were not searched for.
        bad: The files that are wrong, in the order of the manifest, and then files that it does
            not list.
        elapsed_s: Seconds that it took.
    """

    folder: str
    format: str
    records: int
    files: int
    read_bytes: int
    is_listed: bool
    bad: tuple[BadFile, ...]
    elapsed_s: float

    @property
    def ok(self) -> bool:
        """Whether no file is bad."""
        return not self.bad

    def raise_if_bad(self) -> None:
        """Raise an error with this report if a file is bad.

        Raises:
            ReadError: If a file is bad.
        """
        if self.bad:
            raise ReadError(f"{WHAT}: {self.folder}: {self}", file=self.bad[0].name)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {"ok": self.ok, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        return "\n".join(bad_lines(self.bad, self.counts, joint=": "))

    @property
    def counts(self) -> str:
        """One line with the number of files and bytes that were checked."""
        checked = f"{self.files:,} files, {self.read_bytes / 1e6:,.1f} MB, checked in"
        unlisted = "" if self.is_listed else "; other files could not be listed"
        return f"{checked} {self.elapsed_s:.1f} s{unlisted}"


def check(
    folder: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: ShowProgress = True,
) -> CheckReport:
    """Check that a converted folder holds what its manifest says, and nothing else.

    Every listed file must be there with its size, its CRC-32C and, if it is one of ArrayRecord, its
    number of records. Record files, and files of Zarr arrays, that are not listed are reported; other
    files (a README) are ignored.

    Args:
        folder: A folder that a conversion wrote, a path or a URL.
        storage_options: Settings of the folder's file system, as in fsspec.
        threads: Files that are read at the same time; None for the number of cores, or 8 if the
            folder is remote.
        progress: Whether to show a bar on a terminal and log lines elsewhere, or a function that is
            called with a `windrow.progress.Progress`.

    Raises:
        ArgumentError: If an argument is of the wrong kind.
        NotFoundError: If there is no such folder, or it has no manifest.
        ReadError: If its manifest is damaged, or names a file outside the folder.
        ConversionError: If the conversion has not finished; the message names the command that
            resumes it.

    Example:
        >>> import tempfile
        >>> from windrow.converters import tfrecord_to_array_record, write_records
        >>> folder = tempfile.mkdtemp()
        >>> _ = write_records(f"{folder}/a.tfrecord", [b"one", b"two"])
        >>> _ = tfrecord_to_array_record(f"{folder}/a.tfrecord", f"{folder}/out")
        >>> check(f"{folder}/out").ok
        True
    """
    if threads is not None:
        check_integer(f"{WHAT}: threads", threads, 1)
    found = FolderCheck.of(folder, storage_options=storage_options)
    if found is None:
        raise NotFoundError(
            f"{WHAT}: {target_of(folder, storage_options).shown(MANIFEST_NAME)}: no such file; no"
            " conversion was finished in that folder. windrow.verify reads what any folder holds"
        )
    return found.checked(threads=threads, progress=progress)


class FolderCheck:
    """A converted folder whose files are to be checked, one by one. Thread-safe."""

    def __init__(
        self,
        target: Target,
        manifest: Manifest,
        fetcher: Fetcher | None,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        """List the files of the folder, without reading any. `fetcher` reads what is remote."""
        self._target, self.manifest, self._options = target, manifest, storage_options
        self._fetcher = fetcher
        self._there = _files_in(target)

    @classmethod
    def of(
        cls,
        folder: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        what: str = WHAT,
    ) -> FolderCheck | None:
        """Return the check of a folder; None if no conversion has written it. `what` names the caller.

        Raises:
            ArgumentError, NotFoundError, ReadError, ConversionError: As `check` raises them.
        """
        target = target_of(folder, storage_options)
        root = target.url
        if target.local is not None:
            if not os.path.isdir(root):
                raise NotFoundError(f"{what}: {root} does not exist; {what_is_there(root)}")
            refuse_unfinished(root, what=what, names=LOCAL)
            manifest = Manifest.read_in(target)
            return None if manifest is None else cls(target, manifest, None, storage_options)
        # Imported where it is used: it takes as long as all other imports of windrow together.
        from windrow.sources.remote.fetcher import Fetcher

        fetcher = Fetcher(what, storage_options, RemoteOptions())
        with _nothing_where_refused():
            refuse_unfinished(root, what=what, names=fetcher)
        data = None
        with _nothing_where_refused():
            data = fetcher.read_small(joined(root, MANIFEST_NAME))
        if data is None:
            return None
        manifest = Manifest.from_bytes(data, where=target.shown(MANIFEST_NAME))
        return cls(target, manifest, fetcher, storage_options)

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """The files that the manifest lists."""
        return self.manifest.files

    @property
    def holds_records(self) -> bool:
        """Whether the manifest lists ArrayRecord files."""
        return any(map(self._has_records, self.files))

    @property
    def record_files(self) -> list[str]:
        """Paths of the listed ArrayRecord files that exist."""
        return [
            self.place(f.name) for f in self.files if self._has_records(f) and self._is_there(f)
        ]

    def place(self, name: str) -> str:
        """The path or URL of a file."""
        return joined(self._target.url, name)

    def checked(self, *, threads: int | None, progress: ShowProgress) -> CheckReport:
        """Check all files of the folder; see `check`."""
        begin, size_bytes = time.monotonic(), sum(file.size_bytes for file in self.files)
        count = threads or (_REMOTE_THREADS if self._target.local is None else usable_cores())
        bad: list[BadFile] = []
        with (
            ProgressMeter("check", size_bytes, progress) as meter,
            DaemonPool(count, "windrow-check") as pool,
        ):
            try:
                for file, error in zip(self.files, pool.map(self._fault, self.files), strict=True):
                    bad += [error] if error is not None else []
                    meter.add(file.records, file.size_bytes)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return CheckReport(
            folder=self._target.shown(),
            format=self.manifest.format,
            records=self.manifest.records,
            files=len(self.files),
            read_bytes=size_bytes,
            is_listed=self._there is not None,
            bad=(*bad, *self._beside()),
            elapsed_s=time.monotonic() - begin,
        )

    def _fault(self, file: OutputFile) -> BadFile | None:
        """Return the fault of a file of the manifest, or None. Reads it once, and then its index."""
        try:
            size, crc32c = self._read(file)
            if size != file.size_bytes:
                why = f"it has {size:,} bytes, and the manifest says {file.size_bytes:,}"
            elif crc32c != file.crc32c:
                why = (
                    f"its CRC-32C is {crc32c}, and the manifest says {file.crc32c}: it was changed"
                )
            else:
                why = self._miscounted(file) if self._has_records(file) else ""
        except NotFoundError:
            why = "it is not there"
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            why = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        return BadFile(file.name, why) if why else None

    def _read(self, file: OutputFile) -> tuple[int, str]:
        """Size and checksum of a file; a file of the wrong size is not read."""
        path = self.place(file.name)
        if self._fetcher is not None:
            found = 0
            size, blocks = _remote_blocks(self._fetcher, path, file.size_bytes)
            for block in blocks:
                found = google_crc32c.extend(found, block)
            return size, f"{found:08x}"
        try:
            with open(path, "rb", buffering=0) as opened:
                size = os.fstat(opened.fileno()).st_size
                return size, checksum_of(opened) if size == file.size_bytes else ""
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(path) from error

    def _miscounted(self, file: OutputFile) -> str:
        """Return the fault of a whole record file; '' if it holds the listed number of records."""
        path = self.place(file.name)
        try:
            options = options_for([path], self._options)
            records = len(ArrayRecordDataSource([path], storage_options=options))
        except (SourceError, ReadError, NotFoundError) as error:
            return str(error)
        if records == file.records:
            return ""
        return f"it holds {records:,} records, and the manifest says {file.records:,}"

    def _beside(self) -> Iterator[BadFile]:
        """Yield the faults of the list of files, and the data files that it lacks."""
        counts = Counter(file.name for file in self.files)
        yield from (BadFile(n, "the manifest lists it twice") for n in counts if counts[n] > 1)
        records = [file.records for file in self.files if self._has_records(file)]
        if records and sum(records) != self.manifest.records:
            yield BadFile(
                MANIFEST_NAME,
                f"its files hold {sum(records):,} records together, and its inputs gave"
                f" {self.manifest.records:,}",
            )
        for name in sorted(_orphans(self._there or frozenset(), frozenset(counts))):
            yield BadFile(
                name,
                "the manifest does not list it: it was left over or added, and would be read with the"
                " rest; remove it",
            )

    def _has_records(self, file: OutputFile) -> bool:
        return ARRAY_RECORD.is_file_name(file.name.rpartition("/")[2])

    def _is_there(self, file: OutputFile) -> bool:
        return self._there is None or file.name in self._there


@contextlib.contextmanager
def _nothing_where_refused() -> Iterator[None]:
    """A store that may be read but not listed refuses missing files."""
    try:
        yield
    except ReadError as error:
        if not is_refused(error):
            raise


def _remote_blocks(fetcher: Fetcher, url: str, wanted_bytes: int) -> tuple[int, Iterator[bytes]]:
    """Return the size of a file at a URL, and its bytes if the size is the wanted one."""
    from windrow.sources.remote.fetcher import ByteRange

    (end,) = fetcher.tails([url], _REMOTE_BLOCK_BYTES)
    size = end.file.size_bytes

    def blocks() -> Iterator[bytes]:
        rest = size - len(end.data)
        for start in range(0, rest, _REMOTE_BLOCK_BYTES):
            stop = min(start + _REMOTE_BLOCK_BYTES, rest)
            yield fetcher.read([ByteRange(end.file, start, stop)])[0]
        yield end.data

    return size, blocks() if size == wanted_bytes else iter(())


def _files_in(target: Target) -> frozenset[str] | None:
    """Return the names of all files in a folder; None if it cannot be listed."""
    if target.local is not None:
        return frozenset(name for name, _ in files_below(target.local))
    try:
        fs, root = url_to_fs(target.url, **target.options)
        fs.invalidate_cache()
        found = fs.find(root)
    except Exception:  # of any library; a store that is only read need not be listed
        return None
    below = len(root.rstrip("/")) + 1
    return frozenset(path[below:] for path in found) or None


def _orphans(there: frozenset[str], listed: frozenset[str]) -> Iterator[str]:
    """Yield existing files that are not listed and that a reader of the folder would read."""
    arrays = {
        name.rpartition("/")[0]
        for name in there | listed
        if name.rpartition("/")[2] in ZARR.array_files
    }
    for name in there - listed:
        folder, _, base = name.rpartition("/")
        if name == MANIFEST_NAME or name.startswith(f"{WORK}/"):
            continue
        named = base in ZARR.metadata_files or any(one.is_file_name(base) for one in _RECORDS)
        inside = (name.removeprefix(f"{above}/") for above in _above(folder) & arrays)
        if named or any(re.fullmatch(_CHUNK, path) for path in inside):
            yield name


def _above(folder: str) -> set[str]:
    """Return a folder and all its parents, up to the root, which is ''."""
    parts = folder.split("/")
    return {"/".join(parts[:count]) for count in range(len(parts) + 1)}
