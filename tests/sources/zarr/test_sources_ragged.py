"""Rows of different lengths from Zarr: NumPy has the same rows, however they are stored and read."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from tests.range_server import RangeServer
from tests.strategies import lengths_of
from windrow import MapDataset, ReadOptions
from windrow.errors import ArgumentError, PlanError, ReadError, SourceError
from windrow.sources import ArraySpec, RaggedDataSource
from windrow.sources.ragged_column import RaggedColumn
from windrow.transforms.positions import positions

AnyArray = npt.NDArray[Any]
TIGHT = ReadOptions(memory_bytes=3_000)
SYNCHRONOUS = ReadOptions(num_threads=0, prefetch_buffer_size=0)


def write(
    folder: Path | str,
    rows: Sequence[AnyArray],
    *,
    chunk: int = 7,
    shard: int | None = None,
    path: str = "",
    **more: Any,
) -> None:
    """Values and offsets of rows, as conversions write them."""
    group = zarr.open_group(str(folder), mode="a")
    group = group.require_group(path) if path else group
    values = np.concatenate(rows)
    group.create_array(
        "values",
        data=values,
        chunks=(chunk, *(max(1, n) for n in values.shape[1:])),
        shards=None if shard is None else (shard * chunk, *values.shape[1:]),
        **more,
    )
    offsets = np.cumsum([0, *map(len, rows)])
    group.create_array("offsets", data=offsets, chunks=(max(1, len(offsets) // 3),))


def rows_of(lengths: Sequence[int], dtype: Any = "u2", shape: tuple[int, ...] = ()) -> list[Any]:
    size = int(np.prod(shape, dtype=int))
    values = np.arange(sum(lengths) * size).astype(dtype).reshape(-1, *shape)
    return list(np.split(values, np.cumsum(lengths)[:-1]))


def check(found: Any, wanted: Sequence[AnyArray]) -> None:
    assert len(found) == len(wanted)
    for got, row in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (row.dtype, row.shape)
        np.testing.assert_array_equal(got, row)


record_lengths = st.lists(
    st.integers(0, 5) | st.sampled_from([0, 7, 8, 33]), min_size=1, max_size=30
)


@st.composite
def stored(draw: st.DrawFn) -> tuple[list[AnyArray], dict[str, Any]]:
    dtype, shape = draw(st.sampled_from([("u2", ()), ("f4", (2,)), ("bool", ()), ("i8", (2, 3))]))
    layout = {
        "chunk": draw(st.sampled_from([1, 3, 7, 100])),
        "shard": draw(st.sampled_from([None, 3])),
        "compressors": draw(st.sampled_from(["auto", None])),
    }
    return rows_of(draw(record_lengths), dtype, shape), layout


@settings(max_examples=examples(40), deadline=None)
@given(stored(), st.sampled_from([None, False]), st.data())
def test_rows_are_those_of_numpy_in_any_order(
    given_rows: Any, direct: bool | None, data: st.DataObject
) -> None:
    rows, layout = given_rows
    with tempfile.TemporaryDirectory() as folder:
        write(folder, rows, **layout)
        source = RaggedDataSource(folder, direct=direct)
        at = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), max_size=20))
        found = source.read(np.array(at, np.int64))
        assert isinstance(found, RaggedColumn)
        check(found, [rows[i] for i in at])
        assert source.lengths().tolist() == list(map(len, rows))  # type: ignore[union-attr]
        some = source.lengths_of(np.array(at, np.int64))
        assert some.tolist() == [len(rows[i]) for i in at]  # type: ignore[union-attr]
        other = pickle.loads(pickle.dumps(source))
        assert other.fingerprint == source.fingerprint
        check(other.__getitems__(at), [rows[i] for i in at])

        dataset = MapDataset.source(source)
        for number, name in enumerate(
            data.draw(st.lists(st.sampled_from(sorted(ORDERS)), max_size=2))
        ):
            # Behind another order, what is stored together is not known.
            hidden = number and name == "block_shuffle"
            dataset = ORDERS["small blocks" if hidden else name](dataset)
        options = data.draw(st.sampled_from([None, TIGHT, SYNCHRONOUS]))
        wanted = [dataset[i] for i in range(len(dataset))]
        known = lengths_of(dataset._node, positions(np.arange(len(dataset)), len(dataset)))
        assert known.tolist() == [len(row) for row in wanted if row is not None]
        check(list(dataset.to_iter_dataset(options)), wanted)  # type: ignore[arg-type]
        assert sum(map(len, wanted)) == sum(map(len, rows)) or len(wanted) != len(rows)  # type: ignore[arg-type]


ORDERS: dict[str, Any] = {
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "block_shuffle": lambda ds: ds.block_shuffle(seed=1, window_blocks=2),
    "small blocks": lambda ds: ds.block_shuffle(seed=1, block=3, window_blocks=2),
    "reverse": lambda ds: ds[::-1],
    "repeat": lambda ds: ds.repeat(2),
    "concatenate": lambda ds: MapDataset.concatenate([ds, ds]),
    "mix": lambda ds: MapDataset.mix([ds, ds.shuffle(seed=2)]),
}


# --- groups --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a conversion leaves: two ragged fields, one of bytes, and one array of labels."""
    group = zarr.create_group(tmp_path, attributes={"windrow_ragged": NOTED})
    group.create_array("label", data=np.arange(3))
    write(tmp_path, rows_of([2, 0, 3]), path="tokens")
    write(tmp_path, [np.frombuffer(b, "u1") for b in TEXTS], path="doc/text")
    return tmp_path


