"""Handover: objects on their way between processes, with their arrays in shared memory.

Contract:
1. What is opened equals what was sent, types and dtypes included; arrays can be written to.
2. An array is copied once on its way, into shared memory, and not at all if it lies there already.
3. A message may be opened anywhere that the same memory is mapped, at any address.
4. Whatever does not fit into shared memory is in the message itself: slower, never wrong.
"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import functools
import math
import pickle
import struct
import traceback
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from windrow.errors import ElementError
from windrow.sending import cloudpickle

Bytes = npt.NDArray[np.uint8]

# Arrays start on a line of the cache, as those that NumPy's users align by hand.
_ALIGNMENT_BYTES = 64
# Pickles from this size go to shared memory as arrays do: bytes and strings are part of them.
# The pickler, too, writes strings from this size apart.
_LARGE_PICKLE_BYTES = 64 << 10
# Smaller arrays travel in the pickle: a place of their own costs more than a second copy.
_SMALL_BYTES = 512
_MAIN = b"_main__"  # of a program, and `__mp_main__` of one that multiprocessing started
# Where an array of a message is.
_INSIDE, _IN_MEMORY, _IN_GIVEN = range(3)
# Which memories a message refers to, and how many places follow: the pickle's, then the arrays'.
_HEADER = struct.Struct("<II")
_TO_MEMORY, _TO_GIVEN = 1, 2
_PLACE_WORDS = 3
# Stands in the pickle for the next array outside it. Writable, so that what is opened is, too.
_STAND_IN = pickle.PickleBuffer(bytearray())


# --- parcels -------------------------------------------------------------------------------------


class Room:
    """A memory of which parts are handed out from its start. Not thread-safe.

    Attributes:
        memory: The memory; None for none, where all arrays are ordinary ones.
        used_bytes: Bytes at its start that are handed out.
    """

    __slots__ = ("memory", "used_bytes")

    def __init__(self, memory: Bytes | None) -> None:
        self.memory = memory
        self.used_bytes = 0

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of any content, in the memory while there is room in it."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        # Objects are addresses, which mean nothing in another process.
        start = None if kind.hasobject or not size else self.place(size)
        return (
            np.empty(shape, kind) if start is None else np.ndarray(shape, kind, self.memory, start)
        )

    def place(self, size_bytes: int) -> int | None:
        """Offset of `size_bytes` that are handed out from now, aligned; None if they do not fit."""
        start = _aligned(self.used_bytes)
        if self.memory is None or start + size_bytes > self.memory.size:
            return None
        self.used_bytes = start + size_bytes
        return start


class Parcel:
    """A pickled object, with its larger arrays beside the pickle.

    Attributes:
        outside_bytes: Room that it needs if all that may is copied into shared memory.
    """

    __slots__ = ("_arrays", "_pickled", "_pickled_bytes", "outside_bytes")

    def __init__(self, pickled: list[bytes], arrays: list[npt.NDArray[Any]]) -> None:
        self._pickled = pickled
        self._pickled_bytes = sum(map(len, pickled))
        self._arrays = arrays
        self.outside_bytes = sum(_aligned(array.nbytes) for array in arrays)
        if self._pickled_bytes >= _LARGE_PICKLE_BYTES:
            self.outside_bytes += _aligned(self._pickled_bytes)

    @classmethod
    def of(cls, value: object) -> Self:
        """`value` as a parcel; it must stay as it is until the message is made.

        Functions and classes of `__main__`, lambdas and closures go by value; instances of such
        classes come back as instances of the sender's class.

        Raises:
            Exception: What pickling it raised, of any type.
        """
        arrays: list[npt.NDArray[Any]] = []
        try:
            pickled = _plainly_pickled(value, arrays)
        except Exception:
            # Not a matter of types: pickle raises several for what it finds no name for.
            pickled = None
        if pickled is None or _names_main(pickled):
            arrays.clear()
            pickled = _pickled_by_value(value, arrays)
        return cls(pickled, arrays)

    def message(self, memory: Bytes | Room | None, given: Bytes | None = None) -> bytes:
        """The parcel as bytes, for `opened`.

        Args:
            memory: Where arrays are copied to while they fit; a `Room` has its used part left
                alone. Arrays that lie in it are only referred to.
            given: Another memory; arrays that lie in it are only referred to.
        """
        room = memory if isinstance(memory, Room) else Room(memory)
        places, inside = self._placed(room, given)
        pickled = self._placed_pickle(room)
        if pickled[0] == _INSIDE:
            inside[:0] = self._pickled
        places[:0] = pickled
        wheres = places[::_PLACE_WORDS]
        flags = (_TO_MEMORY if _IN_MEMORY in wheres else 0) | (
            _TO_GIVEN if _IN_GIVEN in wheres else 0
        )
        table = struct.pack(f"<{len(places)}Q", *places)
        return b"".join([_HEADER.pack(flags, len(wheres)), table, *inside])

    def _placed(
        self, room: Room, given: Bytes | None
    ) -> tuple[list[int], list[bytes | memoryview]]:
        """Where each array is now, as words, and those that go inside the message."""
        places: list[int] = []
        inside: list[bytes | memoryview] = []
        waiting: list[tuple[int, npt.NDArray[Any]]] = []
        (low, high), (other_low, other_high) = _span(room.memory), _span(given)
        used = room.used_bytes
        for array in self._arrays:
            start, size = address_of(array), array.nbytes
            if low <= start and start + size <= high and array.flags.forc:
                used = max(used, start + size - low)
                places += (_IN_MEMORY, start - low, size)
            elif other_low <= start and start + size <= other_high and array.flags.forc:
                places += (_IN_GIVEN, start - other_low, size)
            else:
                waiting.append((len(places), array))
                places += (_INSIDE, 0, size)
        # Behind all arrays that lie there, of which some may not be the room's.
        room.used_bytes = used
        for at, array in waiting:
            offset = room.place(array.nbytes)
            if offset is None:
                inside.append(_flat(array))
                continue
            shape, kind = array.shape, array.dtype
            np.copyto(np.ndarray(shape, kind, room.memory, offset, None, _order(array)), array)
            places[at : at + 2] = (_IN_MEMORY, offset)
        return places, inside

    def _placed_pickle(self, room: Room) -> tuple[int, int, int]:
        size = self._pickled_bytes
        offset = room.place(size) if size >= _LARGE_PICKLE_BYTES else None
        if offset is None or room.memory is None:
            return _INSIDE, 0, size
        at = offset
        for piece in self._pickled:
            room.memory[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        return _IN_MEMORY, offset, size


def opened(
    message: bytes | bytearray | memoryview, memory: Bytes | None = None, given: Bytes | None = None
) -> Any:
    """The object that a message was made of.

    Args:
        message: From `Parcel.message`.
        memory: The same memory as that was made with, here; arrays in it are views of it.
        given: The same, for the other memory.

    Raises:
        Exception: What unpickling raised, of any type.
    """
    _, count = _HEADER.unpack_from(message)
    places = struct.unpack_from(f"<{_PLACE_WORDS * count}Q", message, _HEADER.size)
    inside = _HEADER.size + 8 * len(places)
    pieces: list[Bytes] = []
    for at in range(0, len(places), _PLACE_WORDS):
        where, offset, length = places[at : at + _PLACE_WORDS]
        if where == _INSIDE:
            piece = np.frombuffer(message, np.uint8, length, inside)
            # The message may be read-only, and not aligned. Of the pickle nothing is kept.
            pieces.append(piece.copy() if at else piece)
            inside += length
            continue
        there = memory if where == _IN_MEMORY else given
        if there is None:
            raise ElementError("a message refers to memory that it was opened without")
        pieces.append(there[offset : offset + length])
    return pickle.loads(pieces[0].data, buffers=pieces[1:])


def referred(message: bytes | bytearray | memoryview) -> tuple[bool, bool]:
    """Whether parts of a message lie in its memory, and whether some lie in the given one."""
    flags, _ = _HEADER.unpack_from(message)
    return bool(flags & _TO_MEMORY), bool(flags & _TO_GIVEN)


class _Pieces:
    """A file that keeps what is written as it is: large strings of bytes are not copied."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, piece: bytes) -> None:
        self.pieces.append(piece)


