"""ArrayRecord files: find the files that a user names, and open them by their indices.

Files lie on a local disk or at URLs. Opening by the index reads only the end of each file, in one
request if its index is short. The ends of all files are read concurrently and hashed together.

Invariant: records come in the order in which files were named, and files of a folder in the order
of their names. A numbered set of files with a gap is refused, and so is an unfinished conversion.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from windrow.core.redaction import shown_url
from windrow.core.text import listing
from windrow.core.threads import DaemonPool
from windrow.errors import ArgumentError, EmptyPathsError, NotFoundError, ReadError, SourceError
from windrow.sources.array_record.chunks import BLOCK, FIRST_CHUNK, WHAT
from windrow.sources.array_record.index import TAIL_BYTES, Index, footer_span, parse_footer
from windrow.sources.dataset_info import INFO, splits_of
from windrow.sources.remote.paths import (
    LOCAL,
    Names,
    is_remote,
    joined,
    local_path,
    parted,
    refuse_unfinished,
    split_path,
    what_is_there,
)
from windrow.sources.remote.remote_file import ByteRange, FileTail, RemoteFile
from windrow.sources.signatures import (
    ARRAY_RECORD,
    NUMBERED,
    RANGE,
    SPLIT_SHARD,
    other_reader,
    read_by,
)

# Plans need no higher ratio of compression, and a damaged header may state anything.
_MOST_EXPANSION: Final = 1000.0
if TYPE_CHECKING:
    from windrow.sources.remote.fetcher import Fetcher

# A URL that went through pathlib.
_PATH_OF_URL: Final = r"(s3a?|gc?s|https?|abfss?|az|adl|hdfs|memory|ftp|sftp|hf):/[^/]"
_ASKING_THREADS: Final = 32
# Reasons of errors if a store does not let the user ask for a file.
_FORBIDDEN: Final = ("status 401", "status 403", "not allowed")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FileRange:
    """A file, or the records `[skip, skip + take)` of it; `take` is None for all the rest."""

    path: str
    skip: int = 0
    take: int | None = None
    in_file: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FileFacts:
    """Facts that the ends of a file state.

    Args:
        size_bytes: Size of the file.
        chunks: Number of its data chunks.
        data_bytes: Bytes before its index.
        first_stored_bytes: Bytes of its first data chunk, without padding; 0 without a chunk.
        first_decoded_bytes: Bytes of that chunk's records by its header, which is not verified.
        decoded_bytes: Bytes of all records, if the index was read; else None.
        record_bytes: Bytes of every record, if the index was read and shows that all have the same.
        written_with: The options of its writer; None if unknown.
    """

    size_bytes: int
    chunks: int
    data_bytes: int
    first_stored_bytes: int
    first_decoded_bytes: int
    decoded_bytes: int | None = None
    record_bytes: int | None = None
    written_with: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ArrayRecordFile:
    """A file that was opened and found whole.

    Args:
        path: Its path or URL.
        facts: The facts that its ends state.
        records: Number of its records.
        group: Records in each of its groups except the last, which may be shorter.
        padded: Whether each chunk is padded to the end of a block.
    """

    path: str
    facts: FileFacts
    records: int
    group: int
    padded: bool

    @property
    def shown(self) -> str:
        """Its path or URL without secrets, for people."""
        return shown_url(self.path)

    def estimated(self) -> ArrayRecordFile:
        """The same file, with the mean bytes of its records estimated from the first group."""
        return dataclasses.replace(self, facts=dataclasses.replace(self.facts, decoded_bytes=None))

    @property
    def stored_bytes_each(self) -> float:
        """Bytes of a record in the file, on average."""
        return self.facts.data_bytes / max(1, self.records)

    @property
    def decoded_bytes_each(self) -> float:
        """Bytes of a record, on average; estimated from the first group without an index."""
        if self.facts.decoded_bytes is not None:
            return self.facts.decoded_bytes / max(1, self.records)
        stored = self.facts.first_stored_bytes
        if self.padded:
            stored = math.ceil(stored / BLOCK) * BLOCK
        expansion = self.facts.first_decoded_bytes / max(1, stored)
        # A ratio below 1 comes from headers, which are not data of the other records.
        floor = 0.0 if self.padded else 1.0
        return self.stored_bytes_each * min(max(expansion, floor), _MOST_EXPANSION)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class IndexedFile:
    """A file whose index was read.

    Args:
        file: The file.
        index: The places of its record groups.
        remote: The file at its URL; None for a local file.
    """

    file: ArrayRecordFile
    index: Index
    remote: RemoteFile | None


def find_ranges(
    paths: Any, *, split: str | None, remote_names: Callable[[], Names] | None
) -> list[FileRange]:
    """The files that `paths` names, in order.

    Args:
        paths: As for `ArrayRecordDataSource`.
        split: As for `ArrayRecordDataSource`.
        remote_names: Returns an object that finds files at URLs; None if URLs are refused.

    Raises:
        ArgumentError: If an item of `paths` cannot name a file, or `split` does not apply.
        NotFoundError: If a path, a glob or a list names nothing.
        SourceError: If a folder has several splits, or lacks a shard.
        ConversionError: If a conversion has left a folder unfinished.
    """
    if isinstance(paths, str | os.PathLike) or _is_instruction(paths):
        items = [paths]
    elif isinstance(paths, Iterable) and not isinstance(paths, bytes | dict):
        items = list(paths)
    else:
        raise ArgumentError(
            f"{WHAT}: paths must be a path, a glob, a folder or a list of these, got"
            f" {type(paths).__name__}"
        )
    if not items:
        raise EmptyPathsError(f"{WHAT}: the list of paths is empty; give at least one file")
    if remote_names and sum(isinstance(item, str) and is_remote(item) for item in items) > 1:
        remote_names()  # made once, before threads use it
        # A URL without the name of such a file needs a request: it may be a folder.
        with DaemonPool(min(_ASKING_THREADS, len(items)), "windrow-ask") as pool:
            by_item = list(pool.map(lambda item: _ranges_of(item, split, remote_names), items))
    else:
        by_item = [_ranges_of(item, split, remote_names) for item in items]
    ranges = [one for some in by_item for one in some]
    for folder in sorted({split_path(one.path)[0] for one in ranges}):
        if not is_remote(folder):
            refuse_unfinished(folder, what=WHAT)
    return ranges


def refuse_unfinished_remote(paths: Iterable[str], names: Names) -> None:
    """Refuse files at URLs in folders that a conversion has left unfinished.

    A store that forbids requests for the marker has given the files themselves, so they are accepted.

    Raises:
        ConversionError: If a folder is unfinished.
        ReadError: If a store cannot be reached.
    """
    folders: dict[str, str] = {}
    for path in paths:
        # Each signed URL has its own query: one of them serves for all files of the folder.
        head, rest = parted(split_path(path)[0])
        folders.setdefault(head + rest[rest.find("::") :] if "::" in rest else head, head + rest)
    if folders:
        with DaemonPool(min(_ASKING_THREADS, len(folders)), "windrow-ask") as pool:
            list(
                pool.map(lambda folder: _refuse_unfinished_remote(folder, names), folders.values())
            )


def _refuse_unfinished_remote(folder: str, names: Names) -> None:
    try:
        refuse_unfinished(folder, what=WHAT, names=names)
    except ReadError as error:
        if not (error.why or "").startswith(_FORBIDDEN):
            raise


def _is_instruction(item: Any) -> bool:
    return all(
        getattr(item, name, None) is not None
        for name in ("filename", "skip", "take", "examples_in_shard")
    )


def _ranges_of(
    item: Any, split: str | None, remote_names: Callable[[], Names] | None
) -> list[FileRange]:
    if _is_instruction(item):
        name = os.fspath(item.filename)
        if is_remote(name):
            _names_at(name, remote_names)
        path = name if is_remote(name) else local_path(name, what=WHAT)
        # tfds writes -1 for all remaining records.
        take = int(item.take) if int(item.take) >= 0 else None
        return [FileRange(path, int(item.skip), take, int(item.examples_in_shard))]
    if not isinstance(item, str | os.PathLike):
        raise ArgumentError(
            f"{WHAT}: a path must be a string, a pathlib.Path or a FileInstruction, got {item!r}"
        )
    text = os.fspath(item)
    if isinstance(text, str) and is_remote(text):
        return _ranges_at(text, split, _names_at(text, remote_names))
    if isinstance(item, os.PathLike) and isinstance(text, str) and re.match(_PATH_OF_URL, text):
        raise ArgumentError(
            f"{WHAT}: the pathlib.Path begins with {text.partition(':')[0]}:/ and was a URL, whose"
            " second slash pathlib drops; give URLs as strings"
        )
    path = local_path(text, what=WHAT)
    if os.path.isdir(path):
        return _folder_ranges(path, split, LOCAL)
    if split is not None:
        raise ArgumentError(f"{WHAT}: split={split!r} needs a folder with splits, got {text!r}")
    if os.path.exists(path):
        return [FileRange(path)]
    ranged = re.fullmatch(RANGE, path)
    if ranged and os.path.isfile(ranged["path"]):
        return [_part_of_file(ranged, text)]
    if glob.has_magic(path):
        matches = LOCAL.glob(path)
        if not matches:
            raise NotFoundError(f"{WHAT}: no file matches {text!r}; {_what_is_there(path)}")
        return [FileRange(name) for name in matches]
    raise NotFoundError(f"{WHAT}: {path} does not exist; {_what_is_there(path)}")


def _names_at(url: str, remote_names: Callable[[], Names] | None) -> Names:
    if remote_names is None:
        raise ArgumentError(
            f"{WHAT}: {shown_url(url)} is a URL, and direct=False reads through the array_record"
            " package, which opens local files only; leave direct out"
        )
    return remote_names()


def _ranges_at(url: str, split: str | None, names: Names) -> list[FileRange]:
    """The files that a URL names. One with the name of a file is not requested: opening does that."""
    shown, head = shown_url(url), parted(url)[0]
    ranged = re.fullmatch(RANGE, url)
    pattern = "*" in head or "?" in head or (not ranged and "[" in head)
    named = ARRAY_RECORD.is_file_name(split_path(url)[1]) and not pattern
    if not ranged and not named and not pattern and names.is_folder(url):
        return _folder_ranges(url, split, names)
    if split is not None:
        raise ArgumentError(f"{WHAT}: split={split!r} needs a folder with splits, got {shown!r}")
    if ranged:
        return [_part_of_file(ranged, shown)]
    if pattern:
        matches = names.glob(url)
        if not matches:
            raise NotFoundError(
                f"{WHAT}: no file matches {shown!r}; check the pattern, and that the store can be"
                " listed"
            )
        return [FileRange(name) for name in matches]
    return [FileRange(url)]


def _part_of_file(ranged: re.Match[str], shown: str) -> FileRange:
    start, stop = int(ranged["start"]), int(ranged["stop"])
    if stop < start:
        raise SourceError(f"{WHAT}: {shown!r} names records {start} to {stop}; write [a:b]")
    return FileRange(ranged["path"], start, stop - start)


def _folder_ranges(folder: str, split: str | None, names: Names) -> list[FileRange]:
    refuse_unfinished(folder, what=WHAT, names=names)
    files = _folder_files(folder, split, names)
    return [FileRange(joined(folder, name)) for name in files]


def _folder_files(folder: str, split: str | None, names: Names) -> list[str]:
    listed, shown = names.names_in(folder), shown_url(folder)
    files = [name for name in listed if ARRAY_RECORD.is_file_name(name)]
    if not files:
        raise NotFoundError(
            f"{WHAT}: {shown} holds no files named *.array_record or *.arrayrecord; it holds"
            f" {listing(listed)}{other_reader(listed, 'ArrayRecordDataSource')}"
        )
    if split is not None or INFO in listed:
        split, files = _split_files(shown, files, split)
        _check_shards(shown, files)
        _check_info(shown, split, len(files), names.read_small(joined(folder, INFO)))
    else:
        _check_shards(shown, files)
    return files


def _split_files(folder: str, names: Sequence[str], split: str | None) -> tuple[str, list[str]]:
    """The chosen split and its files."""
    splits: dict[str, list[str]] = {}
    for name in names:
        match = re.fullmatch(SPLIT_SHARD, name)
        if match is not None:
            splits.setdefault(match["split"], []).append(name)
    if not splits:
        raise SourceError(
            f"{WHAT}: no file in {folder} has the name of a shard of a split"
            " (name-split.array_record-00000-of-00010); give the files as a list, or a glob"
        )
    shown = ", ".join(f"{key} ({len(files)} files)" for key, files in sorted(splits.items()))
    if split is None:
        if len(splits) > 1:
            raise SourceError(
                f"{WHAT}: {folder} has several splits: {shown}; choose one with"
                f" split={sorted(splits)[0]!r}"
            )
        return next(iter(splits.items()))
    if split not in splits:
        raise NotFoundError(f"{WHAT}: {folder} has no split {split!r}; it has {shown}")
    return split, splits[split]


def _check_info(folder: str, split: str, shards: int, info: bytes | None) -> None:
    counted = _counted_shards(info, split)
    if counted is not None and counted != shards:
        raise NotFoundError(
            f"{WHAT}: {INFO} in {folder} counts {counted} shards of split {split!r},"
            f" and the folder holds {shards}; copy or download the folder again"
        )


def _counted_shards(info: bytes | None, split: str) -> int | None:
    """The number of shards that dataset_info.json states for `split`, if it does."""
    try:
        splits = splits_of(json.loads(info or b""))
        counts = [len(one.shard_lengths) for one in splits if one.name == split]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return counts[0] if len(counts) == 1 and counts[0] else None


def _check_shards(folder: str, names: Sequence[str]) -> None:
    """Refuse a numbered set of files with a gap, which would silently train on a part of the data."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        if match := re.fullmatch(NUMBERED, name):
            key = (match["head"], match["count"], match["tail"])
            sets.setdefault(key, set()).add(int(match["index"]))
    for (head, count, tail), indices in sets.items():
        absent = sorted(set(range(int(count))) - indices)
        if absent:
            first = f"{head}-{absent[0]:0{len(count)}}-of-{count}{tail}"
            raise NotFoundError(
                f"{WHAT}: {first} is missing in {folder} ({len(absent)} of {int(count)} shards"
                " are); copy or download the folder again, or give the files wanted as a glob"
            )


