"""Windows along the first axis of arrays that are not encoded, whatever lies under them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.errors import ReadError
from windrow.sources import WindowDataSource

AnyArray = npt.NDArray[Any]


def written(
    path: Path, values: AnyArray, chunk: int, *, shard: int = 0, stored: int | None = None
) -> str:
    """A raw array with these values; of its rows, only the first `stored` ones are written."""
    raw = {"name": "bytes", "configuration": {"endian": "little"}}
    rest = list(values.shape[1:])
    codecs: list[Any] = [raw]
    if shard:
        inner = {"chunk_shape": [chunk, *rest], "codecs": [raw], "index_codecs": [raw]}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [shard or chunk, *rest]}}
    store = ts.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(path)},
            "metadata": {
                "shape": list(values.shape),
                "data_type": values.dtype.name,
                "chunk_grid": grid,
                "codecs": codecs,
                "fill_value": 0,
            },
        },
        create=True,
    ).result()
    stop = len(values) if stored is None else stored
    store[:stop].write(values[:stop]).result()
    return str(path)


@settings(max_examples=examples(60))
@given(
    rows=st.integers(1, 40),
    chunk=st.integers(1, 16),
    per_shard=st.integers(0, 3),
    size=st.integers(1, 12),
    stride=st.integers(1, 6),
    width=st.sampled_from([(), (3,), (2, 2)]),
    dtype=st.sampled_from(["uint8", "uint16", "float32"]),
    data=st.data(),
)
def test_windows_are_those_of_the_array(
    rows: int,
    chunk: int,
    per_shard: int,
    size: int,
    stride: int,
    width: tuple[int, ...],
    dtype: str,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    size = min(size, rows)
    values = np.random.default_rng(rows).integers(1, 200, (rows, *width)).astype(dtype)
    place = tmp_path_factory.mktemp("runs") / "array"
    path = written(place, values, chunk, shard=chunk * per_shard)
    source = WindowDataSource(path, {0: size}, {0: stride})
    indices = data.draw(st.lists(st.integers(0, len(source) - 1), max_size=8))
    wanted = [values[i * stride : i * stride + size] for i in indices]
    got = source.read(np.array(indices, np.int64))
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got, np.reshape(wanted, (len(indices), size, *width)))


def test_runs_longer_than_what_is_copied_at_once(tmp_path: Path) -> None:
    values = np.arange(600_000, dtype=np.uint32)
    source = WindowDataSource(written(tmp_path / "a", values, 250_000), {0: 280_000}, {0: 10})
    np.testing.assert_array_equal(
        source.read(np.array([31_999, 0])), [values[319_990:599_990], values[:280_000]]
    )


def test_missing_chunks_are_the_fill_value(tmp_path: Path) -> None:
    values = np.arange(1, 41, dtype=np.uint16)
    source = WindowDataSource(written(tmp_path / "a", values, 8, stored=16), {0: 6}, {0: 1})
    expected = np.where(np.arange(40) < 16, values, 0)
    found = source.read(np.arange(len(source)))
    np.testing.assert_array_equal(found, np.lib.stride_tricks.sliding_window_view(expected, 6))


def test_short_file_is_told_with_its_record(tmp_path: Path) -> None:
    values = np.arange(1, 41, dtype=np.uint16)
    path = written(tmp_path / "a", values, 8)
    (tmp_path / "a" / "c" / "2").write_bytes(b"short")
    source = WindowDataSource(path, {0: 4}, {0: 4})
    np.testing.assert_array_equal(source.read(np.array([3])), [values[12:16]])
    with pytest.raises(ReadError, match=r"c/2"):
        source.read(np.array([0, 4]))
