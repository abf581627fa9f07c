"""Budgets: how many bytes of pieces and records a look-ahead may hold, and what these weigh.

Invariant: what is weighed follows from a part's layout, or from pieces that lie evenly over it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from windrow.sources import ArrayPart, BoxPart, Part

IntArray = npt.NDArray[np.int64]

# Pieces of lists whose sizes are looked at for the largest: all of most sources.
_SAMPLED = 1 << 20
# What planning a record costs in indices. A fragment of a box costs more, since it is a view of a
# column too.
_INDEX_BYTES = 64
_BOX_BYTES, _AXIS_BYTES = 384, 64
_USUAL_KEPT = 0.25
# The largest part of a budget that pieces take, where a store then fits.
_MOST_KEPT = 0.75


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
    kept_share: float = _USUAL_KEPT

    @property
    def kept_bytes(self) -> int:
        """For pieces that wait on the shelf."""
        return int(self.resident_bytes * self.kept_share)

    @property
    def usual_bytes(self) -> int:
        """The same, where no room was made for a store."""
        return int(self.resident_bytes * _USUAL_KEPT)

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
        fits = self.kept_share < share <= _MOST_KEPT
        return dataclasses.replace(self, kept_share=share) if fits else self


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
