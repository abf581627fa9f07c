"""Layouts: which elements of a node are stored together; they need not be consecutive.

Sorted by block, the elements of a node stand at places. Block `k` of a layout is the places
`[bounds[k], bounds[k + 1])`; `Elements` maps each place to its element. Where elements are
stored in their order, as rows of an array are, place `p` has element `p`, without `Elements`.

Invariant: bounds are int64 and increase from 0 to the length, so that no block is empty; `Elements`
are a permutation of `[0, length)`, and equal tokens mean equal permutations. Making a layout
reads no records.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.transforms.blocks import MOST_BLOCKS, Elements, mixed
from windrow.transforms.positions import run_numbers

# Maps elements of the whole to elements of a part: rows of the whole, then elements of the part.
_Picked: TypeAlias = Callable[[IntArray], tuple[IntArray, IntArray]]

MOST: Final = 2**28
"""Elements of a table at most, and of what it is made from: these take seconds and 1 GB."""

_PROBES: Final = 2**16
_STRETCH: Final = 2**20


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Blocks of elements that are stored together.

    Args:
        bounds: Places at which blocks begin, and the length at the end.
        elements: What stands at each place; None where element `i` stands at place `i`.
    """

    bounds: IntArray
    elements: Elements | None = None

    @property
    def length(self) -> int:
        """Number of elements."""
        return int(self.bounds[-1])

    def at(self, places: IntArray) -> IntArray:
        """The elements at `places`."""
        return places if self.elements is None else self.elements.at(places)


# --- kinds of elements ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class DeclaredElements(Elements):
    """Elements that the function of a source declares, checked as far as that is cheap.

    It is pickled without the function, which may be a lambda or hold a table; the source is asked
    for it again.

    Args:
        source: The source.
        length: Number of its records.
        records: Which record stands at each place.
    """

    source: Any
    length: int
    records: Callable[[IntArray], Any] | None
    _token: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_token", self._named())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "records": None}

    @property
    def token(self) -> str:
        return self._token

    def at(self, places: IntArray) -> IntArray:
        records = self.records or self._asked_again()
        found = np.asarray(records(places.copy()))
        if found.shape != places.shape or found.dtype.kind not in "iu":
            raise self._no_permutation(
                f"{len(places)} places gave an array of shape {found.shape} and dtype {found.dtype}"
            )
        if found.size and (found.min() < 0 or found.max() >= self.length):
            raise self._no_permutation(f"got records from {found.min()} to {found.max()}")
        return found.astype(np.int64, copy=False)

    def _named(self) -> str:
        # All places of a short source; else some that no grid of chunks can have a rhythm with.
        if self.length <= _PROBES:
            places = np.arange(self.length)
        else:
            drawn = mixed(np.arange(_PROBES, dtype=np.uint64)) % np.uint64(self.length)
            places = np.unique(drawn).astype(np.int64)
        found = self.at(places)
        if len(np.unique(found)) < len(found):
            raise self._no_permutation("some record comes twice")
        digest = hashlib.sha256(f"{self.length}:{self.source.fingerprint}:".encode())
        digest.update(found.astype("<i8").tobytes())
        return digest.hexdigest()

    def _asked_again(self) -> Callable[[IntArray], Any]:
        blocks = self.source.blocks()
        records = blocks.records if isinstance(blocks, PlacedBlocks) else None
        again = None if records is None else DeclaredElements(self.source, self.length, records)
        if records is None or again is None or again.token != self.token:
            raise PlanError(
                f"block_shuffle: {type(self.source).__name__}.blocks() declares another order since"
                " the chain was pickled; build the chain again"
            )
        object.__setattr__(self, "records", records)
        return records

    def _no_permutation(self, what: str) -> PlanError:
        return PlanError(
            f"block_shuffle: {type(self.source).__name__}.blocks().records must give each of its {self.length}"
            f" records at one place: {what}; mend it, or give block="
        )


