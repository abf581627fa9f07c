"""Zarr files of our own: every reader gives the values back, and equal values are equal bytes."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conversions import encode, store, values_in
from tests.hypothesis_profiles import examples
from windrow.converters.zarr.chunk_codecs import codecs_of
from windrow.converters.zarr.layout import (
    ArrayLayout,
    fill_scalar,
    metadata_files,
    stored_fill,
)
from windrow.errors import ArgumentError, ConversionError
from windrow.sources import ZarrDataSource
from windrow.sources.tf_example.features import DTYPES, numpy_dtype

CODECS = ("zstd:1", "zstd:-3", "gzip:5", "none", "blosc:lz4:5", "blosc:zstd")


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
        assert values_in(folder, "a/b").tobytes() == values.tobytes()
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
            encode(layout, (origin,), np.zeros(size, dtype))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
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
def test_codecs_of_a_layout_that_are_not_known(fields: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"dtype": "int32", "shape": (4, 4), "chunk_shape": (2, 4)}
    with pytest.raises(ArgumentError, match=words):
        ArrayLayout("x", **{**good, **fields})


@pytest.mark.parametrize("text", ["lzma", "zstd:x", "zstd:1:2", "none:1", "{", ""])
def test_codecs_that_are_not_known(text: str) -> None:
    with pytest.raises(ArgumentError, match="codecs"):
        codecs_of(text)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill_values_keep_their_bits(dtype: str) -> None:
    for seed in range(20):
        value = values_of(ArrayLayout("x", dtype, (1,), (1,)), seed)[0]
        found = fill_scalar(json.loads(json.dumps(stored_fill(value))), numpy_dtype(dtype))
        # A number other than NaN may be stored as its value.
        assert found.tobytes() == value.tobytes() or found == value
