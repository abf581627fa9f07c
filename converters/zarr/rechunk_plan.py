"""Rechunking planned: which boxes of an array are read together, and which files they become.

One pass reads a block, whole files of the target, from all source chunks that touch it. If blocks
that fit into memory touch many more chunks than they hold, two passes are cheaper. The first reads
source chunks once and writes their values, sorted by the block that they belong to, into files
between. The second reads the pieces of each block back and writes the target.

All shapes are in the order of the target's axes. This module does not read or write.

Invariants: every file of the target is written once, from one block; the pieces of two passes tile
the array; a plan never uses more memory than it was given.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np

from windrow.errors import ConversionError

Cells: TypeAlias = tuple[int, ...]

# To write a byte between two passes and read it back costs as much as to decode this many.
_BETWEEN_COST: Final = 2.0
# Blocks grow to this size where that costs nothing: fewer of them are quicker to begin and end.
_BLOCK_BYTES: Final = 64 << 20
# Numbers of chunks in flight that are tried in turn, and by how much a smaller one must be cheaper.
_AT_ONCE: Final = (8, 4, 2, 1)
_GOOD_ENOUGH: Final = 1.1
# Small chunks of the source that are read at once.
_TURNS_BYTES: Final = 8 << 20
# Chunks that are inspected along an axis, to judge how often they are read.
_JUDGED: Final = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class CellBox:
    """Cells `[first, first + shape)` of an array."""

    first: Cells
    shape: Cells

    @property
    def cells(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def within(self, whole: CellBox) -> tuple[slice, ...]:
        """Return where this box lies in one around it."""
        axes = zip(self.first, self.shape, whole.first, strict=True)
        return tuple(slice(first - w, first - w + size) for first, size, w in axes)

    def cut(self, size: Cells, shift: Cells | None = None) -> Iterator[CellBox]:
        """Yield the parts of this box between the lines of a grid, in C order.

        `shift` cells of the grid's first part lie before cell 0, by default none.
        """
        spans = []
        axes = zip(self.first, self.shape, size, shift or (0,) * len(size), strict=True)
        for first, count, step, before in axes:
            stop = first + count
            lines = range((first + before) // step * step - before, stop, step)
            spans.append([(max(first, k), min(stop, k + step)) for k in lines])
        for found in itertools.product(*spans):
            yield CellBox(tuple(a for a, _ in found), tuple(b - a for a, b in found))


@dataclasses.dataclass(frozen=True, slots=True)
class Grids:
    """An array as it lies in the source and as it is to lie in the target.

    Args:
        shape: The shape of the array.
        source_chunk: The cells that are decoded as one in the source.
        source_shift: Cells of the first chunk that lie before cell 0.
        file_shape: The cells that are stored as one file in the target.
        source_itemsize: Bytes of a value in the source.
        itemsize: Bytes of a value in the target, and in blocks.
        encoding_bytes: Memory for one chunk of the target while it is encoded.
        index_bytes: Memory for the index of the chunks of a file.
        objects: Whether values are objects, which files between two passes do not hold.
    """

    shape: Cells
    source_chunk: Cells
    source_shift: Cells
    file_shape: Cells
    source_itemsize: int
    itemsize: int
    encoding_bytes: int
    index_bytes: int = 0
    objects: bool = False

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk of the source."""
        return math.prod(self.source_chunk) * self.source_itemsize

    @property
    def file_bytes(self) -> int:
        """Bytes of the values of a file of the target, as far as they are in the array."""
        return math.prod(_least(self.file_shape, self.shape)) * self.itemsize

    @property
    def decoding_bytes(self) -> int:
        """Memory for one chunk while it is decoded: as it is stored, and its values."""
        return 2 * self.chunk_bytes

    @property
    def least_bytes(self) -> int:
        """Memory with which the array can be converted, in one pass or in two."""
        chunk = math.prod(_least(self.source_chunk, self.shape)) * self.itemsize
        encoding = self.encoding_bytes + self.index_bytes
        one = self.file_bytes + max(self.decoding_bytes, encoding)
        two = max(chunk + self.decoding_bytes, self.file_bytes + encoding)
        return (one if self.objects else min(one, two)) + _TURNS_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class RechunkPlan:
    """How an array is rechunked. Picklable.

    Args:
        grids: The array.
        block: The shape of a block, whole files of the target.
        between: The shape that the first of two passes reads at a time; None for one pass.
        amplification: Cells that are decoded for each one that is wanted.
        memory_bytes: The most memory for one block: its values and all that is in flight.
        decoders: Chunks that may be decoded at the same time.
        ahead_bytes: Memory for what is encoded ahead.
    """

    grids: Grids
    block: Cells
    between: Cells | None
    amplification: float
    memory_bytes: int
    decoders: int
    ahead_bytes: int

    @property
    def cost(self) -> float:
        """The cost of reading, relative to decoding every value once."""
        return self.amplification + (0.0 if self.between is None else _BETWEEN_COST)

    def blocks(self) -> Iterator[CellBox]:
        """The blocks of the target, in C order; none of an array without values."""
        return _boxes(self.grids.shape, self.block)

    def reads(self) -> Iterator[CellBox]:
        """What the first of two passes reads at a time, in C order."""
        return _boxes(self.grids.shape, self.between or self.block)

    def pieces_of_read(self, read: CellBox) -> Iterator[tuple[CellBox, int]]:
        """The pieces of what the first pass has read: each with its first cell in the file between."""
        begin = 0
        for piece in read.cut(self.block):
            yield piece, begin
            begin += piece.cells

    def pieces_of_block(self, block: CellBox) -> Iterator[tuple[CellBox, CellBox, int]]:
        """The pieces of a block: the read that each was in, its box, its first cell in that file."""
        size = self.between or self.block
        for piece in block.cut(size):
            first = tuple(f // s * s for f, s in zip(piece.first, size, strict=True))
            read = CellBox(first, _least(size, _minus(self.grids.shape, first)))
            yield read, piece, self._place(read, piece)

    def _place(self, read: CellBox, piece: CellBox) -> int:
        """Cells of `read` that `pieces_of_read` gives before `piece`."""
        # The pieces lie in C order: before this one come those that are before it along the first
        # axis, then, of the pieces level with it there, the ones before it along the second, and so on.
        begin, level = 0, 1
        for axis, (first, size) in enumerate(zip(piece.first, piece.shape, strict=True)):
            begin += level * (first - read.first[axis]) * math.prod(read.shape[axis + 1 :])
            level *= size
        return begin


def plan_rechunk(grids: Grids, memory_bytes: int, *, name: str = "") -> RechunkPlan:
    """Return the cheapest plan that stays within `memory_bytes`.

    Args:
        grids: The array.
        memory_bytes: The memory for one block: its values, and chunks and files in flight.
        name: The array's name, for the message.

    Raises:
        ConversionError: If that is too little for one chunk or one file; the message says what is
            enough.
    """
    plans = [
        plan for at_once in _AT_ONCE for plan in _plans(grids, memory_bytes - _TURNS_BYTES, at_once)
    ]
    if not plans:
        raise ConversionError(
            f"array {name!r}: {memory_bytes:,} bytes of memory are too few for chunks of"
            f" {grids.chunk_bytes:,} bytes in the source and files of {grids.file_bytes:,} bytes in"
            f" the target; give at least {grids.least_bytes:,} bytes more than the process itself"
            " takes, or choose smaller shards"
        )
    least = min(plan.cost for plan in plans)
    # The first of those that are good enough has most chunks in flight.
    return next(plan for plan in plans if plan.cost <= _GOOD_ENOUGH * least)


def _plans(grids: Grids, room_bytes: int, at_once: int) -> Iterator[RechunkPlan]:
    """Yield plans of one and two passes whose blocks leave room for chunks in flight at once."""
    decoding = grids.decoding_bytes * at_once
    encoding = grids.encoding_bytes * at_once + grids.index_bytes
    both = max(decoding, encoding)
    axes = [_multiples(n, f, s) for n, f, s in _axes(grids)]
    best = _cheapest(grids, axes, room_bytes - both)
    if best is not None:
        block = _grown(grids, best, min(room_bytes - both, _BLOCK_BYTES))
        yield _plan(grids, block, None, room_bytes, _bytes(grids, block) + both)
    room = (room_bytes - decoding, room_bytes - encoding)
    axes = [_multiples(n, s, s) | _parts(n, s) for n, _, s in _axes(grids)]
    between = _cheapest(grids, axes, room[0])
    block = _least(grids.file_shape, grids.shape)
    if between is None or grids.objects or _bytes(grids, block) > room[1]:
        return
    between, block = _with_few_pieces(grids, between, block, room)
    used = max(_bytes(grids, between) + decoding, _bytes(grids, block) + encoding)
    yield _plan(grids, block, between, room_bytes, used)


def _plan(
    grids: Grids, block: Cells, between: Cells | None, room_bytes: int, used_bytes: int
) -> RechunkPlan:
    read = block if between is None else between
    left = room_bytes - _bytes(grids, read)
    return RechunkPlan(
        grids=grids,
        block=block,
        between=between,
        amplification=math.prod(_reads_of(grids, read)),
        memory_bytes=used_bytes + _TURNS_BYTES,
        decoders=max(1, left // max(1, grids.decoding_bytes)),
        ahead_bytes=room_bytes - _bytes(grids, block) - grids.index_bytes,
    )


def _with_few_pieces(
    grids: Grids, between: Cells, block: Cells, room: tuple[int, int]
) -> tuple[Cells, Cells]:
    """Return both sides, grown as far as they fit, so that there are few and large pieces."""
    sides = (between, block)
    while True:
        best = (_pieces(grids.shape, *sides), sides)
        for side, axis in itertools.product(range(2), range(len(grids.shape))):
            grown = _doubled(grids.shape, sides[side], axis)
            if _bytes(grids, grown) <= room[side]:
                tried = (grown, sides[1]) if side == 0 else (sides[0], grown)
                best = min(best, (_pieces(grids.shape, *tried), tried), key=lambda found: found[0])
        if best[1] is sides:
            return sides
        sides = best[1]


# --- blocks --------------------------------------------------------------------------------------


def _axes(grids: Grids) -> Iterator[tuple[int, int, int]]:
    """Cells, cells of a file and of a source chunk along each axis."""
    return zip(grids.shape, grids.file_shape, grids.source_chunk, strict=True)


def _multiples(n: int, unit: int, other: int) -> set[int]:
    """Sizes along an axis of `n` cells that are multiples of `unit`, or all of it."""
    found = {max(1, n)}
    for begin in (unit, 3 * unit, math.lcm(unit, other), -(-other // unit) * unit):
        size = begin
        while size < n:
            found.add(size)
            size *= 2
    return found


def _parts(n: int, chunk: int) -> set[int]:
    """Parts of a chunk, for chunks that fill most of the memory."""
    return {max(1, min(n, -(-chunk // parts))) for parts in (2, 4, 8, 16)}


def _cheapest(grids: Grids, axes: Sequence[set[int]], room_bytes: int) -> Cells | None:
    """Sizes along the axes that fit and read fewest chunks again; of these, the smallest."""
    # The best for the first axes, by cells: what is larger must read less.
    front: list[tuple[int, float, Cells]] = [(1, 1.0, ())] if grids.itemsize <= room_bytes else []
    for axis, sizes in enumerate(axes):
        judged = [(size, _reads_along(grids, axis, size)) for size in sorted(sizes)]
        found = sorted(
            (cells * size, reads * more, (*block, size))
            for cells, reads, block in front
            for size, more in judged
            if cells * size * grids.itemsize <= room_bytes
        )
        front = []
        for entry in found:
            if not front or entry[1] < front[-1][1] * (1 - 1e-9):
                front.append(entry)
    return front[-1][2] if front else None


def _reads_of(grids: Grids, block: Cells) -> list[float]:
    return [_reads_along(grids, axis, size) for axis, size in enumerate(block)]


def _reads_along(grids: Grids, axis: int, size: int) -> float:
    """Cells of the chunks that blocks of `size` touch along an axis, for each cell of the array."""
    n, chunk, shift = grids.shape[axis], grids.source_chunk[axis], grids.source_shift[axis]
    first = np.arange(min(-(-n // size), _JUDGED), dtype=np.int64) * size
    if not len(first):
        return 1.0
    stop = np.minimum(first + size, n)
    low = np.maximum((first + shift) // chunk * chunk - shift, 0)
    high = np.minimum(-(-(stop + shift) // chunk) * chunk - shift, n)
    return float((high - low).sum() / (stop[-1] - first[0]))


def _grown(grids: Grids, block: Cells, room_bytes: int) -> Cells:
    """Join as many blocks as fit into one; it touches no more chunks than they do."""
    for axis in reversed(range(len(block))):
        while (more := _doubled(grids.shape, block, axis)) != block:
            if _bytes(grids, more) > room_bytes:
                break
            block = more
    return block


def _doubled(shape: Cells, block: Cells, axis: int) -> Cells:
    size = max(1, min(2 * block[axis], shape[axis]))
    return (*block[:axis], size, *block[axis + 1 :])


def _bytes(grids: Grids, block: Cells) -> int:
    return math.prod(block) * grids.itemsize


def _pieces(shape: Cells, a: Cells, b: Cells) -> int:
    """Number of pieces between two passes in blocks of these shapes."""
    counts = (
        -(-n // p) + -(-n // q) - -(-n // math.lcm(p, q))
        for n, p, q in zip(shape, a, b, strict=True)
    )
    return math.prod(counts)


# --- boxes ---------------------------------------------------------------------------------------


def runs(box: CellBox, most_cells: int) -> Iterator[tuple[CellBox, int]]:
    """Cut a box into parts of at most `most_cells` cells, at least one, in its C order.

    Yields:
        Each part, and the number of cells of `box` before it.
    """
    most_cells = max(1, most_cells)
    rest = [math.prod(box.shape[k:]) for k in range(len(box.shape) + 1)]
    # Later axes are taken whole, earlier axes one by one.
    axis = next((k for k, cells in enumerate(rest[1:]) if cells <= most_cells), 0)
    step = max(1, most_cells // max(1, rest[axis + 1])) if box.shape else 1
    size = (*(1 for _ in box.shape[:axis]), step, *box.shape[axis + 1 :])
    begin = 0
    for part in CellBox((0,) * len(box.shape), box.shape).cut(size[: len(box.shape)]):
        first = tuple(f + k for f, k in zip(box.first, part.first, strict=True))
        yield CellBox(first, part.shape), begin
        begin += part.cells


def _boxes(shape: Cells, size: Cells) -> Iterator[CellBox]:
    return CellBox((0,) * len(shape), shape).cut(size)


def _least(a: Cells, b: Cells) -> Cells:
    """The smaller size along each axis, at least 1: also of an array without values."""
    return tuple(max(1, min(x, y)) for x, y in zip(a, b, strict=True))


def _minus(a: Cells, b: Cells) -> Cells:
    return tuple(x - y for x, y in zip(a, b, strict=True))