TEXTS = ["né".encode(), b"", b"c\0"]
NOTED = {
    "tokens": {"dtype": "uint16", "shape": [None]},
    "doc/text": {"dtype": "bytes", "shape": [None]},
}


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_a_group_gives_a_dict_per_record(folder: Path, consolidated: bool) -> None:
    if consolidated:
        zarr.consolidate_metadata(folder)
    source = RaggedDataSource(folder)
    assert sorted(source[2]) == ["doc", "label", "tokens"]
    found = source.__getitems__([2, 0])
    assert [x["doc"]["text"] for x in found] == [TEXTS[2], TEXTS[0]]
    assert [x["tokens"].tolist() for x in found] == [[2, 3, 4], [0, 1]]
    assert [int(x["label"]) for x in found] == [2, 0]
    assert source.spec["tokens"] == ArraySpec((None,), np.uint16)
    assert (source.spec["doc"]["text"], source.spec["label"].shape) == (bytes, ())
    dataset = MapDataset.source(source).shuffle(seed=0)
    elements = [dataset[i] for i in range(3)]
    for streamed, element in zip(dataset, elements, strict=True):
        assert repr(streamed) == repr(element)
    with pytest.raises(PlanError, match=r"'tokens'.* differ in length; choose one by names="):
        source.lengths()
    with pytest.raises(PlanError, match=r"'tokens'.* differ in length; choose one by names="):
        source.lengths_of(np.array([2, 0]))
    assert source.lengths_of(np.array([1])) == [0]


def test_fields_are_chosen_by_name_or_path(folder: Path) -> None:
    tokens = RaggedDataSource(folder, names=["tokens"])
    assert list(tokens[0]) == ["tokens"]
    assert tokens.lengths().tolist() == [2, 0, 3]  # type: ignore[union-attr]
    assert RaggedDataSource(folder / "tokens")[2].tolist() == [2, 3, 4]
    arrays = {name: ts.array(zarr.open_array(folder / "tokens" / name)[:]) for name in PAIR}
    assert RaggedDataSource(arrays)[2].tolist() == [2, 3, 4]
    pair = RaggedDataSource({"x": arrays, "label": ts.array(np.arange(3))}, names=["label", "x"])
    assert list(pair[2]) == ["label", "x"]


PAIR = ("values", "offsets")
PAIR_OF_UINT16 = {"values": ts.array(np.zeros(5, "u2")), "offsets": ts.array([0, 5])}


def test_texts_are_bytes_or_strings(folder: Path, tmp_path: Path) -> None:
    source = RaggedDataSource(folder / "doc" / "text")
    assert source.__getitems__([0, 1, 2]) == TEXTS  # noted in the group around it
    assert source.lengths().tolist() == [3, 0, 2]  # type: ignore[union-attr]
    texts = RaggedDataSource(folder / "doc" / "text", text="str")
    assert list(MapDataset.source(texts)) == ["né", "", "c\0"]
    assert (texts.lengths(), texts.spec) == (None, str)
    assert texts.fingerprint != source.fingerprint
    assert RaggedDataSource(folder, text="str")[2]["tokens"].tolist() == [2, 3, 4]
    write(tmp_path / "bad", [np.frombuffer(b"ab\xff", "u1")])
    with pytest.raises(ReadError, match=r"record 0 in .* is not UTF-8: .* text='bytes'"):
        RaggedDataSource(tmp_path / "bad", text="str")[0]
    assert RaggedDataSource(tmp_path / "bad")[0].tolist() == [97, 98, 255]


