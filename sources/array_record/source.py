"""ArrayRecord files as one source of bytes.

Opening checks every file (`files`), so a broken file is an error at once and not at step 40,000.
`records` knows where records lie and reads them.

Invariant: the records are the records of the given files and ranges of files, in the given order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from windrow.core import native
from windrow.core.process import refuse_forked
from windrow.core.text import listing
from windrow.core.threads import DaemonPool
from windrow.errors import ArgumentError, NotFoundError, PlanError, ReadError, SourceError
from windrow.sources.array_record.chunks import WHAT
from windrow.sources.array_record.core_reader import CoreReader
from windrow.sources.array_record.files import (
    ArrayRecordFile,
    FileRange,
    find_ranges,
    index_files,
    index_local_file,
    refuse_unfinished_remote,
)
from windrow.sources.array_record.package_reader import (
    LIBRARY,
    PackageReader,
    chunk_places,
    open_and_check,
)
from windrow.sources.array_record.records import RecordGroups, RecordReader
from windrow.sources.base import IntArray, checked_indices
from windrow.sources.chunks import LaidOutSource
from windrow.sources.remote.options import RemoteOptions, as_remote_options, useless_options
from windrow.sources.remote.paths import is_remote, split_path
from windrow.sources.remote.request_counts import RemoteStats

if TYPE_CHECKING:
    from windrow.sources.remote.fetcher import Fetcher

_OPENING_THREADS: Final = 16
# The package recommends these for random access; the readahead buffer alone is 16 MB per reader.
_OPTIONS: Final = {"readahead_buffer_size": "0", "max_parallelism": "0"}
_VERIFY: Final = ("all", "headers")


class ArrayRecordDataSource(LaidOutSource):
    """The records of ArrayRecord files, as bytes, in the order of the files."""

    def __init__(
        self,
        paths: Any,
        reader_options: Mapping[str, str] | None = None,
        *,
        split: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
        direct: bool | None = None,
        verify: Literal["all", "headers"] = "all",
    ) -> None:
        """Find and check the files, without reading a record.

        Args:
            paths: A path, a glob, a folder of `*.array_record` files, a folder that tfds wrote,
                or a list of these. Also a URL of any protocol of fsspec, `path[10:20]` for records
                10 to 19 of a file, or a FileInstruction of tfds.
            reader_options: Options of the array_record package's reader. With these it reads local
                files.
            split: The split of a tfds folder.
            storage_options: Settings of fsspec's file systems, such as credentials.
            remote: Limits of reading from URLs.
            direct: Whether the native core reads files instead of the array_record package, which
                opens local files only. None does so if the core is there. False refuses URLs.
            verify: "all" to verify the hashes of the header and the data of every record that is
                read. "headers" verifies headers only, where the core reads: this is faster,
                but damage in storage may silently give wrong data.

        Raises:
            ArgumentError: If an argument has a wrong type or value.
            NotFoundError: If no file is found, or a shard is missing.
            SourceError: If a file is broken, is not an ArrayRecord file or cannot be reached, or if
                a split must be chosen.
            ConversionError: If the conversion that writes the folder has not finished.
            ReadError: If this process was forked from one that had used array_record.
            MissingExtraError: If a protocol needs a package that is not installed, or a URL or
                `direct=True` the native core, and it is missing.

        Example:
            >>> import tempfile, numpy as np
            >>> from windrow.converters import tfrecord_to_array_record, write_records
            >>> folder = tempfile.mkdtemp()
            >>> _ = write_records(f"{folder}/a.tfrecord", [b"one", b"two"])
            >>> _ = tfrecord_to_array_record(f"{folder}/a.tfrecord", f"{folder}/out")
            >>> source = ArrayRecordDataSource(f"{folder}/out")
            >>> len(source), source[-1], source.read(np.array([1, 0, 1]))
            (2, b'two', [b'two', b'one', b'two'])
        """
        _check_ways(direct, verify, storage_options)
        self._limits = as_remote_options(remote, WHAT)
        self._storage_options = storage_options
        self._fetcher: Fetcher | None = None
        options = _option_text(reader_options)
        remote_names = None if direct is False else self._used_fetcher
        ranges = find_ranges(paths, split=split, remote_names=remote_names)
        wanted = [part.path for part in ranges]
        self.is_remote_source = any(map(is_remote, wanted))
        """Whether any file is read over a network."""
        if storage_options and not self.is_remote_source:
            raise useless_options(WHAT, storage_options)
        of_package = direct is False or (reader_options is not None and not direct)
        if direct:
            native.needed(f"{WHAT}: direct=True")
        if self.is_remote_source:
            by_path, reader = self._opened_by_ranges(wanted, verify)
        elif of_package or native.native() is None:
            by_path, reader = _opened_by_package(wanted, options)
        else:
            by_path, reader = _opened_by_core(wanted, verify, exact=bool(direct))
        self._ranges = tuple(_bounded(part, by_path[part.path]) for part in ranges)
        self._files = tuple(by_path[path] for path in wanted)
        self._records = RecordGroups(self._ranges, self._files, reader=reader)
        self._length = len(self._records)
        if self._fetcher is not None:
            self._fetcher.expect_answers()

    def _used_fetcher(self) -> Fetcher:
        """The fetcher that reads URLs, made at its first use."""
        if self._fetcher is None:
            native.needed(f"{WHAT}: a URL")
            # Imported here: it takes as long as all other imports of windrow together.
            from windrow.sources.remote.fetcher import Fetcher

            self._fetcher = Fetcher(WHAT, self._storage_options, self._limits)
        return self._fetcher

    def _opened_by_ranges(
        self, wanted: Sequence[str], verify: Literal["all", "headers"]
    ) -> tuple[dict[str, ArrayRecordFile], RecordReader]:
        from windrow.sources.array_record.range_reader import RangeReader

        names, fetcher = sorted(set(wanted)), self._used_fetcher()
        urls = [name for name in names if is_remote(name)]
        try:
            indexed = index_files(names, fetcher)
        except (NotFoundError, SourceError):
            with contextlib.suppress(NotFoundError, ReadError, SourceError):
                refuse_unfinished_remote(urls, fetcher)  # which may be the reason
            raise
        refuse_unfinished_remote(urls, fetcher)
        reader = RangeReader(
            [indexed[path] for path in wanted], fetcher, options=fetcher.options, verify=verify
        )
        return {path: one.file for path, one in indexed.items()}, reader

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        names = [split_path(file.shown)[1] for file in self._files]
        folder = split_path(self._files[0].shown)[0]
        where = f"{len(self):,} records of {listing(names[:1])}{_more(names)} in {folder}"
        return f"{WHAT}({where}{'' if native.native() else ', read without the native core'})"

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
        return [part.path for part in self._ranges]

    @property
    def files(self) -> tuple[ArrayRecordFile, ...]:
        """The files with the facts that their ends state, in the order of `paths`."""
        return self._files

    @property
    def fingerprint(self) -> str:
        """The number of records, and a hash of every file's counts, size and group size."""
        return self._fingerprint_of(len(self._ranges))

    def fingerprint_of_first(self, records: int) -> str | None:
        """As `sources.base.KnowsEarlier`: a set of files grows by whole files."""
        ends = list(itertools.accumulate(part.take or 0 for part in self._ranges))
        return self._fingerprint_of(ends.index(records) + 1) if records in ends else None

    def _fingerprint_of(self, files: int) -> str:
        """The fingerprint of the first files."""
        pairs = list(zip(self._ranges, self._files, strict=True))[:files]
        lines = "\n".join(
            f"{part.skip} {part.take} {file.records} {file.facts.size_bytes}"
            f" {file.facts.chunks} {file.group}"
            for part, file in pairs
        )
        digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
        records = sum(part.take or 0 for part, _ in pairs)
        return f"array_record({records} records, {files} files, sha256:{digest})"

    @property
    def spec(self) -> type[bytes]:
        """Bytes."""
        return bytes

    @property
    def parts(self) -> tuple[RecordGroups]:
        """One part: all the files, in record groups."""
        return (self._records,)

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> list[bytes]:
        """The records, which are the part's column."""
        records: list[bytes] = columns[0]
        return records

    def blocks(self) -> IntArray:
        """Bounds of the record groups: 0, ..., length."""
        return self._records.blocks()

    def lengths(self, dtype: npt.DTypeLike = "uint8") -> IntArray:
        """The length of each record in items of `dtype`, int64 `(records,)`, from the files' indices.

        An index has the bytes of each group, so files must have been written with group_size:1.

        Args:
            dtype: What records are made of: for tokens stored as uint16, `"uint16"`.

        Raises:
            PlanError: If a file has groups of several records.
            SourceError: If the bytes of a record are not whole items, or a file has changed.
            ArgumentError: If `dtype` is not a dtype with a size.

        Example:
            >>> import tempfile
            >>> from windrow.converters import tfrecord_to_array_record, write_records
            >>> folder = tempfile.mkdtemp()
            >>> _ = write_records(f"{folder}/a.tfrecord", [b"abcd", b"ab"])
            >>> _ = tfrecord_to_array_record(
            ...     f"{folder}/a.tfrecord", f"{folder}/out", writer_options="group_size:1"
            ... )
            >>> ArrayRecordDataSource(f"{folder}/out").lengths("uint16")
            array([2, 1])
        """
        item_bytes = _item_bytes(dtype)
        for file in self._files:
            if file.group > 1 and file.records > 1:
                raise PlanError(
                    f"{WHAT}: {file.shown} has groups of {file.group:,} records, and its index only"
                    " the bytes of each group; write it with group_size:1, give lengths=, or count"
                    " them once with windrow.lengths(dataset)"
                )
        sizes = self._sizes()
        takes = [slice(part.skip, part.skip + (part.take or 0)) for part in self._ranges]
        found = np.concatenate(
            [sizes[part.path][take] for part, take in zip(self._ranges, takes, strict=True)]
        )
        wrong = np.flatnonzero(found % item_bytes)
        if len(wrong):
            raise SourceError(
                f"{WHAT}: record {wrong[0]:,} has {found[wrong[0]]:,} bytes, which are not whole"
                f" items of {np.dtype(dtype)} ({item_bytes} bytes)"
            )
        lengths: IntArray = found // item_bytes
        return lengths

    def _sizes(self) -> dict[str, IntArray]:
        """The bytes of the chunks of each file, which is opened again."""
        names = sorted({file.path for file in self._files})
        found: list[tuple[ArrayRecordFile, IntArray]]
        if self.is_remote_source:
            indexed = index_files(names, self._used_fetcher())
            found = [(indexed[path].file, indexed[path].index.chunk_bytes) for path in names]
        else:
            with DaemonPool(min(_OPENING_THREADS, len(names)), "windrow-open") as pool:
                found = list(pool.map(_with_sizes, names))
        by_path = {file.path: file for file in self._files}
        for now, sizes in found:
            before = by_path[now.path]
            if (now.records, now.facts.size_bytes, len(sizes)) != (
                before.records,
                before.facts.size_bytes,
                before.facts.chunks,
            ):
                raise SourceError(
                    f"{WHAT}: {now.shown} has changed since the source was made; make it again"
                )
        return {file.path: sizes for file, sizes in found}

    def stats(self) -> dict[str, Any]:
        """Counts of network requests so far: `requests`, `retries`, `bytes`, and `faults` by kind.

        Once a request was answered also `p50_s`, `p95_s` and `p99_s`: seconds until the last 1,024 requests
        were answered, by percentile.
        """
        return self.remote_stats.counts()

    @property
    def remote_stats(self) -> RemoteStats:
        """The counts of network requests."""
        return RemoteStats() if self._fetcher is None else self._fetcher.stats

    def read(self, indices: IntArray) -> list[bytes]:
        """The records at `indices`, in that order.

        Raises:
            ReadError: If a record is damaged or its file changed; the message names both. Also if
                this process was forked from a process that had used array_record.
        """
        return self._records.read(checked_indices(indices, len(self), WHAT))


