"""Columns and elements: what functions get, whose memory it is, and how trees come back."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from windrow.errors import ElementError

M = windrow.MapDataset


class Recorder:
    """A batched function that records the rows it was called on."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, column: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        self.calls.append(column.tolist())
        return column * 2

    @property
    def sizes(self) -> list[int]:
        return [len(call) for call in self.calls]


BLOCKS = [
    windrow.ReadOptions(threads, 500, memory_bytes=size)
    for threads in (0, 2)
    for size in (1, 300, 2**33)
]


# --- on which rows a batched function is called --------------------------------------------------


@pytest.mark.parametrize("options", BLOCKS, ids=repr)
@pytest.mark.parametrize("behind", [True, False])
def test_a_batched_function_gets_the_rows_of_the_next_batch(
    behind: bool, options: windrow.ReadOptions
) -> None:
    record = Recorder()
    base = M.source(np.arange(103)).map(record, batched=True)
    dataset: Any = (
        base.to_iter_dataset(options).batch(10)
        if behind
        else base.batch(10).to_iter_dataset(options)
    )
    batches = [batch.tolist() for batch in dataset]
    assert batches == [[2 * x for x in call] for call in record.calls]
    assert record.sizes == [10] * 10 + [3]


@pytest.mark.parametrize("options", BLOCKS, ids=repr)
def test_a_batched_function_of_a_stream_gets_the_rows_of_the_next_batch(
    options: windrow.ReadOptions,
) -> None:
    record = Recorder()
    stream: Any = M.source(np.arange(103)).to_iter_dataset(options)
    dataset = stream.filter(lambda x: x % 2).map(record, batched=True).map(lambda x: x).batch(10)
    batches = [batch.tolist() for batch in dataset]
    assert batches == [[2 * x for x in call] for call in record.calls]
    assert record.sizes == [10] * 5 + [1]


@pytest.mark.parametrize("is_stream", [True, False])
def test_before_a_shard_of_a_stream_it_gets_the_rows_of_whole_batches(is_stream: bool) -> None:
    record = Recorder()
    base: Any = M.source(np.arange(10))
    if is_stream:
        stream = base.to_iter_dataset().map(record, batched=True)
    else:
        stream = base.map(record, batched=True).to_iter_dataset()
    assert [batch.tolist() for batch in stream.batch(4).shard(1, 2)] == [[4, 6], [12, 14], []]
    assert record.sizes == [4, 4, 2]