@dataclasses.dataclass(frozen=True, eq=False)
class TableElements(Elements):
    """Elements in a table, one entry for each place."""

    table: npt.NDArray[np.uint32]
    _token: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.table.flags.writeable = False
        whole = hashlib.sha256(self.table.astype("<u4", copy=False).data)
        object.__setattr__(self, "_token", whole.hexdigest())

    @property
    def token(self) -> str:
        return self._token

    def at(self, places: IntArray) -> IntArray:
        return self.table.take(places).astype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedElements(Elements):
    """The elements of several layouts, end to end."""

    parts: tuple[Layout, ...]
    _ends: IntArray = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", np.cumsum([0, *(part.length for part in self.parts)]))

    @property
    def token(self) -> str:
        return "+".join(f"{part.length}:{_token_of(part.elements)}" for part in self.parts)

    def at(self, places: IntArray) -> IntArray:
        which = self._ends.searchsorted(places, side="right") - 1
        out = np.empty(len(places), np.int64)
        for number in np.unique(which).tolist():
            rows = np.flatnonzero(which == number)
            start = self._ends[number]
            out[rows] = self.parts[number].at(places[rows] - start) + start
        return out


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatedElements(Elements):
    """The elements of one layout, repeated."""

    part: Layout
    times: int

    @property
    def token(self) -> str:
        return f"{self.times}*{self.part.length}:{_token_of(self.part.elements)}"

    def at(self, places: IntArray) -> IntArray:
        epochs, inside = np.divmod(places, self.part.length)
        found: IntArray = self.part.at(inside) + epochs * self.part.length
        return found


def _token_of(elements: Elements | None) -> str:
    return "" if elements is None else elements.token


# --- making layouts ------------------------------------------------------------------------------


@runtime_checkable
class PlacedBlocks(Protocol):
    """What a source declares about blocks whose records are not consecutive."""

    @property
    def bounds(self) -> Any:
        """Bounds of the blocks in places: 0, ..., length, never falling."""
        ...

    @property
    def records(self) -> Callable[[IntArray], Any] | None:
        """Which record stands at each of some places."""
        ...


def declared_layout(source: Any, length: int) -> Layout | None:
    """The layout that a source of `length` records declares, checked, since users write sources.

    None if the source declares no layout.

    Raises:
        PlanError: If the blocks do not part the records.
    """
    blocks = source.blocks()
    if blocks is None:
        return None
    records = blocks.records if isinstance(blocks, PlacedBlocks) else None
    bounds = np.array(blocks.bounds if isinstance(blocks, PlacedBlocks) else blocks)
    if not (
        bounds.ndim == 1
        and bounds.dtype.kind in "iu"
        and len(bounds)
        and bounds[0] == 0
        and bounds[-1] == length
        and (bounds[1:] >= bounds[:-1]).all()
    ):
        raise PlanError(
            f"block_shuffle: {type(source).__name__}.blocks() must be integers that increase"
            f" from 0 to its length {length}, got {bounds!r}; mend it, or give block="
        )
    check_count(len(bounds) - 1)
    elements = None if records is None else DeclaredElements(source, length, records)
    return Layout(without_empty(bounds.astype(np.int64)), elements)