def _opened_by_core(
    wanted: Sequence[str], verify: Literal["all", "headers"], *, exact: bool
) -> tuple[dict[str, ArrayRecordFile], RecordReader]:
    """Open files; unless `exact`, estimate the bytes of records as the package's reader does.

    So plans are the same with and without the core.
    """
    names = sorted(set(wanted))
    with DaemonPool(min(_OPENING_THREADS, len(names)), "windrow-open") as pool:
        files = [one.file for one in pool.map(index_local_file, names)]
    by_path = {file.path: file if exact else file.estimated() for file in files}
    return by_path, CoreReader([by_path[path] for path in wanted], verify=verify)


def _opened_by_package(
    wanted: Sequence[str], options: str
) -> tuple[dict[str, ArrayRecordFile], RecordReader]:
    refuse_forked(LIBRARY, WHAT)
    names = sorted(set(wanted))
    with DaemonPool(min(_OPENING_THREADS, len(names)), "windrow-open") as pool:
        files = list(pool.map(lambda path: open_and_check(path, options), names))
    by_path = {file.path: file for file in files}
    return by_path, PackageReader([by_path[path] for path in wanted], options=options)


def _with_sizes(path: str) -> tuple[ArrayRecordFile, IntArray]:
    """A local file, and the bytes of each of its chunks in memory."""
    if native.native() is None:
        file = open_and_check(path, _option_text(None))
        return file, chunk_places(file)[:, 2]
    indexed = index_local_file(path)
    return indexed.file, indexed.index.chunk_bytes