@pytest.mark.parametrize("options", BLOCKS, ids=repr)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [0, 1, 256, 300, 512])
def test_after_a_restart_it_gets_the_same_blocks(
    at: int, stream: bool, options: windrow.ReadOptions
) -> None:
    record = Recorder()
    base: Any = M.source(np.arange(600))
    if stream:
        dataset = base.to_iter_dataset(options).map(record, batched=True)
    else:
        dataset = base.map(record, batched=True).to_iter_dataset(options)
    iterator = iter(dataset)
    for _ in range(at):
        next(iterator)
    state = iterator.get_state()
    iterator.close()
    record.calls.clear()
    again = iter(dataset)
    again.set_state(state)
    assert list(again) == [2 * x for x in range(at, 600)]
    assert [call[0] for call in record.calls] == list(range(at // 256 * 256, 600, 256))
    assert record.sizes == [256] * (2 - at // 256) + [88]


def test_a_read_calls_it_once_for_elements_and_per_batch_for_batches() -> None:
    record = Recorder()
    dataset = M.source(np.arange(100)).map(record, batched=True)
    assert dataset.read([5, 3, 3, 99]).tolist() == [10, 6, 6, 198]
    dataset.batch(7).read([1, 14])
    assert record.calls == [[5, 3, 3, 99], list(range(7, 14)), [98, 99]]


def test_in_a_mixture_it_gets_its_rows_of_the_batch() -> None:
    record = Recorder()
    mixed = M.mix([M.source(np.arange(30)).map(record, batched=True), M.source(np.arange(30))])
    got = [batch.tolist() for batch in mixed.batch(4)[:2]]
    assert got == [[0, 0, 2, 1], [4, 2, 6, 3]]
    assert record.calls == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "returned",
    [
        lambda c: c[1:],
        lambda c: {"a": c, "b": c[:2]},
        lambda c: [0],
        lambda c: c.sum(),
        lambda c: None,
        lambda c: {"a": "text"},
    ],
)
def test_the_rows_that_a_batched_function_returns_are_counted(
    returned: Callable[[Any], Any],
) -> None:
    dataset = M.source(np.arange(8)).map(returned, batched=True)
    with pytest.raises(ElementError):
        dataset.batch(4)[1]
    with pytest.raises(ElementError):
        list(dataset.to_iter_dataset().batch(4))
    with pytest.raises(ElementError):
        list(M.source(np.arange(8)).to_iter_dataset().map(returned, batched=True).batch(4))


def test_what_a_batched_function_may_return() -> None:
    def many(column: Any) -> Any:
        words = [f"w{x}" for x in column]
        return {"a": jnp.asarray(column) * 2, "b": words, "c": (column, [b"\0"] * len(column))}

    dataset = M.source(np.arange(6)).map(many, batched=True)
    assert dataset[4] == {"a": 8, "b": "w4", "c": (4, b"\0")}
    batch: Any = dataset.batch(3)[1]
    assert type(batch["a"]) is np.ndarray
    assert batch["b"] == ["w3", "w4", "w5"]
    assert dataset.map(lambda e: e["b"])[2] == "w2"


PAIRS = {"pair": [np.arange(2.0), np.ones(3)], "text": "x"}


def _in_place(columns: Any) -> Any:
    columns["pair"] = [columns["pair"][0], columns["pair"][1]]
    return columns


@pytest.mark.parametrize(
    "returned",
    [
        lambda c: c | {"pair": [c["pair"][0], c["pair"][1]]},
        lambda c: c | {"pair": c["pair"][::-1]},
        _in_place,
    ],
)
@pytest.mark.parametrize("rows", [2, 3])  # two rows are as many as there are columns in the list
def test_a_plain_list_where_a_list_of_columns_was_is_refused(
    returned: Callable[[Any], Any], rows: int
) -> None:
    dataset = M.source([PAIRS] * rows).map(returned, batched=True)
    message = (
        r"returned a plain list where its input has a list of 2 columns; return"
        r" windrow\.transforms\.ListColumns\(\[\.\.\.\]\) for a list"
    )
    with pytest.raises(ElementError, match=message):
        dataset.read(range(rows))
    with pytest.raises(ElementError, match=message):
        M.source([[1, 2]] * rows).map(list, batched=True).read(range(rows))


def test_the_ways_out_of_a_refused_list() -> None:
    pairs: Any = M.source([[1, 10], [2, 20]])
    lists = windrow.transforms.ListColumns
    swapped = pairs.map(lambda c: lists([c[1], c[0]]), batched=True)
    assert swapped.__getitems__([0, 1]) == [[10, 1], [20, 2]]
    texts = pairs.map(
        lambda c: np.array([f"{a}{b}" for a, b in zip(*c, strict=True)], object), batched=True
    )
    assert texts.__getitems__([0, 1]) == ["110", "220"]
    assert pairs.map(lambda c: c, batched=True)[1] == [2, 20]
    assert pairs.map(lambda c: {"sum": c[0] + c[1], "s": ["a"] * len(c[0])}, batched=True)[0] == {
        "sum": 11,
        "s": "a",
    }


STRINGS: list[Any] = [
    (np.array([b"ab", b"c"]), [b"ab", b"c"]),
    (np.array(["ab", "c"]), ["ab", "c"]),
    (np.array(["ab\0", "c"], np.dtypes.StringDType()), ["ab\0", "c"]),
    (np.array([b"ab\0", "c"], object), [b"ab\0", "c"]),
    (np.array([{"k": 1}, (2, 3)], object), [{"k": 1}, (2, 3)]),
]


@pytest.mark.parametrize(("array", "values"), STRINGS, ids=lambda v: repr(v)[:24])
def test_arrays_of_strings_and_objects_become_lists(array: Any, values: list[Any]) -> None:
    class Strings:
        fingerprint = "strings"

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return values[index]

        def read(self, indices: npt.NDArray[np.int64]) -> Any:
            return array[indices]

    kinds = [type(value) for value in values]
    for dataset in (M.source(Strings()), M.range(2).map(lambda c: array[c], batched=True)):
        elements: Any = dataset.__getitems__([0, 1])
        assert elements == values
        assert [type(element) for element in elements] == kinds
        assert [type(dataset[i]) for i in (0, 1)] == kinds
    nested: Any = M.range(2).map(lambda c: {"s": array[c], "n": c}, batched=True)
    assert type(nested.batch(2)[0]["s"]) is list
    assert nested[0] == {"s": values[0], "n": 0}
    assert type(nested[0]["s"]) is kinds[0]


# --- whose memory --------------------------------------------------------------------------------


def sources() -> dict[str, tuple[Any, Any]]:
    """Sources in memory, each with the user's own data."""
    array = np.arange(12.0).reshape(4, 3)
    listed = [np.arange(3.0) + 3 * i for i in range(4)]
    foreign = collections.UserList([np.arange(3.0) + 3 * i for i in range(4)])
    return {
        "array": (array, array),
        "dict": ({"x": array}, array),
        "list": (listed, listed),
        "dicts": ([{"x": row} for row in listed], listed),
        "foreign": (foreign, foreign),
    }


def _spoil(element: Any) -> Any:
    array = element["x"] if isinstance(element, dict) else element
    array += 1000
    if isinstance(element, dict):
        element["more"] = 1
    return element


@pytest.mark.parametrize("name", sources())
def test_a_map_may_change_its_element_and_nothing_else(name: str) -> None:
    given, data = sources()[name]
    before = np.array(data).copy()
    dataset = M.source(given)
    indices = [1, 1, 2, 1, 5]  # the last is of the next epoch
    spoiled: Any = dataset.map(_spoil).__getitems__(indices)
    arrays = [e["x"] if isinstance(e, dict) else e for e in spoiled]
    assert np.array_equal(arrays, before[[1, 1, 2, 1, 1]] + 1000)
    assert np.array_equal(np.array(data), before)
    if isinstance(given, list) and isinstance(given[0], dict):
        assert list(given[0]) == ["x"]
    twice = M.zip([dataset, dataset]).map(lambda pair: (_spoil(pair[0]), pair[1]))
    for one, other in twice.to_iter_dataset():
        assert not np.array_equal(*(e["x"] if isinstance(e, dict) else e for e in (one, other)))
    # What came out may be changed too: by element, by batch, by read.
    changed: list[Any] = [
        dataset[1],
        dataset.batch(2)[0],
        dataset.read([0, 1]),
        next(iter(dataset)),
    ]
    for value in changed:
        _spoil(value)
    assert np.array_equal(np.array(data), before)
    again: Any = dataset[1]
    assert np.array_equal(again["x"] if isinstance(again, dict) else again, before[1])


def test_elements_of_a_stream_do_not_share_memory() -> None:
    array = np.zeros((6, 2))
    for element in M.source(array):
        assert element.tolist() == [0, 0]  # not what a former one was changed to
        element += 1
    for batch in M.source(array).batch(2):
        assert batch.tolist() == [[0, 0], [0, 0]]
        batch += 1
    assert not array.any()
    window: Any = M.source(array).to_iter_dataset().window_shuffle(4, seed=1)
    for element in window:
        assert element.tolist() == [0, 0]
        element += 1


_VIEWS: dict[str, Callable[[Any], Any]] = {
    "flipped": lambda image: image[:, ::-1],
    "upside down": lambda image: image[::-1],
    "cropped": lambda image: image[1:4, 2:5],
    "transposed": lambda image: image.T,
    "turned": np.rot90,
    "every other": lambda image: image[..., ::2],
    "broadcast": lambda image: np.broadcast_to(image[:1], image.shape),
    "now and then": lambda image: image[:, ::-1] if image[0, 0, 0] % 2 else image,
}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, jnp.bfloat16, ">f4"])
@pytest.mark.parametrize("view", list(_VIEWS))
def test_rows_that_are_views_in_any_order_are_batched(view: str, dtype: Any) -> None:
    function = _VIEWS[view]
    images = np.arange(10 * 5 * 5 * 4).reshape(10, 5, 5, 4).astype(dtype)
    mapped = M.source(images).map(function)
    expected = [np.stack([function(i) for i in images[at : at + 4]]) for at in (0, 4, 8)]
    for found in (mapped.batch(4), mapped.to_iter_dataset().batch(4)):
        for batch, wanted in zip(found, expected, strict=True):
            assert batch.dtype == dtype
            np.testing.assert_array_equal(batch.astype(np.float64), wanted.astype(np.float64))


