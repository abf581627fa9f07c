"""Reads ArrayRecord files by byte ranges: files at URLs, and local files that are read with them.

The files' indices state the places of records, so a call is planned as a whole: the record groups
in the order of their files, with neighbouring groups in one request.

Invariants: a record group is read once per call. Arrived bytes are decoded and freed while the
other requests are in flight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final

import numpy as np

from windrow.core.cancellation import result_of
from windrow.core.process import refuse_forked
from windrow.core.system_errors import is_unanswered
from windrow.core.threads import InlineExecutor
from windrow.errors import ReadError
from windrow.sources.array_record.chunks import WHAT
from windrow.sources.array_record.decode import ChunkError, StoredChunk, Verify, decode
from windrow.sources.array_record.files import IndexedFile, check_unchanged
from windrow.sources.array_record.records import (
    DamagedRecordError,
    partly_damaged,
    started_by_records,
)
from windrow.sources.base import IntArray
from windrow.sources.remote.fetcher import LIBRARY, ByteRange, Fetcher
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.range_cache import CachedRange, RangeCache
from windrow.sources.scan import Places

# Arrived groups are decoded in portions of this size: decoding many groups costs less for each.
_DECODE_GROUPS: Final = 1024
_DECODE_BYTES: Final = 8 << 20


class RangeReader:
    """Reads the records of files; a `RecordReader`.

    Args:
        files: The file of each range.
        fetcher: Reads ranges of files at URLs.
        options: Limits of requests.
        verify: "all" to verify all hashes, "headers" to verify the hashes of headers only.
    """

    def __init__(
        self,
        files: Sequence[IndexedFile],
        fetcher: Fetcher,
        *,
        options: RemoteOptions,
        verify: Verify,
    ) -> None:
        self._fetcher, self._options, self._verify = fetcher, options, verify
        distinct = {one.file.path: one for one in files}
        self._files = tuple(distinct.values())
        number = {path: k for k, path in enumerate(distinct)}
        self._file_of = np.array([number[one.file.path] for one in files], np.int64)
        chunks = np.array([one.index.chunks for one in self._files], np.int64)
        self._first_chunk = np.cumsum(chunks) - chunks
        self._kept = RangeCache(options.keep_bytes)
        self._any_remote = any(one.remote is not None for one in self._files)

    def read(self, groups: Sequence[tuple[int, IntArray]]) -> list[bytes]:
        self._refuse_forked()
        plan = self._plan(groups)
        chunks: list[Sequence[bytes]] = [[]] * len(plan.chunks)
        try:
            self._add_ranges(plan, keep=True)
            for numbers, stored in self._batches(plan):
                decoded = self._decoded(plan, numbers, stored)
                for number, records in zip(numbers, decoded, strict=True):
                    chunks[number] = records
        finally:
            # On every way out, even before the first request: other calls may wait for these ranges.
            for request in plan.requests:
                if request.kept is not None:
                    self._kept.give_up(request.kept)
        return plan.pick(chunks)

    def _refuse_forked(self) -> None:
        # Requests of the parent never arrive in a forked child.
        if self._any_remote:
            refuse_forked(LIBRARY, WHAT)

    def start(
        self, at: IntArray, first: IntArray, stop: IntArray, pool: Executor
    ) -> Future[Sequence[Sequence[bytes]]]:
        """Start reading record groups; `pool` decodes them."""
        return started_by_records(lambda groups: self._start(groups, pool), at, first, stop)

    def _start(self, groups: Sequence[tuple[int, IntArray]], pool: Executor) -> Future[list[bytes]]:
        # Decoding may fetch again, so it must not run in the thread that fetches.
        if not self._any_remote or isinstance(pool, InlineExecutor):
            return pool.submit(self.read, groups)
        self._refuse_forked()
        plan = self._plan(groups)
        self._add_ranges(plan, keep=False)
        made: Future[list[bytes]] = Future()
        made.set_running_or_notify_cancel()

        def decode_all(fetched: list[bytes]) -> None:
            try:
                numbers, stored = self._chunks_at_hand(plan)
                arrived = [
                    (request.groups, request.wanted.start, data)
                    for request, data in zip(plan.requests, fetched, strict=True)
                ]
                for one in arrived:
                    self._keep(plan, *one)
                    self._add(plan, *one, numbers, stored)
                decoded = dict(zip(numbers, self._decoded(plan, numbers, stored), strict=True))
                chunks = [decoded[number] for number in range(len(plan.chunks))]
                made.set_result(plan.pick(chunks))
            except BaseException as error:
                made.set_exception(error)

        def arrived(done: Future[list[bytes]]) -> None:
            try:
                # Decoding takes a thread only now: before the bytes arrive the thread would wait.
                pool.submit(decode_all, done.result())
            except BaseException as error:
                made.set_exception(error)

        wanted = [request.wanted for request in plan.requests]
        self._fetcher.start(wanted).add_done_callback(arrived)
        return made

    def places(self, at: IntArray, groups: IntArray) -> Places:
        """The places of record groups, by the indices of their files."""
        offsets, stored = np.empty_like(groups), np.empty_like(groups)
        files = self._file_of[at]
        for number in set(files.tolist()):
            mine = files == number
            begin, end = self._files[number].index.spans(groups[mine])
            offsets[mine], stored[mine] = begin, end - begin
        # Each file once: there are far more groups than files.
        names = {number: self._files[number].file.shown for number in set(files.tolist())}
        shown = [names[number] for number in files.tolist()]
        return Places(shown, offsets, stored, np.full(len(groups), -1, np.int64))

    def _plan(self, groups: Sequence[tuple[int, IntArray]]) -> _ReadPlan:
        ranges = np.repeat([at for at, _ in groups], [len(inside) for _, inside in groups])
        positions = np.concatenate([inside for _, inside in groups])
        files = self._file_of[ranges]
        size = np.array([one.file.group for one in self._files], np.int64)[files]
        chunk = positions // size
        distinct, first, which = np.unique(
            chunk + self._first_chunk[files], return_index=True, return_inverse=True
        )
        files, chunk = files[first], chunk[first]
        begin, end = np.empty_like(distinct), np.empty_like(distinct)
        for number in np.unique(files).tolist():
            mine = files == number
            begin[mine], end[mine] = self._files[number].index.spans(chunk[mine])
        records = np.array([one.file.records for one in self._files], np.int64)[files]
        held = np.minimum(size[first], records - chunk * size[first])
        inside = None if bool((size == 1).all()) else positions % size
        return _ReadPlan(
            distinct, files, begin, end, held, which, inside, ranges[first], positions[first]
        )

    def _add_ranges(self, plan: _ReadPlan, *, keep: bool) -> None:
        """Divide the remote groups that are not in a cache into requests."""
        far = np.array([one.remote is not None for one in self._files])[plan.files]
        plan.local, at = np.flatnonzero(~far), np.flatnonzero(far)
        if self._fetcher.has_cache:
            # Before the lock of the ranges in memory is taken: this waits for the disk.
            at = self._add_from_disk(plan, at)
        with self._kept.lock:
            if keep:
                at = self._add_kept(plan, at)
            gaps = plan.begin[at[1:]] - plan.end[at[:-1]]
            gaps[np.diff(plan.files[at]) != 0] = np.iinfo(np.int64).max
            wanted = int((plan.end[at] - plan.begin[at]).sum())
            limits = self._options
            most = _widest_gap(gaps, limits.merge_gap_bytes, wanted, limits.most_fetched)
            for run in np.split(at, np.flatnonzero(gaps > most) + 1):
                self._add_requests(plan, run, keep=keep)

    def _add_from_disk(self, plan: _ReadPlan, at: IntArray) -> IntArray:
        """Take groups from the cache on disk, and return the others."""
        left = np.ones(len(at), np.bool_)
        for number in np.unique(plan.files[at]).tolist():
            mine = np.flatnonzero(plan.files[at] == number)
            groups, file = at[mine], self._files[number].remote
            if file is None:
                continue
            kept = self._fetcher.kept(file, plan.begin[groups], plan.end[groups])
            for place, group, data in zip(mine.tolist(), groups.tolist(), kept, strict=True):
                if data is not None:
                    plan.from_disk.append((group, data))
                    left[place] = False
        return at[left]

    def _keep(self, plan: _ReadPlan, groups: IntArray, start: int, data: bytes) -> None:
        """Put groups of a file into the cache on disk; `data` begins at `start`."""
        file = self._files[plan.files[groups[0]]].remote
        if file is not None and self._fetcher.has_cache:
            self._fetcher.keep(file, plan.begin[groups], plan.end[groups], start, data)

    def _add_kept(self, plan: _ReadPlan, at: IntArray) -> IntArray:
        """Take groups from cached ranges, and return the others."""
        left = np.ones(len(at), np.bool_)
        for number in np.unique(plan.files[at]).tolist():
            mine = np.flatnonzero(plan.files[at] == number)
            groups = at[mine]
            for one, places in self._kept.covering(number, plan.begin[groups], plan.end[groups]):
                plan.kept.append((one, groups[places]))
                left[mine[places]] = False
        return at[left]

    def _add_requests(self, plan: _ReadPlan, run: IntArray, *, keep: bool) -> None:
        """Add requests for groups that are read together, each up to `max_request_bytes`."""
        while len(run):
            stop = plan.begin[run[0]] + self._options.max_request_bytes
            count = max(1, int(np.searchsorted(plan.end[run], stop, side="right")))
            groups, run = run[:count], run[count:]
            number = int(plan.files[groups[0]])
            file = self._files[number].remote
            if file is not None:
                wanted = ByteRange(file, int(plan.begin[groups[0]]), int(plan.end[groups[-1]]))
                # A single group is not likely to be wanted again soon. Bytes whose version is still
                # to be confirmed are not shared.
                kept = keep and count > 1 and self._fetcher.confirms(file.url)
                plan.requests.append(
                    _RangeRequest(
                        wanted,
                        groups,
                        self._kept.add(number, wanted.start, wanted.stop) if kept else None,
                    )
                )

    def _batches(self, plan: _ReadPlan) -> Iterator[tuple[list[int], list[StoredChunk]]]:
        """Groups that have arrived, by number, in portions that are decoded together."""
        numbers, stored = self._chunks_at_hand(plan)
        weight = 0
        for groups, start, data in self._arrivals(plan):
            self._add(plan, groups, start, data, numbers, stored)
            weight += len(data)
            if len(numbers) >= _DECODE_GROUPS or weight >= _DECODE_BYTES:
                yield numbers, stored
                numbers, stored, weight = [], [], 0
        if numbers:
            yield numbers, stored

    def _arrivals(self, plan: _ReadPlan) -> Iterator[tuple[IntArray, int, bytes]]:
        """Remote groups in the order in which they arrive, with the offset of their bytes in the file."""
        if plan.requests:
            unconfirmed = []
            for at, data in self._fetcher.fetch([one.wanted for one in plan.requests]):
                request = plan.requests[at]
                if request.kept is not None:
                    self._kept.arrive(request.kept, data)
                arrived = request.groups, request.wanted.start, data
                if self._fetcher.confirms(request.wanted.file.url):
                    self._keep(plan, *arrived)
                else:
                    unconfirmed.append(arrived)
                yield arrived
            for arrived in unconfirmed:
                self._keep(plan, *arrived)
        # All ranges that this call added have arrived, so it may wait for the ranges of other calls.
        for one, groups in plan.kept:
            shared = result_of(one.data)
            start = one.start
            file = self._files[one.file].remote
            if shared is None and file is not None:  # the requesting call failed or was stopped
                start = int(plan.begin[groups[0]])
                stop = int(plan.end[groups[-1]])
                shared = self._fetcher.read([ByteRange(file, start, stop)])[0]
            self._keep(plan, groups, start, shared or b"")
            yield groups, start, shared or b""

    def _add(
        self,
        plan: _ReadPlan,
        groups: IntArray,
        start: int,
        data: bytes,
        numbers: list[int],
        stored: list[StoredChunk],
    ) -> None:
        """Add groups from the bytes of their file, which begin at `start`."""
        whole = memoryview(data)
        numbers += groups.tolist()
        places = zip(*(a[groups].tolist() for a in (plan.begin, plan.end, plan.held)), strict=True)
        stored += [StoredChunk(b, whole[b - start : e - start], n) for b, e, n in places]

    def _chunks_at_hand(self, plan: _ReadPlan) -> tuple[list[int], list[StoredChunk]]:
        numbers: list[int] = plan.local.tolist()
        stored: list[StoredChunk] = []
        for number in np.unique(plan.files[plan.local]).tolist():
            file = self._files[number].file
            check_unchanged(file)
            mine = plan.local[plan.files[plan.local] == number]
            gaps = plan.begin[mine[1:]] != plan.end[mine[:-1]]
            for run in np.split(mine, np.flatnonzero(gaps) + 1):
                start, stop = int(plan.begin[run[0]]), int(plan.end[run[-1]])
                self._add(plan, run, start, file_bytes(file.path, start, stop), [], stored)
        for number, data in plan.from_disk:
            numbers.append(number)
            stored.append(StoredChunk(int(plan.begin[number]), data, int(plan.held[number])))
        return numbers, stored

    def _decoded(
        self, plan: _ReadPlan, numbers: Sequence[int], stored: list[StoredChunk]
    ) -> list[Sequence[Any]]:
        """The records of groups. Damaged remote groups are fetched once more.

        Those that stay damaged are noted in the plan.
        """
        try:
            return list(decode(stored, verify=self._verify))
        except ChunkError:
            found, damaged = self._each(stored, range(len(stored)))
        again = [at for at in damaged if self._files[plan.files[numbers[at]]].remote is not None]
        if again:
            self._fetch_again(plan, [numbers[at] for at in again], again, stored)
            records, still = self._each(stored, again)
            found.update(records)
            damaged = {at: error for at, error in damaged.items() if at not in again} | still
        for at, error in damaged.items():
            number = numbers[at]
            plan.damaged[number] = DamagedRecordError(
                int(plan.ranges_of[number]),
                int(plan.positions[number]),
                error.why,
                int(plan.begin[number]),
            )
            plan.damaged[number].__cause__ = error
            found[at] = [None] * int(plan.held[number])
        return [found[at] for at in range(len(stored))]

    def _each(
        self, stored: Sequence[StoredChunk], which: Iterable[int]
    ) -> tuple[dict[int, Sequence[Any]], dict[int, ChunkError]]:
        """The records of some groups, decoded one by one, and the errors of others."""
        found, damaged = dict[int, Sequence[Any]](), dict[int, ChunkError]()
        for at in which:
            try:
                (found[at],) = decode([stored[at]], verify=self._verify)
            except ChunkError as error:
                damaged[at] = error
        return found, damaged

    def _fetch_again(
        self,
        plan: _ReadPlan,
        numbers: Sequence[int],
        at: Sequence[int],
        stored: list[StoredChunk],
    ) -> None:
        """Fetch groups of remote files once more, into the places `at`."""
        wanted = list[ByteRange]()
        for number in numbers:
            file = self._files[plan.files[number]].remote
            if file is not None:
                wanted.append(ByteRange(file, int(plan.begin[number]), int(plan.end[number])))
            self._fetcher.stats.fault("damaged")
        fetched = self._fetcher.read(wanted)
        for place, number, data in zip(at, numbers, fetched, strict=True):
            begin = int(plan.begin[number])
            self._keep(plan, np.array([number]), begin, data)
            stored[place] = StoredChunk(begin, data, int(plan.held[number]))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _RangeRequest:
    """A range to fetch, the groups in it, and its entry in the cache."""

    wanted: ByteRange
    groups: IntArray
    kept: CachedRange | None


@dataclasses.dataclass(slots=True, eq=False)
class _ReadPlan:
    """The reads of one call: distinct groups by file and place, and the records' places in them."""

    chunks: IntArray
    files: IntArray  # the file of each group
    begin: IntArray
    end: IntArray
    held: IntArray  # records of each group
    which: IntArray  # the group of each record
    inside: IntArray | None  # its place in the group; None if all are the first
    ranges_of: IntArray  # a range and a position of a record in each group
    positions: IntArray
    local: IntArray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    damaged: dict[int, DamagedRecordError] = dataclasses.field(default_factory=dict)  # by group
    from_disk: list[tuple[int, bytes]] = dataclasses.field(default_factory=list)
    requests: list[_RangeRequest] = dataclasses.field(default_factory=list)
    kept: list[tuple[CachedRange, IntArray]] = dataclasses.field(default_factory=list)

    def pick(self, chunks: Sequence[Sequence[bytes]]) -> list[bytes]:
        """The records of the call.

        Raises:
            DamagedRecordError: With the rest, if groups are damaged.
        """
        records = self._picked(chunks)
        if not self.damaged:
            return records
        places = np.flatnonzero(np.isin(self.which, list(self.damaged)))
        groups = self.which[places].tolist()
        errors = {
            at: self.damaged[group] for at, group in zip(places.tolist(), groups, strict=True)
        }
        raise partly_damaged(records, errors)

    def _picked(self, chunks: Sequence[Sequence[bytes]]) -> list[bytes]:
        if self.inside is None:
            return [chunks[number][0] for number in self.which.tolist()]
        places = zip(self.which.tolist(), self.inside.tolist(), strict=True)
        return [chunks[number][place] for number, place in places]


def _widest_gap(gaps: IntArray, most: int, wanted: int, most_fetched: float) -> int:
    """The widest gap to read over such that reading over all gaps up to it stays within the limits."""
    narrow = np.sort(gaps[gaps <= most])
    affordable = np.cumsum(narrow) <= (most_fetched - 1) * wanted
    count = int(np.count_nonzero(affordable))
    # Either all gaps of one width are read over, or none.
    if count < len(narrow):
        count = int(np.searchsorted(narrow, narrow[count], side="left"))
    return int(narrow[count - 1]) if count else -1


def file_bytes(path: str, start: int, stop: int) -> bytes:
    """Bytes of a file, fewer if it ends earlier."""
    try:
        # A buffered file continues after a short read of the system.
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> ReadError:
    return ReadError(
        f"{WHAT}: {path} cannot be read: {error}", file=path, is_unanswered=is_unanswered(error)
    )