def test_rows_are_read_over_http(folder: Path) -> None:
    with RangeServer(folder) as server:
        label = RaggedDataSource(server.url(""), names=["label", "tokens"])[2]
        assert (int(label["label"]), label["tokens"].tolist()) == (2, [2, 3, 4])
        source = RaggedDataSource(server.url("tokens"))
        assert source.is_remote_source
        dataset = MapDataset.source(source)
        check(list(dataset.shuffle(seed=0)), [dataset[i] for i in ORDER_OF_3])
        assert source.lengths().tolist() == [2, 0, 3]  # type: ignore[union-attr]


ORDER_OF_3 = MapDataset.range(3).shuffle(seed=0).read([0, 1, 2]).tolist()


# --- what is wrong -------------------------------------------------------------------------------


def test_wrong_arguments_are_refused(folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"text must be 'bytes', 'str' or None, got 'utf8'"):
        RaggedDataSource(folder, text="utf8")  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"rows of str are made of uint8 .* got uint16 \[5\]"):
        RaggedDataSource(PAIR_OF_UINT16, text="str")
    for arrays, names in ((folder / "label", None), (folder, ["label"])):
        with pytest.raises(SourceError, match=r"found no rows that differ in length.*ZarrDataSour"):
            RaggedDataSource(arrays, names=names)
    zarr.open_group(folder, mode="a").create_array("short", data=np.arange(2))
    with pytest.raises(SourceError, match=r"differ in their number of records\n(.*\n)*  short: 2"):
        RaggedDataSource(folder)


def test_no_records_and_empty_records(tmp_path: Path) -> None:
    nothing = RaggedDataSource({"values": ts.array(np.zeros(0)), "offsets": ts.array([0])})
    assert (len(nothing), list(MapDataset.source(nothing))) == (0, [])
    empty = {"values": ts.array(np.zeros(0, "f4")), "offsets": ts.array([0, 0, 0])}
    dataset = MapDataset.source(RaggedDataSource(empty))
    check(list(dataset.shuffle(seed=0)), [np.zeros(0, "f4")] * 2)
    check(list(dataset.block_shuffle(seed=0)), [np.zeros(0, "f4")] * 2)


# --- offsets in chunks ---------------------------------------------------------------------------

LENGTHS = [3, 0, 7, 1, 1, 20, 0, 2, 5, 5, 6, 2, 9, 4]  # 65 values: nine blocks of eight
BOUNDS = np.cumsum([0, *LENGTHS])
BLOCKS = np.searchsorted(BOUNDS, np.arange(0, 65, 8)).tolist()


def chunked_offsets(
    bounds: Sequence[int], dtype: str = "i8", chunk: int = 2
) -> tuple[Any, list[int]]:
    """Offsets in chunks, and a list of the first offset of each chunk that is read."""
    read: list[int] = []

    def fill(domain: Any, out: AnyArray, parameters: Any) -> None:
        first, stop = domain[0].inclusive_min, domain[0].exclusive_max
        read.append(first)
        out[...] = np.array(bounds, dtype)[first:stop]

    layout = ts.ChunkLayout(read_chunk_shape=[chunk])
    store = ts.virtual_chunked(
        fill, dtype=np.dtype(dtype), shape=[len(bounds)], chunk_layout=layout
    )
    return store, read


@settings(max_examples=examples(30), deadline=None)
@given(record_lengths, st.integers(1, 7), st.sampled_from(["i8", "u4", "u8"]), st.data())
def test_only_chunks_of_offsets_that_are_needed_are_read_and_once(
    lengths: list[int], chunk: int, dtype: str, data: st.DataObject
) -> None:
    bounds = np.cumsum([0, *lengths]).tolist()
    offsets, read = chunked_offsets(bounds, dtype, chunk)
    source = RaggedDataSource({"values": ts.array(np.arange(bounds[-1])), "offsets": offsets})
    needed = {len(lengths) // chunk}  # the last one is always read
    for _ in range(data.draw(st.integers(1, 4))):
        records = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=5))
        found = source.lengths_of(np.array(records))
        assert found.tolist() == [lengths[r] for r in records]  # type: ignore[union-attr]
        needed |= {row // chunk for r in records for row in (r, r + 1)}
    assert sorted(read) == [number * chunk for number in sorted(needed)]
    assert source.lengths().tolist() == lengths  # type: ignore[union-attr]
    assert len(read) == len(set(read))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([1, 2, 3, 4, 5, 6], r"they begin with 1, and must begin with 0"),
        ([0, 2, 1, 4, 5, 6], r"offset 2 is 1, and less than 2 before it"),
        ([0, 4, 3, 4, 5, 6], r"offset 2 is 3, and less than 4 before it"),
        ([0, 1, -3, 4, 5, 6], r"offset 2 is -3, and (less than 1 before it|must be at least 0)"),
        (
            [0, 1, 3, 9, 5, 6],
            r"offset (4 is 5, and less than 9 before it|3 is 9, and there are 6 values)",
        ),
        ([0, 1, 3, 4, 5, 7], r"the last one is 7, and there are 6 values"),
        ([0, 1, 3, 4, 5, 5], r"the last one is 5, and there are 6 values"),
    ],
)
def test_damaged_offsets_are_refused(bounds: list[int], message: str) -> None:
    def opened() -> RaggedDataSource:
        values, (offsets, _) = ts.array(np.arange(6)), chunked_offsets(bounds)
        return RaggedDataSource({"values": values, "offsets": offsets})

    said = rf"RaggedDataSource: the offsets in .* do not fit the values in .*: {message}"
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        source = opened()
        with pytest.raises(ReadError, match=said):
            [source[record] for record in order]
    for use in (RaggedDataSource.lengths, RaggedDataSource.blocks):
        with pytest.raises(ReadError, match=message):
            use(opened())
    with pytest.raises(ReadError, match=message):
        list(MapDataset.source(opened()))


