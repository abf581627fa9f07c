"""Handover: what is opened equals what was sent, and nothing is copied without need."""

from __future__ import annotations

import copyreg
import dataclasses
import pickle
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from ml_dtypes import bfloat16

from tests.hypothesis_profiles import examples
from windrow.errors import ElementError, ReadError
from windrow.transforms import columns
from windrow.workers.messages import Failure, Message, MessageBuffer, failure_of, opened
from windrow.workers.stacking import stacked

Bytes = npt.NDArray[np.uint8]


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Box:
    array: npt.NDArray[Any]


def memory_of(size_bytes: int) -> Bytes:
    return np.zeros(size_bytes, np.uint8)


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal with equal types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        return bool(a.tolist() == b.tolist() if a.dtype.hasobject else a.tobytes() == b.tobytes())
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.array_dtypes(max_size=3),
    st.just(np.dtype(bfloat16)),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12)


@st.composite
def arrays(draw: st.DrawFn, dtypes: st.SearchStrategy[Any] = DTYPES) -> npt.NDArray[Any]:
    """Arrays of any dtype, shape and layout, some large enough for a place of their own."""
    dtype, shape = draw(dtypes), draw(SHAPES)
    size = int(np.prod(shape)) * dtype.itemsize
    numbers = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, size, np.uint8)
    # Text needs code points, and bytes of 0 and 1 are not code points in all places.
    text = dtype.kind in "US" or dtype.names is not None
    made = np.zeros(shape, dtype) if text else np.frombuffer(numbers, dtype).reshape(shape)
    layout = draw(st.sampled_from(["C", "F", "gaps", "read-only", "backwards"]))
    if layout == "F":
        return np.asfortranarray(made)
    if layout == "gaps" and made.ndim:
        return np.repeat(made, 2, axis=-1)[..., ::2]
    if layout == "backwards" and made.ndim:
        return made[::-1]
    made = made.copy()
    made.flags.writeable = layout != "read-only"
    return made


LEAVES = st.one_of(
    arrays(),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.sampled_from([np.float32(1), np.int8(3), np.bool_(True), np.str_("a")]),
)
TREES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.tuples(children, children),
        st.builds(Pair, children, children),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(0, 2)), children, max_size=3),
    ),
    max_leaves=8,
)


# --- parcels -------------------------------------------------------------------------------------


@settings(max_examples=examples(30))
@given(value=TREES, room_bytes=st.sampled_from([None, 0, 700, 5_000, 1 << 20]))
def test_what_is_opened_equals_what_was_sent(value: Any, room_bytes: int | None) -> None:
    memory = None if room_bytes is None else memory_of(room_bytes)
    message = Message.of(value).packed(memory)
    elsewhere = None if memory is None else memory.copy()
    assert same(opened(message, elsewhere), value)
    assert same(opened(bytearray(message), elsewhere), value)


@given(array=arrays())
def test_opened_arrays_can_be_written_to(array: npt.NDArray[Any]) -> None:
    memory = memory_of(1 << 18)
    for where in (memory, None):
        found = opened(Message.of([array]).packed(where), where)[0]
        assert found.flags.writeable
        assert found.flags.aligned


def test_arrays_that_lie_in_the_memories_are_not_copied() -> None:
    memory = memory_of(1 << 17)
    room, other = MessageBuffer(memory, 1 << 16), memory[1 << 16 :]
    mine = room.empty((30, 40), np.float32)
    mine[:] = 3
    theirs = other[64 : 64 + 8_000].view(np.int64).reshape(20, 50)
    theirs[:] = 4
    value = [mine, theirs.T, theirs[3:9]]
    message = Message.of(value).packed(room)
    assert len(message) < 1_000
    found = opened(message, memory)
    assert all(map(same, found, value))
    assert np.shares_memory(found[0], mine)
    assert np.shares_memory(found[1], theirs)
    assert found[1].flags.f_contiguous
    assert room.used_bytes == mine.nbytes
    assert room.kept_bytes == (1 << 16) + 64 + 8_000


def test_a_large_pickle_goes_to_memory_too() -> None:
    value = [b"x" * 5_000, "é" * 40_000] * 9
    parcel = Message.of(value)
    message = parcel.packed(memory := memory_of(parcel.slot_bytes))
    assert len(message) < 100
    assert opened(message, memory) == value
    assert opened(parcel.packed(None)) == value
    assert opened(parcel.packed(short := memory_of(1_000)), short) == value


def test_objects_go_as_objects() -> None:
    strings = np.array(["a", "bcd" * 400], np.dtypes.StringDType())
    objects = np.array([{"a": np.arange(300)}, "b", None] * 100, object)
    found = opened(Message.of([strings, objects, Box(np.arange(900))]).packed(None))
    assert found[0].tolist() == strings.tolist()
    assert np.array_equal(found[1][0]["a"], np.arange(300))
    assert found[1].tolist()[1:3] == ["b", None]
    assert np.array_equal(found[2].array, np.arange(900))


