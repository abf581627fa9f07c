"""Lengths of the records of a chain's sources, for what is planned before anything is read.

A length belongs to a record of a source. Index nodes permute records, so the lengths of elements are
found by walking down with their positions: `Node.lengths_of` does that, for as many as are asked for.

Invariant: lengths are int64 `(records,)`, none is negative, and no record is read to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from windrow.core.text import with_article
from windrow.errors import ArgumentError, PlanError, SourceError, WindrowError
from windrow.sources.base import IntArray, KnowsLengths, KnowsSomeLengths

GIVE_LENGTHS: Final = (
    "give lengths=, one integer per record of each source, or count them once with"
    " windrow.lengths(dataset)"
)


class RecordLengths:
    """Lengths of the records of sources: those given, or those that the sources know."""

    def __init__(
        self, sources: Sequence[Any], given: Sequence[IntArray] | IntArray | None = None
    ) -> None:
        """Check the lengths that are given; a source is asked for its own when they are needed.

        Args:
            sources: The sources of a chain, in the order of `Node.sources`.
            given: For each source an array of integers, one per record; or the array, of a chain
                with one source. None for what the sources know.

        Raises:
            ArgumentError: If they are not arrays of integers.
            PlanError: If they are too few or too many, or one is negative.
        """
        self.are_given: Final = given is not None
        """Whether the user gave them, also for what functions make of records."""
        self._found: dict[int, IntArray] = {}
        # The sources too: their identity is theirs as long as they are alive.
        self._sources = list(sources)
        if given is None:
            return
        arrays = _one_per_source(given, sources)
        for number, (array, source) in enumerate(zip(arrays, sources, strict=True)):
            who = "lengths" if len(sources) == 1 else f"lengths[{number}]"
            self._found[id(source)] = checked(array, source, who, PlanError, ArgumentError)

    def of(self, source: Any, records: IntArray) -> IntArray:
        """The lengths of some records of a source, which is asked for all lengths only if it must be.

        Raises:
            PlanError: If neither the user nor the source gives them.
            SourceError: If the source gives wrong ones.
        """
        if id(source) not in self._found and isinstance(source, KnowsSomeLengths):
            some = source.lengths_of(records)
            if some is not None:
                return _checked_some(some, source, records)
        return self._all(source)[records]

    def _all(self, source: Any) -> IntArray:
        found = self._found.get(id(source))
        if found is None:
            name = type(source).__name__
            own = source.lengths() if isinstance(source, KnowsLengths) else None
            if own is None:
                raise PlanError(
                    f"lengths: {name} does not know the lengths of its records; {GIVE_LENGTHS}"
                )
            found = checked(own, source, f"{name}.lengths()", SourceError, SourceError)
            self._found[id(source)] = found
        return found


def checked(
    value: Any,
    source: Any,
    who: str,
    wrong: Callable[[str], WindrowError],
    not_integers: Callable[[str], WindrowError],
) -> IntArray:
    """`value` as the lengths of all records of a source.

    Args:
        value: Integers, one per record.
        source: The source, for its number of records.
        who: The giver's name, for messages.
        wrong: Makes the error for a wrong number of lengths, and for a negative one.
        not_integers: Makes the error for other values than integers in one dimension.
    """
    array = np.asarray(value)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise not_integers(
            f"{who} must be integers in one dimension, one per record, got an array of shape"
            f" {array.shape} and dtype {array.dtype}"
        )
    if len(array) != len(source):
        raise wrong(
            f"{who} has {len(array):,} lengths for {len(source):,} records of {source!r}; length r"
            " belongs to record r of the source, before slices and shuffles"
        )
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise wrong(f"{who}: length {array.max()} is too large; choose lengths below 2**63")
    lengths = array.astype(np.int64, copy=False)
    return _not_negative(lengths, range(len(lengths)), who, wrong)


def _checked_some(value: Any, source: Any, records: IntArray) -> IntArray:
    """`value` as the lengths of some records of a source."""
    who, array = f"{type(source).__name__}.lengths_of()", np.asarray(value)
    if array.shape != records.shape or (array.size and array.dtype.kind not in "iu"):
        raise SourceError(
            f"{who} must give one integer for each of {len(records):,} records, got an array of shape"
            f" {array.shape} and dtype {array.dtype}"
        )
    return _not_negative(array.astype(np.int64, copy=False), records, who, SourceError)


def _not_negative(
    found: IntArray,
    records: Sequence[int] | IntArray,
    who: str,
    wrong: Callable[[str], WindrowError],
) -> IntArray:
    if found.size and found.min() < 0:
        at = int(np.argmax(found < 0))
        raise wrong(
            f"{who}: the length of record {records[at]:,} is {found[at]}; lengths must be at least 0"
        )
    return found


def _one_per_source(given: Any, sources: Sequence[Any]) -> list[Any]:
    if isinstance(given, np.ndarray) and len(sources) == 1:
        return [given]
    if isinstance(given, (str, bytes, np.ndarray)) or not isinstance(given, Sequence):
        shown = "one array" if isinstance(given, np.ndarray) else with_article(type(given).__name__)
        raise ArgumentError(
            f"lengths must be a list with one array for each of {len(sources)} sources, got {shown}"
        )
    if len(given) != len(sources):
        shown = ", ".join(type(source).__name__ for source in sources)
        raise PlanError(
            f"lengths: {len(given)} arrays for {len(sources)} sources ({shown}); give one for"
            " each, in the order in which the chain names them"
        )
    return list(given)
