"""Windows: arguments at their edges, and what stands in records and fingerprints because of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import zarr

import windrow
from windrow import MapDataset
from windrow.errors import ArgumentError, PlanError, SourceError
from windrow.sources import Field, Window, WindowDataSource


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A field of ten times, something that does not move, and coordinates."""
    made = zarr.create_group(str(tmp_path / "g"))
    values = np.arange(60, dtype="f4").reshape(10, 6)
    made.create_array("a", data=values, chunks=(3, 6), dimension_names=("t", "x"))
    made.create_array("h", data=np.arange(6, dtype="i2"), dimension_names=("x",))
    made.create_array("t", data=np.arange(10), dimension_names=("t",))
    made.create_array("x", data=np.arange(6) * 10.0, dimension_names=("x",))
    return tmp_path / "g"


def in_memory(dtype: Any, shape: tuple[int, ...] = (10,)) -> Any:
    metadata = {"shape": list(shape), "data_type": np.dtype(dtype).name}
    spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": metadata}
    return ts.open(spec, create=True).result()


def test_what_does_not_move_need_not_hold_the_fill(group: Path) -> None:
    last = WindowDataSource(group, {"t": Window(3, pad="constant")}, fill=np.nan)[3]
    assert np.isnan(last["a"]).all(axis=1).tolist() == [False, True, True]
    assert last["h"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("dtype", "fill"), [(ml_dtypes.bfloat16, 0.1), (np.complex64, 0.1 + 0.2j), (np.float16, 0.1)]
)
def test_a_fill_is_rounded_to_the_dtype(dtype: Any, fill: Any) -> None:
    padded = {0: Window(4, pad="constant")}
    source = WindowDataSource(in_memory(dtype), padded, fill=fill)
    assert source[2][2] == np.asarray(fill).astype(dtype)
    with pytest.raises(ArgumentError, match=r"fill 0\.1 does not fit the array"):
        WindowDataSource(in_memory("int16"), padded, fill=0.1)


def test_equal_fills_have_one_fingerprint(group: Path) -> None:
    padded = {"t": Window(3, pad="constant")}

    def fingerprint(fill: Any) -> str:
        return WindowDataSource(group / "a", padded, fill=fill).fingerprint

    equal = [1, 1.0, np.int64(1), np.float32(1), np.array(1.0), True]
    assert len({fingerprint(fill) for fill in equal}) == 1
    assert len({fingerprint(fill) for fill in (0.0, -0.0, 0.5, np.nan)}) == 4


def test_a_single_array_and_its_coordinate_can_not_share_a_name(group: Path) -> None:
    with pytest.raises(SourceError, match="both named 't'"):
        WindowDataSource(group / "t", {"t": 3}, coordinates=True)
    fields = {"hours": Field("t")}
    found = WindowDataSource(group / "t", {"t": 3}, fields=fields, coordinates=True)[1]
    assert sorted(found) == ["hours", "t"]


def test_names_of_axes_by_the_name_of_a_single_array(group: Path) -> None:
    source = WindowDataSource(group / "a", {"p": 3}, dims={"a": ("p", "q")})
    assert source.spec.dims == ("p", "q")
    for dims in (3, (1, 0), (["t"], "x"), "tx"):
        with pytest.raises(ArgumentError, match="dims must be a tuple of names"):
            WindowDataSource(group / "a", {"t": 3}, dims=dims)


def test_blocks_of_too_many_chunks_are_refused_before_memory_is_taken() -> None:
    nothing = ts.virtual_chunked(
        lambda domain, array, options: None,
        dtype=ts.uint8,
        domain=ts.IndexDomain(shape=[2**50]),
        chunk_layout=ts.ChunkLayout(read_chunk_shape=[1_000]),
    )
    source = WindowDataSource(nothing, {0: 100})
    assert len(source) == 2**50 // 100
    with pytest.raises(PlanError, match="chunks, which are too many; give block="):
        MapDataset.source(source).block_shuffle(seed=1)


@pytest.mark.parametrize("pad", [None, "edge"])
def test_centers_that_are_changed_later_are_refused(group: Path, pad: str | None) -> None:
    # They are not copied, and windows outside would have cells that nothing is written to.
    centers = np.array([1, 8])
    source = WindowDataSource(group / "a", {"t": Window(3, pad=pad)}, centers=centers)
    assert source.read(np.arange(2))[:, 1, 0].tolist() == [6, 48]
    centers[1] = 9 if pad is None else 10
    assert source[0][1, 0] == 6
    with pytest.raises(SourceError, match="centers were changed since the source was made"):
        source[1]
    with pytest.raises(SourceError, match="centers were changed"):
        next(iter(MapDataset.source(source).batch(2)))


@pytest.mark.parametrize("direct", [None, False])
def test_arrays_that_do_not_move_are_verified(group: Path, direct: bool | None) -> None:
    # Every record has them, so that no record can be read where they are damaged.
    source = WindowDataSource(group, {"t": 3}, direct=direct)
    report = windrow.verify(source, progress=False)
    assert (report.ok, report.chunks) == (True, 3 + 1)
    (group / "h" / "c" / "0").write_bytes(b"damaged")
    (bad,) = windrow.verify(source, progress=False).bad
    assert (bad.array, bad.chunk, bad.first_record, bad.stop_record) == ("h", 0, 0, len(source))