@pytest.mark.parametrize("size", [10, 10_000])
def test_buffers_of_other_libraries_travel_outside(size: int) -> None:
    memory = memory_of(1 << 16)
    for content in (bytearray(size), b"x" * size):
        message = Message.of([pickle.PickleBuffer(content)]).packed(memory)
        assert len(message) < 200
        assert bytes(opened(message, memory)[0]) == bytes(content)


# --- elements as columns -------------------------------------------------------------------------


@st.composite
def alike(draw: st.DrawFn) -> list[Any]:
    """Elements of one outline: the same tree with other numbers at the leaves."""
    element = draw(TREES)

    def other(value: Any, i: int) -> Any:
        if type(value) is dict:
            return {k: other(v, i) for k, v in value.items()}
        if type(value) in (list, tuple, Pair):
            children = [other(v, i) for v in value]
            return Pair(*children) if isinstance(value, Pair) else type(value)(children)
        if isinstance(value, np.ndarray):
            return np.zeros_like(value) if i % 2 else value.copy()
        return type(value)(i) if type(value) in (int, np.float32, np.int8) else value

    return [other(element, i) for i in range(draw(st.integers(0, 5)))]


@settings(max_examples=examples(50))
@given(elements=st.one_of(alike(), st.lists(TREES, max_size=4)), outside=st.booleans())
def test_elements_come_back_as_they_were(elements: list[Any], outside: bool) -> None:
    memory = memory_of(1 << 16) if outside else None
    room = MessageBuffer(memory)
    message = Message.of(stacked(elements, room)).packed(room)
    found = opened(message, None if memory is None else memory.copy())
    assert same(columns.split(found, len(elements)), elements)


@pytest.mark.parametrize(
    "elements",
    [
        [{1: np.arange(3)}, {True: np.arange(3)}],
        [{"a": np.arange(3), "b": 1}, {"b": 1, "a": np.arange(3)}],
        [{"a": np.arange(3)}, {"a": np.arange(3), "b": 1}],
        [[np.arange(3)], (np.arange(3),)],
        [[np.arange(3)], [np.arange(3)] * 2],
        [np.arange(3), np.arange(4)],
        [np.arange(3), np.arange(3, dtype=">i8")],
        [np.arange(3), None],
        [np.array(3), np.array(4)],
        [np.float32(3), np.float64(3)],
        [np.datetime64(3, "s"), np.datetime64(3, "ms")],
        [np.bytes_(b"a\0"), np.bytes_(b"abc")],
        [{"a": {}, "b": [], "c": np.zeros((2, 0))}] * 2,
        [{"a": np.zeros((0, 3)), "b": ()}] * 3,
        [Pair(np.arange(3), 1), Pair(np.arange(3), 2)],
    ],
    ids=repr,
)
def test_likely_mistakes_in_stacking(elements: list[Any]) -> None:
    assert same(columns.split(stacked(elements, MessageBuffer(None)), len(elements)), elements)


# --- errors --------------------------------------------------------------------------------------


class TwoArgumentsError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}, line {line}")


class TurningError(Exception):
    """Comes out of its pickle as another type."""

    def __reduce__(self) -> Any:
        return ValueError, ("turned",)


class UnshowableError(Exception):
    def __init__(self, lock: object) -> None:
        self.lock = lock

    def __str__(self) -> str:
        raise RuntimeError("no words")


def failing(error: BaseException) -> Failure:
    """The failure of a raised error, as another process gets it."""
    try:
        raise error
    except BaseException as caught:
        failure: Failure = pickle.loads(pickle.dumps(failure_of(caught)))
        return failure


def test_an_error_is_raised_as_itself_with_its_traceback() -> None:
    error = ReadError("record 3 is damaged")
    error.add_note("source: a.array_record")
    error.__cause__ = KeyError("below")
    found = failing(error).raised()
    assert type(found) is ReadError
    assert found.args == ("record 3 is damaged",)
    assert found.__notes__ == ["source: a.array_record"]
    text = str(found.__cause__)
    assert "in failing" in text
    assert "KeyError: 'below'" in text
    assert type(pickle.loads(pickle.dumps(found.__cause__))) is type(found.__cause__)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            TwoArgumentsError("a.txt", 3),
            r"TwoArgumentsError: a\.txt, line 3\n.*could not be pickled",
        ),
        (TurningError("as it was"), r"TurningError: as it was\n.*could not be pickled"),
        (ValueError(threading.Lock()), r"ValueError: <unlocked _thread.lock"),
        (UnshowableError(threading.Lock()), r"UnshowableError: \(it cannot be shown\)"),
    ],
    ids=["arguments", "other-type", "unpicklable", "unshowable"],
)
def test_an_error_that_does_not_survive_is_told(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dask teaches pickle all classes of errors that exist when it is imported.
    monkeypatch.delitem(copyreg.dispatch_table, type(error), raising=False)
    error.add_note("source: a")
    found = failing(error).raised()
    assert type(found) is ElementError
    with pytest.raises(ElementError, match=text):
        raise found
    assert found.__notes__ == ["source: a"]
    assert "in failing" in str(found.__cause__)