def _option_text(options: Mapping[str, str] | None) -> str:
    if options is not None and not isinstance(options, Mapping):
        raise ArgumentError(
            f"{WHAT}: reader_options must be a dict such as"
            f" {{'index_storage_option': 'offloaded'}}, got {options!r}"
        )
    return ",".join(f"{key}:{value}" for key, value in {**_OPTIONS, **(options or {})}.items())


def _check_ways(direct: Any, verify: Any, storage_options: Any) -> None:
    if storage_options is not None and not isinstance(storage_options, Mapping):
        # The message does not show the value: it may be a credential.
        raise ArgumentError(
            f"{WHAT}: storage_options must be a dict such as {{'anon': True}}, got a"
            f" {type(storage_options).__name__}"
        )
    if direct not in (None, True, False):
        raise ArgumentError(f"{WHAT}: direct must be True, False or None, got {direct!r}")
    if verify not in _VERIFY:
        raise ArgumentError(f"{WHAT}: verify must be 'all' or 'headers', got {verify!r}")
    if verify == "headers" and direct is False:
        raise ArgumentError(
            f"{WHAT}: verify='headers' needs files that are read by byte ranges, and direct=False"
            " reads through the array_record package, which verifies everything; leave one of them out"
        )


def _item_bytes(dtype: Any) -> int:
    try:
        size = int(np.dtype(dtype).itemsize)
    except TypeError as error:
        raise ArgumentError(f"{WHAT}: lengths are in items of a dtype, got {dtype!r}") from error
    if not size:
        raise ArgumentError(f"{WHAT}: lengths are in items of a dtype with a size, got {dtype!r}")
    return size


def _bounded(part: FileRange, file: ArrayRecordFile) -> FileRange:
    records = file.records
    take = records - part.skip if part.take is None else part.take
    if part.in_file is not None and part.in_file != records:
        raise SourceError(
            f"{WHAT}: the instruction for {file.shown} counts {part.in_file:,} records, and the"
            f" file holds {records:,}; the file has another version: download it again"
        )
    if take < 0 or part.skip < 0 or part.skip + take > records:
        raise SourceError(
            f"{WHAT}: records {part.skip} to {part.skip + take} of {file.shown} were requested,"
            f" and it holds {records:,}; choose 0 <= first <= last <= {records}"
        )
    return dataclasses.replace(part, take=take)


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1:,} more files" if len(names) > 1 else ""
