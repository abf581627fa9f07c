"""Consolidated metadata that are old: their shapes and attributes count, as for zarr-python and xarray."""

from __future__ import annotations

import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from tests.far_arrays import in_memory
from tests.range_server import RangeServer
from windrow import MapDataset
from windrow.cli.main import main
from windrow.errors import SourceError
from windrow.sources import RemoteOptions, Window, WindowDataSource, ZarrDataSource

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:.*V3 specification")
FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
OLD = r"array '(a/b/)?(x|time)' in .* has shape \[11.*\] in its own metadata, and \[5.*\] in the consol"
KINDS = [(2, "plain"), (3, "sharded"), (2, "filter")]
# In chunks of 2, the last row that counts lies in a chunk with one that does not.
VALUES = np.arange(22.0).reshape(11, 2)
DATES = np.arange("2020-01-01", "2020-01-12", dtype="M8[D]").astype("M8[ns]")


def store(path: Path, zarr_format: Any, kind: str = "plain", *, group: str | None = None) -> Path:
    """A group that was consolidated when its arrays had 5 rows; they have 11 now."""
    encoding: dict[str, Any] = {"chunks": (2, 2)}
    if kind == "sharded":
        encoding |= {"shards": (4, 2)}
    if kind == "filter":
        from numcodecs import Delta

        encoding |= {"filters": [Delta("f8")]}
    data = xr.Dataset({"x": (("time", "k"), VALUES, {"units": "K"})}, {"time": DATES})
    data.isel(time=slice(5)).to_zarr(
        path, group=group, zarr_format=zarr_format, encoding={"x": encoding}
    )
    zarr.consolidate_metadata(path, zarr_format=zarr_format)
    inside = zarr.open_group(path, path=group or "", mode="r+", use_consolidated=False)
    own: Any = inside
    for name, values in (("x", VALUES), ("time", np.arange(11))):
        own[name].resize((11, *values.shape[1:]))
        own[name][...] = values
    return path


@pytest.mark.parametrize(
    ("way", "zarr_format", "kind"),
    [
        *[("local", *kind) for kind in KINDS],
        *[("http", *kind) for kind in KINDS],
        *[("memory", *kind) for kind in KINDS],
        ("tensorstore", 2, "plain"),
        ("tensorstore", 3, "sharded"),
        ("fsspec", 3, "sharded"),
        ("cache", 2, "plain"),
        ("cache", 3, "sharded"),
        ("zip", 2, "filter"),
        ("zip", 3, "sharded"),
        ("chain", 2, "plain"),
    ],
)
def test_rows_are_those_of_the_consolidated_metadata(
    tmp_path: Path, way: str, zarr_format: Any, kind: str
) -> None:
    path = store(tmp_path / "s.zarr", zarr_format, kind)
    more: dict[str, Any] = {"direct": False} if way == "tensorstore" else {}
    where: str | Path = path
    with RangeServer(path) as server:
        if way in ("http", "fsspec", "cache"):
            where = server.url()
        if way == "fsspec":
            more = {"storage_options": {"client_kwargs": {"cookies": {"a": "b"}}}}
        if way == "cache":
            more = {"remote": RemoteOptions(cache_dir=str(tmp_path / "cache"))}
        if way == "memory":
            where = in_memory(path, f"{kind}{zarr_format}")
        if way in ("zip", "chain"):
            packed = shutil.make_archive(str(tmp_path / "s"), "zip", path)
            where = f"file://{packed}|zip:" if way == "zip" else f"zip://::file://{packed}"
        with pytest.warns(UserWarning, match=OLD) as told:
            source = ZarrDataSource(where, **more)
        assert len([one for one in told if "own metadata" in str(one.message)]) == 1
        for each in (source, pickle.loads(pickle.dumps(source))):
            np.testing.assert_array_equal(each.read(np.arange(5))["x"], VALUES[:5])
        assert len(source) == 5
        assert "[5, 2] chunks" in source.fingerprint
        batches = list(MapDataset.source(source).batch(2))
        np.testing.assert_array_equal(batches[2]["x"], VALUES[4:5])
        with pytest.warns(UserWarning, match=OLD):
            windows = WindowDataSource(
                where, {"time": Window(2, select=slice("2020-01-04", None)), "k": 1}, **more
            )
        got = windows.read(np.arange(len(windows)))["x"]
        np.testing.assert_array_equal(got[..., 0], VALUES[3:5].T)


def test_open_objects_have_the_rows_that_they_show(tmp_path: Path) -> None:
    path = store(tmp_path / "s.zarr", 3)
    with pytest.warns(UserWarning, match=OLD):
        assert len(ZarrDataSource(zarr.open_group(path, mode="r"))) == 5
    with pytest.warns(UserWarning, match=OLD):
        assert len(ZarrDataSource(xr.open_zarr(path))) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = zarr.open_group(path, mode="r", use_consolidated=False)
        assert ZarrDataSource(own)[10]["x"].tolist() == [20.0, 21.0]
        assert len(ZarrDataSource(path / "x")) == 11
    nested = store(tmp_path / "t.zarr", 3, group="a/b")
    inner = zarr.open_group(nested, mode="r")["a/b"]
    with pytest.warns(UserWarning, match="in the open zarr.Group; the latter"):
        assert len(ZarrDataSource(inner)) == 5
    with pytest.warns(UserWarning, match=OLD):
        assert len(ZarrDataSource(nested)) == 5


@FORMATS
@pytest.mark.parametrize("direct", [None, False])
def test_an_array_that_was_cut_since_is_refused(
    tmp_path: Path, zarr_format: Any, direct: bool | None
) -> None:
    path = store(tmp_path / "s.zarr", zarr_format)
    group: Any = zarr.open_group(path, mode="r+", use_consolidated=False)
    group["x"].resize((4, 2))
    for source in (path, zarr.open_group(path, mode="r")):
        with pytest.raises(SourceError, match=r"has shape \[4, 2\] .* it was cut since"):
            ZarrDataSource(source, names=["x"], direct=direct)
    assert main(["verify", str(path)]) == 1
    group.create_array("x", data=VALUES, chunks=(11, 1), overwrite=True)
    with pytest.raises(SourceError, match=r"own metadata, and .* it was written anew"):
        ZarrDataSource(path, names=["x"], direct=direct)


@FORMATS
def test_attributes_are_those_of_the_consolidated_metadata(
    tmp_path: Path, zarr_format: Any
) -> None:
    path = store(tmp_path / "s.zarr", zarr_format)
    zarr.consolidate_metadata(path, zarr_format=zarr_format)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ZarrDataSource(path)
    group = zarr.open_group(path, mode="r+", use_consolidated=False)
    group["x"].attrs["scale_factor"] = 10.0
    with pytest.warns(UserWarning, match="another attribute 'scale_factor' in its own metadata"):
        source = WindowDataSource(path, {"time": 1}, decode=True)
    assert source[1]["x"].tolist() == [VALUES[1].tolist()]
