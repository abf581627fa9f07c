"""Messages between a pool and its workers: pickled objects whose arrays lie in shared memory.

A frame on a worker's socket is a header of five integers and a body of bytes. The body of a job and
of its reply is a message, which refers to arrays in the job's slot of shared memory. The arrays of
the request lie at the end of the slot, and the arrays of the reply at its start.

Contract:
1. The opened object equals the one that was sent, types and dtypes included; its arrays can be
   written to.
2. An array is copied once on its way, into shared memory, or not at all if it lies there already.
3. A message may be opened in any process that maps the same memory, at any address.
4. Arrays that do not fit into shared memory are in the message itself: slower, never wrong.
"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import enum
import functools
import math
import pickle
import struct
import traceback
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from windrow.errors import ElementError, WorkerError
from windrow.workers.by_value import cloudpickle

Bytes = npt.NDArray[np.uint8]

# Arrays start on a cache line.
ALIGNMENT_BYTES = 64
# Pickles from this size on go to shared memory as arrays do: bytes and strings are part of them.
# The pickler writes strings from this size on separately.
_LARGE_PICKLE_BYTES = 64 << 10
# Smaller arrays stay in the pickle: an entry of their own costs more than a second copy.
_SMALL_BYTES = 512
_MAIN = b"_main__"  # of `__main__`, and of `__mp_main__` where multiprocessing started a program
# Where an array is: in the message, or in the slot.
_INSIDE, _IN_SLOT = range(2)
# The number of entries: the pickle's, then the arrays'.
_PREFIX = struct.Struct("<Q")
_ENTRY_WORDS = 3  # where, offset, bytes
# Stands in the pickle for the next array outside it. Writable, so that opened arrays are, too.
_STAND_IN = pickle.PickleBuffer(bytearray())


# --- frames --------------------------------------------------------------------------------------

HEADER = struct.Struct("<5q")

# The number in the header of a frame that brings a program instead of a job.
LOAD = -1


class JobHeader(NamedTuple):
    """Header of a frame to a worker: bytes of the body, number of the job, and its slot.

    `request` is the start of the part of the slot that has the arrays of the request.
    """

    body_bytes: int
    number: int
    start: int
    request: int
    stop: int


class FrameKind(enum.IntEnum):
    """Kinds of frames from a worker."""

    READY = 0
    UNUSABLE = 1  # the program cannot be loaded, or its `init` failed
    REPLY = 2
    FAILURE = 3
    REPORT = 4  # on the running job, before its reply


class ReplyHeader(NamedTuple):
    """Header of a frame from a worker.

    `kept` is 1 if functions still refer to the slot. The reply refers to the first `used_bytes` of it;
    a larger slot would have got `needed_bytes` of arrays.
    """

    body_bytes: int
    kind: int
    kept: int = 0
    used_bytes: int = 0
    needed_bytes: int = 0


# --- messages ------------------------------------------------------------------------------------


class MessageBuffer:
    """A slot of shared memory that arrays are made in, from its start. Not thread-safe.

    Args:
        memory: The slot; None for none, so that all arrays are ordinary ones.
        room_bytes: Bytes at its start in which arrays are made; None for all of it.

    Attributes:
        memory: The slot.
        used_bytes: Bytes of the room that are in use.
        kept_bytes: Bytes at the start of the slot that hold all arrays of a packed message.
    """

    __slots__ = ("kept_bytes", "memory", "room_bytes", "used_bytes")

    def __init__(self, memory: Bytes | None, room_bytes: int | None = None) -> None:
        self.memory = memory
        self.room_bytes = 0 if memory is None else memory.size if room_bytes is None else room_bytes
        self.used_bytes = self.kept_bytes = 0

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Make an array of any content, in the slot if it fits."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        # Objects are addresses, which mean nothing in another process.
        start = None if kind.hasobject or not size else self.reserve(size)
        return (
            np.empty(shape, kind) if start is None else np.ndarray(shape, kind, self.memory, start)
        )

    def reserve(self, size_bytes: int) -> int | None:
        """Reserve aligned bytes and return their offset; None if they do not fit."""
        start = _aligned(self.used_bytes)
        if start + size_bytes > self.room_bytes:
            return None
        self.used_bytes = start + size_bytes
        self.kept_bytes = max(self.kept_bytes, self.used_bytes)
        return start

    def offset_of(self, array: npt.NDArray[Any]) -> int | None:
        """Keep the bytes of an array that lies in the slot, and return their offset; else None."""
        if self.memory is None or not array.flags.forc:
            return None
        start = address_of(array) - address_of(self.memory)
        stop = start + array.nbytes
        if start < 0 or stop > self.memory.size:
            return None
        if stop <= self.room_bytes:
            self.used_bytes = max(self.used_bytes, stop)
        self.kept_bytes = max(self.kept_bytes, stop)
        return start


class Message:
    """A pickled object whose larger arrays are not in the pickle.

    Attributes:
        slot_bytes: Bytes of a slot that holds all of its arrays.
    """

    __slots__ = ("_arrays", "_pickled", "_pickled_bytes", "slot_bytes")

    def __init__(self, pickled: list[bytes], arrays: list[npt.NDArray[Any]]) -> None:
        self._pickled = pickled
        self._pickled_bytes = sum(map(len, pickled))
        self._arrays = arrays
        self.slot_bytes = sum(_aligned(array.nbytes) for array in arrays)
        if self._pickled_bytes >= _LARGE_PICKLE_BYTES:
            self.slot_bytes += _aligned(self._pickled_bytes)

    @classmethod
    def of(cls, value: object) -> Self:
        """Pickle `value`, whose arrays must not change until `packed` is called.

        Functions and classes of `__main__`, lambdas and closures go by value; instances of such
        classes come back as instances of the sender's class.

        Raises:
            Exception: What pickling raised, of any type.
        """
        arrays: list[npt.NDArray[Any]] = []
        try:
            pickled = _pickled(value, arrays, pickle.Pickler)
        except Exception:
            # pickle raises several types for objects that it cannot name.
            pickled = None
        if pickled is None or _names_main(pickled):
            arrays.clear()
            pickled = _pickled(value, arrays, cloudpickle().Pickler)
        return cls(pickled, arrays)

    def packed(self, slot: Bytes | MessageBuffer | None) -> bytes:
        """The message as bytes, for `opened`.

        Args:
            slot: Takes copies of the arrays while they fit; the used part of a `MessageBuffer`
                stays as it is. Arrays that lie in the slot are only referred to.
        """
        buffer = slot if isinstance(slot, MessageBuffer) else MessageBuffer(slot)
        entries, inside = self._placed(buffer)
        pickled = self._placed_pickle(buffer)
        if pickled[0] == _INSIDE:
            inside[:0] = self._pickled
        entries[:0] = pickled
        table = struct.pack(f"<{len(entries)}Q", *entries)
        return b"".join([_PREFIX.pack(len(entries)), table, *inside])

    def _placed(self, buffer: MessageBuffer) -> tuple[list[int], list[bytes | memoryview]]:
        """Copy arrays into the slot; return the entry of each, and those that did not fit."""
        entries: list[int] = []
        inside: list[bytes | memoryview] = []
        # Arrays in the slot come first: some may have been put there without the buffer.
        offsets = [buffer.offset_of(array) for array in self._arrays]
        for array, offset in zip(self._arrays, offsets, strict=True):
            at = buffer.reserve(array.nbytes) if offset is None else offset
            if at is None:
                inside.append(_flat(array))
                entries += (_INSIDE, 0, array.nbytes)
                continue
            entries += (_IN_SLOT, at, array.nbytes)
            if offset is None:
                shape, kind = array.shape, array.dtype
                copy = np.ndarray(shape, kind, buffer.memory, at, None, _order(array))
                np.copyto(copy, array)
        return entries, inside

    def _placed_pickle(self, buffer: MessageBuffer) -> tuple[int, int, int]:
        size = self._pickled_bytes
        offset = buffer.reserve(size) if size >= _LARGE_PICKLE_BYTES else None
        if offset is None or buffer.memory is None:
            return _INSIDE, 0, size
        at = offset
        for part in self._pickled:
            buffer.memory[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        return _IN_SLOT, offset, size


def opened(message: bytes | bytearray | memoryview, slot: Bytes | None = None) -> Any:
    """Make the object of a message.

    Args:
        message: From `Message.packed`.
        slot: The same slot as there, in this process; arrays in it are views of it.

    Raises:
        Exception: Unpickling may raise any type.
    """
    (count,) = _PREFIX.unpack_from(message)
    entries = struct.unpack_from(f"<{count}Q", message, _PREFIX.size)
    inside = _PREFIX.size + 8 * count
    buffers: list[Bytes] = []
    for at in range(0, count, _ENTRY_WORDS):
        where, offset, length = entries[at : at + _ENTRY_WORDS]
        if where == _INSIDE:
            part = np.frombuffer(message, np.uint8, length, inside)
            # The message may be read-only and not aligned. Nothing refers to the pickle later.
            buffers.append(part.copy() if at else part)
            inside += length
            continue
        if slot is None:
            raise ElementError("a message refers to memory that it was opened without")
        buffers.append(slot[offset : offset + length])
    return pickle.loads(buffers[0].data, buffers=buffers[1:])


class _PartsFile:
    """A file that keeps each part as it is written: large strings of bytes are not copied."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, part: bytes) -> None:
        self.parts.append(part)