def indexed(path: Path, index: Sequence[int]) -> RaggedDataSource:
    """Rows of `LENGTHS` values of 128 KiB, none of which is stored, with an index of blocks."""
    group = zarr.create_group(path)
    group.create_array("values", shape=(65, 1 << 17), chunks=(2, 1 << 17), dtype="u1")
    group.create_array("offsets", data=BOUNDS, chunks=(2,))
    blocks = group.create_array("blocks", shape=(len(index),), chunks=(2,), dtype="i8")
    blocks[...] = np.array(index, "i8")
    blocks.attrs["windrow_block_values"] = 8
    return RaggedDataSource(path)


@pytest.mark.parametrize("blocks", [0, 1, 5, 8, 9])
def test_blocks_that_were_appended_are_found_from_the_offsets(tmp_path: Path, blocks: int) -> None:
    source = indexed(tmp_path / "a", BLOCKS[:blocks])
    assert source.blocks().tolist() == sorted({*BLOCKS, len(LENGTHS)})
    assert source.lengths().tolist() == LENGTHS  # type: ignore[union-attr]


def wrong_indexes() -> list[tuple[int, list[int]]]:
    """The right index with one block that begins a record too early or too late, but rises."""
    changed = [
        (k, [*BLOCKS[:k], BLOCKS[k] + by, *BLOCKS[k + 1 :]]) for k in range(1, 9) for by in (-1, 1)
    ]
    return [(k, index) for k, index in changed if index == sorted(index) and index[-1] <= 14]


@pytest.mark.parametrize(("block", "index"), wrong_indexes())
def test_a_wrong_index_of_blocks_is_noticed(tmp_path: Path, block: int, index: list[int]) -> None:
    message = rf"the index of blocks in .* does not fit .*: block {block} begins with record"
    read = indexed(tmp_path / "a", index)
    read.lengths()
    with pytest.raises(ReadError, match=message):
        read.blocks()
    planned = RaggedDataSource(tmp_path / "a")
    planned.blocks()
    with pytest.raises(ReadError, match=message):
        # One record after the other, only what is read can be compared.
        [planned.lengths_of(np.array([record])) for record in range(len(LENGTHS))]
    with pytest.raises(ReadError, match=message):
        planned.lengths()


@pytest.mark.parametrize("index", [[1, 2], [0, 3, 2], [0, 15], [0, -1]])
def test_an_index_that_no_records_have_is_refused(tmp_path: Path, index: list[int]) -> None:
    with pytest.raises(ReadError, match=r"it must rise from 0, and to 14 at most"):
        indexed(tmp_path / "a", index).blocks()


# --- the column ----------------------------------------------------------------------------------


def test_an_array_of_your_own_is_no_index(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    for name, data in (("values", [1, 2, 3]), ("offsets", [0, 1, 3]), ("blocks", [7, 8])):
        group.create_array(name, data=np.array(data))
    with pytest.raises(SourceError, match=r"'values' and 'offsets', but .*blocks"):
        RaggedDataSource(tmp_path)
    group["blocks"].attrs["windrow_block_values"] = 64
    assert len(RaggedDataSource(tmp_path)) == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"offsets": np.array([0.0, 5.0])}, r"offsets must be integers .* got float64 \[2\]"),
        ({"offsets": np.zeros((2, 2), int)}, r"offsets must be integers .* got int64 \[2, 2\]"),
        ({"offsets": np.zeros(0, int)}, r"one more than records, got int64 \[0\]"),
    ],
)
def test_offsets_of_another_kind_are_refused(arrays: dict[str, AnyArray], message: str) -> None:
    found = {"values": np.arange(5), **arrays}
    with pytest.raises(SourceError, match=message):
        RaggedDataSource({name: ts.array(array) for name, array in found.items()})
