"""Opening ArrayRecord files by their indices: those at URLs, and of a local disk where asked for.

Invariant: of each file only its end is read, in one request where its index is short; the ends of all
files are read side by side, and their hashes computed side by side.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from windrow.errors import NotFoundError, SourceError
from windrow.sources.array_record_chunks import FIRST_CHUNK
from windrow.sources.array_record_decode import Verify
from windrow.sources.array_record_ends import FileFacts
from windrow.sources.array_record_files import WHAT
from windrow.sources.array_record_format import TAIL_BYTES, Index, footer_spans, parse_footers
from windrow.sources.array_record_parts import File, RecordReader
from windrow.sources.array_record_ranges import IndexedFile, RangeReader
from windrow.sources.fetching import ByteRange, FarFile, Fetcher, Tail
from windrow.sources.paths import is_remote, what_is_there
from windrow.sources.secrets import shown_url

T = TypeVar("T")


def opened(
    paths: Sequence[str], wanted: Sequence[str], fetcher: Fetcher, verify: Verify
) -> tuple[dict[str, File], RecordReader]:
    """Files by path, and what reads their records.

    Args:
        paths: Paths and URLs, each once.
        wanted: The path of each range.
        fetcher: Reads URLs.
        verify: As for `ArrayRecordDataSource`.

    Raises:
        NotFoundError: If a file does not exist.
        SourceError: If one is no whole ArrayRecord file, or can not be reached.
        ReadError: If its index can not be read.
    """
    found = _indexed_files(paths, fetcher)
    reader = RangeReader(
        [found[path] for path in wanted], fetcher, options=fetcher.options, verify=verify
    )
    return {path: one.file for path, one in found.items()}, reader


def _indexed_files(paths: Sequence[str], fetcher: Fetcher) -> dict[str, IndexedFile]:
    # So many at a time that their ends, and then their indices, are within the bytes in flight.
    limits = fetcher.options
    count = max(limits.max_requests, limits.in_flight_bytes // TAIL_BYTES)
    found: dict[str, IndexedFile] = {}
    for first in range(0, len(paths), count):
        some = paths[first : first + count]
        far = [path for path in some if is_remote(path)]
        tails = dict(zip(far, fetcher.tails(far, TAIL_BYTES), strict=True))
        ends = [tails.get(path) or _local_tail(path) for path in some]
        shown = [shown_url(path) for path in some]
        sizes = [end.file.size_bytes for end in ends]
        told = footer_spans(WHAT, shown, [end.data for end in ends], sizes)
        spans = [_good(span) for span in told]
        for at in _portions(spans, limits.in_flight_bytes):
            raws = _footers(ends[at], spans[at], fetcher)
            starts = [start for start, _ in spans[at]]
            indices = parse_footers(WHAT, shown[at], raws, starts, sizes[at])
            for path, end, index in zip(some[at], ends[at], indices, strict=True):
                far_file = end.file if is_remote(path) else None
                found[path] = _indexed(path, _good(index), far_file)
    return found


def _portions(spans: Sequence[tuple[int, int]], most_bytes: int) -> Iterator[slice]:
    """Runs of spans, each of one span or of so many bytes together."""
    begin, size = 0, 0
    for at, (start, stop) in enumerate(spans):
        if at > begin and size + stop - start > most_bytes:
            yield slice(begin, at)
            begin, size = at, 0
        size += stop - start
    yield slice(begin, len(spans))


def _good(found: T | SourceError) -> T:
    if isinstance(found, SourceError):
        raise found
    return found


def _footers(
    ends: Sequence[Tail], spans: Sequence[tuple[int, int]], fetcher: Fetcher
) -> list[bytes]:
    """The bytes of the files' footers; those that begin before what was read are read now."""
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
    came = fetcher.start([part for _, part in missing]).result() if missing else []
    parts: dict[int, list[bytes]] = {}
    for (at, _), data in zip(missing, came, strict=True):
        parts.setdefault(at, []).append(data)
    for at, some in parts.items():
        raws[at] = b"".join([*some, raws[at]])
    return raws


def _indexed(path: str, index: Index, far: FarFile | None) -> IndexedFile:
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
        written_with=index.written_with,
    )
    padded = index.bounds is not None
    return IndexedFile(File(path, facts, index.records, index.group, padded), index, far)


def _local_tail(path: str) -> Tail:
    try:
        size = os.stat(path).st_size
    except FileNotFoundError as error:
        raise NotFoundError(f"{WHAT}: {path} does not exist; {what_is_there(path)}") from error
    data = _read(path, max(0, size - TAIL_BYTES), size)
    return Tail(FarFile(path, size, ""), data)


def _read(path: str, start: int, stop: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)
    except OSError as error:
        raise SourceError(f"{WHAT}: {path} can not be read: {error.strerror or error}") from error
