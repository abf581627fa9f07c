"""Blocks of rows, which carry the elements of a stream, each with the position that follows it.

Nodes of a stream turn the blocks of their parents into blocks of their own, with the functions of
this module and of `tables`.

Invariant: rows keep their order; a row keeps its mark, unless a function says otherwise.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import itertools
import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.errors import StateError
from windrow.sources.base import IntArray
from windrow.transforms import tables
from windrow.transforms.made_of import MadeOf, end_to_end
from windrow.transforms.tables import Table

# Rows that a batched function gets if no batch sets the number.
BLOCK_ROWS: Final = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a stream.

    Args:
        table: The elements.
        marks: int64 `(rows, width)`, the position after each row.
        made_of: What each row is made of; None where a node does not say.
    """

    table: Table
    marks: IntArray
    made_of: MadeOf | None = None

    def __len__(self) -> int:
        return len(self.marks)

    def sliced(self, start: int, stop: int) -> Block:
        """Rows `[start, stop)`."""
        made_of = None if self.made_of is None else self.made_of.sliced(start, stop)
        return Block(tables.sliced(self.table, start, stop), self.marks[start:stop], made_of)

    def taken(self, at: IntArray) -> Block:
        """The rows at positions `at`."""
        made_of = None if self.made_of is None else self.made_of.taken(at)
        return Block(tables.taken(self.table, at), self.marks[at], made_of)

    def of_rows(self, counted: bool) -> Block:
        """The same rows; if they are `counted`, without the number that ends each mark."""
        return Block(self.table, self.marks[:, :-1], self.made_of) if counted else self

    def with_marks(self, own: IntArray) -> Block:
        """The same rows, with a last integer of its own, `own[r]`, in the mark of each row `r`."""
        return Block(self.table, np.column_stack([self.marks, own]), self.made_of)

    def with_table(self, table: Table) -> Block:
        """The first rows with the elements of `table`, made of the rows of this block in order."""
        rows = table.rows
        made_of = None if self.made_of is None else self.made_of.sliced(0, rows)
        return Block(table, self.marks[:rows], made_of)


Blocks: TypeAlias = Generator[Block, None, None]


class Step(enum.Enum):
    """How a node runs on a stream: on the blocks of its parent, or by itself."""

    OWN = enum.auto()
    """`blocks` makes the rows."""
    NOTHING = enum.auto()
    """The rows of the node are its parent's rows."""
    ROWS = enum.auto()
    """On blocks of any rows; their indices are places, which only error messages need."""
    NUMBERED = enum.auto()
    """On blocks of any rows, whose indices count the elements of the stream. Width 1."""
    GROUPS = enum.auto()
    """On whole groups of rows in one call. Width 1, for a `ValueNode`: the rows given of a group."""


class RowCount(Protocol):
    """Decides how many rows a node makes at once."""

    def next_rows(self) -> int:
        """Rows of the next block."""
        ...

    def saw(self, rows: int, size_bytes: int, took_s: float) -> None:
        """Learn from a block of `rows` rows, of `size_bytes`, that took `took_s` to make."""
        ...


Turns: TypeAlias = Generator[tuple[Block, IntArray], None, None]
"""Rows of whole turns; and for each turn the index after the elements of each lane: `(turns, lanes)`."""


