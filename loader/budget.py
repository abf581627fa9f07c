"""Budgets: how many bytes of pieces and records a look-ahead may hold, and what these weigh.

Invariant: what is weighed follows from a part's layout, or from pieces that lie evenly over it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from windrow.sources import ArrayPart, BoxPart, LaidOutSource, Part, is_far

IntArray = npt.NDArray[np.int64]

# Pieces of lists whose sizes are looked at for the largest: all of most sources.
_SAMPLED = 1 << 20
# What planning a record costs in indices. A fragment of a box costs more, since it is a view of a
# column too.
_INDEX_BYTES = 64
_BOX_BYTES, _AXIS_BYTES = 384, 64
# Tickets of parts to plan from one round to the next.
_TICKETS, _FEW_TICKETS = 16, 4
# The part of a budget that pieces take, where a store does not fit.
USUAL_KEPT = 0.25
# The largest part of a budget that pieces take, where a store then fits.
MOST_KEPT = 0.75


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Bytes for the pieces of one part.

    Args:
        resident_bytes: Of pieces that are kept, and of records of the rounds that are planned.
        in_flight_bytes: Of pieces that are being read.
        kept_share: How much of `resident_bytes` is for pieces. A quarter is enough for the windows
            of most block shuffles; for orders that come back to every piece of a store that does
            not fit the rest does more, where only records are kept.
    """

    resident_bytes: int
    in_flight_bytes: int
    kept_share: float = USUAL_KEPT

    @property
    def kept_bytes(self) -> int:
        """For pieces that wait on the shelf."""
        return int(self.resident_bytes * self.kept_share)

    @property
    def usual_bytes(self) -> int:
        """The same, where no room was made for a store."""
        return int(self.resident_bytes * USUAL_KEPT)

    @property
    def horizon_bytes(self) -> int:
        """For the records of the rounds that are planned, which may be there long before."""
        return self.resident_bytes - self.kept_bytes

    def share(self, weight: float) -> Budget:
        """A part of it."""
        return dataclasses.replace(
            self,
            resident_bytes=int(self.resident_bytes * weight),
            in_flight_bytes=int(self.in_flight_bytes * weight),
        )

    def for_store(self, store_bytes: int) -> Budget:
        """The same with room for all pieces of a store, where that leaves a quarter at least."""
        share = store_bytes / self.resident_bytes
        fits = self.kept_share < share <= MOST_KEPT
        return dataclasses.replace(self, kept_share=share) if fits else self


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What a look-ahead has room for of one part of a source.

    Args:
        source: The source.
        part: One of its parts.
        piece_bytes: Bytes of its largest piece, which a slot has.
        record_bytes: Bytes that a record takes of the part.
        index_bytes: Bytes to plan one fragment.
        most_in_flight: Pieces that are being read at a time at most.
        slots: Pieces that are on the shelf, or being read, at most.
        keeps: Whether pieces are kept from the start, since the store is small; else they are once
            one that was given up is wanted again, where all of them fit.
    """

    source: LaidOutSource
    part: Part
    piece_bytes: int
    record_bytes: int
    index_bytes: int
    most_in_flight: int
    slots: int
    keeps: bool

    @property
    def fits(self) -> bool:
        """Whether all pieces have a slot."""
        return self.part.piece_count <= self.slots


def rounds_at_once(rooms: Sequence[Room]) -> int:
    """Rounds to plan from one to the next, until the horizon is full; 0 for no parts.

    To know more of the future saves reads where pieces are read again, and requests under way hide
    each other's delay. Where neither is so, the threads that decode should not wait for plans.
    """
    if not rooms:
        return 0
    few = all(room.fits and not is_far(room.source) for room in rooms)
    return max(1, (_FEW_TICKETS if few else _TICKETS) // len(rooms))


def rooms(sources: Sequence[LaidOutSource], budget: Budget) -> tuple[list[Room], Budget]:
    """The room of each part that is read through a look-ahead; and the budget they share."""
    parts = [(source, part) for source in sources for part in source.parts]
    planned = [(source, part) for source, part in parts if part.piece_count and not part.alone]
    weights = [largest_bytes(part) for _, part in planned]
    most = max((part.piece_count for _, part in planned), default=0)
    budget = budget.for_store(most * sum(weights))
    found = []
    for (source, part), weight in zip(planned, weights, strict=True):
        own = budget.share(weight / sum(weights))
        in_flight = max(2, own.in_flight_bytes // weight)
        slots = max(1, min(part.piece_count, in_flight + own.kept_bytes // weight))
        found.append(
            Room(
                source=source,
                part=part,
                piece_bytes=weight,
                record_bytes=bytes_per_record(part, len(source)),
                index_bytes=index_bytes_of(part),
                most_in_flight=in_flight,
                slots=slots,
                keeps=part.piece_count <= in_flight + own.usual_bytes // weight,
            )
        )
    return found, budget


def _sampled_bytes(part: Part) -> IntArray:
    """Decoded bytes of pieces that lie evenly over a part."""
    count = min(part.piece_count, _SAMPLED)
    return part.decoded_bytes(np.linspace(0, part.piece_count - 1, count).astype(np.int64))


def largest_bytes(part: Part) -> int:
    """Bytes of a part's largest piece in memory, at least 1."""
    if isinstance(part, ArrayPart):
        return max(1, part.piece_rows * part.row_bytes)
    if isinstance(part, BoxPart):
        return max(1, part.piece_bytes)
    return int(_sampled_bytes(part).max(initial=1))


def bytes_per_record(part: Part, records: int) -> int:
    """Bytes in memory of what one of so many records takes of a part."""
    if isinstance(part, ArrayPart):
        return part.row_bytes * (part.size or 1)
    if isinstance(part, BoxPart):
        return part.record_bytes
    return int(_sampled_bytes(part).mean() * part.piece_count / max(1, records))


def index_bytes_of(part: Part) -> int:
    """Bytes to plan one fragment."""
    if isinstance(part, BoxPart):
        return _BOX_BYTES + _AXIS_BYTES * len(part.shape)
    return _INDEX_BYTES
