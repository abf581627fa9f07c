"""The ERA5 example: its records are what xarray gives, it runs, and its forecast is one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st

import windrow
from examples import train_era5 as example
from tools import write_era5

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def field() -> Any:
    return xarray.load_dataset(example.STORE, engine="zarr", consolidated=False)["t2m"]


def hours_of(days: slice, field: Any) -> Any:
    return field["time"].sel(time=days).values


@given(data=st.data(), days=st.sampled_from([example.TRAINING, example.VALIDATION]))
def test_a_record_is_what_xarray_selects(field: Any, data: st.DataObject, days: slice) -> None:
    source = example.windows(example.STORE, days)
    index = data.draw(st.integers(0, len(source) - 1))
    record = source[index]
    # The first hour has a whole day before it.
    now = hours_of(days, field)[24 + index]
    offsets = {"x": example.BEFORE, "day_before": example.DAY_BEFORE, "y": example.AHEAD}
    assert set(record) == {*offsets, *(f"{name}_time" for name in offsets), "latitude", "longitude"}
    for name, hours in offsets.items():
        times = [now + np.timedelta64(hour, "h") for hour in hours]
        expected = field.sel(time=times)
        assert record[name].dtype == np.float32
        np.testing.assert_array_equal(record[name], expected.values)
        np.testing.assert_array_equal(record[f"{name}_time"], expected["time"].values)
    np.testing.assert_array_equal(record["latitude"], field["latitude"].values)
    np.testing.assert_array_equal(record["longitude"], field["longitude"].values)


def test_training_and_validation_share_no_hour() -> None:
    hours = []
    for days in (example.TRAINING, example.VALIDATION):
        source = example.windows(example.STORE, days)
        record = source.read(np.arange(len(source)))
        read = [record[f"{name}_time"].ravel() for name in ("x", "day_before", "y")]
        hours.append(set(np.concatenate(read).astype("M8[h]").tolist()))
    assert max(hours[0]) < min(hours[1])


def test_the_lines_of_the_page_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "windows.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n([^`]*era5_uk_[^`]*)^```$", page, re.MULTILINE)
    names: dict[str, Any] = {"windrow": windrow}
    monkeypatch.chdir(ROOT)
    exec(block, names)
    with iter(names["dataset"]) as batches:
        shapes = {name: field.shape for name, field in next(batches).items()}
    assert shapes == {"x": (16, 3, 33, 49), "y": (16, 6, 33, 49)}


def run(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / "train_era5.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=tmp_path)


def test_the_program_beats_persistence_and_draws(tmp_path: Path) -> None:
    done = run(tmp_path, "--steps", "25", "--batch", "8", "--plot", "picture.png")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ +([a-z ]+?) +((?: +\d+\.\d\d){6})$", done.stdout, re.MULTILINE)
    errors = {name: [float(text) for text in numbers.split()] for name, numbers in rows}
    assert set(errors) == {"network", "persistence", "day before", "change of the day before"}
    # A few steps are enough where the sun has set or risen in between.
    assert errors["network"][-1] < 0.8 * errors["persistence"][-1]
    picture = (tmp_path / "picture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 50_000


def test_the_tool_writes_the_store_of_the_example(field: Any, tmp_path: Path) -> None:
    write_era5.write(field.to_dataset(), tmp_path / "store")
    again = xarray.load_dataset(tmp_path / "store", engine="zarr", consolidated=False)["t2m"]
    assert again.identical(field)
    files = [path.relative_to(tmp_path / "store") for path in (tmp_path / "store").rglob("*")]
    shipped = [path.relative_to(example.STORE) for path in example.STORE.rglob("*")]
    assert sorted(files) == sorted(shipped)
