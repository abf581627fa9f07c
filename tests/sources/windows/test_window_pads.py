"""Padding by dimension: windows that wrap around the globe, and reach over a pole."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow import MapDataset
from windrow.errors import RecordIndexError, SourceError
from windrow.sources import Window, WindowDataSource

AnyArray = npt.NDArray[Any]
MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def globe(folder: Path, chunks: tuple[int, int] = (3, 5), **encoding: Any) -> AnyArray:
    """A store of 7 latitudes and 12 longitudes, one every 30 degrees."""
    values = np.arange(84, dtype="f4").reshape(7, 12)
    where = {"lat": 90 - 30 * np.arange(7), "lon": 30 * np.arange(12)}
    stored = xarray.Dataset({"t": (("lat", "lon"), values)}, where)
    stored.to_zarr(folder, encoding={"t": {"chunks": chunks, **encoding}}, consolidated=False)
    return values


def padded(values: AnyArray, lat: str | None, lon: str | None, fill: Any = 0) -> AnyArray:
    """The globe with 40 more cells on each side, by NumPy, one axis after the other."""
    # Constants come last: the cells beyond a constant edge are constant too.
    for axis, mode in sorted(enumerate((lat, lon)), key=lambda one: one[1] == "constant"):
        if mode is not None:
            widths = [(40, 40) if k == axis else (0, 0) for k in range(2)]
            more: dict[str, Any] = {"constant_values": fill} if mode == "constant" else {}
            values = np.pad(values, widths, mode, **more)  # type: ignore[call-overload]
    return values


def test_a_selection_wraps_into_itself(tmp_path: Path) -> None:
    values = globe(tmp_path / "w")
    windows = WindowDataSource(
        tmp_path / "w/t", {"lon": Window(3, 1, pad="wrap", select=slice(60, 150))}
    )
    assert len(windows) == 4
    assert np.array_equal(windows[3], values[:, [5, 2, 3]])


def test_masks_are_seen_around_the_globe(tmp_path: Path) -> None:
    globe(tmp_path / "w")
    mask = np.arange(12) != 1
    around = {"lon": Window(3, 1, pad="wrap", select=mask)}
    windows = WindowDataSource(tmp_path / "w/t", around)
    firsts = [int(window[0, 0]) for window in MapDataset.source(windows)]
    assert firsts == [2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_only_padded_dimensions_reach_out(tmp_path: Path) -> None:
    values = globe(tmp_path / "w")
    around = {"lat": 3, "lon": Window(3, pad="wrap")}
    windows = WindowDataSource(tmp_path / "w/t", around, centers=[[1, 0], [5, 11]])
    assert np.array_equal(windows[0], values[0:3][:, [11, 0, 1]])
    assert np.array_equal(windows[1], values[4:7][:, [10, 11, 0]])
    with pytest.raises(SourceError, match=r"around centers\[1\], \[0, 4\], reaches out"):
        WindowDataSource(tmp_path / "w/t", around, centers=[[1, 0], [0, 4]])
    with pytest.raises(RecordIndexError, match=r"centers\[0\] is \[1, 12\]"):
        WindowDataSource(tmp_path / "w/t", around, centers=[[1, 12]])


@settings(deadline=None, max_examples=examples(60))
@given(direct=st.booleans(), data=st.data())
def test_any_two_modes_are_those_of_numpy(direct: bool, data: st.DataObject) -> None:
    lat, lon = (data.draw(st.sampled_from(MODES), name) for name in ("lat", "lon"))
    sizes = {name: data.draw(st.integers(1, 30), name) for name in ("lat", "lon")}
    centers = data.draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11)), min_size=1))
    chunks = data.draw(st.tuples(st.integers(1, 7), st.integers(1, 12)), "chunks")
    packed = data.draw(st.booleans(), "packed")
    with tempfile.TemporaryDirectory() as folder:
        more: dict[str, Any] = (
            {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9} if packed else {}
        )
        values = globe(Path(folder) / "w", chunks, **more)
        windows = WindowDataSource(
            Path(folder) / "w/t",
            {"lat": Window(sizes["lat"], pad=lat), "lon": Window(sizes["lon"], pad=lon)},
            centers=centers,
            fill=-3,
            decode=True,
            direct=direct,
        )
        whole = padded(values, lat, lon, -3)
        rows = list(MapDataset.source(windows).batch(3))
        for (y, x), found in zip(centers, np.concatenate(rows), strict=True):
            y, x = 40 + y - sizes["lat"] // 2, 40 + x - sizes["lon"] // 2
            wanted = whole[y : y + sizes["lat"], x : x + sizes["lon"]]
            np.testing.assert_array_equal(found, wanted)