def joined(parts: Sequence[Layout]) -> Layout:
    """The elements of several layouts, end to end; at least one."""
    check_count(sum(len(part.bounds) - 1 for part in parts))
    ends = np.cumsum([0, *(part.length for part in parts)])
    moved = [part.bounds[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    plain = all(part.elements is None for part in parts)
    elements = None if plain else JoinedElements(tuple(parts))
    return Layout(np.concatenate([[0], *moved]), elements)


def repeated(part: Layout, times: int) -> Layout:
    """The elements of a layout `times` times, end to end."""
    check_count((len(part.bounds) - 1) * times)
    starts = np.arange(times)[:, None] * part.bounds[-1]
    bounds = np.concatenate([[0], (starts + part.bounds[1:]).ravel()])
    plain = part.elements is None or not part.length
    return Layout(bounds, None if plain else RepeatedElements(part, times))


def sliced(whole: Layout, start: int, step: int, count: int) -> Layout:
    """Elements `start, start + step, ...`, `count` of them, with what is left of each block."""
    if (start, step, count) == (0, 1, whole.length):
        return whole
    if whole.elements is None:
        if step > 0:
            left = -((start - whole.bounds) // step)  # elements of the slice before each bound
        else:
            left = (start - whole.bounds) // -step + 1  # and here, at the bound or after it
        return Layout(without_empty(np.sort(np.clip(left, 0, count))))

    def picked(elements: IntArray) -> tuple[IntArray, IntArray]:
        own, rest = np.divmod(elements - start, step)
        rows = np.flatnonzero((rest == 0) & (own >= 0) & (own < count))
        return rows, own[rows]

    return _picked(whole, picked, count)


def listed(whole: Layout, indices: IntArray) -> Layout:
    """The elements at `indices`, in that order, with what is left of each block."""
    order = np.argsort(indices, kind="stable")
    ascending = indices[order]

    def picked(elements: IntArray) -> tuple[IntArray, IntArray]:
        first = ascending.searchsorted(elements, side="left")
        counts = ascending.searchsorted(elements, side="right") - first
        return np.repeat(np.arange(len(elements)), counts), order[run_numbers(counts, first)]

    return _picked(whole, picked, len(indices))


def _picked(whole: Layout, picked: _Picked, count: int) -> Layout:
    """The layout of `count` elements that are picked from a whole, as a table."""
    if whole.length > MOST or count > MOST:
        raise PlanError(
            f"block_shuffle: the blocks of {whole.length} elements are not consecutive, and to"
            f" take {count} of these needs a table, for at most {MOST}; choose the part by the"
            " source's own arguments (start, stop, anchors), or give block="
        )
    table = np.empty(count, np.uint32)  # MOST is less than 2**32
    left = np.zeros_like(whole.bounds)
    filled = 0
    for first in range(0, whole.length, _STRETCH):
        stop = min(first + _STRETCH, whole.length)
        rows, own = picked(whole.at(np.arange(first, stop)))
        inside = slice(*whole.bounds.searchsorted([first, stop], side="right").tolist())
        left[inside] = filled + rows.searchsorted(whole.bounds[inside] - first)
        table[filled : filled + len(own)] = own[: max(0, count - filled)]
        filled += len(own)
    found = np.zeros(count, np.bool_)
    found[table[:filled]] = True
    if filled != count or not found.all():
        raise PlanError(
            f"block_shuffle: blocks().records of a source does not give each of"
            f" {whole.length} elements at one place; mend it, or give block="
        )
    return Layout(without_empty(left), TableElements(table))


def batched(whole: Layout, size: int, count: int) -> Layout:
    """The `count` batches of `size` elements, each in the block of its first element."""
    size = min(size, max(1, whole.length))
    if whole.elements is None:
        return Layout(without_empty(np.minimum(-(-whole.bounds // size), count)))
    return sliced(whole, 0, size, count)


def even(length: int, block: int) -> Layout:
    """Blocks of `block` consecutive elements; the last one may have fewer."""
    check_count(-(-length // block))
    starts = np.arange(0, length, min(block, max(1, length)), dtype=np.int64)
    return Layout(np.append(starts, np.int64(length)))


def without_empty(bounds: IntArray) -> IntArray:
    """Return the bounds without bounds of empty blocks."""
    kept: IntArray = bounds[np.append(True, bounds[1:] > bounds[:-1])]
    return kept


def check_count(blocks: int) -> None:
    """Check that an integer per block fits into memory.

    Raises:
        PlanError: If it does not.
    """
    if blocks > MOST_BLOCKS:
        raise PlanError(
            f"block_shuffle: {blocks} blocks are too many, as an integer is held for each; make"
            f" blocks larger with block=, for at most {MOST_BLOCKS}"
        )
