"""Files of another format as Zarr, by references of kerchunk: read through fsspec and zarr-python."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

from windrow import MapDataset
from windrow.sources import Field, WindowDataSource, ZarrDataSource

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