# ---- opening by the index


def index_files(paths: Sequence[str], fetcher: Fetcher) -> dict[str, IndexedFile]:
    """The files by path, opened by their indices.

    Args:
        paths: Paths and URLs, each once.
        fetcher: Reads URLs.

    Raises:
        NotFoundError: If a file does not exist.
        SourceError: If one is not a whole ArrayRecord file, or cannot be reached.
        ReadError: If its index cannot be read.
    """
    # As many at a time as the bytes in flight allow for their ends, and then for their indices.
    limits = fetcher.options
    count = max(limits.max_requests, limits.in_flight_bytes // TAIL_BYTES)
    indexed: dict[str, IndexedFile] = {}
    for first in range(0, len(paths), count):
        some = paths[first : first + count]
        urls = [path for path in some if is_remote(path)]
        tails = dict(zip(urls, fetcher.tails(urls, TAIL_BYTES), strict=True))
        ends = [tails.get(path) or _local_tail(path) for path in some]
        spans = [_footer_span(end) for end in ends]
        for at in _portions(spans, limits.in_flight_bytes):
            raws = _footers(ends[at], spans[at], fetcher)
            for path, end, raw, span in zip(some[at], ends[at], raws, spans[at], strict=True):
                remote_file = end.file if is_remote(path) else None
                indexed[path] = _indexed(path, _index(end, raw, span), remote_file)
    return indexed


def index_local_file(path: str) -> IndexedFile:
    """A local file, opened by its index. Raises the errors of `index_files`."""
    end = _local_tail(path)
    span = _footer_span(end, _read(path, 0, FIRST_CHUNK))
    begin = end.file.size_bytes - len(end.data)
    if span[0] >= begin:
        raw = end.data[span[0] - begin : span[1] - begin]
    else:
        raw = _read(path, *span)
    return _indexed(path, _index(end, raw, span), None)


def _footer_span(end: FileTail, head: bytes | None = None) -> tuple[int, int]:
    return footer_span(WHAT, shown_url(end.file.url), end.data, end.file.size_bytes, head=head)


def _index(end: FileTail, raw: bytes, span: tuple[int, int]) -> Index:
    return parse_footer(WHAT, shown_url(end.file.url), raw, span[0], end.file.size_bytes)


def _portions(spans: Sequence[tuple[int, int]], most_bytes: int) -> Iterator[slice]:
    """Runs of spans, each of one span or of at most `most_bytes` together."""
    begin, size = 0, 0
    for at, (start, stop) in enumerate(spans):
        if at > begin and size + stop - start > most_bytes:
            yield slice(begin, at)
            begin, size = at, 0
        size += stop - start
    yield slice(begin, len(spans))


def _footers(
    ends: Sequence[FileTail], spans: Sequence[tuple[int, int]], fetcher: Fetcher
) -> list[bytes]:
    """The bytes of the files' footers; reads the bytes that lie before the ends."""
    raws = []
    missing: list[tuple[int, ByteRange]] = []
    for at, (end, (start, stop)) in enumerate(zip(ends, spans, strict=True)):
        first = end.file.size_bytes - len(end.data)
        raws.append(end.data[max(0, start - first) : stop - first])
        if start >= first:
            continue
        if is_remote(end.file.url):
            most = fetcher.options.max_request_bytes
            bounds = [*range(start, min(stop, first), most), min(stop, first)]
            missing += [(at, ByteRange(end.file, *two)) for two in itertools.pairwise(bounds)]
        else:
            raws[at] = _read(end.file.url, start, min(stop, first)) + raws[at]
    fetched = fetcher.read([part for _, part in missing]) if missing else []
    parts: dict[int, list[bytes]] = {}
    for (at, _), data in zip(missing, fetched, strict=True):
        parts.setdefault(at, []).append(data)
    for at, some in parts.items():
        raws[at] = b"".join([*some, raws[at]])
    return raws


def _indexed(path: str, index: Index, remote: RemoteFile | None) -> IndexedFile:
    first = 0
    if index.chunks:
        start, stop = (int(bound[0]) for bound in index.spans(np.zeros(1, np.int64)))
        first = stop - start
    facts = FileFacts(
        size_bytes=index.size_bytes,
        chunks=index.chunks,
        data_bytes=index.footer_offset - FIRST_CHUNK,
        first_stored_bytes=first,
        first_decoded_bytes=index.first_decoded_bytes,
        decoded_bytes=index.decoded_bytes,
        record_bytes=index.record_bytes,
        written_with=index.written_with,
    )
    padded = index.bounds is not None
    return IndexedFile(
        ArrayRecordFile(path, facts, index.records, index.group, padded), index, remote
    )


def _what_is_there(path: str) -> str:
    return what_is_there(path, reads=read_by(WHAT))


def _local_tail(path: str) -> FileTail:
    try:
        size = os.stat(path).st_size
    except FileNotFoundError as error:
        raise NotFoundError(f"{WHAT}: {path} does not exist; {_what_is_there(path)}") from error
    data = _read(path, max(0, size - TAIL_BYTES), size)
    return FileTail(RemoteFile(path, size, ""), data)


def _read(path: str, start: int, stop: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)
    except OSError as error:
        raise SourceError(f"{WHAT}: {path} cannot be read: {error.strerror or error}") from error


def check_unchanged(file: ArrayRecordFile) -> None:
    """Refuse a file that no longer exists, or whose size has changed since it was opened.

    Raises:
        NotFoundError: If it no longer exists.
        ReadError: If its size has changed.
    """
    try:
        size = os.stat(file.path).st_size
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{WHAT}: {file.path} was removed after the source was made; restore it, or make the"
            " source again"
        ) from error
    if size != file.facts.size_bytes:
        raise ReadError(
            f"{WHAT}: {file.path} changed since the source was made: it has {size:,} bytes and had"
            f" {file.facts.size_bytes:,}; restore it, or make the source again",
            file=file.path,
            is_unanswered=True,
        )
