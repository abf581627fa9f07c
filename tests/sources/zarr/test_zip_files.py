"""Zarr in zip files and behind references of kerchunk: names twice, chains of URLs, and the path of a file."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import xarray as xr
import zarr

from windrow import MapDataset, inspect
from windrow.cli.main import main
from windrow.errors import NotFoundError
from windrow.sources import Field, WindowDataSource, ZarrDataSource

pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata", "ignore:.*V3 specification", "ignore:Duplicate name"
)
DATA = xr.Dataset({"x": (("time", "k"), np.arange(12.0).reshape(6, 2))})


@pytest.fixture
def twice(tmp_path: Path) -> Path:
    """A zip file whose metadata xarray wrote twice; the name of its folder means something in a URL."""
    folder = tmp_path / "a b%20#c"
    folder.mkdir()
    with zarr.storage.ZipStore(folder / "a.zip", mode="w") as store:
        DATA.to_zarr(store)
        DATA.isel(time=slice(None, None, -1)).to_zarr(store, group="in ner")
    return folder / "a.zip"


def test_the_last_of_two_files_of_a_name_counts(twice: Path) -> None:
    url = twice.as_uri() + "|zip:"
    store = zarr.storage.ZipStore(twice)
    for arrays in (
        url,
        f"zip:///::file://{twice}",
        zarr.open_group(store, mode="r"),
        xr.open_zarr(store),
    ):
        source = ZarrDataSource(arrays)
        assert pickle.loads(pickle.dumps(source))[5]["x"].tolist() == [10.0, 11.0]
        assert WindowDataSource(arrays, {"time": 2})[2]["x"].tolist() == [[8.0, 9.0], [10.0, 11.0]]
    assert ZarrDataSource(url + "in%20ner/")[5]["x"].tolist() == [0.0, 1.0]
    assert ZarrDataSource(zarr.open_group(store, path="in ner", mode="r"))[5]["x"][1] == 1.0
    assert inspect(url).records == 6
    assert main(["verify", url]) == 0


@pytest.mark.parametrize(
    "chain",
    ["zip://::{}/a.zip", "zip:///::{}/a.zip", "zip::a.zip"],
)
def test_chains_that_end_in_a_local_path(
    tmp_path: Path, chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, name="in/x", data=np.arange(6), chunks=(2,))
    monkeypatch.chdir(tmp_path)
    url = chain.format(tmp_path)
    source = ZarrDataSource(url, names=["in/x"])
    assert pickle.loads(pickle.dumps(source))[5] == {"in": {"x": 5}}
    assert inspect(url).records == 6


def test_the_path_of_a_zip_file_names_its_url(
    twice: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotFoundError, match=r"is a zip file; .* give 'file:") as no:
        ZarrDataSource(twice)
    url = str(no.value).split("'")[-2]
    assert ZarrDataSource(url)[5]["x"].tolist() == [10.0, 11.0]
    assert main(["inspect", str(twice)]) == 1
    assert url in capsys.readouterr().err


# --- references of kerchunk -----------------------------------------------------------------------


VALUES = np.arange(48 * 4, dtype="<f4").reshape(48, 4)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    """References to parts of a file that is not Zarr, as kerchunk writes them."""
    (tmp_path / "raw.bin").write_bytes(b"HEAD" + VALUES.tobytes())
    plain: dict[str, Any] = {"compressor": None, "filters": None, "fill_value": None, "order": "C"}
    raw, hours = f"file://{tmp_path}/raw.bin", np.arange(48, dtype="<i8").tobytes()
    references: dict[str, Any] = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        "t/.zarray": {**plain, "shape": [48, 4], "chunks": [24, 4], "dtype": "<f4"},
        "t/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "lat"]},
        "t/0.0": [raw, 4, 384],
        "t/1.0": [raw, 388, 384],
        "time/.zarray": {**plain, "shape": [48], "chunks": [48], "dtype": "<i8"},
        "time/.zattrs": {"_ARRAY_DIMENSIONS": ["time"], "units": "hours since 2019-03-01"},
        "time/0": "base64:" + base64.b64encode(hours).decode(),
    }
    for key, value in references.items():
        if isinstance(value, dict):
            more = {"zarr_format": 2} if key.endswith(".zarray") else {}
            references[key] = json.dumps({**value, **more})
    path = tmp_path / "references.json"
    path.write_text(json.dumps({"version": 1, "refs": references}))
    return {"fo": str(path)}


@pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated metadata")
def test_references_are_read_by_url_and_as_open_objects(options: dict[str, str]) -> None:
    rows = ZarrDataSource("reference://t", storage_options=options)
    assert np.array_equal(rows.read(np.array([47, 3])), VALUES[[47, 3]])
    fields = {"x": Field("t", {"time": ["-6h", "0h"]})}
    store = zarr.storage.FsspecStore.from_url("reference://", storage_options=options)
    opened = xarray.open_zarr(store, chunks=None, consolidated=False)
    for given, more in (
        ("reference://", {"storage_options": options}),
        (opened, {}),
        (zarr.open_group(store, mode="r"), {"names": ["t"]}),
    ):
        windows: Any = WindowDataSource(given, fields=fields, coordinates=True, **more)
        windows = pickle.loads(pickle.dumps(windows))
        record: Any = MapDataset.source(windows).batch(4)[2]
        assert np.array_equal(record["x"][1], VALUES[[9, 15]])
        assert record["time"][1, 1] == np.datetime64("2019-03-01T15")