def _names_main(pickled: list[bytes]) -> bool:
    """Whether a pickle may name something of `__main__`, another module in another process.

    The pickler writes large strings separately; they name nothing and need not be searched.
    """
    return any(
        _MAIN in part
        for part in pickled
        if len(part) < _LARGE_PICKLE_BYTES or part[:1] in (pickle.FRAME, pickle.PROTO)
    )


def _pickled(value: object, arrays: list[npt.NDArray[Any]], kind: Any) -> list[bytes]:
    """Pickle by a class of pickler; larger arrays join `arrays` instead."""
    file = _PartsFile()
    pickler = kind.__new__(kind)
    # Before `__init__`, which reads the table of a pickler that has one of its own.
    pickler.dispatch_table = collections.ChainMap(
        {np.ndarray: functools.partial(_reduced, arrays)},
        getattr(kind, "dispatch_table", copyreg.dispatch_table),
    )
    pickler.__init__(
        file, pickle.HIGHEST_PROTOCOL, buffer_callback=functools.partial(_is_inside, arrays)
    )
    pickler.dump(value)
    return file.parts


def _reduced(arrays: list[npt.NDArray[Any]], array: npt.NDArray[Any]) -> Any:
    """Reduce an array for the pickler: it joins `arrays`, or its bytes stay if it is small."""
    kind = array.dtype
    if kind.hasobject:
        return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    order = _order(array)
    # A short string for most: a dtype is as long in the pickle as a small array.
    named = kind.str if kind.isbuiltin == 1 else kind
    if array.nbytes < _SMALL_BYTES:
        own = bytearray(array.tobytes(order))
        return np.ndarray, (array.shape, named, own, 0, None, order)
    arrays.append(array)
    return np.ndarray, (array.shape, named, _STAND_IN, 0, None, order)


