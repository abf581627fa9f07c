"""Keeps the history of one iterator: what the elements that it gave were made of.

The loop notes what blocks are made of, whole blocks at a time. The records are found and written when
enough rows were noted, from time to time by a thread, and when a state is taken.

Invariant: nothing here changes an element, and a file that cannot be written does not end the run.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import numpy as np
import numpy.typing as npt

from windrow.core.text import shortened
from windrow.core.ticker import Ticker
from windrow.engine.record_names import packs, record_columns
from windrow.engine.record_trace import leaves_of
from windrow.errors import PlanError
from windrow.history.frames import MARK, FrameFile, rows_frame, start_frame
from windrow.transforms.made_of import MadeOf, end_to_end
from windrow.transforms.nodes import Node, Tail, described, random_access_parts, shard_of

IntArray = npt.NDArray[np.int64]

# Rows of a frame: about as many, and more where a batch has more.
FRAME_ROWS: Final = 1 << 14
FLUSH_S: Final = 5.0
_TEXT: Final = 200  # characters of a source's description
_log = logging.getLogger("windrow.history")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """The chain that an iterator runs: it, and the `lead` of `Tail.run`."""

    node: Node
    lead: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Noted:
    """Elements that were given one after the other: the rows before and after, and their parts."""

    running: _Running
    first: int
    stops: IntArray
    made_of: MadeOf


class Keeper:
    """Writes a history.

    The loop calls `block`, `given` and `flush`. Another thread may call `flush` and, while it holds the
    lock under which the loop calls `block`, `given`.
    """

    def __init__(self, path: str | os.PathLike[str], tail: Tail, fingerprint: str) -> None:
        """Open the file, or make it.

        Args:
            path: The file.
            tail: The end of the chain.
            fingerprint: Names the chain and its data.

        Raises:
            PlanError: If another iterator writes it.
            SourceError: If it is not a history.
            OSError: If it cannot be written.
        """
        self.path = Path(path)
        self._tail, self._fingerprint = tail, fingerprint
        self._owner = os.getpid()
        self._file = _opened(self.path)
        self._noting, self._writing = threading.Lock(), threading.Lock()
        self._pending: list[_Noted] = []
        self._rows = 0  # of what is pending
        self._block: _Noted | None = None
        self._given = 0  # of the block
        self._running: _Running | None = None
        # The segment that is being written.
        self._segment: _Running | None = None
        self._name = self._element = self._stop = 0
        self._lost: tuple[int, int] | None = None  # rows, since the file could not be written

    # --- what the loop does ----------------------------------------------------------------------

    def block(
        self,
        node: Node,
        lead: int,
        before: Sequence[int],
        marks: IntArray,
        made_of: MadeOf | None,
        given: int = 0,
    ) -> None:
        """Note the block whose elements the loop is about to get.

        Args:
            node: The chain that runs.
            lead: See `Tail.run`.
            before: The position of the iterator.
            marks: The position after each element.
            made_of: What each element is made of.
            given: The elements that the loop was given already.

        Raises:
            PlanError: If a node does not say what its rows are made of.
        """
        if made_of is None:
            raise PlanError(
                "keep_history: a node of this chain does not say what its rows are made of, so they have"
                " no history; leave out keep_history"
            )
        with self._noting:
            if self._running is None or self._running.node is not node:
                self._running = _Running(node, lead)
            first = self._tail.rows_of(before, lead).rows
            stops = self._tail.row_counts(marks, lead)
            self._block, self._given = _Noted(self._running, first, stops, made_of), given

    def given(self, count: int) -> None:
        """Note that the loop was given the first `count` elements of the block."""
        with self._noting:
            block, start = self._block, self._given
            if block is None or count <= start:
                return
            first = int(block.stops[start - 1]) if start else block.first
            rows = block.made_of.sliced(start, count)
            noted = [_Noted(block.running, first, block.stops[start:count], rows)]
            pending, most = self._rows + int(block.stops[count - 1]) - first, len(self._pending)
            # In one statement, which no interrupt divides.
            self._given, self._rows, self._pending[most:] = count, pending, noted
            is_enough = self._rows >= FRAME_ROWS
        if is_enough:
            self.flush()

    def flush(self) -> None:
        """Write everything that was noted."""
        if os.getpid() != self._owner:  # a forked child has the file too, and not the locks
            return
        with self._writing:
            with self._noting:
                pending, self._pending, self._rows = self._pending, [], 0
            if not self._file.closed:
                for elements in _end_to_end(pending):
                    self._write(elements)

    def close(self) -> None:
        """Write everything that was noted, and close the file. Closing twice is harmless."""
        if os.getpid() == self._owner:
            self.flush()
            with self._writing:
                self._file.close()

    # --- the file ----------------------------------------------------------------------------------

    def _write(self, elements: _Noted) -> None:
        first, stop = elements.first, int(elements.stops[-1])
        begins = elements.running is not self._segment or first != self._stop
        number = 0 if begins else self._element
        try:
            frames, name = start_frame(self._facts(elements)) if begins else (b"", self._name)
            _write_all(self._file, frames + rows_frame(name, number, first, _columns(elements)))
        except Exception as error:  # of the file, or of a selection map of the user's
            self._lose(first, stop, error)
            if begins:
                return  # the next elements begin it
        else:
            self._found_room()
            self._segment, self._name = elements.running, name
        self._stop, self._element = stop, number + len(elements.stops)

    def _facts(self, elements: _Noted) -> dict[str, Any]:
        """What the file says of a segment."""
        node, batch = elements.running.node, self._tail.batch
        shard = shard_of(self._tail.node)
        leaves = leaves_of(node).values()
        return {
            "time_s": time.time(),
            "row": elements.first,
            "batch": 1 if batch is None else batch.size,
            "shards": 1 if shard is None else shard.shards,
            "part": "" if shard is None else shard.taken_part,
            "packs": packs(node),
            "fingerprint": self._fingerprint,
            "chain": described(self._tail.node),
            "sources": [
                [_fingerprint(leaf.source), shortened(leaf.text, _TEXT)] for leaf in leaves
            ],
        }

    def _lose(self, first: int, stop: int, error: Exception) -> None:
        if self._lost is None:
            self._lost = first, stop
            _log.warning(
                "history: cannot write %s (%s: %s); the run continues, and the history has no records"
                " from row %d on until it can be written again",
                *(self.path, type(error).__name__, error, first),
            )
        self._lost = self._lost[0], stop

    def _found_room(self) -> None:
        if self._lost is not None:
            first, stop = self._lost
            self._lost = None
            _log.warning(
                "history: %s is written again; rows %d to %d are missing",
                self.path,
                first,
                stop - 1,
            )


def _opened(path: Path) -> BinaryIO:
    # Without a buffer: what is written is the system's, and outlives this process.
    file = path.open("ab+", buffering=0)
    try:
        _lock(file, path)
        file.seek(0)
        begin = file.read(len(MARK))
        if not MARK.startswith(begin or b""):
            FrameFile(str(path), file)  # raises
    except BaseException:
        file.close()
        raise
    return file


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Write all of it; a disk that is almost full takes a part, and refuses the rest."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _fingerprint(source: Any) -> str | None:
    found = getattr(source, "fingerprint", None)
    return found if isinstance(found, str) else None


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # on Windows nothing keeps a second writer out
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PlanError(
            f"keep_history: another iterator writes {path}; close that one, or give each process and"
            " each iterator a file of its own"
        ) from None
    except OSError:  # a file system without locks
        return


def _end_to_end(pending: Sequence[_Noted]) -> Iterator[_Noted]:
    """What was noted, with neighbours joined."""
    run: list[_Noted] = []
    for each in pending:
        if run and not _follows(run[-1], each):
            yield _joined(run)
            run = []
        run.append(each)
    if run:
        yield _joined(run)


def _follows(before: _Noted, after: _Noted) -> bool:
    return before.running is after.running and int(before.stops[-1]) == after.first


def _joined(parts: Sequence[_Noted]) -> _Noted:
    if len(parts) == 1:
        return parts[0]
    stops = np.concatenate([part.stops for part in parts])
    made_of = end_to_end([part.made_of for part in parts])
    return dataclasses.replace(parts[0], stops=stops, made_of=made_of)


def _columns(elements: _Noted) -> list[IntArray]:
    """The columns of a frame, see `reading.Elements.of`."""
    node, rows = elements.running.node, elements.made_of
    names = record_columns(node, random_access_parts(node), rows)
    lists = np.ones(len(rows), np.int64)
    row = names.row
    if packs(node):
        lists = lists if rows.parts is None else rows.parts
        row = (np.cumsum(lists) - lists)[row] + names.part
    counts = np.bincount(row, minlength=int(lists.sum())).astype(np.int64)
    # Records of one source are near each other where they come in order.
    order = np.argsort(names.source, kind="stable")
    return [elements.stops, lists, counts, names.source, names.record[order]]


# --- the life of an iterator ------------------------------------------------------------------------


class KeepsHistory(Protocol):
    """An iterator whose history is kept."""

    def _note_given(self) -> None:
        """Note and write what was given since."""


class Keeping:
    """Writes the history of an iterator from time to time, until the iterator ends.

    It ends with the iterator, when that is not used any more, and when the interpreter ends.
    """

    def __init__(self, iterator: KeepsHistory, keeper: Keeper) -> None:
        self._keeper = keeper
        self._close = weakref.finalize(iterator, keeper.close)
        self._ticker = Ticker(iterator, _tick, "windrow-history")
        _at_exit()
        _kept.add(iterator)

    def end(self) -> None:
        """Write everything, and close the file."""
        self._ticker.stop()
        self._close()


def _tick(iterator: KeepsHistory) -> float:
    iterator._note_given()
    return FLUSH_S


_kept: Final[weakref.WeakSet[KeepsHistory]] = weakref.WeakSet()


@functools.cache
def _at_exit() -> None:
    # What was registered first is called last: finalizers would close the files before.
    atexit.register(_note_all)


def _note_all() -> None:
    for iterator in list(_kept):
        iterator._note_given()