def test_a_batch_that_nobody_took_apart_is_not_copied() -> None:
    block = np.arange(40.0).reshape(20, 2)

    class Fixed:
        """A source that keeps what it gave out."""

        fingerprint = "fixed"

        def __init__(self) -> None:
            self.given: list[Any] = []

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return block[index]

        def read(self, indices: npt.NDArray[np.int64]) -> Any:
            self.given.append({"x": block[indices], "y": indices})
            return self.given[-1]

    source = Fixed()
    batch: Any = M.source(source).shuffle(seed=1).batch(5)[2]
    assert np.shares_memory(batch["x"], source.given[0]["x"])
    batches: Any = list(M.source(source).batch(5).to_iter_dataset().limit(4))
    assert all(any(np.shares_memory(b["x"], g["x"]) for g in source.given) for b in batches)
    streamed: Any = list(M.source(source).to_iter_dataset().batch(5))
    assert any(np.shares_memory(streamed[3]["x"], g["x"]) for g in source.given)
    columns_read: Any = M.source(source).read([3, 1])
    assert np.shares_memory(columns_read["x"], source.given[-1]["x"])
    made: list[Any] = []

    def double(columns: Any) -> Any:
        made.append(columns["x"] * 2)
        return made[-1]

    keep = M.source(source).map(double, batched=True)
    results: Any = list(keep.to_iter_dataset().batch(5))
    assert all(np.shares_memory(r, m) for r, m in zip(results, made, strict=True))


