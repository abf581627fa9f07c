"""Planned packing: which documents share a row, decided from their lengths alone.

A plan says where each piece of each document of some windows goes. A document longer than a row is cut
into pieces, or made shorter, or left out. The pieces go into rows by best fit, from the longest on:
each goes into the row with the least room that has room for it, or into a new row. Where several rows
have the same room, it goes into the one that got a piece last. The rows of a window then come in a random
order, and the pieces of a row in the order of their documents. The pieces of the emptiest row of a window
do not make a row: they are packed with the last of the windows that are planned together.

Invariant: a plan is a function of the lengths and the arguments. The native core and NumPy make the
same plan.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.core import native
from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.transforms import random
from windrow.transforms.amounts import PackCounts
from windrow.transforms.positions import run_numbers, starts_of

MOST_ROW_LENGTH: Final = 2**24
"""The longest row, in tokens: a plan has a number for each amount of room."""
_NO_LIMIT: Final = 2**32 - 1


class TooLong(enum.Enum):
    """What becomes of a document that is longer than a row."""

    SPLIT = "split"
    """It is cut into pieces of a row each, and a shorter last one."""
    TRUNCATE = "truncate"
    """Its first tokens fill a row, and the others are left out."""
    DROP = "drop"
    """It is left out."""
    ERROR = "error"
    """It is an error."""


@dataclasses.dataclass(frozen=True, eq=False)
class GroupPlan:
    """The plan of a window: group `g` is made of the pieces `[bounds[g], bounds[g + 1])`.

    Args:
        documents: int64 `(pieces,)`, the document of each piece: its number in the window.
        bounds: int64 `(groups + 1,)`.
        given: int64 `(documents,)`, the lengths that the plan was made from.
        counts: What became of the documents.
    """

    documents: IntArray
    bounds: IntArray
    given: IntArray
    counts: PackCounts

    @property
    def nbytes(self) -> int:
        """About the bytes that it takes."""
        return 1000 + sum(getattr(each, "nbytes", 0) for each in vars(self).values())


@dataclasses.dataclass(frozen=True, eq=False)
class RowPlan(GroupPlan):
    """The rows of windows that are planned together.

    Args:
        starts: int64 `(pieces,)`, the first token of the piece in its document.
        lengths: int64 `(pieces,)`, tokens of the piece.
        places: int64 `(pieces,)`, where its first token lies in the row.
    """

    starts: IntArray
    lengths: IntArray
    places: IntArray

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.bounds) - 1


def plan_rows(
    lengths: IntArray,
    row_length: int,
    *,
    too_long: TooLong,
    most_pieces: int | None,
    window: int,
    seed: int,
    number: Sequence[int],
) -> RowPlan:
    """Plan the rows of some windows of documents.

    Args:
        lengths: int64 `(documents,)`, tokens of each document, at least 0.
        row_length: Tokens of a row, in `[1, 2**24]`.
        too_long: What becomes of documents longer than a row. `ERROR` is for the caller: it cuts
            nothing, and finding such a document here is a PlanError.
        most_pieces: The most pieces of a row; None for no limit.
        window: Documents of a window; the last window may have fewer.
        seed: Decides the order of the rows.
        number: Two integers that name the windows, so that each has another order.

    Example:
        >>> import numpy as np
        >>> from windrow.transforms.packing import TooLong, plan_rows
        >>> plan = plan_rows(np.array([3, 5, 2, 12]), 8, too_long=TooLong.SPLIT, most_pieces=None,
        ...     window=4, seed=0, number=(0, 0))
        >>> sorted(plan.documents[start:stop].tolist() for start, stop in
        ...     zip(plan.bounds[:-1], plan.bounds[1:]))
        [[0, 1], [2, 3], [3]]
    """
    documents, starts, pieces, counts = _cut(lengths, row_length, too_long)
    cuts = np.searchsorted(documents, np.arange(window, len(lengths), window))
    rows, row_count = np.empty(len(pieces), np.int64), 0
    left = np.empty(0, np.int64)
    cuts_of = [0, *cuts.tolist(), len(pieces)]
    for place, (start, stop) in enumerate(itertools.pairwise(cuts_of)):
        own = np.arange(start, stop)
        is_last = place == len(cuts)
        if is_last:
            own = np.concatenate([left, own])
        found, count = _best_fit(pieces[own], row_length, most_pieces or _NO_LIMIT)
        if count and not is_last:
            found, count, stays = _without_emptiest(found, count, pieces[own], row_length)
            left = np.concatenate([left, own[~stays]])
            own = own[stays]
        rows[own] = row_count + _mixed(count, seed, (*number, place))[found]
        row_count += count
    # Radix sort, which NumPy has for 16 bits: a third of the time of a plan.
    order = np.argsort(rows.astype(np.uint16) if row_count <= 2**16 else rows, kind="stable")
    documents, starts, pieces, rows = documents[order], starts[order], pieces[order], rows[order]
    bounds = np.searchsorted(rows, np.arange(row_count + 1))
    ends = np.cumsum(pieces)
    places = ends - pieces
    places -= places[bounds[:-1]][rows] if row_count else 0
    counts = dataclasses.replace(counts, rows=row_count, cells=row_count * row_length)
    return RowPlan(documents, bounds, lengths, counts, starts, pieces, places)


def _without_emptiest(
    rows: IntArray, count: int, pieces: IntArray, row_length: int
) -> tuple[IntArray, int, npt.NDArray[np.bool_]]:
    """The rows without the emptiest one, if that is not full, and which pieces are in these."""
    full = np.bincount(rows, weights=pieces, minlength=count)
    least = int(np.argmin(full))
    if full[least] >= row_length:
        return rows, count, np.ones(len(rows), np.bool_)
    stays = rows != least
    kept = rows[stays]
    return kept - (kept > least), count - 1, stays


def _cut(
    lengths: IntArray, row_length: int, too_long: TooLong
) -> tuple[IntArray, IntArray, IntArray, PackCounts]:
    """The document, first token and length of each piece, in the order of the documents."""
    over = lengths > row_length
    count, tokens = int(np.count_nonzero(over)), int(lengths[over].sum())
    counts = PackCounts(
        documents=len(lengths),
        tokens=int(lengths.sum()),
        empty=int(np.count_nonzero(lengths == 0)),
    )
    if too_long is TooLong.SPLIT and count:
        each = -(-lengths // row_length)
        documents = np.repeat(np.arange(len(lengths)), each)
        starts = run_numbers(each, step=row_length)
        pieces = np.minimum(row_length, lengths[documents] - starts)
        counts = dataclasses.replace(counts, split=count, split_tokens=tokens)
        return documents, starts, pieces, counts
    kept = lengths > 0
    if too_long is TooLong.TRUNCATE:
        lost = tokens - count * row_length
        counts = dataclasses.replace(counts, truncated=count, truncated_tokens=lost)
    elif too_long is TooLong.DROP:
        kept &= ~over
        counts = dataclasses.replace(counts, dropped=count, dropped_tokens=tokens)
    elif count:
        raise PlanError(f"pack: {count} documents are longer than a row of {row_length} tokens")
    documents = np.flatnonzero(kept)
    pieces = np.minimum(lengths[documents], row_length)
    return documents, np.zeros(len(documents), np.int64), pieces, counts


def _mixed(rows: int, seed: int, number: Sequence[int]) -> IntArray:
    """A random order of rows: int64 `(rows,)`, where each row goes."""
    words = [0, *(part % 2**64 for part in number), *[0] * (3 - len(number))]
    bits = np.random.Philox(key=random.philox_key(seed), counter=np.array(words, np.uint64))
    # Raw numbers, which every release of NumPy draws alike.
    return np.argsort(bits.random_raw(rows), kind="stable")


def _best_fit(lengths: IntArray, row_length: int, most: int) -> tuple[IntArray, int]:
    """The row of each piece, and the number of rows."""
    core = native.native()
    if core is None:
        return best_fit_in_python(lengths, row_length, most)
    rows = np.empty(len(lengths), np.int64)
    return rows, core.pack_best_fit(np.ascontiguousarray(lengths), row_length, most, rows)


def best_fit_in_python(lengths: IntArray, row_length: int, most: int) -> tuple[IntArray, int]:
    """Best fit from the longest piece on, without the native core: the definition of the order.

    Args:
        lengths: int64 `(pieces,)`, each in `[1, row_length]`.
        row_length: Tokens of a row.
        most: The most pieces of a row.

    Returns:
        int64 `(pieces,)`, the row of each piece, and the number of rows.
    """
    rows = np.empty(len(lengths), np.int64)
    pieces: list[int] = []
    rooms: list[int] = []  # of rows that are not full, each once, in order
    with_room: dict[int, list[int]] = {}
    order = np.argsort(-lengths, kind="stable")
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        at = bisect.bisect_left(rooms, length)
        if at < len(rooms):
            room = rooms[at]
            row = with_room[room].pop()
            if not with_room[room]:
                rooms.pop(at)
        else:
            row, room = len(pieces), row_length
            pieces.append(0)
        rows[index] = row
        pieces[row] += 1
        room -= length
        if room and pieces[row] < most:
            waiting = with_room.setdefault(room, [])
            if not waiting:
                bisect.insort(rooms, room)
            waiting.append(row)
    return rows, len(pieces)


# --- batches of like lengths ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class BucketPlan(GroupPlan):
    """The batches of one window, whose `counts` have as cells the items with padding.

    Args:
        buckets: int64 `(batches,)`, the bucket of each batch.
    """

    buckets: IntArray


def plan_buckets(
    lengths: IntArray,
    boundaries: Sequence[int],
    batch_sizes: Sequence[int],
    *,
    too_long: TooLong,
    seed: int,
    number: Sequence[int],
) -> BucketPlan:
    """Plan the batches of one window, each of elements of one bucket, in a random order.

    Args:
        lengths: int64 `(elements,)`, at least 0.
        boundaries: The largest length of each bucket, ascending.
        batch_sizes: The elements of a batch of each bucket; the last of a window may have fewer.
        too_long: What becomes of elements longer than the last boundary: TRUNCATE or DROP.
        seed: Decides the order of the batches.
        number: Two integers that name the window.
    """
    bounds_of, sizes = np.array(boundaries, np.int64), np.array(batch_sizes, np.int64)
    over = lengths > bounds_of[-1]
    count, tokens = int(np.count_nonzero(over)), int(lengths[over].sum())
    counts = PackCounts(len(lengths), int(lengths.sum()))
    kept = np.arange(len(lengths))
    if too_long is TooLong.DROP:
        kept = np.flatnonzero(~over)
        counts = dataclasses.replace(counts, dropped=count, dropped_tokens=tokens)
    elif count:
        lost = tokens - count * int(bounds_of[-1])
        counts = dataclasses.replace(counts, truncated=count, truncated_tokens=lost)
    bucket = np.minimum(np.searchsorted(bounds_of, lengths[kept]), len(sizes) - 1)
    order = np.argsort(bucket, kind="stable")
    bucket = bucket[order]
    in_bucket = np.bincount(bucket, minlength=len(sizes))
    batches = -(-in_bucket // sizes)
    place = run_numbers(in_bucket)
    batch = place // sizes[bucket] + starts_of(batches)[bucket]
    mixed = _mixed(int(batches.sum()), seed, number)
    buckets = np.empty(len(mixed), np.int64)
    buckets[mixed] = np.repeat(np.arange(len(sizes)), batches)
    batch = mixed[batch]
    by_batch = np.argsort(batch, kind="stable")
    bounds = np.searchsorted(batch[by_batch], np.arange(len(mixed) + 1))
    cells = int((np.diff(bounds) * bounds_of[buckets]).sum())
    counts = dataclasses.replace(counts, rows=len(mixed), cells=cells)
    return BucketPlan(kept[order][by_batch], bounds, lengths, counts, buckets)