def _is_inside(arrays: list[npt.NDArray[Any]], buffer: pickle.PickleBuffer) -> bool:
    """Whether a buffer stays in the pickle; the large ones of other libraries join `arrays`."""
    if buffer is _STAND_IN:
        return False
    raw = buffer.raw()
    if raw.nbytes < _SMALL_BYTES:
        return True
    arrays.append(np.frombuffer(raw, np.uint8))
    return False


def _flat(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of an array in the order of its pickle; a view if that is possible."""
    rows = array.T if array.flags.fnc else array
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data


def _order(array: npt.NDArray[Any]) -> Literal["C", "F"]:
    """The order of its elements in the pickle; C if it has gaps."""
    return "F" if array.flags.fnc else "C"


def address_of(array: npt.NDArray[Any]) -> int:
    """Address of an array's first byte in this process."""
    return int(array.__array_interface__["data"][0])


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


# --- errors --------------------------------------------------------------------------------------


UNSENT_RESULT: Final = (
    "windrow: the result of the functions cannot be sent from a worker process: return arrays,"
    " numbers, strings or objects that can be pickled"
)
"""A note on an error of pickling."""


class WorkerTraceback(Exception):  # noqa: N818 - it says where an error was raised
    """The traceback of an error in a worker, as text: the cause of the error raised here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to another process.

    Attributes:
        pickled: The error; None if it does not survive pickling.
        summary: Its type and message.
        text: Its traceback, with the tracebacks of its causes.
        attributes: Its notes, and its attributes whose names begin with `windrow_`.
    """

    pickled: bytes | None
    summary: str
    text: str
    attributes: dict[str, Any]

    def raised(self) -> BaseException:
        """Make the error to raise here, a new one each time; its cause has the worker's traceback.

        If the original cannot be pickled, an `ElementError` names its type and message.
        """
        error = None if self.pickled is None else _survivor(self.pickled)
        if error is None:
            error = ElementError(
                f"{self.summary}\nThe error itself could not be pickled, so this one replaces it;"
                " give it an __init__ that can be called with its args alone."
            )
        for name, value in self.attributes.items():
            error.__dict__[name] = list(value) if name == "__notes__" else value
        error.__cause__ = WorkerTraceback(f'\n"""\n{self.text}"""')
        return error


def failure_of(error: BaseException) -> Failure:
    """Describe `error` so that it can be sent to another process and raised there."""
    if isinstance(error, SystemExit):
        error = _exit_error(error)
    lines = traceback.format_exception(error)
    pickled: bytes | None = None
    try:
        pickled = Message.of(error).packed(None)
    except Exception:  # the type's own way of pickling may raise anything
        pickled = None
    found = None if pickled is None else _survivor(pickled)
    if type(found) is not type(error):
        pickled = None
    own = {
        name: value
        for name, value in vars(error).items()
        if name == "__notes__" or name.startswith("windrow_")
    }
    return Failure(pickled, _summary(error), "".join(lines), own)


def _exit_error(error: SystemExit) -> WorkerError:
    """The error for a function that wanted to end its worker: it must not end the program silently."""
    # An error that was made without its `__init__` has arguments, and no code.
    code = error.args[0] if error.code is None and len(error.args) == 1 else error.code
    status = code if isinstance(code, int) else int(code is not None)
    made = WorkerError(
        f"a function called sys.exit({'' if code is None else repr(code)}) in a worker process, which"
        f" would have ended with exit code {status}; raise an error of your own instead, or end the"
        " program in the loop over the elements"
    )
    made.__dict__.update(vars(error))
    made.__cause__ = error
    return made


def _summary(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the type's own __str__ may raise anything
        text = "(it cannot be shown)"
    return f"{type(error).__qualname__}: {text}"


def _survivor(pickled: bytes) -> BaseException | None:
    """Make the error of a message; None if that fails, or makes something else."""
    try:
        found = opened(pickled, None)
    except Exception:  # the type's own way of unpickling may raise anything
        return None
    return found if isinstance(found, BaseException) else None
