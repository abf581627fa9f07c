"""Reads histories: the records of any step of a run, from the files of all its processes.

A file has segments. One begins where an iterator begins, after a restart, or where it was moved. The
segments of several processes that began at the same row, with the same batch, are one *start* of the
run. A start takes the place of all rows from its first one on that were given before.

Invariant: steps count the elements of the stream, so a step has one number, however often it was run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from windrow.engine.record_names import RecordOf, Records
from windrow.errors import EmptyPathsError, NotFoundError, ReadError, RecordIndexError
from windrow.history.frames import HEAD_BYTES, START, Frame, FrameFile, unpacked

IntArray = npt.NDArray[np.int64]


class SourceOf(NamedTuple):
    """A source of a chain.

    Args:
        fingerprint: Names its data; None for a source that has none.
        text: A short description.
    """

    fingerprint: str | None
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class PartOfStep:
    """What one process was given of a step.

    Args:
        file: Its history.
        shard: Which rows of each batch it takes, as `shard(1, 4)`; empty for all of them.
        records: `RecordOf(source, record)` in row order, as `records_of_last` has them: where rows are
            packed, a list for each row.
        sources: The sources by their numbers.
    """

    file: str
    shard: str
    records: Records
    sources: tuple[SourceOf, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class StepRecords:
    """One step of a run.

    Args:
        step: Its number: the element of the stream, counted from 0.
        rows: Its rows `[first, stop)`, as a state counts them, of all processes.
        times: How often the run came by: more than once if it was restarted before this step. The
            records are what it saw the last time.
        parts: What each process was given, by file.
        missing: Files of processes that gave rows near it, and not this step.
    """

    step: int
    rows: tuple[int, int]
    times: int
    parts: tuple[PartOfStep, ...]
    missing: tuple[str, ...] = ()

    @property
    def records(self) -> Records:
        """The records of all parts, end to end."""
        found: Any = [record for part in self.parts for record in part.records]
        return found  # type: ignore[no-any-return]

    def to_json(self) -> dict[str, Any]:
        """All of it, as values that `json.dumps` takes."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """A start of a run: the first, a restart, or the place to which an iterator was moved.

    Args:
        time_s: When it was, in seconds since 1970.
        rows: Rows `[first, stop)` that were given.
        steps: Steps `[first, stop)` that count, since no later start gave them again.
        batch: Rows of each step, of all processes; 1 for a chain without a batch.
        chain: The chain as text.
        fingerprint: Names the chain and its data.
        files: The files that have it.
    """

    time_s: float
    rows: tuple[int, int]
    steps: tuple[int, int]
    batch: int
    chain: str
    fingerprint: str
    files: tuple[str, ...]


class _StartFrames:
    """The frames of one file from one start on."""

    def __init__(self, file: FrameFile, start: Frame) -> None:
        self.file, self.facts = file, file.facts(start)
        self.frames: list[Frame] = []
        self.first = int(self.facts["row"])
        self.time_s = float(self.facts["time_s"])

    @property
    def stop(self) -> int:
        return self.frames[-1].stop if self.frames else self.first

    @property
    def key(self) -> tuple[Any, ...]:
        facts = self.facts
        return facts["fingerprint"], self.first, facts["batch"], facts["shards"]

    def columns(self, frame: Frame) -> _FrameColumns:
        return _FrameColumns(*unpacked(self.file.payload(frame)))

    def frame_of(self, number: int) -> Frame | None:
        """The frame that has an element, counted from the start of the segment."""
        at = np.searchsorted([frame.element for frame in self.frames], number, side="right") - 1
        frame = self.frames[at] if at >= 0 else None
        return frame if frame and number < frame.element + frame.elements else None

    def element_with(self, row: int) -> int | None:
        """The number of the element that has a row; None if it is not there."""
        at = np.searchsorted([frame.first for frame in self.frames], row, side="right") - 1
        frame = self.frames[at] if at >= 0 else None
        if frame is None or row >= frame.stop:
            return None
        return frame.element + int(np.searchsorted(self.columns(frame).stops, row, side="right"))

    def elements_before(self, row: int) -> int:
        """The elements that end before a row, or at it."""
        before = [frame for frame in self.frames if frame.first < row]
        if not before:
            return 0
        last = before[-1]
        if last.stop <= row:
            return last.element + last.elements
        stops = self.columns(last).stops
        return last.element + int(np.searchsorted(stops, row, side="right"))

    def part(self, number: int) -> tuple[PartOfStep, tuple[int, int]] | None:
        """The records of an element, and its rows."""
        frame = self.frame_of(number)
        if frame is None:
            return None
        facts, found = self.facts, self.columns(frame)
        lists, rows = found.of(number - frame.element, frame.first)
        records: Any = lists if facts["packs"] else [name for names in lists for name in names]
        sources = tuple(SourceOf(*source) for source in facts["sources"])
        return PartOfStep(self.file.path, facts["part"], records, sources), rows


class _FrameColumns(NamedTuple):
    """The columns of a frame.

    Args:
        stops: The row after each element.
        lists: The lists of records of each element: 1 unless rows are packed.
        counts: The records of each list.
        sources: The source of each record.
        by_source: The records, by source, and in order for each.
    """

    stops: IntArray
    lists: IntArray
    counts: IntArray
    sources: IntArray
    by_source: IntArray

    def of(self, number: int, first: int) -> tuple[list[list[RecordOf]], tuple[int, int]]:
        """The lists of one element, and its rows; `first` is the row before the frame."""
        records = np.empty_like(self.by_source)
        records[np.argsort(self.sources, kind="stable")] = self.by_source
        last = int(self.lists[: number + 1].sum())
        counts = self.counts[last - int(self.lists[number]) : last]
        at = int(self.counts[:last].sum() - counts.sum())
        found = []
        for count in counts.tolist():
            pairs = zip(self.sources[at : at + count], records[at : at + count], strict=True)
            found.append([RecordOf(int(source), int(record)) for source, record in pairs])
            at += count
        begin = int(self.stops[number - 1]) if number else first
        return found, (begin, int(self.stops[number]))


@dataclasses.dataclass(slots=True)
class _Begun:
    """The segments of one start; later starts count from row `cut` on, if that is not None."""

    segments: list[_StartFrames]
    cut: int | None = None
    step: int = 0

    @property
    def first(self) -> int:
        return self.segments[0].first

    @property
    def stop(self) -> int:
        return max(segment.stop for segment in self.segments)

    @property
    def is_gone(self) -> bool:
        return self.cut is not None and self.cut <= self.first

    def elements(self) -> int:
        """The elements that count."""
        cut = self.stop if self.cut is None else self.cut
        return max(segment.elements_before(cut) for segment in self.segments)

    def end(self) -> int:
        """The row after those that count."""
        return self.stop if self.cut is None else min(self.stop, self.cut)


class History:
    """What a run was given: see `read`. Use it in a `with` block, or `close` it."""

    def __init__(self, files: Sequence[FrameFile]) -> None:
        self._files = files
        self._begun = _starts(_segments(files))
        self._counting = [begun for begun in self._begun if not begun.is_gone]
        step, row = 0, 0
        for begun in self._counting:
            # Rows that no file has are counted as steps of this start's batch.
            missing = max(0, begun.first - row)
            begun.step = step + -(-missing // begun.segments[0].facts["batch"])
            step, row = begun.step + begun.elements(), begun.end()
        self._stop = step

    @property
    def steps(self) -> range:
        """The steps, from the first that the files have to the last."""
        return range(self._counting[0].step if self._counting else 0, self._stop)

    @property
    def starts(self) -> list[Start]:
        """The starts of the run, in the order in which they were made."""
        found = []
        for begun in self._begun:
            facts = begun.segments[0].facts
            steps = (begun.step, begun.step + (0 if begun.is_gone else begun.elements()))
            found.append(
                Start(
                    facts["time_s"],
                    (begun.first, begun.stop),
                    steps if steps[0] < steps[1] else (0, 0),
                    facts["batch"],
                    facts["chain"],
                    facts["fingerprint"],
                    tuple(segment.file.path for segment in begun.segments),
                )
            )
        return found

    @property
    def gaps(self) -> list[tuple[str, int, int]]:
        """Rows that a file does not have, though the process gave them: file, first row, stop row."""
        found = []
        for begun in self._begun:
            for segment in begun.segments:
                before = 0, segment.first
                for frame in segment.frames:
                    if frame.element > before[0]:
                        found.append((segment.file.path, before[1], frame.first))
                    before = frame.element + frame.elements, frame.stop
        return found

    @property
    def torn(self) -> list[tuple[str, int, int]]:
        """Bytes that are not whole frames, as a kill or a full disk leaves them: file, start, stop."""
        return [(file.path, start, stop) for file in self._files for start, stop in file.torn]

    def step(self, number: int) -> StepRecords:
        """The records of a step.

        Args:
            number: The element of the stream, from 0 on: the calls of `next` before it, in all restarts,
                and steps that were skipped.

        Raises:
            RecordIndexError: If the history does not have it.
            ReadError: If the frame that has it is damaged.
        """
        if number not in self.steps:
            raise RecordIndexError(
                f"step {number} is not in the history, which has {self._range()}"
            )
        begun = [begun for begun in self._counting if begun.step <= number][-1]
        return self._found(begun, number - begun.step, f"step {number}")

    def row(self, number: int) -> StepRecords:
        """The step that has a row of the stream, as states count rows.

        Raises:
            RecordIndexError: If the history does not have it.
            ReadError: If the frame that has it is damaged.
        """
        begun = [begun for begun in self._counting if begun.first <= number < begun.end()]
        for segment in begun[-1].segments if begun else ():
            element = segment.element_with(number)
            if element is not None:
                return self._found(begun[-1], element, f"row {number}")
        raise RecordIndexError(
            f"row {number} is not in the history, which has {self._range()}{self._lost()}"
        )

    def _found(self, begun: _Begun, element: int, what: str) -> StepRecords:
        found = [(segment, segment.part(element)) for segment in begun.segments]
        parts = [part for _, part in found if part is not None]
        step = begun.step + element
        if not parts or step >= begun.step + begun.elements():
            raise RecordIndexError(f"{what} is in a gap of the history{self._lost()}")
        rows = parts[0][1]
        missing = [segment.file.path for segment, part in found if part is None]
        times = sum(
            any(segment.element_with(rows[0]) is not None for segment in each.segments)
            for each in self._begun
        )
        return StepRecords(step, rows, times, tuple(part for part, _ in parts), tuple(missing))

    def _range(self) -> str:
        if not self.steps:
            return "no steps"
        rows = self._counting[0].first, self._counting[-1].end()
        return f"steps {self.steps[0]} to {self.steps[-1]} (rows {rows[0]} to {rows[1] - 1})"

    def _lost(self) -> str:
        shown = [f"rows {first} to {stop - 1} of {file}" for file, first, stop in self.gaps[:4]]
        return f"; it could not be written for {', '.join(shown)}" if shown else ""

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> History:
    """Open the history of a run, without its data.

    Reads the heads of frames, and a step's frame when it is asked for. A file that is being written may
    be read. One that was cut off is read up to its last whole frame.

    Args:
        paths: The file of a process, the files of all processes of a run, or a glob of them.

    Raises:
        EmptyPathsError: If there are no paths.
        NotFoundError: If a path names no file.
        SourceError: If a file is not a history.

    Example:
        >>> import windrow
        >>> with iter(windrow.MapDataset.range(100).batch(10)) as iterator:
        ...     iterator.keep_history("run.history")
        ...     _ = [next(iterator) for _ in range(3)]
        >>> with windrow.history.read("run.history") as history:
        ...     history.steps, history.step(2).records[:2], history.row(15).step
        (range(0, 3), [RecordOf(source=0, record=20), RecordOf(source=0, record=21)], 1)
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise EmptyPathsError("history.read: needs at least one path, got none")
    files: list[FrameFile] = []
    with contextlib.ExitStack() as stack:
        for path in itertools.chain.from_iterable(map(_named, given)):
            if not Path(path).is_file():
                raise NotFoundError(
                    f"history.read: {path} is not a file; give files that keep_history wrote"
                )
            files.append(FrameFile(path, stack.enter_context(Path(path).open("rb"))))
        stack.pop_all()
    return History(files)


