"""An array to convert: what is known of it, and boxes of its values.

Invariants: an array pickles without what is open; a box is filled whole, from chunks that are each
decoded once, or there is an error.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.errors import ConversionError
from windrow.sources.pieces import Box
from windrow.sources.process import cores

AnyArray = npt.NDArray[Any]
Cells: TypeAlias = tuple[int, ...]
Cast = Literal["checked", "unsafe"]

# Small chunks are read some at a time, and so much at once.
_TURN_BYTES: Final = 1 << 20
_TURN_CHUNKS: Final = 4096
_IN_FLIGHT_BYTES: Final = 8 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayFacts:
    """What is known of an array before a value is read. Picklable.

    Args:
        name: In its group; nested names are joined by `/`, and '' is an array without a group.
        where: Its place, for messages.
        dtype: As delivered, in this machine's byte order.
        shape: Of the array; () for a scalar.
        chunk_shape: What is decoded as one.
        shift: Cells of the first chunk that lie before cell 0.
        dims: Names of the axes, None for one without; () where nothing tells.
        attributes: As they are stored, fit for JSON.
        fill_value: As in the metadata of Zarr v3; None where there is none.
    """

    name: str
    where: str
    dtype: np.dtype[Any]
    shape: Cells
    chunk_shape: Cells
    shift: Cells
    dims: tuple[str | None, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fill_value: Any = None

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize


class InputArray(abc.ABC):
    """An array that boxes are read of."""

    def __init__(self, facts: ArrayFacts) -> None:
        self.facts = facts

    @abc.abstractmethod
    def start(self, boxes: Sequence[Box]) -> Future[None]:
        """Start to fill boxes, each of which lies in one chunk; the future has a ReadError."""

    def read(
        self,
        first: Sequence[int],
        out: AnyArray,
        *,
        decoders: int = 1,
        cast: Cast = "checked",
    ) -> None:
        """Fill `out` with the cells from `first` on.

        Args:
            first: The first cell.
            out: Memory, in any order of its own; of another dtype if values are to be cast.
            decoders: Chunks that may be decoded at the same time.
            cast: Whether a value that the dtype of `out` cannot hold is an error.

        Raises:
            ReadError: If a chunk cannot be read; the message names it.
            ConversionError: If a value does not fit; the message names it.
        """
        if not out.size:
            return
        turns = self._turns(first, out)
        flying: collections.deque[tuple[Future[None], list[Box], list[Box]]] = collections.deque()
        most = max(1, min(decoders, 2 * cores(), _IN_FLIGHT_BYTES // _TURN_BYTES))
        try:
            for boxes in turns:
                if len(flying) == most:
                    self._end(*flying.popleft(), cast)
                raw = boxes
                if out.dtype != self.facts.dtype:
                    raw = [Box(b.first, np.empty(b.out.shape, self.facts.dtype)) for b in boxes]
                flying.append((self.start(raw), raw, boxes))
            while flying:
                self._end(*flying.popleft(), cast)
        finally:
            # After an error: nothing may be written any more to memory that is given back.
            wait([future for future, _, _ in flying])

    def _end(self, future: Future[None], raw: list[Box], boxes: list[Box], cast: Cast) -> None:
        future.result()
        if raw is boxes:
            return
        for held, box in zip(raw, boxes, strict=True):
            box.out[...] = self._casted(held, box.out.dtype, cast)

    def _casted(self, box: Box, dtype: np.dtype[Any], cast: Cast) -> AnyArray:
        with np.errstate(all="ignore"):
            found = box.out.astype(dtype)
        if cast == "unsafe":
            return found
        wrong = unfit(box.out, found)
        if wrong.any():
            at = np.argwhere(wrong)[0]
            cell = [int(f + k) for f, k in zip(box.first, at, strict=True)]
            raise ConversionError(
                f"array {self.facts.name!r} in {self.facts.where}: the value"
                f" {box.out[tuple(at)]} at {cell} does not fit {dtype}; choose another dtype, or"
                ' cast="unsafe" to take what comes'
            )
        return found

    def _turns(self, first: Sequence[int], out: AnyArray) -> Iterator[list[Box]]:
        """The parts of `out` that lie in one chunk each, some at a time, in C order of chunks."""
        turn: list[Box] = []
        held = 0
        for box in self._boxes(first, out):
            turn.append(box)
            held += max(box.out.nbytes, self.facts.chunk_bytes)
            if held >= _TURN_BYTES or len(turn) == _TURN_CHUNKS:
                yield turn
                turn, held = [], 0
        if turn:
            yield turn

    def _boxes(self, first: Sequence[int], out: AnyArray) -> Iterator[Box]:
        spans = []
        axes = zip(first, out.shape, self.facts.chunk_shape, self.facts.shift, strict=True)
        for begin, count, chunk, shift in axes:
            lines = range((begin + shift) // chunk * chunk - shift, begin + count, chunk)
            spans.append([(max(begin, k), min(begin + count, k + chunk)) for k in lines])
        for found in itertools.product(*spans):
            cut: list[Any] = [slice(a - f, b - f) for (a, b), f in zip(found, first, strict=True)]
            # With the dots it is a view also where there are no axes.
            yield Box(tuple(a for a, _ in found), out[(..., *cut)])


def unfit(values: AnyArray, cast: AnyArray) -> npt.NDArray[np.bool_]:
    """Where `cast` is not what `values` are: out of range, or cut off; rounding floats is neither."""
    if cast.dtype.kind not in "biu":
        wrong = np.isnan(cast) & ~np.isnan(values) | np.isinf(cast) & ~np.isinf(values)
        return np.asarray(wrong, np.bool_)
    with np.errstate(all="ignore"):
        # An integer of another sign may come back as it was.
        wrong = (cast.astype(values.dtype) != values) | ((cast < 0) != (values < 0))
        if values.dtype.kind not in "biu" and cast.dtype.kind != "b":
            # So may a number just out of range, where a processor takes the last one in it.
            wrong |= values >= np.asarray(float(int(np.iinfo(cast.dtype).max) + 1), values.dtype)
    return np.asarray(wrong, np.bool_)
