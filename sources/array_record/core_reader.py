"""Reads local ArrayRecord files through the native core.

The core keeps each open file with its index. One call reads many records of many files: it reads,
verifies and decompresses on all cores, without the interpreter's lock, straight into `bytes` objects.

Invariant: a file is opened only if it still has the size that was found, and stays open while it is
used. An index in the core is read anew when a file is opened again, so a pickled reader is small.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar

import numpy as np

from windrow.core.native import native
from windrow.core.native_read import NativeRead
from windrow.core.system_errors import is_unanswered, lacks_memory
from windrow.core.threads import InlineExecutor
from windrow.errors import ReadError
from windrow.sources.array_record.chunks import WHAT
from windrow.sources.array_record.decode import Verify
from windrow.sources.array_record.file_lru import OpenFileCache
from windrow.sources.array_record.files import ArrayRecordFile, check_unchanged, index_local_file
from windrow.sources.array_record.records import DamagedRecordError, partly_damaged
from windrow.sources.base import IntArray
from windrow.sources.scan import Places

T = TypeVar("T")

# Threads that may each hold a share of the open files.
_THREADS: Final = 8


class CoreReader:
    """Reads the records of files; a `RecordReader`.

    Args:
        files: The file of each range.
        verify: "all" to verify all hashes, "headers" to verify the hashes of headers only.
    """

    def __init__(self, files: Sequence[ArrayRecordFile], *, verify: Verify) -> None:
        self._files, self._verify = tuple(files), verify
        self._opened = OpenFileCache(_CoreOpener(files))
        self._file_count = len({file.path for file in files})

    def read(self, groups: Sequence[tuple[int, IntArray]]) -> list[bytes]:
        """Read records of each file, of many files in one call of the core; return them end to end."""
        size = max(1, self._opened.most // _THREADS)
        records, damaged = list[bytes](), dict[int, DamagedRecordError]()
        for first in range(0, len(groups), size):
            found, errors = self._read(groups[first : first + size])
            damaged.update({len(records) + number: error for number, error in errors.items()})
            records += found
        if damaged:
            raise partly_damaged(records, damaged)
        return records

    def _read(
        self, groups: Sequence[tuple[int, IntArray]]
    ) -> tuple[list[bytes], dict[int, DamagedRecordError]]:
        opened = [self._opened.get(self._files[at].path) for at, _ in groups]
        numbers = np.repeat(np.arange(len(groups)), [len(inside) for _, inside in groups])
        positions = np.concatenate([inside for _, inside in groups])
        files = [at for at, _ in groups]
        core: Any = native()
        everything = self._verify == "all"
        call = functools.partial(core.array_record_read, opened, numbers, positions, everything)
        places = files, opened, numbers, positions
        records, damages = self._asked(call, *places)
        return records, self._errors(damages, *places)

    def start(
        self, at: IntArray, first: IntArray, stop: IntArray, pool: Executor
    ) -> Future[Sequence[Sequence[bytes]]]:
        """Start reading record groups on the core's threads, or as a task of `pool`."""
        if self._opened.most < self._file_count:
            # A read in progress keeps its files open, so there may be few.
            return pool.submit(self._groups_in_turn, at, first, stop)
        return self._started(at, first, stop, inline=isinstance(pool, InlineExecutor))

    def _started(
        self, at: IntArray, first: IntArray, stop: IntArray, *, inline: bool
    ) -> NativeRead[Sequence[Sequence[bytes]]]:
        core: Any = native()
        files, opened, numbers = self._files_of(at)
        everything = self._verify == "all"
        reading = core.array_record_start(opened, numbers, first, stop, everything, inline=inline)

        def taken() -> Sequence[Sequence[bytes]]:
            found: list[Sequence[bytes]]
            found, damages = self._asked(reading.taken, files, opened, numbers, first)
            if damages:
                raise partly_damaged(found, self._errors(damages, files, opened, numbers, first))
            return found

        return NativeRead(reading, taken, inline=inline)

    def _groups_in_turn(
        self, at: IntArray, first: IntArray, stop: IntArray
    ) -> Sequence[Sequence[bytes]]:
        found: list[Sequence[bytes]] = []
        size = max(1, self._opened.most // _THREADS)
        for begin in range(0, len(at), size):
            some = slice(begin, begin + size)
            try:
                found += self._started(at[some], first[some], stop[some], inline=True).result()
            except DamagedRecordError as error:
                error.rest = None  # of these groups alone
                raise
        return found

    def picked(
        self, decoded: Sequence[Sequence[bytes]], which: IntArray, places: IntArray
    ) -> list[bytes]:
        """Make records of groups that `start` read."""
        core: Any = native()
        records: list[bytes] = core.array_record_take(decoded, which, places)
        return records

    def check(self, at: IntArray, first: IntArray, stop: IntArray) -> int:
        """Decode the group of records `[first, stop)` of each file, and drop them."""
        core: Any = native()
        total, size = 0, max(1, self._opened.most // _THREADS)
        for begin in range(0, len(at), size):
            some = slice(begin, begin + size)
            files, opened, numbers = self._files_of(at[some])
            places = numbers, first[some], stop[some]
            call = functools.partial(core.array_record_check, opened, *places)
            total += self._asked(
                functools.partial(call, self._verify == "all"), files, opened, *places[:2]
            )
        return total

    def _files_of(self, at: IntArray) -> tuple[list[int], list[Any], IntArray]:
        """The distinct files among these, opened, and which of them each is."""
        if len(at) == 1:
            files, numbers = at.tolist(), np.zeros(1, np.int64)
        else:
            distinct, numbers = np.unique(at, return_inverse=True)
            files = distinct.tolist()
        return files, [self._opened.get(self._files[file].path) for file in files], numbers

    def _asked(
        self,
        call: Callable[[], T],
        files: Sequence[int],
        opened: Sequence[Any],
        numbers: IntArray,
        positions: IntArray,
    ) -> T:
        """Call a function of the core for records of files.

        Args:
            call: The function.
            files: The number of each of its files.
            opened: These files.
            numbers: For each record the number of its file among these.
            positions: For each record its position in the file.
        """
        core: Any = native()
        try:
            return call()
        except core.ChunkError as error:
            number, why = error.args
        except OSError as error:
            raise ReadError(
                f"{WHAT}: {error.filename} cannot be read: {error.strerror}",
                file=error.filename,
                is_unanswered=is_unanswered(error),
            ) from error
        # An error raised here does not have an error of the core as its context, which cannot be
        # pickled.
        raise self._errors([(number, why)], files, opened, numbers, positions)[number]

    def _errors(
        self,
        damages: Sequence[tuple[int, str]],
        files: Sequence[int],
        opened: Sequence[Any],
        numbers: IntArray,
        positions: IntArray,
    ) -> dict[int, DamagedRecordError]:
        """The errors of damaged records, by their numbers; arguments are as for `_asked`.

        Raises:
            MemoryError: If there was no memory for one of them, of a size that records have.
        """
        by_group = dict[int, list[tuple[int, str]]]()
        for number, why in damages:
            if lacks_memory(why):
                shown = self._files[files[int(numbers[number])]].shown
                raise MemoryError(f"{WHAT}: record {int(positions[number])} of {shown}: {why}")
            by_group.setdefault(int(numbers[number]), []).append((number, why))
        found = dict[int, DamagedRecordError]()
        for group, damaged in by_group.items():
            file = self._files[files[group]]
            check_unchanged(file)
            own = positions[[number for number, _ in damaged]]
            places = np.frombuffer(opened[group].places(own // file.group), np.int64)
            offsets = places.reshape(-1, 3)[:, 0].tolist()
            for (number, why), position, offset in zip(damaged, own.tolist(), offsets, strict=True):
                found[number] = DamagedRecordError(files[group], position, why, offset)
        return found

    def places(self, at: IntArray, groups: IntArray) -> Places:
        """The places of record groups, by the indices of their files."""
        rows = np.full((len(groups), 3), -1, np.int64)
        for number in set(at.tolist()):
            mine = at == number
            # Reading the records of a file that has changed raises the error.
            with contextlib.suppress(OSError):
                places = self._opened.get(self._files[number].path).places(groups[mine])
                rows[mine] = np.frombuffer(places, np.int64).reshape(-1, 3)
        return Places([self._files[number].path for number in at.tolist()], *rows.T)


class _CoreOpener:
    """Opens files that were found whole, with their indices."""

    def __init__(self, files: Sequence[ArrayRecordFile]) -> None:
        self._files = {file.path: file for file in files}

    def __call__(self, path: str) -> Any:
        core: Any = native()
        file = self._files[path]
        check_unchanged(file)
        index = index_local_file(path).index
        if (index.records, index.group) != (file.records, file.group):
            raise ReadError(
                f"{WHAT}: {path} changed since the source was made: it has {index.records:,} records"
                f" in groups of {index.group:,} and had {file.records:,} in groups of"
                f" {file.group:,}; restore it, or make the source again",
                file=path,
                is_unanswered=True,
            )
        starts, stops = index.spans(np.arange(index.chunks))
        return core.ArrayRecordFile(
            path, starts, stops, index.chunk_bytes, index.group, index.records
        )
