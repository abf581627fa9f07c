"""Sources in memory: the same answers as NumPy and Python, and memory of the caller's own."""

from __future__ import annotations

import collections
import copy
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow import MapDataset
from windrow.errors import ArgumentError, NotFoundError, ReadError, RecordIndexError, SourceError
from windrow.sources import (
    ArrayDataSource,
    ForeignDataSource,
    RangeDataSource,
    SequenceDataSource,
    Source,
    ZarrDataSource,
    as_source,
)


class Pair(NamedTuple):
    left: Any
    right: Any


@given(
    start=st.integers(-50, 50),
    stop=st.integers(-50, 50),
    step=st.integers(-7, 7).filter(bool),
    data=st.data(),
)
def test_range_is_the_range_of_python(start: int, stop: int, step: int, data: Any) -> None:
    source = RangeDataSource(start, stop, step)
    expected = range(start, stop, step)
    assert len(source) == len(expected)
    if not expected:
        return
    places = st.integers(-len(expected), len(expected) - 1)
    wanted = data.draw(st.lists(places, max_size=20))
    got = source.read(np.asarray(wanted, np.int64))
    assert got == [expected[i] for i in wanted]
    assert all(type(value) is int for value in got)


def test_range_beyond_int64() -> None:
    source = RangeDataSource(2**70, 2**70 + 10, 3)
    assert source.__getitems__([0, -1]) == [2**70, 2**70 + 9]


def test_range_refuses_what_range_refuses() -> None:
    with pytest.raises(SourceError, match="step must not be 0"):
        RangeDataSource(0, 5, 0)
    with pytest.raises(ArgumentError, match=r"stop must be an integer, got 2\.5"):
        RangeDataSource(0, 2.5)  # type: ignore[arg-type]


@given(
    length=st.integers(1, 40),
    row=st.lists(st.integers(0, 3), max_size=2),
    order=st.sampled_from("CF"),
    data=st.data(),
)
def test_array_rows_are_those_of_numpy(length: int, row: list[int], order: Any, data: Any) -> None:
    shape = (length, *row)
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape), order=order)
    wanted = data.draw(st.lists(st.integers(-length, length - 1), max_size=30))
    kept = array.copy()
    got = ArrayDataSource({"a": array, "b": {"c": array}}).read(np.asarray(wanted, np.int64))
    np.testing.assert_array_equal(got["a"], array[np.asarray(wanted, np.int64)])
    np.testing.assert_array_equal(got["b"]["c"], got["a"])
    assert got["a"].flags.c_contiguous
    got["a"][...] = -1
    np.testing.assert_array_equal(array, kept)


def test_arrays_of_text_and_objects_give_lists() -> None:
    source = ArrayDataSource(
        {"t": np.array(["a", "bc"]), "b": np.array([b"x", b"yz"]), "o": np.array([{}, []], object)}
    )
    got = source.read(np.array([1, 0]))
    assert got == {"t": ["bc", "a"], "b": [b"yz", b"x"], "o": [[], {}]}
    got["o"][1]["new"] = 1
    assert source[0]["o"] == {}


def test_arrays_are_refused_with_their_names() -> None:
    with pytest.raises(SourceError, match=r"differ in length\n  a: 3\n  b/c: 4"):
        ArrayDataSource({"a": np.zeros(3), "b": {"c": np.zeros(4)}})
    with pytest.raises(ArgumentError, match="'a' is a list; it must be a NumPy array"):
        ArrayDataSource({"a": [1, 2]})
    with pytest.raises(SourceError, match=r"shape \(\), which has no first axis"):
        ArrayDataSource(np.float32(1) + np.zeros(()))
    with pytest.raises(ArgumentError, match="masked array"):
        ArrayDataSource(np.ma.masked_array([1, 2], [True, False]))
    with pytest.raises(SourceError, match="holds no arrays"):
        ArrayDataSource({})
    with pytest.raises(ArgumentError, match="keys must be strings, got 1"):
        ArrayDataSource({1: np.zeros(3)})


def test_fingerprints_name_layout_and_not_contents() -> None:
    assert ArrayDataSource(np.zeros((4, 2), "f4")).fingerprint == "arrays(float32 [4, 2])"
    assert ArrayDataSource({"x": np.ones(4)}).fingerprint == "arrays(x: float64 [4])"
    assert SequenceDataSource([b"a", b"b"]).fingerprint == "sequence(2 records of bytes)"
    assert RangeDataSource(1, 9, 2).fingerprint == "range(1, 9, 2)"


def test_sequence_items_are_rebuilt() -> None:
    inner = np.arange(3)
    item = {"a": [inner, (inner, "t")], "p": Pair(inner, None)}
    source = SequenceDataSource([item, item])
    first = source.read(np.array([0]))[0]
    first["a"][0][:] = 7
    first["a"][1][0][:] = 8
    first["p"].left[:] = 9
    first["a"].append(1)
    assert type(first["p"]) is Pair
    assert inner.tolist() == [0, 1, 2]
    assert len(source[1]["a"]) == 2


class OwnDict(dict[str, Any]):
    pass


