"""Reads of boxes and rows by readers that give the cells of a chunk in new memory.

Invariants: a read fills all of the requested memory, or has the errors of those requests that failed. Every
read of a round is started before the first one is waited for; rounds have at most `IN_FLIGHT_BYTES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import numpy as np

from windrow.core.threads import Ends
from windrow.errors import ReadError
from windrow.sources.base import AnyArray, IntArray, run_of
from windrow.sources.chunks import Box, Span, groups_read, partly_read

IN_FLIGHT_BYTES: Final = 256 * 2**20

Begin = Callable[[Sequence[Box]], "tuple[Sequence[int], Future[AnyArray]]"]
"""Starts reading boxes together; returns their first cell, and a future of values in new memory."""


def filled(
    groups: Sequence[Sequence[Box]],
    begin: Begin,
    *,
    apart: bool = False,
    exact: bool = True,
    again: bool = True,
) -> Future[None]:
    """Read groups of boxes, each group together; done when all boxes are filled.

    Args:
        groups: The boxes, in the order of the call.
        begin: Starts the read of a group.
        apart: Whether the boxes of a group lie in different chunks.
        exact: As for `groups_read`.
        again: Whether a group that comes damaged is read once more, its boxes alone if they are `apart`.
    """
    ends, context = Ends(len(groups), partial(groups_read, groups, exact=exact)), copy_context()

    def arrived(number: int, first: Sequence[int], read: Future[AnyArray]) -> None:
        error = _fill(groups[number], first, read)
        if again and isinstance(error, ReadError) and not error.is_unanswered:
            read_again(number)
        else:
            ends.end(number, error)

    def read_again(number: int) -> None:
        boxes = groups[number]
        some = [[box] for box in boxes] if apart else [boxes]
        try:
            read = context.copy().run(filled, some, begin, exact=exact, again=False)
            read.add_done_callback(lambda done: ends.end(number, done.exception()))
        except Exception as error:
            ends.end(number, error)

    for number, boxes in enumerate(groups):
        first, read = begin(boxes)
        read.add_done_callback(partial(arrived, number, first))
    return ends.done


def _fill(boxes: Sequence[Box], first: Sequence[int], read: Future[AnyArray]) -> Exception | None:
    """Fill boxes with what was read, and return the error."""
    if read.cancelled():
        return CancelledError()  # raised, it would hold this frame, and so be in a cycle
    try:
        # The values have memory of their own, since a late read must not write to boxes.
        for box in boxes:
            box.fill(read.result(), first)
    except Exception as error:
        return error
    return None


def as_boxes(wanted: Sequence[Span] | Sequence[Box]) -> list[Box]:
    """Requests for rows as requests for boxes."""
    return [
        one if isinstance(one, Box) else Box((one.first, *(0 for _ in one.out.shape[1:])), one.out)
        for one in wanted
    ]


def rows_read(
    rows: IntArray,
    chunk_of: Callable[[IntArray], IntArray],
    start: Callable[[Sequence[Span]], Future[None]],
    row_shape: Sequence[int],
    dtype: np.dtype[Any],
    *,
    apart: bool = True,
) -> AnyArray:
    """Rows `(n, ...)` in that order, in new memory, by one request for each chunk. Waits.

    Args:
        rows: The rows.
        chunk_of: A function that numbers the chunks of rising rows.
        start: Starts to read rows of chunks.
        row_shape: Shape of a row.
        dtype: The dtype of the values.
        apart: Whether a read that fails has the rest, and not only the error of the first rows.

    Raises:
        ReadError: If a chunk cannot be read.
    """
    distinct, take = np.unique(rows, return_inverse=True)
    found, errors = np.empty((len(distinct), *row_shape), dtype), dict[int, ReadError]()
    parts = np.split(np.arange(len(distinct)), np.flatnonzero(np.diff(chunk_of(distinct))) + 1)
    for some in _rounds(parts if len(distinct) else [], distinct, found):
        spans = []
        for part in some:
            first, stop = int(distinct[part[0]]), int(distinct[part[-1]]) + 1
            is_run = stop - first == len(part)
            out = found[part[0] : part[-1] + 1] if is_run else None
            spans.append(
                Span(
                    first, stop, np.empty((stop - first, *row_shape), dtype) if out is None else out
                )
            )
        error = start(spans).exception()
        rest = error.rest if isinstance(error, ReadError) else None
        if error is not None and rest is None:
            raise error
        lost = {} if rest is None else rest.errors
        if lost and not apart:
            raise lost[min(lost)]
        for number, (part, span) in enumerate(zip(some, spans, strict=True)):
            if number in lost:
                errors.update(dict.fromkeys(part.tolist(), lost[number]))
            elif len(span.out) != len(part):
                found[part] = span.out[distinct[part] - span.first]
    if run_of(take) is None:
        found = found[take]
    if errors:
        places = enumerate(take.tolist())
        raise partly_read(found, {place: errors[row] for place, row in places if row in errors})
    return found


def _rounds(parts: Sequence[IntArray], rows: IntArray, found: AnyArray) -> list[list[IntArray]]:
    """The parts that are read at a time."""
    most = max(1, IN_FLIGHT_BYTES // max(1, math.prod(found.shape[1:]) * found.dtype.itemsize))
    rounds: dict[int, list[IntArray]] = {}
    end = 0
    for part in parts:
        end += int(rows[part[-1]]) + 1 - int(rows[part[0]])
        rounds.setdefault(end // most, []).append(part)
    return list(rounds.values())