class JointRows(Protocol):
    """The rows of several lanes, read together."""

    def read(self) -> Block | None:
        """Some rows of all lanes, in each lane in order; None at the end."""
        ...

    def lanes_of(self, block: Block) -> IntArray:
        """The lane of each of these rows."""
        ...

    def hold(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        """Note how many rows of each lane are in hand; returns where no more will come."""
        ...

    def resume(self, lane: int, rest: Block) -> Blocks:
        """The rows in hand of one lane and then those that follow, in place of `read`."""
        ...


@dataclasses.dataclass(slots=True)
class KeptBlocks:
    """Memory of a node for one run: all its blocks, once a pass has given them."""

    blocks: list[Block] | None = None


# --- states of own nodes -------------------------------------------------------------------------

# A position holds integers only. The integer of an own node is a number under which one iterator keeps
# the state that the node returned, as JSON; a stored state has the count of elements, and the JSON. A
# number means the same for as long as it is kept, and later rows have larger numbers.


class Kept(NamedTuple):
    """The state of an own node after some elements.

    Args:
        elements: The number of elements before it.
        text: What the node returned, as JSON.
        run: The numbers of this state and others of one run of the node, ascending.
    """

    elements: int
    text: str
    run: collections.deque[int]

    def value(self) -> Any:
        """A new copy of what the node returned."""
        return json.loads(self.text)


class OwnStates:
    """The states that an iterator may still need, by their numbers from 1 on.

    The thread that makes rows adds, while the user's loop forgets: neither iterates over the dict.
    """

    def __init__(self, *, keeps_all: bool = False) -> None:
        """Start empty. With `keeps_all` no state is dropped, since a cache may give its row again."""
        self._kept: dict[int, Kept] = {}
        self._oldest = self._next = 1
        self._keeps_all = keeps_all

    def emptied(self) -> OwnStates:
        """Return states of the same kind, without any of these."""
        return OwnStates(keeps_all=self._keeps_all)

    def add(self, count: int, text: str, run: collections.deque[int]) -> int:
        """Keep a state of a run of a node, and return its number; arguments are as for `Kept`."""
        number, self._next = self._next, self._next + 1
        self._kept[number] = Kept(count, text, run)
        run.append(number)
        return number

    def of(self, number: int) -> Kept:
        """The state with a number."""
        return self._kept[number]

    def forget_before(self, numbers: Sequence[int]) -> None:
        """Drop states that come before all of these, which belong to the present position.

        And those that come before one of these in the same run.
        """
        if self._keeps_all:
            return
        # A node at its start, 0, may have rows in hand that were made before the rows of other nodes.
        first = min(numbers, default=0)
        for number in range(self._oldest, first):
            self._kept.pop(number, None)
        self._oldest = max(self._oldest, first)
        for number in numbers:
            kept = self._kept.get(number)
            while kept is not None and kept.run[0] < number:
                self._kept.pop(kept.run.popleft(), None)


# --- inputs of nodes -----------------------------------------------------------------------------


class Inputs(Protocol):
    """The engine's interface for a node of a stream: the rows of its parents, and settings."""

    def blocks(self, number: int, position: Sequence[int], unit: int | None = None) -> Blocks:
        """The rows of parent `number` from a position on.

        Args:
            number: The parent's place in `parents`.
            position: As many integers as the parent's `width`.
            unit: Rows of the parent that the node takes at a time, if it takes a fixed number.
        """
        ...

    def in_lanes(self, lanes: int, starts: Mapping[int, Sequence[int]]) -> list[Inputs]:
        """The inputs of a node whose parent runs in lanes: inputs of some lanes, which are read together.

        Args:
            lanes: The number of all lanes.
            starts: For each lane that is wanted, the position that its parent's blocks are asked for.
        """
        ...

    def joint(self, lanes: int, starts: Mapping[int, Sequence[int]]) -> JointRows | None:
        """The rows of lanes together, where they come straight from a chain with random access."""
        ...

    def turns(
        self, lanes: int, starts: Mapping[int, Sequence[int]], rows: int, slots: IntArray
    ) -> Turns | None:
        """Rows of lanes in their order in batches, where each element of a chain is a row.

        A turn has the next `rows` rows of each lane, lane after lane; only its rows `slots` are read.
        Turns end before one that some lane cannot fill, or whose rows are absent or raise.

        Returns:
            None where the number of elements does not decide which rows come.
        """
        ...

    def number(self, count: int) -> int:
        """The number in the whole stream of what is `count` in its lane, both from 0."""
        ...

    def share(self, count: int) -> int:
        """How many of the first `count` elements of the whole stream are in the lane."""
        ...

    def chain_number(self, number: int) -> int:
        """The number for `MadeOf` of a parent with random access, or of the chain that it streams."""
        ...

    def kept(self) -> KeptBlocks:
        """The memory of the node, in its lane, for as long as the run lasts."""
        ...

    def own_states(self) -> OwnStates:
        """The states of a user's own nodes that the iterator keeps."""
        ...

    def row_count(self) -> RowCount:
        """Decides the sizes of blocks if the node is free to choose them."""
        ...

    def now_s(self) -> float:
        """The time, in seconds, for `RowCount.saw`."""
        ...

    def calling(self) -> contextlib.AbstractContextManager[None]:
        """A context whose time counts for the node's own function in `stats()`."""
        ...


# --- places --------------------------------------------------------------------------------------


def places(block: Block) -> IntArray:
    """The name of each row in errors: its index, or its mark if that has several integers."""
    return block.marks[:, 0] - 1 if block.marks.shape[1] == 1 else block.marks


def place_text(index: int | np.integer | IntArray) -> str:
    """Names an element by its index, or by the position that follows it."""
    if np.ndim(index) == 0:
        return f"element {index}"
    return f"the element before position {np.asarray(index).tolist()}"


# --- groups of rows ------------------------------------------------------------------------------


def joined(parts: Sequence[Block]) -> Block:
    """Blocks end to end as one."""
    if len(parts) == 1:
        return parts[0]
    marks = np.concatenate([part.marks for part in parts])
    return Block(tables.joined([part.table for part in parts]), marks, made_of_all(parts))


def made_of_all(parts: Sequence[Block]) -> MadeOf | None:
    """What the rows of blocks end to end are made of; None where a node does not say."""
    known = [part.made_of for part in parts if part.made_of is not None]
    return end_to_end(known) if known and len(known) == len(parts) else None


def groups(parent: Blocks, size: int) -> Blocks:
    """The same rows in blocks of exactly `size`; the last may be shorter."""
    for block in whole_groups(parent, size):
        yield from cut(block, size)


def cut(block: Block, size: int) -> list[Block]:
    """A block in blocks of `size` rows; the last may be shorter."""
    cuts = [*range(0, len(block), size), len(block)]
    marks = [block.marks[start:stop] for start, stop in itertools.pairwise(cuts)]
    rows = block.made_of
    known = [None if rows is None else rows.sliced(*cut) for cut in itertools.pairwise(cuts)]
    return list(map(Block, tables.cut(block.table, cuts), marks, known))


def whole_groups(parent: Blocks, size: int) -> Blocks:
    """The same rows in blocks of whole groups of `size`; a shorter group comes last."""
    held: list[Block] = []
    rows = 0
    for block in parent:
        held.append(block)
        rows += len(block)
        if rows < size:
            continue
        whole, left = joined(held), rows % size
        held, rows = [], left
        if left:
            held = [whole.sliced(len(whole) - left, len(whole))]
            whole = whole.sliced(0, len(whole) - left)
        yield whole
    if rows:
        yield joined(held)


def check_inside(given: int, rows: int) -> None:
    """Check that a position is inside a group of `rows` rows.

    Raises:
        StateError: If `given`, the rows of the group before the position, are not fewer.
    """
    if given >= rows:
        raise StateError(
            f"state is at element {given} of a group of {rows}; it is damaged: restore another one"
        )


def marks_in_group(
    before: IntArray, after: IntArray, rows: int, numbers: Sequence[int] = ()
) -> IntArray:
    """Marks of `rows` rows that are made of one group of the parent's rows.

    A stream that stopped inside the group makes it again, from its start, and leaves out the rows
    that were given. One that stopped after it resumes after it.

    Args:
        before: The parent's position before the group.
        after: The parent's position after the group.
        rows: Rows that the group gives, at least 1.
        numbers: Integers of the node itself.

    Returns:
        int64 `(rows, len(before) + len(numbers) + 1)`; the last integer is the number of rows of
        the group that were given, and 0 after the group.
    """
    own = np.tile(np.array([*before, *numbers, 0], np.int64), (rows, 1))
    own[:, -1] = np.arange(1, rows + 1)
    own[-1, : len(before)] = after
    own[-1, -1] = 0
    return own


class Feed:
    """Takes any number of rows from one parent."""

    def __init__(self, parent: Blocks) -> None:
        self._parent = parent
        self._held: collections.deque[Block] = collections.deque()
        self.error: Exception | None = None

    def take(self, rows: int) -> list[Block]:
        """Take the next `rows` rows; fewer only if the stream ended or raised, see `error`."""
        out: list[Block] = []
        while rows and (self._held or self._pull()):
            block = self._held.popleft()
            if len(block) > rows:
                self._held.appendleft(block.sliced(rows, len(block)))
                block = block.sliced(0, rows)
            out.append(block)
            rows -= len(block)
        return out

    def fill(self, rows: int) -> int:
        """Wait until `rows` rows can be taken, and return how many can.

        Fewer only if the stream ended or raised, see `error`.
        """
        held = sum(map(len, self._held))
        while held < rows:
            before = len(self._held)
            self._pull()
            if len(self._held) == before:
                break
            held += len(self._held[-1])
        return held

    def next_block(self) -> Block | None:
        """Take the next rows, as many as come at once; None if the stream ended or raised."""
        return self._held.popleft() if self._held or self._pull() else None

    def keep(self, taken: Sequence[Block], rows: int) -> list[Block]:
        """The first `rows` rows of what was taken last; the others are taken again."""
        used, left = [], []
        for block in taken:
            stop = min(rows, len(block))
            rows -= stop
            used += [block.sliced(0, stop)] if stop else []
            left += [block.sliced(stop, len(block))] if stop < len(block) else []
        self._held.extendleft(reversed(left))
        return used

    def ready(self) -> int:
        """Rows that can be taken without waiting, after waiting for one; 0 at the end."""
        if not self._held:
            self._pull()
        if not self._held and self.error is not None:
            raise self.error
        return sum(map(len, self._held))

    def _pull(self) -> bool:
        if self.error is not None:
            return False
        try:
            self._held.extend(block for block in [next(self._parent, None)] if block is not None)
        except Exception as error:
            self.error = error
        return bool(self._held)
