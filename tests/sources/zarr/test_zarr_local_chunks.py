"""Zarr chunks decoded directly: the records, the errors and the layout that TensorStore gives."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numcodecs
import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.array_record_bytes import needs_core
from tests.hypothesis_profiles import examples
from tests.zarr_layouts import DIRECTLY, Layout, reader_of, same, written
from windrow import verify
from windrow.errors import ArgumentError, ReadError, SourceError
from windrow.sources import ArrayPart, Span, Window, WindowDataSource, ZarrDataSource
from windrow.sources.chunks import RowReader

AnyArray = npt.NDArray[Any]

SMALL_FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz")
SMALLER_FLOATS = ("float8_e5m2", "float8_e5m2fnuz")
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(*SMALL_FLOATS, *SMALLER_FLOATS),
)
V2_CODECS: tuple[Any, ...] = (
    None,
    {"id": "zstd", "level": 1},
    {"id": "zlib", "level": 1},
    {"id": "gzip", "level": 1},
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    {"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 2, "blocksize": 0},
)
BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
CRC: Any = {"name": "crc32c"}
V3_CODECS: tuple[Any, ...] = (
    [],
    [{"name": "zstd", "configuration": {"level": 1}}],
    [{"name": "gzip", "configuration": {"level": 1}}],
    [{"name": "blosc", "configuration": BLOSC}],
    [CRC],
    [{"name": "zstd", "configuration": {"level": 1}}, CRC],
    [CRC, {"name": "zstd", "configuration": {"level": 1}}],
    [CRC, {"name": "gzip", "configuration": {"level": 1}}, CRC],
)
LIMIT_S = 60


def numpy_dtype(name: str) -> np.dtype[Any]:
    small = (*SMALL_FLOATS, *SMALLER_FLOATS)
    return np.dtype(getattr(ml_dtypes, name) if name in small else name)


@st.composite
def fills(draw: st.DrawFn, name: str, *, version: int) -> Any:
    """A fill value in one of the spellings of the format."""
    dtype = numpy_dtype(name)
    if name == "bool":
        return draw(st.booleans())
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return draw(st.integers(int(info.min), int(info.max)))
    special: st.SearchStrategy[Any] = st.sampled_from([0.0, -0.0, 1.5, "NaN"])
    if name in ("float16", "float32", "float64"):
        width: Any = dtype.itemsize * 8
        special |= st.sampled_from(["Infinity", "-Infinity"])
        special |= st.floats(width=width, allow_nan=False, allow_infinity=False)
        if version == 3:
            digits = dtype.itemsize * 2
            special |= st.integers(0, 16**digits - 1).map(lambda n: f"0x{n:0{digits}x}")
    if dtype.kind == "c":
        return [draw(special), draw(special)]
    return draw(special)


@st.composite
def metadata(draw: st.DrawFn) -> tuple[str, dict[str, Any], np.dtype[Any]]:
    """Driver, metadata and dtype of an array."""
    # Rows of up to several pages, and chunks of single rows, which are read in other ways.
    some = st.lists(st.integers(1, 5), max_size=2)
    rest = draw(some | st.sampled_from([[2048], [3, 900]]))
    shape = [draw(st.integers(0, 20)), *rest]
    chunk = [draw(st.just(1) | st.integers(1, 24))]
    chunk += [draw(st.integers(max(1, n // 3), n + 1)) for n in rest]
    name = draw(st.sampled_from(DTYPES))
    dtype = numpy_dtype(name)
    if draw(st.booleans()):
        meta: dict[str, Any] = {
            "zarr_format": 2,
            "shape": shape,
            "chunks": chunk,
            "dtype": dtype.newbyteorder(draw(st.sampled_from("<>"))).str,
            "compressor": draw(st.sampled_from(V2_CODECS)),
            "fill_value": draw(st.none() | fills(name, version=2)),
            "order": draw(st.sampled_from("CF")),
            "filters": None,
            "dimension_separator": draw(st.sampled_from("./")),
        }
        if name in (*SMALL_FLOATS, *SMALLER_FLOATS):
            meta["dtype"], meta["fill_value"] = name, None
        return "zarr", meta, dtype
    return "zarr3", draw(v3_metadata(shape, chunk, name)), dtype


@st.composite
def v3_metadata(draw: st.DrawFn, shape: list[int], chunk: list[int], name: str) -> dict[str, Any]:
    """Metadata of Zarr v3, with shards or without."""
    steps: list[Any] = [
        {"name": "bytes", "configuration": {"endian": draw(st.sampled_from(["little", "big"]))}},
        *draw(st.sampled_from(V3_CODECS)),
    ]
    if draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        steps.insert(0, {"name": "transpose", "configuration": {"order": order}})
    outer = chunk
    if draw(st.booleans()):
        index: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
        if draw(st.booleans()):
            index.append(CRC)
        sharding = {
            "chunk_shape": chunk,
            "codecs": steps,
            "index_codecs": index,
            "index_location": draw(st.sampled_from(["start", "end"])),
        }
        outer = [c * draw(st.integers(1, 4)) for c in chunk]
        steps = [{"name": "sharding_indexed", "configuration": sharding}]
    keys = draw(st.sampled_from(["default", "v2"]))
    encoding = {"name": keys, "configuration": {"separator": draw(st.sampled_from("./"))}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
        "chunk_key_encoding": encoding,
        "codecs": steps,
        "fill_value": draw(fills(name, version=3)),
    }


def random_values(dtype: np.dtype[Any], shape: list[int], seed: int) -> AnyArray:
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    count = int(np.prod(shape)) * dtype.itemsize
    return rng.integers(0, 256, count, dtype=np.uint8).view(dtype).reshape(shape)


def store_of(folder: str, driver: str, meta: dict[str, Any]) -> Any:
    file = Path(folder, ".zarray" if driver == "zarr" else "zarr.json")
    file.write_text(json.dumps(meta))
    spec = {
        "driver": driver,
        "kvstore": {"driver": "file", "path": folder + "/"},
        # Else a chunk of nothing but the fill value is left out.
        "store_data_equal_to_fill_value": True,
    }
    return ts.open(spec).result()


ORDERS = ("order", "block", "global")


def in_order(source: ZarrDataSource, order: str) -> windrow.MapDataset[Any]:
    records = windrow.MapDataset.source(source)
    if order == "order":
        return records
    return records.block_shuffle(3) if order == "block" else records.shuffle(3)


def numbered(source: ZarrDataSource, order: str) -> list[int]:
    """Which record comes when."""
    numbers = windrow.MapDataset.range(len(source))
    if order == "block":
        bounds = source.blocks()
        assert isinstance(bounds, np.ndarray)
        return list(numbers.block_shuffle(3, block=int(bounds[1])))
    return list(numbers if order == "order" else numbers.shuffle(3))


@settings(deadline=None, max_examples=examples(300))
@given(layout=metadata(), data=st.data())
def test_direct_and_through_tensorstore(
    layout: tuple[str, dict[str, Any], np.dtype[Any]], data: st.DataObject
) -> None:
    driver, meta, dtype = layout
    with tempfile.TemporaryDirectory() as folder:
        store = store_of(folder, driver, meta)
        values = random_values(dtype, meta["shape"], data.draw(st.integers(0, 9)))
        rows = meta["shape"][0]
        # What is not written has no chunk.
        written = data.draw(st.tuples(st.integers(0, rows), st.integers(0, rows)).map(sorted))
        if written[0] < written[1]:
            store[written[0] : written[1]] = values[written[0] : written[1]]
        source = ZarrDataSource(folder, direct=True)
        other = ZarrDataSource(folder, direct=False)
        assert len(source) == len(other) == rows
        assert source.fingerprint == other.fingerprint
        assert source.blocks().tolist() == other.blocks().tolist()
        index = st.integers(0, max(rows - 1, 0))
        runs = st.tuples(st.integers(0, rows), st.integers(0, rows))
        wanted = np.asarray(
            data.draw(
                st.lists(index, max_size=30 if rows else 0) | runs.map(lambda r: list(range(*r)))
            ),
            np.int64,
        )
        got, expected = source.read(wanted), other.read(wanted)
        same(got, expected)
        same(
            got[(wanted >= written[0]) & (wanted < written[1])],
            values[wanted[(wanted >= written[0]) & (wanted < written[1])]],
        )
        if rows:
            first, stop = sorted(data.draw(st.tuples(index, index)))
            expected = other.read(np.arange(first, stop + 1))
            for one in (source, other):
                same(by_spans(one, first, stop + 1), expected)
            order = data.draw(st.sampled_from(ORDERS))
            streamed = np.concatenate(list(in_order(source, order).batch(7)))
            same(streamed, other.read(np.array(numbered(source, order))))


def by_spans(source: ZarrDataSource, first: int, stop: int) -> AnyArray:
    """Rows by the chunks that they lie in, as a prefetcher reader asks for them."""
    (part,) = source.parts
    assert isinstance(part, ArrayPart)
    out = np.empty((stop - first, *part.row_shape), part.dtype)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        part.reader.start(spans_of(part, first, stop, out), pool).result(LIMIT_S)
    return out


def spans_of(part: ArrayPart, first: int, stop: int, out: AnyArray) -> list[Span]:
    spans = []
    for chunk in np.unique(part.needs(np.arange(first, stop)).chunks).tolist():
        a, b = part.bounds(chunk)
        a, b = max(a, first), min(b, stop)
        spans.append(Span(a, b, out[a - first : b - first]))
    return spans


def chunked(path: Path, values: AnyArray, *, rows: int = 8, **layout: Any) -> Path:
    """An array by zarr-python in chunks of `rows` records."""
    settled = {"dtype": values.dtype, "chunks": (rows, *values.shape[1:]), **layout}
    zarr.create_array(str(path), shape=values.shape, **settled)[...] = values
    return path


ROWS = (np.arange(40 * 3).reshape(40, 3) % 7 + 1).astype("f4")
EVERY = np.arange(40)


def test_the_setting_and_what_repr_says(tmp_path: Path) -> None:
    plain = chunked(tmp_path / "a", ROWS)
    packed = chunked(tmp_path / "b", ROWS, zarr_format=2, compressors=numcodecs.BZ2())
    assert repr(ZarrDataSource(plain)).endswith(f"/a, {DIRECTLY})")
    for direct in (None, True, False):
        source = ZarrDataSource({"x": plain}, direct=direct)
        assert repr(pickle.loads(pickle.dumps(source))) == repr(source)
    assert repr(ZarrDataSource(plain, direct=False)).endswith(
        "/a, read by TensorStore (direct=False))"
    )
    assert repr(ZarrDataSource(packed)).endswith("/b, read by TensorStore (codec 'bz2'))")
    both = ZarrDataSource({"x": plain, "y": packed})
    assert repr(both).endswith(f"{DIRECTLY}: x; read by TensorStore (codec 'bz2'): y)")
    same(both.read(EVERY)["x"], both.read(EVERY)["y"])
    with pytest.raises(SourceError, match=r"array 'y' in .*/b cannot .* directly: codec 'bz2'"):
        ZarrDataSource({"x": plain, "y": packed}, direct=True)
    opened = ZarrDataSource(plain).arrays[""]
    np.testing.assert_array_equal(opened.read().result(), ROWS)
    assert repr(ZarrDataSource(opened)).endswith("/a/, read by TensorStore)")
    with pytest.raises(SourceError, match="directly: only arrays given by the path of a local"):
        ZarrDataSource(opened, direct=True)
    with pytest.raises(ArgumentError, match=r"direct must be True, False or None, got 1"):
        ZarrDataSource(plain, direct=1)  # type: ignore[arg-type]


@needs_core
@pytest.mark.parametrize("layout", [{"shards": (16, 3)}, {"shards": (16, 3), "compressors": None}])
def test_mapped_shards_of_an_array_that_was_replaced(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    path = chunked(tmp_path / "a", ROWS, **layout)
    source = ZarrDataSource(path, direct=True)
    np.testing.assert_array_equal(source.read(EVERY), ROWS)
    shutil.rmtree(path)
    chunked(path, ROWS[:30] * 2, **layout)
    for read in (lambda: source.read(EVERY[:16]), lambda: by_spans(source, 0, 16)):
        with pytest.raises(ReadError, match="describes another array"):
            read()


def hole(path: Path) -> None:
    """A file of more bytes than any memory has, which takes none on the disk."""
    with path.open("wb") as file:
        file.truncate(1 << 42)


WITHOUT_FILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "folder": (Path.mkdir, "it is not a regular file"),
    "pipe": (os.mkfifo, "it is not a regular file"),
    "hole": (hole, "far more than a chunk can have"),
}


@needs_core
@pytest.mark.parametrize("kind", WITHOUT_FILE)
def test_what_is_no_file_of_a_chunk_is_refused(tmp_path: Path, kind: str) -> None:
    path = chunked(tmp_path / "a", ROWS)
    chunk = path / "c" / "2" / "0"
    chunk.unlink()
    make, why = WITHOUT_FILE[kind]
    make(chunk)
    source = ZarrDataSource(path, direct=True)
    told = rf"records 16 to 23 cannot be read: {chunk}: .*{why}"
    for read in (lambda: source.read(EVERY[17:]), lambda: by_spans(source, 0, 40)):
        with pytest.raises(ReadError, match=told) as caught:
            read()
        assert caught.value.file == str(chunk)
        assert caught.value.records == (16, 24)
    np.testing.assert_array_equal(source.read(EVERY[:16]), ROWS[:16])
    boxed = WindowDataSource(path, {0: 4, 1: Window(2, 1)}, direct=True)
    with pytest.raises(ReadError, match=rf"cells \[16:24, 0:3\].*{why}"):
        boxed.read(np.array([8]))
    bad = list(verify(source).bad)
    assert [(one.first_record, one.stop_record, one.file) for one in bad] == [(16, 24, str(chunk))]


@needs_core
def test_a_chunk_of_a_shard_of_absurd_size_is_refused(tmp_path: Path) -> None:
    path = chunked(tmp_path / "a", ROWS, shards=(16, 3))
    shard = path / "c" / "1" / "0"
    index = bytearray(shard.read_bytes()[-36:])
    index[24:32] = (1 << 41).to_bytes(8, "little")
    index[32:] = google_crc32c.value(bytes(index[:32])).to_bytes(4, "little")
    with shard.open("r+b") as file:
        file.seek(1 << 42)
        file.write(index)
    with pytest.raises(ReadError, match=rf"records 24 to 31 .*{shard}: .*far more than"):
        ZarrDataSource(path, direct=True).read(EVERY[24:])


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [
        Layout((400, 3000), (3, 3000), codecs="none"),
        Layout((400, 3000), (3, 3000), (5, 1), codecs="none"),
        Layout((400, 3000), (1, 3000), (90, 1), codecs="zstd crc32c"),
        Layout((400, 3000), (1, 3000), codecs="gzip"),
        Layout((400, 3000), (16, 2000), codecs="blosc"),
    ],
    ids=str,
)
def test_many_rounds_and_threads_read_the_same(tmp_path: Path, layout: Layout) -> None:
    values = written(tmp_path, layout)
    reader, rng = reader_of(tmp_path), np.random.default_rng(0)
    orders = [rng.integers(0, 400, 800) for _ in range(4)]
    together = threading.Barrier(4)

    def read(order: AnyArray, reader: RowReader = reader) -> AnyArray:
        together.wait(60)
        return reader.read(order)

    with ThreadPoolExecutor(4) as pool:
        for order, got in zip(orders, pool.map(read, orders), strict=True):
            same(got, values[order])
    source = ZarrDataSource(tmp_path, direct=True)
    for name in ORDERS:
        got = np.concatenate(list(in_order(source, name).batch(100)))
        np.testing.assert_array_equal(got, values[numbered(source, name)])


def test_a_shard_that_is_larger_than_its_records_is_read(tmp_path: Path) -> None:
    # Bytes that no index entry points to, as other writers may leave.
    values = written(tmp_path, Layout((60, 500), (4, 500), (5, 1), codecs="none", location="start"))
    for number in (0, 2):
        with open(tmp_path / "c" / str(number) / "0", "ab") as file:
            file.write(bytes(10**6))
    order = np.random.default_rng(0).permutation(60)
    same(reader_of(tmp_path).read(order), values[order])


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codecs", ["none", "zstd"])
def test_a_byte_that_is_no_bool_is_damage(tmp_path: Path, codecs: str) -> None:
    values = written(tmp_path, Layout((40, 50), (2, 50), (4, 1), codecs=codecs))
    assert values.max() > 1
    metadata = (tmp_path / "zarr.json").read_text()
    bools = metadata.replace('"uint8"', '"bool"').replace('"fill_value":0', '"fill_value":false')
    (tmp_path / "zarr.json").write_text(bools)
    source = ZarrDataSource(tmp_path, direct=True)
    for order in ORDERS:
        with pytest.raises(ReadError, match=r"records \d+ to \d+ cannot be read.*bool"):
            list(in_order(source, order).batch(4))


# --- windows of raw rows --------------------------------------------------------------------------


def raw_array(path: Path, values: AnyArray, chunk: int) -> Path:
    """An array of version 3 whose chunks are the bytes of their rows."""
    zarr.create_array(path, data=values, chunks=(chunk,), compressors=None)
    return path


def test_runs_longer_than_what_is_copied_at_once(tmp_path: Path) -> None:
    values = np.arange(600_000, dtype=np.uint32)
    source = WindowDataSource(raw_array(tmp_path / "a", values, 250_000), {0: Window(280_000, 10)})
    np.testing.assert_array_equal(
        source.read(np.array([31_999, 0])), [values[319_990:599_990], values[:280_000]]
    )
