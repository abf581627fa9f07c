"""Regroupings that are planned from lengths alone: packed rows, and batches of like lengths.

The elements of the parent are planned in windows: runs of consecutive elements of one epoch, of the
shuffled order. A window may have any number of groups, which is known when it is planned. So a node
has indices with gaps: group `g` of window `w` has the index `w * 2**32 + g`, and the other indices
have no element (`indices_from`). An index is a position, so a state holds the window and the group, and
a restored stream plans that window again from its lengths.

Invariant: the groups of a window are a function of the chain, the seed, the epoch and the number of
the window.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np

from windrow.errors import ElementError, PlanError
from windrow.sources.base import IntArray
from windrow.transforms import packed_values
from windrow.transforms.amounts import Amount, PackCounts
from windrow.transforms.arguments import at_least
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.nodes.base import ENDLESS, Node
from windrow.transforms.nodes.dealing import NumbersWithGaps
from windrow.transforms.nodes.index import SliceNode
from windrow.transforms.nodes.metadata import epoch_length, known_lengths, known_spec
from windrow.transforms.nodes.regroup import RegroupNode
from windrow.transforms.nodes.whole_chain import EPOCHS, may_be_absent, source_of, sources_of
from windrow.transforms.orders import OrderTables
from windrow.transforms.packing import GroupPlan, TooLong
from windrow.transforms.positions import Positions, positions, run_numbers
from windrow.transforms.tables import Table

GROUP_BITS: Final = 32
_GROUPS: Final = 1 << GROUP_BITS
# Plans of windows that are kept, for the read batches that are planned, made and failed.
_KEPT_BYTES: Final = 16 * 2**20
# Up to this many documents are planned to know the number of groups; of more, as many are.
_COUNTED: Final = 2**21


class _Plans:
    """The plans of the last windows. A copy in another process starts without any."""

    def __init__(self) -> None:
        self.of = OrderTables[GroupPlan](_KEPT_BYTES, least=1)
        self.totals: PackCounts | None = None
        self.lengths: RecordLengths | None = None

    def __reduce__(self) -> tuple[type[_Plans], tuple[()]]:
        return _Plans, ()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces of some groups, of one window or of several.

    Args:
        bounds: int64 `(groups + 1,)`: group `k` has the pieces `[bounds[k], bounds[k + 1])`.
        runs: For each run of groups of one window: its number, its plan and the numbers of its
            pieces in the plan.
    """

    bounds: IntArray
    runs: list[tuple[int, Any, IntArray]]

    def of(self, name: str) -> IntArray:
        """An array of the plans that has a number for each piece: int64 `(pieces,)`."""
        parts = [getattr(plan, name)[numbers] for _, plan, numbers in self.runs]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedNode(NumbersWithGaps, RegroupNode):
    """Groups of pieces of the parent's elements, planned in windows of `window` elements.

    Args:
        lengths: Lengths of the records of each source, int64; None to ask the sources.
        window: Elements of the parent that are planned together.
        too_long: What becomes of elements that are too long.
        seed: Decides the order of the groups of a window.
        sequences: Names of the leaves that are sequences; None to know them by their shapes.
        measured: The chain whose lengths are asked for: the parent, also where another process makes
            a part of it.
    """

    lengths: Any
    window: int
    too_long: TooLong
    seed: int
    sequences: tuple[str, ...] | None
    measured: Node | None = dataclasses.field(default=None, kw_only=True)
    plans: _Plans = dataclasses.field(default_factory=_Plans, kw_only=True)

    has_gaps: ClassVar[bool] = True
    who: ClassVar[str]

    def count(self) -> int:
        at_least(1, self.window, f"{self.who}: window")
        self.check()
        if self.parent.has_gaps:
            raise PlanError(f"{self.who}: comes once in a chain, and last before the stream")
        if may_be_absent(self.parent):
            raise PlanError(
                f"{self.who}: a filter before it leaves gaps that a plan cannot know; filter the"
                " lengths and slice the dataset instead, or pack the stream"
            )
        if self.measured is None:
            object.__setattr__(self, "measured", self.parent)
        if self.plans.lengths is None and self.parent.length:
            nowhere = np.empty(0, np.int64)
            known_lengths(self.parent, Positions(nowhere, nowhere), self._known_lengths())
        length = self.parent.length
        if length >= ENDLESS or self.parent.is_endless():
            return ENDLESS
        return self._windows_before(length) << GROUP_BITS

    @abc.abstractmethod
    def check(self) -> None:
        """Check the arguments of the node, with a PlanError."""

    @abc.abstractmethod
    def planned(self, lengths: IntArray, number: tuple[int, int]) -> GroupPlan:
        """The plan of a window of elements of these lengths.

        Args:
            lengths: int64 `(elements,)`.
            number: The window's epoch, and its number in the epoch.
        """

    @property
    @abc.abstractmethod
    def longest(self) -> int:
        """The length above which an element is too long."""

    @abc.abstractmethod
    def refusal(self, length: int) -> str:
        """Why an element of a length is an error, if it is too long."""

    @property
    @abc.abstractmethod
    def arguments(self) -> str:
        """The arguments of the method, but for the lengths, in the label."""

    @property
    def label(self) -> str:
        return f"{self.who}({self.arguments}{lengths_label(self.lengths)})"

    @property
    def written(self) -> str:
        given = "" if self.lengths is None else ", lengths=..."
        return f"{self.who}({self.arguments}{given})"

    @functools.cached_property
    def known_sequences(self) -> tuple[str, ...] | None:
        """The names of sequences, if the user or the spec of an element says them."""
        return packed_values.known_sequences(known_spec(self.measured_chain), self.sequences)

    @functools.cached_property
    def unit(self) -> int:
        """Elements of the parent that are in one plan: a window, or several."""
        return self.window

    # --- windows ---------------------------------------------------------------------------------

    @functools.cached_property
    def _epoch(self) -> int:
        """Elements of the parent in one epoch of what it repeats."""
        return max(1, min(self.parent.length, epoch_length(self.parent)))

    @functools.cached_property
    def _windows(self) -> int:
        """Windows of a whole epoch."""
        return -(-self._epoch // self.unit)

    def _windows_before(self, elements: int) -> int:
        """Windows that the first `elements` elements of the parent are in."""
        epochs, rest = divmod(elements, self._epoch)
        return epochs * self._windows + -(-rest // self.unit)

    def _elements_of(self, window: int) -> tuple[int, int]:
        """The parent's elements of a window."""
        epoch, number = divmod(window, self._windows)
        start = epoch * self._epoch + number * self.unit
        stop = min(start + self.unit, (epoch + 1) * self._epoch, self.parent.length)
        return start, stop

    @property
    def measured_chain(self) -> Node:
        """The chain whose lengths are asked for."""
        return self.parent if self.measured is None else self.measured

    def _known_lengths(self) -> RecordLengths:
        # Not pickled: they know sources by their identity.
        if self.plans.lengths is None:
            self.plans.lengths = RecordLengths(sources_of(self.measured_chain), self.lengths)
        return self.plans.lengths

    def plan_of(self, window: int) -> Any:
        """The plan of a window.

        Raises:
            PlanError: If an element is too long.
            SourceError: If a source gives wrong lengths.
        """
        found: Any = self.plans.of.find(window)
        if found is None:
            numbers = np.arange(*self._elements_of(window))
            at = positions(numbers, self.measured_chain.length)
            lengths = known_lengths(self.measured_chain, at, self._known_lengths())
            self._check_lengths(window, lengths)
            found = self.planned(lengths, divmod(window, self._windows))
            if len(found.bounds) > _GROUPS:
                raise PlanError(f"{self.who}: window {window} has more than 2**32 rows")
            self.plans.of.keep(window, table=found)
        return found

    def _check_lengths(self, window: int, lengths: IntArray) -> None:
        over = lengths > self.longest
        if self.too_long is TooLong.ERROR and over.any():
            number = int(np.argmax(over))
            element = self._elements_of(window)[0] + number
            reason = self.refusal(int(lengths[number]))
            raise PlanError(f"{self.who}: {self.named(element)} {reason}")

    def named(self, element: int) -> str:
        """An element of the parent, and the record that it is made of, as text."""
        return f"element {element}{_record_behind(self.measured_chain, element)}"

    def indices_from(self, start: int, count: int) -> IntArray:
        found: list[IntArray] = []
        last, empty = -(-self.length // _GROUPS), 0
        for window in range(start >> GROUP_BITS, last):
            first = max(start, window << GROUP_BITS)
            try:
                stop = (window << GROUP_BITS) + self._groups_of(window)
            except PlanError:
                # It is raised once more when its first row is due, after all rows before it.
                stop = first + 1
            part = np.arange(first, max(first, min(stop, first + count)))
            found.append(part)
            count -= len(part)
            if not count:
                break
            empty = 0 if len(part) else empty + 1
            self._check_gap(empty)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _groups_of(self, window: int) -> int:
        return len(self.plan_of(window).bounds) - 1

    def _check_gap(self, windows: int) -> None:
        """Raise a PlanError if an endless chain had no group in this many consecutive windows."""
        if windows > EPOCHS * self._windows and self.is_endless():
            raise PlanError(
                f"{self.who}: the stream has no row: the elements of {EPOCHS} epochs make none, since"
                " all are empty, or too long and dropped; choose longer rows, or too_long='split'"
            )

    def index_after(self, start: int, count: int) -> tuple[int, int]:
        index, passed, empty = start, 0, 0
        for window in range(start >> GROUP_BITS, -(-self.length // _GROUPS)):
            if passed == count:
                break
            first = max(start, window << GROUP_BITS)
            groups = (window << GROUP_BITS) + self._groups_of(window) - first
            if groups > 0:
                index = first + min(groups, count - passed)
                passed += index - first
            empty = 0 if groups > 0 else empty + 1
            self._check_gap(empty)
        return index, passed

    def places_of(self, at: Positions) -> tuple[IntArray, IntArray]:
        """The window, and the group in it, of each position: two arrays of int64."""
        return at.offsets >> GROUP_BITS, at.offsets & (_GROUPS - 1)

    def planned_counts(self, indices: IntArray) -> Mapping[int, PackCounts]:
        found: dict[int, PackCounts] = {}
        if not len(indices):
            return found
        for window in range(indices[0] >> GROUP_BITS, (indices[-1] >> GROUP_BITS) + 1):
            with contextlib.suppress(PlanError):  # which is raised when its first row is due
                found[window] = self.plan_of(window).counts
        return found

    def pieces_of(self, at: Positions) -> Pieces:
        """The pieces of the groups at some positions; an index without an element has none."""
        windows, groups = self.places_of(at)
        cuts = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)]
        counts = np.zeros(len(windows) + 1, np.int64)
        runs = []
        for start, stop in itertools.pairwise(cuts):
            if start == stop:
                continue
            window, some = int(windows[start]), groups[start:stop]
            plan = self.plan_of(window)
            most = len(plan.bounds) - 1
            first = plan.bounds[np.minimum(some, most)]
            each = plan.bounds[np.minimum(some + 1, most)] - first
            counts[start + 1 : stop + 1] = each
            runs.append((window, plan, run_numbers(each, first)))
        return Pieces(np.cumsum(counts), runs)

    def to_rows(self, at: Positions) -> tuple[Positions, IntArray]:
        pieces = self.pieces_of(at)
        return self.rows_of(pieces), pieces.bounds

    def rows_of(self, pieces: Pieces) -> Positions:
        """The parent's element that each piece is of."""
        parts = [
            plan.documents[numbers] + self._elements_of(window)[0]
            for window, plan, numbers in pieces.runs
        ]
        elements = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return positions(elements, self.parent.length)

    def gather(self, table: Table, bounds: Sequence[int]) -> Table:
        raise TypeError(f"{self.label} makes its elements by their positions")

    def mismatch(self, pieces: Pieces, found: IntArray, name: str) -> None:
        """Check the lengths of the documents of pieces against the lengths of the plan.

        Raises:
            ElementError: If one differs.
        """
        lengths = (plan.given[plan.documents[numbers]] for _, plan, numbers in pieces.runs)
        given = np.concatenate([np.empty(0, np.int64), *lengths])
        if np.array_equal(given, found):
            return
        piece = int(np.argmax(given != found))
        raise ElementError(
            f"{self.who}: {name!r} of {self.named(self.element_of(pieces, piece))} has"
            f" {found[piece]} items, but its length is given as {given[piece]}; count the lengths of"
            " this data anew"
        )

    def element_of(self, pieces: Pieces, piece: int) -> int:
        """The parent's element that a piece is of."""
        for window, plan, numbers in pieces.runs:
            if piece < len(numbers):
                return self._elements_of(window)[0] + int(plan.documents[numbers[piece]])
            piece -= len(numbers)
        raise IndexError(piece)

    # --- what is known before anything is read ---------------------------------------------------

    def pack_counts(self) -> tuple[PackCounts, bool]:
        """What becomes of the documents of an epoch, and whether that is all of them.

        In a long epoch only the first windows are counted.
        """
        some = self._counted_windows
        if self.plans.totals is None:
            windows = range(some if self.length else 0)
            counts = (self.plan_of(window).counts for window in windows)
            self.plans.totals = sum(counts, start=PackCounts())
        return self.plans.totals, some == self._windows

    @functools.cached_property
    def _counted_windows(self) -> int:
        """The first windows of an epoch, whose groups are counted."""
        return min(self._windows, max(1, _COUNTED // self.unit))

    def elements(self) -> Amount:
        if self.is_endless():
            return Amount.exactly(math.inf)
        counts, is_whole = self.pack_counts()
        windows = self.length >> GROUP_BITS
        if is_whole and windows == self._windows:
            return Amount.exactly(counts.rows)
        # Each window as in the windows of the first epoch.
        likely = counts.rows * windows / self._counted_windows
        return Amount(math.floor(0.9 * likely), math.ceil(1.1 * likely))

    def is_endless(self) -> bool:
        return self.length >= ENDLESS

    def length_of_pass(self, parents: Sequence[int]) -> int:
        return self._windows_before(parents[0]) << GROUP_BITS

    def epoch_length(self) -> int:
        return self._windows << GROUP_BITS if self.length else 0


def over_first(node: Node, count: int) -> Node:
    """A planned node over the first `count` elements of its parent, planned anew."""
    some = SliceNode((node.parent,), 0, 1, count)
    return dataclasses.replace(node, parents=(some,), measured=None, plans=_Plans())  # type: ignore[call-arg]


def lengths_label(lengths: Any) -> str:
    """A name of given lengths, for a label: empty where the sources know them."""
    if lengths is None:
        return ""
    found = hashlib.sha256()
    for each in lengths:
        found.update(np.ascontiguousarray(each, np.int64).data)
    return f", lengths={found.hexdigest()[:16]}"


@runtime_checkable
class MadeFromOne(Protocol):
    """A node whose elements are, or are made of, one element each."""

    def made_from(self, at: Positions) -> tuple[Node, Positions]:
        """That element of the element at one position: its node and position."""
        ...


def _record_behind(node: Node, element: int) -> str:
    """The record that an element is made of, as text; empty if it is made of several."""
    at = positions(np.array([element], np.int64), node.length)
    while node.parents:
        if not isinstance(node, MadeFromOne):
            return ""
        node, at = node.made_from(at)
    source = source_of(node)
    return "" if source is None else f" (record {at.offsets[0]} of {source!r})"
