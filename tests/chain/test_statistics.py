"""`windrow.statistics` equals NumPy over all values, in whatever parts they come; and scaling by it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.hypothesis_profiles import examples
from windrow import MapDataset, Statistics
from windrow.errors import ArgumentError, ElementError, NotFoundError, PlanError, SourceError
from windrow.sources import Field, WindowDataSource

AnyArray = npt.NDArray[Any]


def computed(data: Any, **options: Any) -> Statistics:
    return windrow.statistics(data, progress=False, **options)


def agree(found: windrow.data_statistics.Moments, values: AnyArray, axes: tuple[int, ...]) -> None:
    """The moments equal what NumPy computes over some axes."""
    wide = values.astype("f8")
    assert np.array_equal(found.nans, np.isnan(wide).sum(axes))
    assert np.array_equal(found.count, (~np.isnan(wide)).sum(axes))
    np.testing.assert_allclose(found.mean, np.nanmean(wide, axes), rtol=1e-13)
    np.testing.assert_allclose(found.std, np.nanstd(wide, axes), rtol=1e-9)
    np.testing.assert_array_equal(found.min, np.nanmin(wide, axes))
    np.testing.assert_array_equal(found.max, np.nanmax(wide, axes))


@pytest.fixture
def era5(tmp_path: Path) -> xarray.Dataset:
    rng = np.random.default_rng(0)
    z = rng.normal([[[5e4]], [[3e4]], [[1e4]]], 900, (60, 3, 4, 6)).astype("f4")
    t2m = rng.normal(280, 7, (60, 4, 6)).astype("f4")
    t2m[7, 1] = np.nan
    weather = xarray.Dataset(
        {"z": (("time", "level", "lat", "lon"), z), "t2m": (("time", "lat", "lon"), t2m)}
    )
    weather.to_zarr(tmp_path / "era5", encoding={"z": {"chunks": (7, 3, 4, 6)}}, consolidated=False)
    return weather


def hours(tmp_path: Path, **more: Any) -> WindowDataSource:
    fields = {name: Field(name, {"time": 0}) for name in ("z", "t2m")}
    return WindowDataSource(tmp_path / "era5", fields=fields, **more)


def test_variables_and_levels_as_xarray_has_them(era5: xarray.Dataset, tmp_path: Path) -> None:
    found = computed(hours(tmp_path), per=["level"])
    assert list(found) == ["z", "t2m"]
    assert (found["z"].dims, found["z"].mean.shape, found["t2m"].mean.shape) == (
        ("level",),
        (3,),
        (),
    )
    agree(found["z"], era5["z"].values, (0, 2, 3))
    agree(found["t2m"], era5["t2m"].values, (0, 1, 2))
    wanted = era5.astype("f8").std(["time", "lat", "lon"])
    np.testing.assert_allclose(found["z"].std, wanted["z"], rtol=1e-12)
    assert "z[level 0]: mean 49996.7, std 911.356, min 46605, max 52759.4 of 1,440" in repr(found)
    assert "of 1,434 values, 6 NaN" in repr(found)


def test_large_means_lose_no_digits() -> None:
    values = 1e9 + np.random.default_rng(0).normal(0, 1e-3, (5_000, 7))
    found, exact = computed(values)[""], values.astype(np.longdouble)
    np.testing.assert_allclose(found.std, exact.std(), rtol=1e-6)
    np.testing.assert_allclose(found.mean - 1e9, exact.mean() - 1e9, atol=2e-7)


@settings(deadline=None, max_examples=examples(40))
@given(data=st.data())
def test_parts_are_merged_exactly(data: st.DataObject) -> None:
    rows = data.draw(st.integers(2, 30), "rows")
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    values = rng.normal(rng.normal(0, 1e3), 1, (rows, 2, 3))
    gaps = rng.random(values.shape) < data.draw(st.sampled_from([0, 0.2]), "gaps")
    gaps[0] = False
    values[gaps] = np.nan
    axis = data.draw(st.sampled_from([None, 0, -1]), "axis")
    at = data.draw(st.integers(1, rows - 1), "at")
    per = [] if axis is None else [axis]
    one, two = (computed(part, per=per) for part in (values[:at], values[at:]))
    found = one.merged(two)[""]
    axes = tuple(k for k in range(3) if axis is None or k != (axis + 1 if axis == 0 else 2))
    agree(found, values, axes)


def test_values_that_are_all_nan() -> None:
    values = np.full((4, 2), np.nan)
    values[:, 1] = 3
    found = computed(values, per=[0])[""]
    assert found.count.tolist() == [0, 4]
    assert np.isnan([found.mean[0], found.std[0], found.min[0], found.max[0]]).all()
    assert (found.mean[1], found.std[1], found.max[1]) == (3, 0, 3)
    empty = computed(np.full((4, 2), np.nan), per=[0])
    agree_again = empty.merged(computed(values[:, ::-1].copy(), per=[0]))[""]
    assert (agree_again.count.tolist(), agree_again.mean[0]) == ([4, 0], 3)


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i8", "f2", "f4", "f8", ml_dtypes.bfloat16])
def test_dtypes(dtype: Any) -> None:
    values = np.random.default_rng(0).integers(0, 2, (50, 3)).astype(dtype)
    agree(computed(values)[""], values, (0, 1))


def test_elements_of_several_shapes_and_absent_ones() -> None:
    images = [np.full((n, 2), n, np.uint8) for n in range(1, 9)]
    dataset = MapDataset.source(images).filter(lambda image: len(image) != 3)
    found = computed(dataset, per=[-1])[""]
    flat = np.concatenate([image for image in images if len(image) != 3])
    agree(found, flat, (0,))


def test_nested_elements_strings_and_chosen_names() -> None:
    element = {"a": {"b": np.arange(3), "name": "x"}, "c": (np.float32(2), b"y")}
    dataset = MapDataset.source([element] * 5)
    assert list(computed(dataset)) == ["a/b", "c/0"]
    found = computed(dataset, names=["a/b"])
    assert found["a/b"].count == 15
    scaled: Any = dataset.map(found.normalize)[0]
    assert scaled["c"] == (np.float32(2), b"y")
    assert scaled["a"]["name"] == "x"
    np.testing.assert_allclose(scaled["a"]["b"], [-1.2247449, 0, 1.2247449], rtol=1e-6)


@pytest.mark.jobs
def test_workers_threads_and_order_change_nothing(era5: xarray.Dataset, tmp_path: Path) -> None:
    dataset = MapDataset.source(hours(tmp_path))
    told: list[int] = []
    one = windrow.statistics(dataset, per=["level"], progress=lambda now: told.append(now.records))
    two = computed(dataset.map(dict), per=[0], workers=1)
    assert told[-1] == 60
    assert one["t2m"].mean == pytest.approx(float(two["t2m"].mean.mean()), rel=1e-5)
    shuffled = computed(dataset.shuffle(seed=0), per=["level"])
    np.testing.assert_allclose(one["z"].squares, shuffled["z"].squares, rtol=1e-12)


# --- scaling -------------------------------------------------------------------------------------


def test_a_chain_is_scaled_and_brought_back(era5: xarray.Dataset, tmp_path: Path) -> None:
    found = computed(hours(tmp_path), per=["level"])
    fields = {
        "x": Field("z", {"time": [-1, 0]}),
        "y": Field("z", {"time": 1}),
        "t": Field("t2m", {"time": 0}),
    }
    windows = MapDataset.source(WindowDataSource(tmp_path / "era5", fields=fields))
    scales = found.named({"x": "z", "y": "z"})
    plain: Any = windows.batch(8)[2]
    for chain in (
        windows.map(scales.normalize).batch(8),
        windows.map(scales.normalize, batched=True).batch(8),
        windows.batch(8).map(scales.normalize),
        windows.map(scales.normalize, local=("lat", "lon")).batch(8),
    ):
        batch: Any = chain[2]
        assert batch["x"].dtype == chain.element_spec["x"].dtype == np.float32
        np.testing.assert_array_equal(batch["t"], plain["t"])
        for name in ("x", "y"):
            mean, std = (a.reshape(3, 1, 1) for a in (found["z"].mean, found["z"].std))
            wanted = (plain[name].astype("f8") - mean) / std
            np.testing.assert_allclose(batch[name], wanted, atol=2e-5)
        back = scales.denormalize({"y": batch["y"]})
        np.testing.assert_allclose(back["y"], plain["y"], rtol=1e-6)
    assert pickle.loads(pickle.dumps(scales.normalize))(windows[0])["x"].shape == (2, 3, 4, 6)


class Pair(NamedTuple):
    image: AnyArray
    label: int


def test_dtypes_of_scaled_values() -> None:
    for dtype, made in (("u1", "f4"), ("f2", "f2"), ("f4", "f4"), ("f8", "f8"), ("i8", "f4")):
        values = np.arange(12).reshape(4, 3).astype(dtype)
        scales = computed(values)
        assert scales.normalize(values).dtype == made
        np.testing.assert_allclose(
            scales.denormalize(scales.normalize(values)),
            values,
            atol=1e-2 if made == "f2" else 1e-5,
        )
    pair = computed([Pair(np.arange(4), 1)], names=["0"]).normalize(Pair(np.arange(4), 1))
    assert (type(pair), pair.label) == (Pair, 1)


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8"])
def test_long_integers_keep_their_differences(dtype: str) -> None:
    values = np.array([10**9, 10**9 + 10, 10**9 + 50], dtype)
    expected = (values - values.mean()) / values.std()
    found = computed(values).normalize(values)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32


@pytest.mark.parametrize("values", [[1.0, np.inf], [np.nan, -np.inf, 2.0], [np.inf, -np.inf]])
def test_infinite_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ElementError, match="x has infinite values, which have no mean"):
        computed({"x": np.array(values)})


def test_what_never_varies_is_only_shifted() -> None:
    scales = computed(np.full((3, 2), 7.0))
    assert scales.normalize(np.full(2, 7.0)).tolist() == [0, 0]
    assert scales.denormalize(np.zeros(2)).tolist() == [7, 7]


@pytest.mark.jobs
def test_arrays_of_jax_stay_on_their_device() -> None:
    jax: Any = pytest.importorskip("jax")
    values = np.arange(12, dtype="f4").reshape(4, 3)
    scales = computed(values)
    on_device: Any = jax.jit(scales.normalize)(jax.numpy.asarray(values))
    assert isinstance(on_device, jax.Array)
    np.testing.assert_allclose(on_device, scales.normalize(values), rtol=1e-6)


# --- the file, and errors ------------------------------------------------------------------------


class Counted:
    """A source that counts its reads."""

    def __init__(self, rows: int) -> None:
        self.rows, self.calls = rows, 0

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> AnyArray:
        self.calls += 1
        return np.arange(3) + index


def test_a_file_keeps_them(tmp_path: Path) -> None:
    source, path = Counted(5), tmp_path / "found.npz"
    first = computed(source, per=[0], path=path)
    calls = source.calls
    again = computed(source, per=[0], path=path)
    assert (source.calls, [one.name for one in tmp_path.iterdir()]) == (calls, ["found.npz"])
    loaded = Statistics.load(path)
    for found in (again, loaded):
        assert (found[""].places, found[""].dims) == ((-1,), (None,))
        for name in ("count", "nans", "mean", "squares", "min", "max"):
            np.testing.assert_array_equal(getattr(found[""], name), getattr(first[""], name))
    others: list[Any] = [
        lambda: computed(source, path=path),
        lambda: computed(Counted(6), per=[0], path=path),
        lambda: computed(MapDataset.source(source).map(np.square), per=[0], path=path),
    ]
    for other in others:
        with pytest.raises(SourceError, match=r"made of other data.*\n.*\n.*\nRemove it to make"):
            other()
    path.write_bytes(b"PK")
    with pytest.raises(SourceError, match="damaged, or not a file of statistics"):
        computed(source, per=[0], path=path)
    windrow.lengths(MapDataset.source(["a"]), path=tmp_path / "lengths.npz", progress=False)
    with pytest.raises(SourceError, match=r"lengths\.npz is not a file of statistics"):
        Statistics.load(tmp_path / "lengths.npz")
    with pytest.raises(SourceError, match="there is no file"):
        Statistics.load(tmp_path / "none.npz")


NUMBERS = MapDataset.source(np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: computed(NUMBERS.to_iter_dataset()), ArgumentError),
        (lambda: computed(NUMBERS.repeat()), PlanError),
        (lambda: computed(NUMBERS[:0]), PlanError),
        (lambda: computed("era5.zarr"), ArgumentError),
        (lambda: computed(NUMBERS, per="level"), ArgumentError),
        (lambda: computed(NUMBERS, per=["level"]), ArgumentError),
        (lambda: computed(NUMBERS, per=[1]), ArgumentError),
        (lambda: computed(NUMBERS, names="x"), ArgumentError),
        (lambda: computed(NUMBERS, names=["x"]), ArgumentError),
        (lambda: computed(["a"]), ElementError),
        (lambda: computed(NUMBERS, path="no/x"), NotFoundError),
        (lambda: computed(NUMBERS.map(lambda _: None)), PlanError),
        (lambda: computed([np.zeros(2), np.zeros((2, 2))]), ElementError),
        (lambda: computed(NUMBERS).named({"x": "y"}), ArgumentError),
        (lambda: computed(NUMBERS).normalize({"x": 1}), ElementError),
        (lambda: computed(NUMBERS, per=[0]).normalize(np.zeros(3)), ElementError),
        (lambda: computed(NUMBERS).merged(computed(NUMBERS, per=[0])), ArgumentError),
    ],
)
def test_errors(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
