"""NetCDF to Zarr, through xarray: the stored values bit for bit, and what they mean."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from tests.conversions import values_in
from tests.object_store import ObjectStore
from windrow.converters.job.job import carry_out
from windrow.converters.job.manifest import MANIFEST_NAME
from windrow.converters.zarr.rechunk import zarr_to_zarr
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
from windrow.sources import ZarrDataSource

xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
h5py = pytest.importorskip("h5py")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide the warning of xarray that Zarr v3 does not specify consolidated metadata yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make(path: Path, *, chunks: tuple[int, ...] | None = (5, 4, 3)) -> Any:
    """Write a NetCDF file like a weather model's: packed integers, missing values, times."""
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=(30, 8, 6)) * 100) / 100
    values[3, 2, 1] = np.nan
    sparse = rng.normal(size=(30, 8)).astype("f4")
    sparse[::7] = np.nan
    data = xarray.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values, {"units": "K", "range": np.array([0.5, 2.5])}),
            "sparse": (("time", "lat"), sparse),
            "flag": (("lat", "lon"), rng.integers(0, 2, (8, 6)).astype("i1")),
        },
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(30) * np.timedelta64(6, "h"),
            "lat": np.linspace(-90, 90, 8),
            "height": 2.0,
        },
        attrs={"title": "weather", "version": np.int32(3)},
    )
    encoding: dict[str, Any] = {
        "t2m": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 3.0, "_FillValue": -32768}
    }
    if chunks is not None:
        encoding["t2m"].update({"chunksizes": chunks, "zlib": True})
    data.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return data


def stored(path: Path, name: str) -> Any:
    with xarray.open_dataset(path, engine="h5netcdf", decode_cf=False) as data:
        return np.asarray(data[name].values)


@pytest.mark.parametrize("chunks", [(5, 4, 3), None])
def test_values_are_as_stored_and_mean_the_same(
    tmp_path: Path, chunks: tuple[int, ...] | None
) -> None:
    path = tmp_path / ("x.nc" if chunks else "no ending")  # the content shows it too
    make(path, chunks=chunks)
    manifest = zarr_to_zarr(path, tmp_path / "out", progress=False)
    for name in ("t2m", "sparse", "flag", "time", "lat", "height"):
        found, wanted = values_in(tmp_path / "out", name), stored(path, name)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes(), name
    assert values_in(tmp_path / "out", "t2m").dtype == np.int16
    assert values_in(tmp_path / "out", "time").dtype == np.int64
    with (
        xarray.open_dataset(path, engine="h5netcdf") as before,
        xarray.open_zarr(tmp_path / "out") as after,
    ):
        xarray.testing.assert_identical(after.load(), before.load())
    assert (manifest.records, [file.name for file in manifest.inputs]) == (30, [path.name])


def test_a_variable_that_zarr_has_no_type_for_is_refused_by_name(tmp_path: Path) -> None:
    data = make(tmp_path / "x.nc")
    with h5py.File(tmp_path / "x.nc", "a") as file:
        file["parts"] = np.zeros(8, [("a", "i4"), ("b", "f4")])
        file["parts"].dims[0].attach_scale(file["lat"])
    with pytest.raises(SourceError, match=r"variable 'parts' .* arrays=\[\.\.\.\] \(--array\)"):
        zarr_to_zarr(tmp_path / "x.nc", tmp_path / "out")
    zarr_to_zarr(tmp_path / "x.nc", tmp_path / "out", arrays=["flag"], progress=False)
    assert np.array_equal(values_in(tmp_path / "out", "flag"), data["flag"].values)


def test_what_is_not_there(tmp_path: Path) -> None:
    make(tmp_path / "x.nc")
    with pytest.raises(NotFoundError, match=r"y\.nc does not exist"):
        zarr_to_zarr(tmp_path / "y.nc", tmp_path / "out")
    with pytest.raises(
        ArgumentError, match=r"no variable 't2'; there are flag, height, lat, sparse"
    ):
        zarr_to_zarr(tmp_path / "x.nc", tmp_path / "out", arrays=["t2"])
    with h5py.File(tmp_path / "groups.nc", "w") as file:
        file["group/x"] = np.arange(3)
    with pytest.raises(SourceError, match=r"groups\.nc holds no variables outside of groups"):
        zarr_to_zarr(tmp_path / "groups.nc", tmp_path / "out")
    with pytest.raises(ArgumentError, match=r"\*\.nc: these are 2 files; convert one at a time"):
        zarr_to_zarr(tmp_path / "*.nc", tmp_path / "out")
    (tmp_path / "z.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(ReadError, match=r"z\.nc: xarray cannot open it"):
        zarr_to_zarr(tmp_path / "z.nc", tmp_path / "out")


def test_a_damaged_chunk_is_an_error(tmp_path: Path) -> None:
    make(tmp_path / "x.nc")
    raw = bytearray((tmp_path / "x.nc").read_bytes())
    with h5py.File(tmp_path / "x.nc") as file:
        chunk = file["t2m"].id.get_chunk_info(3)
    raw[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    (tmp_path / "x.nc").write_bytes(raw)
    with pytest.raises(ReadError, match=r"array 't2m' in .*x\.nc: cells from \["):
        zarr_to_zarr(tmp_path / "x.nc", tmp_path / "out", progress=False)
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()


@pytest.mark.jobs
def test_from_an_object_store_and_in_another_process(tmp_path: Path) -> None:
    make(tmp_path / "x.nc")
    with ObjectStore() as store:
        store.put("in/x.nc", (tmp_path / "x.nc").read_bytes())
        conversion = zarr_to_zarr.conversion(
            store.url("in/x.nc"), arrays=["t2m", "flag"], storage_options=store.storage_options
        )
        # As it comes to another process: nothing that is open travels.
        conversion = pickle.loads(cloudpickle.dumps(conversion))
        carry_out(conversion, tmp_path / "out", progress=False)
    source = ZarrDataSource(tmp_path / "out", names=["t2m"])
    wanted = stored(tmp_path / "x.nc", "t2m")
    assert np.array_equal(source.read(np.arange(30))["t2m"], wanted)