def _names_main(pickled: list[bytes]) -> bool:
    """Whether a pickle may name something of `__main__`, which is another module elsewhere.

    The pickler writes large strings apart, and these name nothing; they need not be searched.
    """
    return any(
        _MAIN in piece
        for piece in pickled
        if len(piece) < _LARGE_PICKLE_BYTES or piece[:1] in (pickle.FRAME, pickle.PROTO)
    )


def _plainly_pickled(value: object, arrays: list[npt.NDArray[Any]]) -> list[bytes]:
    file = _Pieces()
    pickler = pickle.Pickler(
        file, pickle.HIGHEST_PROTOCOL, buffer_callback=functools.partial(_is_inside, arrays)
    )
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        np.ndarray: functools.partial(_reduced, arrays),
    }
    pickler.dump(value)
    return file.pieces


def _pickled_by_value(value: object, arrays: list[npt.NDArray[Any]]) -> list[bytes]:
    kind = cloudpickle().Pickler
    file = _Pieces()
    pickler = kind.__new__(kind)
    # Before it is initialised: that is when the table of a pickler with one of its own is read.
    pickler.dispatch_table = collections.ChainMap(
        {np.ndarray: functools.partial(_reduced, arrays)}, kind.dispatch_table
    )
    pickler.__init__(
        file, pickle.HIGHEST_PROTOCOL, buffer_callback=functools.partial(_is_inside, arrays)
    )
    pickler.dump(value)
    return file.pieces


