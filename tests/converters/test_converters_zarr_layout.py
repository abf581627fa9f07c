"""Zarr files of our own: every reader gives the values back, and equal values are equal bytes."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.converters.zarr import layout as zarr_layout
from windrow.converters.zarr.chunk_codecs import codecs_of
from windrow.converters.zarr.layout import (
    ArrayLayout,
    encode,
    encode_each,
    fill_scalar,
    metadata_files,
    rows_layout,
    stored_fill,
    training_rows,
)
from windrow.errors import ArgumentError, ConversionError
from windrow.sources import ZarrDataSource
from windrow.sources.tf_example.features import DTYPES, numpy_dtype

CODECS = ("zstd:1", "zstd:-3", "gzip:5", "none", "blosc:lz4:5", "blosc:zstd")


def store(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def values_of(layout: ArrayLayout, seed: int = 0) -> Any:
    """Any bits, but for bools."""
    rng = np.random.default_rng(seed)
    if layout.dtype == "bool":
        return rng.integers(0, 2, layout.shape).astype(bool)
    size = math.prod(layout.shape) * layout.numpy_dtype.itemsize
    raw = rng.integers(0, 256, size, dtype=np.uint8)
    return raw.view(layout.numpy_dtype).reshape(layout.shape)


@st.composite
def layouts(draw: st.DrawFn) -> ArrayLayout:
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, 9)) for _ in range(rank))
    chunk = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    shard = None
    if rank and draw(st.booleans()):
        shard = tuple(draw(st.integers(1, 3)) * size for size in chunk)
    dtype = draw(st.sampled_from(DTYPES))
    codecs = codecs_of(draw(st.sampled_from(CODECS)), itemsize=numpy_dtype(dtype).itemsize)
    if draw(st.booleans()):
        codecs = (*codecs, {"name": "crc32c"})
    # TensorStore opens no array of two axes of one name.
    names = tuple(draw(st.sampled_from((None, f"d{k}"))) for k in range(rank))
    return ArrayLayout("a/b", dtype, shape, chunk, shard, codecs, names if any(names) else None)


@settings(max_examples=examples(40))
@given(layouts())
def test_every_reader_gives_the_values_back(layout: ArrayLayout) -> None:
    values = values_of(layout)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store(folder, metadata_files([layout], {"title": "x"}))
        store(folder, encode(layout, (0,) * values.ndim, values))
        spec = {"driver": "zarr3", "kvstore": f"file://{folder}/a/b/"}
        found = ts.open(spec, open=True).result().read().result()
        assert found.tobytes() == values.tobytes()
        if not layout.dtype.startswith(("bfloat", "float8")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                array: Any = zarr.open_consolidated(str(folder))["a/b"]
            assert np.asarray(array[...]).tobytes() == values.tobytes()
        if values.ndim:
            source = ZarrDataSource(folder / "a/b")
            assert source.read(np.arange(len(values))).tobytes() == values.tobytes()


def test_a_block_that_is_not_whole_files_is_refused() -> None:
    layout = ArrayLayout("x", "int32", (10,), (2,), (4,))
    for origin, size, dtype in ((0, 3, "int32"), (2, 4, "int32"), (8, 4, "int32"), (0, 4, "int64")):
        with pytest.raises(ConversionError, match=rf"array 'x': a block of {dtype} \[{size}\] at"):
            list(encode_each(layout, (origin,), np.zeros(size, dtype)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dtype": "datetime64[ns]"}, "dtype 'datetime64"),
        ({"chunk_shape": (2,)}, r"chunks of \[2\] do not fit the shape \[4, 4\]"),
        ({"chunk_shape": (0, 4)}, r"chunks of \[0, 4\]"),
        (
            {"shard_shape": (3, 4)},
            r"shards of \[3, 4\] are not a whole number of chunks of \[2, 4\]",
        ),
        ({"dimension_names": ("t",)}, "1 dimension names for 2 axes"),
        ({"codecs": ({"name": "lzma"},)}, 'codec {"name": "lzma"} is not known'),
        ({"codecs": (1,)}, "codec 1 is not known"),
        (
            {"codecs": codecs_of("zstd:99")},
            r"codec .*99.* is not known; there are zstd .* up to 22",
        ),
        ({"codecs": codecs_of("gzip:10")}, r"codec .*10.* is not known; .* 0 to 9"),
        ({"codecs": codecs_of("blosc:lz5")}, r"codec .*lz5.* is not known; .* lz4"),
        ({"codecs": codecs_of("blosc:lz4:10")}, r"codec .*10.* is not known"),
    ],
)
def test_a_layout_that_does_not_fit_together(fields: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"dtype": "int32", "shape": (4, 4), "chunk_shape": (2, 4)}
    with pytest.raises(ArgumentError, match=words):
        ArrayLayout("x", **{**good, **fields})


@pytest.mark.parametrize("text", ["lzma", "zstd:x", "zstd:1:2", "none:1", "{", ""])
def test_codecs_that_are_not_known(text: str) -> None:
    with pytest.raises(ArgumentError, match="codecs"):
        codecs_of(text)


@pytest.mark.parametrize(
    ("row_bytes", "records", "chunks", "shard"),
    [
        # 4 KiB and more: a record is a chunk; 128 MiB are a shard.
        ((4096,), 10**6, (1,), 32768),
        ((1 << 20,), 1000, (1,), 128),
        # Smaller: the power of two that first makes 4 KiB.
        ((4095,), 10**6, (2,), 32776 // 2 * 2),
        ((3000, 8), 10**6, (2, 512), 44544),
        # No longer than the arrays, and never less than a chunk.
        ((1 << 20,), 5, (1,), 5),
        ((8,), 5, (512,), 512),
        ((1 << 30,), 5, (1,), 1),
        ((), 0, (), 1),
        ((0,), 7, (1,), 7),
        ((4096,), 0, (1,), 1),
    ],
)
def test_rows_for_training(
    row_bytes: tuple[int, ...], records: int, chunks: tuple[int, ...], shard: int
) -> None:
    assert training_rows(row_bytes, records) == (chunks, shard)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill_values_keep_their_bits(dtype: str) -> None:
    for seed in range(20):
        value = values_of(ArrayLayout("x", dtype, (1,), (1,)), seed)[0]
        found = fill_scalar(json.loads(json.dumps(stored_fill(value))), numpy_dtype(dtype))
        # A number other than NaN may be stored as its value.
        assert found.tobytes() == value.tobytes() or found == value


@pytest.mark.parametrize(("dtype", "width"), [("int16", 3), ("int32", 2)])
def test_rows_that_are_none_of_the_array_are_refused(dtype: str, width: int) -> None:
    layout = rows_layout("x", "int32", (8, 3), chunk_rows=2, shard_rows=4)
    with pytest.raises(
        ConversionError, match=rf"array 'x': rows of {dtype} \[{width}\] are not rows of"
    ):
        list(zarr_layout.encode_rows(layout, np.zeros((4, width), dtype)))
