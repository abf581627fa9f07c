"""Arrays for tests of parts of elements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr


@pytest.fixture(scope="session")
def fields(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A group of fields `x (time, level, lat, lon)`, `m (time, lat, lon)` and numbers `n (time)`."""
    folder: Path = tmp_path_factory.mktemp("fields")
    values = np.random.default_rng(0).normal(size=(10, 2, 12, 16)).astype(np.float32)
    group = zarr.create_group(folder)
    dims = ("time", "level", "lat", "lon")
    group.create_array("x", data=values, chunks=(1, 1, 5, 6), dimension_names=dims)
    group.create_array(
        "m", data=values[:, 0] > 0, chunks=(2, 4, 16), dimension_names=("time", "lat", "lon")
    )
    group.create_array("n", data=np.arange(10), chunks=(4,), dimension_names=("time",))
    for name, size in (("lat", 12), ("lon", 16)):
        group.create_array(name, data=np.arange(size) / 2, chunks=(size,), dimension_names=(name,))
    return str(folder)
