"""What the rows of a stream are made of: elements of chains with random access.

A node that moves, drops or joins rows does the same to their `MadeOf`, so that the records of any row
can be named later without reading (`windrow.engine.record_trace`).

Invariant: nothing here depends on values, and what rows are made of decides nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from windrow.sources.base import IntArray
from windrow.transforms.positions import run_numbers, starts_of


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MadeOf:
    """The elements that each row is made of.

    A batch is one row. It has a part for each row that was put into it. Any other row has one part.

    Args:
        found: The items, as `items` has them; with `chain` only the element of each, int64 `(n,)`.
        bounds: int64 `(rows + 1,)`, the items of each row; None for one item each.
        parts: int64 `(rows,)`, the number of parts of each row; None for one part each.
        chain: The chain of all items, if item `k` of each row is its part `k`. Most streams are of
            such rows, which cost nothing until their items are asked for.

    Example:
        >>> import numpy as np
        >>> from windrow.transforms.made_of import MadeOf
        >>> rows = MadeOf.of_elements(0, np.array([7, 5, 3, 1])).taken(np.array([3, 0, 1]))
        >>> rows.items[:, 2].tolist(), rows.grouped([0, 2, 3]).parts.tolist()
        ([1, 7, 5], [2, 1])
    """

    found: IntArray
    bounds: IntArray | None = None
    parts: IntArray | None = None
    chain: int | None = None

    @property
    def items(self) -> IntArray:
        """The items, int64 `(n, 7)`; the items of a row are in order, and so are the rows.

        The part of the row, the number of the chain, and the element of that chain; then, for one row
        of an element that is a batch, the number of that row and of all rows, else 0 and 0; the
        place in the row, which items that are zipped share, and parts of parts do not; last how many
        rows were put into the batch: 0 for a row that is not a batch, -1 for one packed of several.
        """
        if self.chain is None:
            return self.found
        items = np.zeros((len(self.found), 7), np.int64)
        if self.bounds is not None:
            first = np.repeat(self.bounds[:-1], np.diff(self.bounds))
            items[:, 0] = items[:, 5] = np.arange(len(items)) - first
        items[:, 1] = self.chain
        items[:, 2] = self.found
        if self.parts is not None:
            items[:, 6] = np.repeat(self.parts, np.diff(self._full()[0]))
        return items

    @classmethod
    def of_elements(cls, chain: int, elements: IntArray, bounds: IntArray | None = None) -> MadeOf:
        """Rows of the elements of one chain.

        Args:
            chain: The number of the chain: see `Inputs.chain_number`.
            elements: int64 `(n,)`.
            bounds: The elements of each row, for rows that are packed of several; else one each.
        """
        rows = cls(elements, chain=chain)
        return rows if bounds is None else rows._joined(bounds)

    def __len__(self) -> int:
        return len(self.found) if self.bounds is None else len(self.bounds) - 1

    def sliced(self, start: int, stop: int) -> MadeOf:
        """Rows `[start, stop)`."""
        if self.bounds is None:
            return MadeOf(self.found[start:stop], chain=self.chain)
        bounds = self.bounds[start : stop + 1]
        parts = None if self.parts is None else self.parts[start:stop]
        found = self.found[bounds[0] : bounds[-1]]
        return MadeOf(found, bounds - bounds[0], parts, self.chain)

    def taken(self, at: IntArray) -> MadeOf:
        """The rows at positions `at`."""
        if self.bounds is None:
            return MadeOf(self.found[at], chain=self.chain)
        counts = np.diff(self.bounds)[at]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        shift = np.repeat(self.bounds[at] - bounds[:-1], counts)
        parts = None if self.parts is None else self.parts[at]
        return MadeOf(self.found[np.arange(bounds[-1]) + shift], bounds, parts, self.chain)

    def grouped(self, cuts: Sequence[int]) -> MadeOf:
        """Batches of the rows between each two neighbouring `cuts`, which cover all rows."""
        at = np.asarray(cuts, np.int64)
        if self.chain is not None and self.bounds is None:
            return MadeOf(self.found, at, at[1:] - at[:-1], self.chain)
        bounds, _ = self._full()
        items, row = self.items.copy(), np.repeat(np.arange(len(self)), np.diff(bounds))
        places = np.ones(len(self), np.int64)
        np.maximum.at(places, row, items[:, 5] + 1)
        before = np.concatenate([[0], np.cumsum(places)])
        first = np.repeat(at[:-1], np.diff(at))
        items[:, 0] = (np.arange(len(self)) - first)[row]
        items[:, 5] += (before[:-1] - before[first])[row]
        items[:, 6] = np.repeat(np.diff(at), np.diff(at))[row]
        return MadeOf(items, bounds[at], np.diff(at))

    def spread(self, counts: IntArray) -> MadeOf:
        """Each row `counts` times, for what is made of it."""
        return self.taken(np.repeat(np.arange(len(self)), counts))

    def ungrouped(self, counts: IntArray) -> MadeOf:
        """The rows of batches, which have `counts` rows.

        A batch that is an element of a chain has the rows of that element. Any other has the rows that
        were put into it; if their number is another one, each row has all items of its batch.
        """
        bounds, _ = self._full()
        batch = np.repeat(np.arange(len(counts)), np.diff(bounds))
        is_part = np.where(self.items[:, 6] == 0, 1, self.items[:, 6]) == counts[batch]
        times = np.where(is_part, 1, counts[batch])
        of = np.repeat(np.arange(len(times)), times)
        items, is_part, rows = self.items[of], is_part[of], counts[batch[of]]
        number = np.where(is_part, items[:, 0], run_numbers(times))
        is_element = (items[:, 6] == 0) & (items[:, 4] == 0) & ~is_part
        items[is_element, 3], items[is_element, 4] = number[is_element], rows[is_element]
        items[:, 0], items[:, 6] = 0, np.where(is_part | is_element, 0, -1)
        row = starts_of(counts)[batch[of]] + number
        # Places begin at 0 in each row that was put into its batch.
        least = np.full(counts.sum(), items[:, 5].max(initial=0))
        np.minimum.at(least, row[is_part], items[is_part, 5])
        items[is_part, 5] -= least[row[is_part]]
        each = np.bincount(row, minlength=len(least))
        order = np.argsort(row, kind="stable")
        return MadeOf(items[order], np.concatenate([[0], np.cumsum(each)]))

    def packed(self, rows: Sequence[Sequence[int]]) -> MadeOf:
        """Rows that are packed of some of these rows, each one part."""
        order = np.array([n for row in rows for n in row], np.int64)
        return self.taken(order)._joined(np.cumsum([0, *map(len, rows)]))

    def _joined(self, cuts: IntArray) -> MadeOf:
        """Rows of one part of the rows between each two neighbouring `cuts`."""
        bounds, _ = self._full()
        items = self.items.copy()
        items[:, 0], items[:, 6] = 0, -1
        return MadeOf(items, bounds[cuts])

    def _full(self) -> tuple[IntArray, IntArray]:
        bounds = np.arange(len(self.found) + 1) if self.bounds is None else self.bounds
        parts = np.ones(len(bounds) - 1, np.int64) if self.parts is None else self.parts
        return bounds, parts


def end_to_end(rows: Sequence[MadeOf]) -> MadeOf:
    """Rows end to end."""
    chain = rows[0].chain
    are_batches = [each.parts is not None for each in rows]
    if any(each.chain != chain for each in rows) or len(set(are_batches)) > 1:
        chain = None
    found = np.concatenate([each.items if chain is None else each.found for each in rows])
    if all(each.bounds is None for each in rows):
        return MadeOf(found, chain=chain)
    full = [each._full() for each in rows]
    counts = np.concatenate([np.diff(bounds) for bounds, _ in full])
    parts = np.concatenate([parts for _, parts in full])
    return MadeOf(found, np.concatenate([[0], np.cumsum(counts)]), parts, chain)


def side_by_side(rows: Sequence[MadeOf]) -> MadeOf:
    """Each row is made of the same row of all."""
    full = [each._full() for each in rows]
    counts = [np.diff(bounds) for bounds, _ in full]
    of_row = np.concatenate([np.repeat(np.arange(len(each)), each) for each in counts])
    items = np.concatenate([each.items for each in rows])[np.argsort(of_row, kind="stable")]
    bounds = np.concatenate([[0], np.cumsum(np.sum(counts, axis=0))])
    return MadeOf(items, bounds, np.max([parts for _, parts in full], axis=0))


def merged(parts: Sequence[tuple[MadeOf, IntArray]], rows: int) -> MadeOf:
    """One `MadeOf` of `rows` rows; row `k` of a part becomes row `at[k]`."""
    order = np.empty(rows, np.int64)
    order[np.concatenate([at for _, at in parts])] = np.arange(rows)
    return end_to_end([each for each, _ in parts]).taken(order)