# --- forms ---------------------------------------------------------------------------------------


def test_trailing_nuls_survive() -> None:
    texts = [b"a\0\0", b"\0", b"", b"bc\0"]
    strings = ["a\0", "\0\0", "", "b"]
    for values in (texts, strings):
        dataset: Any = M.source(values)
        assert dataset.read([0, 1, 3]) == [values[0], values[1], values[3]]
        assert list(dataset.batch(2)) == [values[:2], values[2:]]
        assert list(dataset.to_iter_dataset().batch(3)) == [values[:3], values[3:]]
        nested: Any = dataset.map(lambda v: {"v": v, "n": len(v)})
        assert nested.batch(4)[0]["v"] == values
        assert nested.read([1, 0])["v"] == [values[1], values[0]]
        kept = nested.map(lambda c: c, batched=True)
        assert kept[1] == {"v": values[1], "n": len(values[1])}


def test_columns_that_do_not_agree_are_lists() -> None:
    ragged: Any = M.range(4).map(lambda n: {"r": np.arange(n), "f": np.float32(n)})
    columns_read = ragged.read(range(4))
    assert [r.tolist() for r in columns_read["r"]] == [[], [0], [0, 1], [0, 1, 2]]
    assert columns_read["f"].dtype == np.float32
    kinds: Any = M.range(4).map(lambda n: np.arange(2, dtype=np.int32 if n % 2 else np.int64))
    assert [c.dtype for c in kinds.read(range(4))] == [np.int64, np.int32, np.int64, np.int32]
    assert kinds.batch(2)[0].dtype == np.int64  # promoted, as numpy.stack does
    mixed: Any = M.mix([M.source(np.zeros(4, np.int32)), M.source(np.zeros(4, np.float32))])
    assert [type(v) for v in mixed.read([0, 1])] == [np.int32, np.float32]
    alike: Any = M.mix([M.source(np.zeros((4, 2))), M.source(np.ones((4, 2)))])
    assert alike.read([0, 1, 2]).tolist() == [[0, 0], [1, 1], [0, 0]]
    both: Any = M.mix([M.range(4), M.source(np.arange(4))])
    assert [type(v) for v in both.read([0, 1])] == [int, np.int64]
    trees: Any = M.range(2).map(lambda n: {"a": 1} if n else {"b": 1})
    assert trees.read([0, 1]) == [{"b": 1}, {"a": 1}]
    assert M.range(3).map(lambda n: [None, 1, "x"][n] or 0).read([0, 1]).tolist() == [0, 1]
    assert M.source([2**70, 1]).read([0, 1]) == [2**70, 1]
    assert M.source([True, 2]).read([0, 1]) == [True, 2]
    assert M.source([True, False]).read([0, 1]).dtype == np.bool_