class OwnList(list[Any]):
    pass


class OwnTuple(tuple[Any, ...]):
    pass


def counts() -> collections.defaultdict[str, list[int]]:
    made: collections.defaultdict[str, list[int]] = collections.defaultdict(list)
    made["b"].append(1)
    made["a"].append(2)
    return made


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (counts(), dict),
        (collections.OrderedDict(b=[1], a=[2]), dict),
        (OwnDict(b=[1], a=[2]), dict),
        (OwnList([[1], [2]]), list),
        (OwnTuple(([1], [2])), tuple),
        (Pair([1], [2]), Pair),
    ],
)
def test_containers_of_any_class_are_rebuilt(item: Any, kind: type) -> None:
    before = copy.deepcopy(item)
    first: Any = SequenceDataSource([item])[0]
    got_kind: object = type(first)
    assert got_kind is kind
    assert list(first) == list(item)
    for inner in list(first.values()) if kind is dict else list(first):
        inner.append(9)
    if kind is dict:
        first["new"] = 1
    assert item == before


@pytest.mark.parametrize("leaf", [bytearray(b"ab"), {1, 2}, np.array([[1], {}, 3], object)])
def test_leaves_that_can_change_are_copied(leaf: Any) -> None:
    before = copy.deepcopy(leaf)
    got = SequenceDataSource([{"leaf": leaf}])[0]["leaf"]
    assert type(got) is type(leaf)
    if isinstance(got, bytearray):
        got += b"c"
    elif isinstance(got, set):
        got.add(3)
    else:
        got[0].append(2)
        got[1]["new"] = 1
        got[2] = None
    assert str(leaf) == str(before)


def test_sequence_hands_out_plain_records_as_they_are() -> None:
    records = [b"a" * 2000, "text", 3, None, np.float32(2)]
    got = SequenceDataSource(records).read(np.array([4, 0, -1, 1]))
    assert got[1] is records[0]
    assert got[0] is records[4]


def test_an_index_out_of_range_is_named() -> None:
    with pytest.raises(RecordIndexError, match=r"index 3 is out of range for 3 records"):
        SequenceDataSource([1, 2, 3])[3]
    with pytest.raises(IndexError, match="-3 <= index < 3"):
        RangeDataSource(3)[-4]
    with pytest.raises(ArgumentError, match="integers in one dimension"):
        ArrayDataSource(np.zeros(3)).read(np.zeros(2))  # type: ignore[arg-type]


class Theirs:
    """A source of somebody else."""

    fingerprint: Any

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index

    def read(self, indices: Any) -> list[int]:
        return list(indices)


def test_as_source_keeps_sources_and_wraps_the_rest(tmp_path: Path) -> None:
    own = RangeDataSource(3)
    assert as_source(own) is own
    assert isinstance(as_source(np.zeros(3)), ArrayDataSource)
    memmap = np.memmap(tmp_path / "m", "u1", "w+", shape=(4, 2))
    row = as_source(memmap)[0]
    assert type(row) is np.ndarray
    assert isinstance(as_source({"a": np.zeros(3)}), ArrayDataSource)
    for items in ([1], (1,), range(3), collections.deque([1]), Pair(1, 2)):
        assert isinstance(as_source(items), SequenceDataSource)

    theirs = Theirs()
    theirs.fingerprint = "theirs"
    assert as_source(theirs) is theirs
    assert isinstance(theirs, Source)

    class Plain(collections.UserList[int]):
        pass

    assert isinstance(as_source(Plain([1])), ForeignDataSource)


def test_as_source_wants_a_text_as_fingerprint() -> None:
    for fingerprint, shown in ((Theirs().__len__, "a method"), (7, "7 of type int")):
        theirs = Theirs()
        theirs.fingerprint = fingerprint
        with pytest.raises(ArgumentError, match=rf"must be a string, got {shown}; write @property"):
            as_source(theirs)


def test_as_source_opens_tensorstores() -> None:
    ts = pytest.importorskip("tensorstore")
    store = ts.array(np.arange(6).reshape(3, 2))
    assert isinstance(as_source(store), ZarrDataSource)
    assert as_source({"a": store})[2]["a"].tolist() == [4, 5]


def test_a_memmap_pickles_as_its_place_in_a_file(tmp_path: Path) -> None:
    values = np.arange(40_000, dtype="i4").reshape(10_000, 4)
    np.save(tmp_path / "a.npy", values)
    saved = np.load(tmp_path / "a.npy", mmap_mode="r")
    written = np.memmap(tmp_path / "b", "f8", "w+", shape=(10_000,), offset=24)
    written[:] = values[:, 1]
    source = ArrayDataSource({"a": saved[100:], "in": {"b": written[10:][90:]}})
    sent = pickle.dumps(source)
    assert len(sent) < 2000
    again = pickle.loads(sent)
    wanted = np.array([9899, 0, 5, 5])
    assert again.fingerprint == source.fingerprint
    got = again.read(wanted)
    np.testing.assert_array_equal(got["a"], values[100:][wanted])
    np.testing.assert_array_equal(got["in"]["b"], values[100:, 1][wanted])
    assert pickle.dumps(again) == sent
    got["a"][...] = 0
    np.testing.assert_array_equal(source.read(wanted)["a"], values[100:][wanted])