def _reduced(arrays: list[npt.NDArray[Any]], array: npt.NDArray[Any]) -> Any:
    """How an array is pickled: its place among `arrays`, or its bytes if it is small."""
    kind = array.dtype
    if kind.hasobject:
        return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    order = _order(array)
    # A short text for most: a dtype is as long in the pickle as a small array.
    named = kind.str if kind.isbuiltin == 1 else kind
    if array.nbytes < _SMALL_BYTES:
        own = bytearray(array.tobytes(order))
        return np.ndarray, (array.shape, named, own, 0, None, order)
    arrays.append(array)
    return np.ndarray, (array.shape, named, _STAND_IN, 0, None, order)


def _is_inside(arrays: list[npt.NDArray[Any]], buffer: pickle.PickleBuffer) -> bool:
    """Whether a buffer is pickled where it stands; `arrays` takes those of other libraries."""
    if buffer is _STAND_IN:
        return False
    raw = buffer.raw()
    if raw.nbytes < _SMALL_BYTES:
        return True
    arrays.append(np.frombuffer(raw, np.uint8))
    return False


def _flat(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of an array in the order that it was pickled with; a view where that can be."""
    rows = array.T if array.flags.fnc else array
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data


def _order(array: npt.NDArray[Any]) -> Literal["C", "F"]:
    """The order of its elements in the pickle; that of one with gaps is C."""
    return "F" if array.flags.fnc else "C"


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array begins in this process's memory."""
    return int(array.__array_interface__["data"][0])


def _span(memory: Bytes | None) -> tuple[int, int]:
    """First address of a memory and the end of it; no address lies between those of None."""
    if memory is None:
        return 1, 0
    start = address_of(memory)
    return start, start + memory.size


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


# --- errors --------------------------------------------------------------------------------------


class WorkerTraceback(Exception):  # noqa: N818 - it says where, not what
    """The traceback of an error in a worker, as text: the cause of the error as it is raised here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to another process.

    Attributes:
        pickled: The error; None if it does not survive pickling.
        summary: Its type and message.
        notes: Its notes.
        text: Its traceback, with those of its causes.
        attributes: What Windrow has left with it, under names of its own.
    """

    pickled: bytes | None
    summary: str
    notes: tuple[str, ...]
    text: str
    attributes: dict[str, Any]

    def raised(self) -> BaseException:
        """The error to raise here, anew each time, with the worker's traceback as its cause.

        It is an `ElementError` with the original's type and message where that cannot be had.
        """
        error = None if self.pickled is None else _survivor(self.pickled)
        if error is None:
            error = ElementError(
                f"{self.summary}\nThe error itself could not be pickled, so that this one stands"
                " for it; give it an __init__ that can be called with its args alone."
            )
        present = getattr(error, "__notes__", [])
        for note in self.notes:
            if note not in present:
                error.add_note(note)
        error.__dict__.update(self.attributes)
        error.__cause__ = WorkerTraceback(f'\n"""\n{self.text}"""')
        return error


def failure_of(error: BaseException) -> Failure:
    """`error` so that it can be sent to another process and raised there."""
    lines = traceback.format_exception(error)
    pickled: bytes | None = None
    try:
        pickled = Parcel.of(error).message(None)
    except Exception:  # whatever a type's own way of pickling raises
        pickled = None
    found = None if pickled is None else _survivor(pickled)
    if type(found) is not type(error):
        pickled = None
    notes = tuple(str(note) for note in getattr(error, "__notes__", ()))
    own = {name: value for name, value in vars(error).items() if name.startswith("windrow_")}
    return Failure(pickled, _summary(error), notes, "".join(lines), own)


def _summary(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # whatever a type's own __str__ raises
        text = "(it cannot be shown)"
    return f"{type(error).__qualname__}: {text}"


def _survivor(pickled: bytes) -> BaseException | None:
    """The error in a message; None if there is none, or it cannot be made anew."""
    try:
        found = opened(pickled, None)
    except Exception:  # whatever a type's own way of unpickling raises
        return None
    return found if isinstance(found, BaseException) else None