TREES = st.recursive(
    st.sampled_from(["int", "float", "text", "bytes", "array", "matrix", "bool"]),
    lambda inner: (
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.tuples(inner, inner).map(lambda two: make.Pair(*two))
    ),
    max_leaves=6,
)


def _filled(tree: Any, seed: int) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "int": lambda: seed,
        "float": lambda: seed / 2,
        "text": lambda: f"t{seed}\0",
        "bytes": lambda: b"b\0" * seed,
        "array": lambda: np.arange(3, dtype=np.int16) + seed,
        "matrix": lambda: np.full((2, 2), seed, np.float32),
        "bool": lambda: bool(seed % 2),
    }
    return make.on_leaves(lambda kind: made[kind](), tree)


def _plain(tree: Any) -> Any:
    """`tree` with NumPy's scalars as Python's."""
    return make.on_leaves(lambda leaf: leaf.item() if isinstance(leaf, np.generic) else leaf, tree)


@given(tree=TREES)
@settings(max_examples=examples(100))
def test_trees_come_back_as_they_were(tree: Any) -> None:
    elements = [_filled(tree, seed) for seed in range(5)]
    source = M.source(elements)
    assert make.differences(source, elements) == []
    untouched = source.map(lambda c: c, batched=True)
    assert make.differences(map(_plain, untouched), elements) == []
    mixed: Any = M.mix([untouched, source])
    assert make.differences(map(_plain, mixed), [e for e in elements for _ in range(2)]) == []


def test_arrays_of_jax_become_arrays_of_numpy() -> None:
    dataset: Any = M.range(6).map(lambda n: {"x": jnp.full((2,), n), "y": jnp.float32(n)})
    for batch in (dataset.batch(3)[1], next(iter(dataset[3:].to_iter_dataset().batch(3)))):
        assert type(batch["x"]) is np.ndarray
        assert batch["x"].tolist() == [[3, 3], [4, 4], [5, 5]]
        assert batch["y"].dtype == np.float32
    assert type(dataset.read([0, 1])["x"]) is np.ndarray
    mixed: Any = M.range(2).map(lambda n: jnp.ones(2) if n else np.zeros(2, np.float32))
    assert mixed.batch(2)[0].tolist() == [[0, 0], [1, 1]]
    assert mixed[::-1].batch(2)[0].tolist() == [[1, 1], [0, 0]]


def test_byte_order_and_empty_lists_are_kept() -> None:
    swapped: Any = M.source([np.arange(2, dtype=">i4")] * 3)
    assert [swapped.read(range(n)).dtype.str for n in (1, 2, 3)] == [">i4"] * 3
    empty: Any = M.source([{"e": [], "t": ()}] * 3).map(lambda c: c, batched=True)
    assert [type(empty[1][key]) for key in "et"] == [list, tuple]
    assert empty.batch(2)[0] == {"e": [], "t": ()}


@pytest.mark.parametrize(
    "read",
    [
        lambda at: [0],
        lambda at: {"x": at[:1]},
        lambda at: 5,
    ],
)
def test_what_a_source_returns_is_checked(read: Callable[[Any], Any]) -> None:
    class Odd:
        fingerprint = "odd"

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return index

        def read(self, indices: npt.NDArray[np.int64]) -> Any:
            return read(indices)

    with pytest.raises(ElementError):
        M.source(Odd()).read([0, 1, 2])