def _named(path: str | os.PathLike[str]) -> list[str]:
    name = os.fspath(path)
    found = sorted(glob.glob(name)) if glob.has_magic(name) and not os.path.exists(name) else []
    return found or [name]


def _segments(files: Sequence[FrameFile]) -> list[_StartFrames]:
    found: list[_StartFrames] = []
    for file in files:
        begun: dict[int, _StartFrames] = {}
        last_s = 0.0
        for frame in file.frames:
            if frame.kind == START:
                with contextlib.suppress(ReadError):
                    segment = begun[frame.segment] = _StartFrames(file, frame)
                    # The clock may have been set back.
                    last_s = segment.time_s = max(segment.time_s, last_s)
            elif frame.segment in begun:
                begun[frame.segment].frames.append(frame)
            else:  # the frame that names its sources is damaged
                file.torn.append((frame.at - HEAD_BYTES, frame.at + frame.size_bytes))
        found += [segment for segment in begun.values() if segment.frames]
    return found


def _starts(segments: Sequence[_StartFrames]) -> list[_Begun]:
    """The starts in order of time, each with the row where a later one takes over."""
    found: list[_Begun] = []
    for segment in sorted(segments, key=lambda segment: segment.time_s):
        last = found[-1] if found else None
        joins = last is not None and last.segments[0].key == segment.key
        if last is not None and joins:
            # The second one in a file is a restart at the same row.
            joins = all(each.file is not segment.file for each in last.segments)
        if last is not None and joins:
            last.segments.append(segment)
        else:
            found.append(_Begun([segment]))
    cut: int | None = None
    for begun in reversed(found):
        begun.cut = cut
        cut = begun.first if cut is None else min(cut, begun.first)
    return found