def test_other_memmaps_pickle_with_their_data(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000))
    private = np.load(tmp_path / "a.npy", mmap_mode="c")
    private[3] = -1
    assert pickle.loads(pickle.dumps(ArrayDataSource(private)))[3] == -1
    strided = np.load(tmp_path / "a.npy", mmap_mode="r")[::2]
    assert pickle.loads(pickle.dumps(ArrayDataSource(strided)))[3] == 6
    gone = np.load(tmp_path / "a.npy", mmap_mode="r")
    (tmp_path / "a.npy").unlink()
    assert pickle.loads(pickle.dumps(ArrayDataSource(gone)))[3] == 3


class OnDisk:
    """An array that notes which rows are read; to read it as a whole is an error."""

    dtype = np.dtype(np.int32)
    shape = (20, 3)

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __getitem__(self, rows: Any) -> Any:
        self.asked.append(rows)
        return np.arange(60, dtype=np.int32).reshape(20, 3)[rows]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise AssertionError("read as a whole")


def test_arrays_that_lie_elsewhere_are_read_row_by_row() -> None:
    array: Any = OnDisk()
    source = as_source({"in": {"x": array}, "y": np.arange(20)})
    dataset: Any = MapDataset.source(source)
    assert (array.asked, dataset.element_spec["in"]["x"].shape) == ([], (3,))
    assert dataset[7]["in"]["x"].tolist() == [21, 22, 23]
    batch: Any = source.read(np.array([5, 2, 5]))
    assert batch["in"]["x"].tolist() == [[15, 16, 17], [6, 7, 8], [15, 16, 17]]
    assert array.asked == [slice(7, 8), 5, 2, 5]
    whole = {"in": {"x": np.zeros((20, 3), np.int32)}, "y": np.arange(20)}
    assert source.fingerprint == ArrayDataSource(whole).fingerprint


def test_masked_rows_are_refused_and_others_are_read() -> None:
    class Masked(OnDisk):
        def __getitem__(self, rows: Any) -> Any:
            return np.ma.masked_equal(super().__getitem__(rows), 30)

    source = ArrayDataSource({"x": Masked()})
    assert source[3]["x"].tolist() == [9, 10, 11]
    for wanted in ([10], [3, 10]):
        with pytest.raises(ArgumentError, match=r"mask would be lost; turn masks off"):
            source.read(np.array(wanted))


def test_files_groups_and_dicts_of_h5py_are_read_lazily(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py: Any = pytest.importorskip("h5py")
    rows = np.arange(40).reshape(10, 4).tolist()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = rows
        file["in/name"] = [f"n{i}" for i in range(10)]
    with h5py.File(tmp_path / "a.h5") as file:
        monkeypatch.setattr(h5py.Dataset, "__array__", lambda *_, **__: pytest.fail("whole"))
        for given in (file, {"x": file["x"], "in": file["in"]}, dict(file)):
            found = list(MapDataset.source(given).shuffle(seed=1))
            assert sorted(element["x"].tolist() for element in found) == rows
            assert all(e["in"]["name"] == b"n%d" % (e["x"][0] // 4) for e in found)


@pytest.mark.parametrize("wrapped", [lambda x: x, lambda x: {"x": x}, lambda x: {"in": {"x": x}}])
def test_arrays_of_dask_are_refused(wrapped: Any) -> None:
    array: Any = pytest.importorskip("dask.array").ones((10, 4), chunks=2)
    with pytest.raises(ArgumentError, match=r"of dask.* \.to_zarr\('x\.zarr'\).* made from"):
        MapDataset.source(wrapped(array))


def test_the_file_of_a_memmap_gone_or_changed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000))
    sent = pickle.dumps(ArrayDataSource(np.load(tmp_path / "a.npy", mmap_mode="r")))
    np.save(tmp_path / "a.npy", np.arange(900))
    with pytest.raises(ReadError, match=r"a\.npy, .* changed since .* 7,328 bytes, then 8,128"):
        pickle.loads(sent)
    (tmp_path / "a.npy").unlink()
    with pytest.raises(NotFoundError, match=r"a\.npy, .* is gone or not on this machine"):
        pickle.loads(sent)


def test_slices_and_names_of_a_source_say_where_they_belong() -> None:
    source: Any = ArrayDataSource({"x": np.arange(4)})
    for asked, written in ((slice(0, 3), "0:3"), (slice(None, None, 2), "::2")):
        message = f"no slices; slice the dataset: MapDataset.source(source)[{written}]"
        with pytest.raises(ArgumentError, match=re.escape(message)):
            source[asked]
    with pytest.raises(
        ArgumentError, match=r"must be integers, got 'x'; .* names=\['x'\], .*\['x'\]$"
    ):
        source["x"]
    with pytest.raises(RecordIndexError, match="index 1 is out of range for 1 record;"):
        _ = ArrayDataSource(np.zeros(1))[1]
