"""Sizes in the world, levels of pyramids, and fields at several resolutions around one point."""

from __future__ import annotations

import math
import pickle
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from tests.range_server import RangeServer
from tests.volumes import ome, precomputed, scale, space, translation
from windrow import MapDataset
from windrow.errors import ArgumentError, RecordIndexError, SourceError
from windrow.sources import Field, WindowDataSource
from windrow.sources.cells import Cells, whole

AnyArray = npt.NDArray[Any]
VOLUME = np.random.default_rng(0).integers(0, 256, (40, 36, 20)).astype("u1")


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    half = VOLUME[::2, ::2]
    path = tmp_path_factory.mktemp("pyramid") / "volume"
    return precomputed(path, (VOLUME, [8, 8, 40], [10, 20, 5]), (half, [16, 16, 40], [5, 10, 5]))


@pytest.fixture(scope="module")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weather") / "weather.zarr"
    times = np.datetime64("2019-03-01", "ns") + np.arange(48) * np.timedelta64(6, "h")
    lat = xarray.Variable("lat", 60 - 0.25 * np.arange(12, dtype="f4"), {"units": "degrees_north"})
    labels = {"time": times, "lat": lat, "lon": 0.5 * np.arange(20), "p": 2.0 ** np.arange(3)}
    values = np.arange(48 * 12 * 20 * 3, dtype="f4").reshape(48, 12, 20, 3)
    data = xarray.Dataset({"t": (("time", "lat", "lon", "p"), values)}, labels)
    data.to_zarr(path, consolidated=False)
    return path


# --- levels --------------------------------------------------------------------------------------


def test_levels_of_a_precomputed_volume(volume: Path) -> None:
    size = {"x": 8, "y": 8, "z": 4}
    plain = WindowDataSource(volume, size)
    finest = WindowDataSource(volume, size, resolution={"x": 8, "z": "40nm"})
    assert finest.fingerprint == plain.fingerprint
    coarse = WindowDataSource(volume, size, resolution={"x": "0.016um"})
    again = pickle.loads(pickle.dumps(coarse))
    assert again.fingerprint == coarse.fingerprint
    assert np.array_equal(again[1][..., 0], VOLUME[::2, ::2][:8, :8, 4:8])


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_levels_of_ome_zarr(tmp_path: Path, version: str) -> None:
    fine = np.arange(2 * 8 * 12).reshape(2, 8, 12).astype("i4")
    levels = {
        "a/0": (fine, [scale(1, 0.5, 0.5)]),
        "a/1": (fine[:, ::2, ::2], [scale(1, 1, 1), translation(0, 0.25, 0.25)]),
    }
    axes = [{"name": "c", "type": "channel"}, *space("y", "x")]
    path = ome(
        tmp_path / "i", levels, axes, version, coordinateTransformations=[scale(1, 0.1, 0.1)]
    )
    assert np.array_equal(WindowDataSource(path, {"x": 4})[1], fine[:, :, 4:8])
    coarse = WindowDataSource(
        path, {"x": "300nm"}, resolution={"y": "100nm", "x": 0.1}, coordinates=["x", "y"]
    )
    record = coarse[1]
    assert np.array_equal(record["1"], fine[:, ::2, ::2][:, :, 3:6])
    assert np.allclose(record["x"], 0.025 + 0.1 * np.arange(3, 6))
    # The names of levels stay names of arrays.
    named = WindowDataSource(path, {2: 3}, names=["a/1"])
    assert np.array_equal(named[0]["a"]["1"], fine[:, ::2, ::2][:, :, :3])


def test_an_image_that_is_not_listed(tmp_path: Path) -> None:
    fine = np.arange(64).reshape(8, 8).astype("u1")
    levels = {"0": (fine, [scale(1, 1)]), "1": (fine[::2, ::2], [scale(2, 2)])}
    ome(tmp_path / "image", levels, space("y", "x"))
    with RangeServer(tmp_path) as server:
        source = WindowDataSource(server.url("image"), {"x": 4}, resolution={"x": "2um"})
        assert np.array_equal(source[0], fine[::2, ::2])


def test_volumes_of_their_own_are_aligned(tmp_path: Path, volume: Path) -> None:
    labels = np.arange(12 * 10 * 6).reshape(12, 10, 6).astype("u4")
    precomputed(tmp_path / "labels", (labels, [16, 16, 40], [8, 12, 8]))
    fields = {
        "raw": Field("raw"),
        "labels": Field("labels"),
        "wide": Field("raw", resolution={"x": 16}),
    }
    source = WindowDataSource(
        {"raw": volume, "labels": tmp_path / "labels"},
        {"x": "64nm", "y": "64nm", "z": "80nm"},
        {"x": 2, "y": 2, "z": 1},
        fields=fields,
        resolution={"z": 40, "x": 16, "y": 16},
    )
    # All at 16nm: aligned by voxel_offset alone, also where no pyramid is.
    record = source[0]
    assert np.array_equal(record["labels"][..., 0], labels[:4, :4, :2])
    assert np.array_equal(record["raw"][..., 0], VOLUME[::2, ::2][3:7, 2:6, 3:5])
    fine = WindowDataSource(
        {"raw": volume, "labels": tmp_path / "labels"},
        {"x": "64nm", "y": "64nm", "z": "80nm"},
        fields={"raw": Field("raw", resolution={"x": 8}), "labels": Field("labels")},
    )
    # A size in the world is enough, since the finest levels are taken.
    plain = WindowDataSource(
        {"raw": volume, "labels": tmp_path / "labels"}, {"x": "64nm", "y": "64nm", "z": "80nm"}
    )
    for found in (fine[0], plain[0]):
        assert np.array_equal(found["labels"][..., 0], labels[:4, :4, :2])
        assert np.array_equal(found["raw"][..., 0], VOLUME[6:14, 4:12, 3:5])


# --- alignment, against positions in the world ---------------------------------------------------


def records(source: WindowDataSource) -> list[Any]:
    return [source[index] for index in range(len(source))]


def nearest(middle: Fraction, first: Fraction, step: Fraction, size: int) -> tuple[int, Fraction]:
    """Where a window of `size` cells begins for its middle to be nearest, and how far off it is."""
    at = (middle - first) / step - Fraction(size - 1, 2)
    begin = math.floor(at + Fraction(1, 2))
    return begin, abs(at - begin) * step


def window(values: AnyArray, first: int, size: int) -> list[int]:
    """Cells along the last axis; 0 outside of it."""
    return [
        int(values[0, k]) if 0 <= k < values.shape[1] else 0 for k in range(first, first + size)
    ]


def drawn_levels(data: Any) -> tuple[list[AnyArray], list[Fraction], list[Fraction]]:
    step = data.draw(st.sampled_from([Fraction(1, 4), Fraction(1), Fraction(33, 2)]), "step")
    ratio = data.draw(st.sampled_from([1, 2, 3, 4, Fraction(3, 2)]), "ratio")
    steps = [step, step * ratio]
    firsts = [step * Fraction(data.draw(st.integers(-8, 8), "first"), 2) + own / 2 for own in steps]
    lengths = data.draw(st.integers(8, 40), "fine"), data.draw(st.integers(4, 30), "coarse")
    values = [1 + np.arange(2 * n, dtype="i4").reshape(2, n) for n in lengths]
    return values, steps, firsts


def stored(folder: str, levels: tuple[list[AnyArray], list[Fraction], list[Fraction]]) -> Path:
    described = {
        str(k): (values, [scale(1, float(step)), translation(0, float(first))])
        for k, (values, step, first) in enumerate(zip(*levels, strict=True))
    }
    axes = [{"name": "y", "type": "space"}, *space("x", unit="nanometer")]
    return ome(Path(folder) / "image", described, axes)


@settings(max_examples=examples(80))
@given(data=st.data())
def test_a_grid_of_two_resolutions(data: Any) -> None:
    levels = drawn_levels(data)
    (fine, coarse), steps, firsts = levels
    sizes = [
        data.draw(st.integers(1, 8), "size of fine"),
        data.draw(st.integers(1, 6), "of coarse"),
    ]
    stride = data.draw(st.integers(1, 6), "stride")
    pad = data.draw(st.sampled_from([None, "constant"]), "pad")
    most = data.draw(st.sampled_from([0, float(steps[1]) / 4, 1000]), "tolerance")

    def places(origin: int) -> tuple[int, Fraction]:
        middle = firsts[0] + (origin + Fraction(sizes[0] - 1, 2)) * steps[0]
        return nearest(middle, firsts[1], steps[1], sizes[1])

    def fits(origin: int) -> bool:
        inside = 0 <= places(origin)[0] <= coarse.shape[1] - sizes[1]
        return bool(inside and origin + sizes[0] <= fine.shape[1])

    with tempfile.TemporaryDirectory() as folder:
        path = stored(folder, levels)
        fields = {
            "fine": Field("0"),
            "coarse": Field("1", sizes={"x": sizes[1]}),
            "again": Field(resolution={"x": float(steps[0])}),
        }

        def make() -> WindowDataSource:
            return WindowDataSource(
                path,
                {"x": sizes[0]},
                {"x": stride},
                fields=fields,
                tolerance=f"{most}nm",
                pad=pad,
            )

        if steps[0] == steps[1]:
            with pytest.raises(SourceError, match="several levels have: name more axes"):
                make()
            return
        if pad is None:
            every = [origin for origin in range(fine.shape[1]) if fits(origin)]
        else:
            count = len(WindowDataSource(fine, {1: sizes[0]}, {1: stride}, pad=pad))
            every = [stride * k for k in range(count)]
        if not every:
            with pytest.raises(SourceError, match="does not fit"):
                make()
            return
        starts = range(min(stride, len(every))) if pad is None else range(1)
        step = stride if pad is None else 1
        good = [k for k in starts if all(places(o)[1] <= most for o in every[k::step])]
        if not good:
            with pytest.raises(SourceError, match=r"cannot have the same middles.*tolerance="):
                make()
            return
        source = make()
        origins = every[good[0] :: step]
        found = source.read(np.arange(len(source)))
        assert found["fine"][:, 0].tolist() == [window(fine, o, sizes[0]) for o in origins]
        assert np.array_equal(found["again"], found["fine"])
        begins = [places(origin)[0] for origin in origins]
        assert found["coarse"][:, 0].tolist() == [window(coarse, b, sizes[1]) for b in begins]


@settings(max_examples=examples(60))
@given(data=st.data())
def test_centers_at_two_resolutions(data: Any) -> None:
    levels = drawn_levels(data)
    (fine, coarse), steps, firsts = levels
    if steps[0] == steps[1]:
        return
    sizes = [
        data.draw(st.integers(1, 8), "size of fine"),
        data.draw(st.integers(1, 6), "of coarse"),
    ]
    pad = data.draw(st.sampled_from([None, "constant"]), "pad")
    cells = data.draw(st.lists(st.integers(0, fine.shape[1] - 1), min_size=1, max_size=4), "cells")
    origins = [cell - sizes[0] // 2 for cell in cells]
    middles = [firsts[0] + (o + Fraction(sizes[0] - 1, 2)) * steps[0] for o in origins]
    begins = [nearest(middle, firsts[1], steps[1], sizes[1])[0] for middle in middles]
    inside = all(
        0 <= o <= fine.shape[1] - sizes[0] and 0 <= b <= coarse.shape[1] - sizes[1]
        for o, b in zip(origins, begins, strict=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = stored(folder, levels)
        fields = {"fine": Field(), "coarse": Field("1", sizes={"x": sizes[1]})}

        def make() -> WindowDataSource:
            return WindowDataSource(
                path,
                {"x": sizes[0]},
                centers=np.array(cells),
                fields=fields,
                resolution={"x": float(steps[0])},
                tolerance="1um",
                pad=pad,
            )

        if pad is None and not inside:
            with pytest.raises(SourceError, match="reaches out of the array"):
                make()
            return
        found = make().read(np.arange(len(cells)))
        assert found["fine"][:, 0].tolist() == [window(fine, o, sizes[0]) for o in origins]
        assert found["coarse"][:, 0].tolist() == [window(coarse, b, sizes[1]) for b in begins]


def test_sizes_in_cells_are_those_of_each_level(volume: Path) -> None:
    source = WindowDataSource(
        volume,
        {"x": 8, "y": 8, "z": "160nm"},
        {"x": "16nm", "y": 2, "z": 1},
        fields={"detail": Field(), "context": Field(resolution={"x": 16})},
        coordinates=True,
    )
    for record in (source[0], source[len(source) // 2], source[-1]):
        for dim in "xy":
            near, far = record[f"detail_{dim}"], record[f"context_{dim}"]
            assert near.mean() == far.mean()
            assert (np.ptp(near), np.ptp(far)) == (7 * 8, 7 * 16)
        cells = [(record[f"context_{dim}"] / 16 - 0.5).astype(int) for dim in "xy"]
        z = (record["z"] / 40 - 0.5).astype(int)
        expected = VOLUME[::2, ::2][np.ix_(cells[0] - 5, cells[1] - 10, z - 5)]
        assert np.array_equal(record["context"][..., 0], expected)


def test_a_chain_and_parts_read_the_same(volume: Path) -> None:
    source = WindowDataSource(
        volume,
        {"x": 8, "y": 8, "z": 2},
        {"x": 2, "y": 4, "z": 2},
        fields={"detail": Field(), "context": Field(resolution={"x": 16})},
        pad={"x": "reflect", "y": "edge"},
    )
    again = pickle.loads(pickle.dumps(source))
    chain = MapDataset.source(again).block_shuffle(seed=1).map(lambda r: r)
    with iter(chain.batch(16)) as batches:
        found = {record["context"].tobytes() for batch in batches for record in _rows(batch)}
    assert found == {record["context"].tobytes() for record in records(source)}
    box = (Cells(3, 5, 8), Cells(0, 6, 8), whole(2), whole(1))
    part = source.narrowed({("context",): box, ("detail",): box})
    for index in (0, 7, len(source) - 1):
        for name in ("detail", "context"):
            assert np.array_equal(part[index][name], source[index][name][3:5, 0:6])


def _rows(batch: Any) -> list[Any]:
    count = len(batch["context"])
    return [{name: values[k] for name, values in batch.items()} for k in range(count)]


# --- sizes and bounds in the world ---------------------------------------------------------------


def test_sizes_in_degrees_and_hours(weather: Path) -> None:
    source = WindowDataSource(
        weather, {"time": "1D", "lat": "1deg", "lon": "2.5\xb0"}, {"time": "6h", "lat": 1}
    )
    cells = WindowDataSource(weather, {"time": 4, "lat": 4, "lon": 5}, {"time": 1, "lat": 1})
    assert source.fingerprint == cells.fingerprint
    west = WindowDataSource(weather, {"lat": 4}, start={"lon": "1.2deg"}, stop={"lon": "3deg"})
    assert west[0]["t"].shape == (48, 4, 3, 3)
    assert west[0]["t"][0, 0, 0, 0] == 3 * 3


def test_a_tolerance_takes_the_nearest_number_of_cells(volume: Path) -> None:
    for size, tolerance, cells in (("100nm", "4nm", 13), ("97nm", "1nm", 12), ("99nm", 3, 12)):
        source = WindowDataSource(volume, {"x": size}, tolerance=tolerance)
        assert source[0].shape[0] == cells


def test_centers_in_the_world_are_the_cells_that_hold_them(volume: Path, weather: Path) -> None:
    rng = np.random.default_rng(0)
    cells = rng.integers([4, 2, 1], [36, 34, 19], (50, 3))
    corners = (cells + np.array([10, 20, 5])) * [8, 8, 40]  # of the voxel_offset and the resolution
    within = rng.random((50, 3)) * [8, 8, 40]
    size = {"x": 8, "y": 4, "z": 2}
    by_cells = WindowDataSource(volume, size, centers=cells)
    for points, unit in ((corners, "nm"), (corners + within, "nm"), (corners / 1000, "um")):
        source = WindowDataSource(volume, size, centers=points, centers_unit=unit)
        assert source.fingerprint == by_cells.fingerprint
    both = {"detail": Field(), "context": Field(resolution={"x": 16})}
    aligned = WindowDataSource(
        volume,
        {"x": 8, "y": 4, "z": 2},
        centers=corners[:1] // 16 * 16,
        centers_unit="nm",
        fields=both,
        coordinates=["x"],
        pad="constant",
    )
    record = pickle.loads(pickle.dumps(aligned))[0]
    assert record["detail_x"].mean() == record["context_x"].mean() == corners[0, 0] // 16 * 16
    # Latitudes descend from 60 in steps of 0.25.
    place = WindowDataSource(
        weather, {"lat": 2, "lon": 2}, centers=[[58.9, 3.2]], centers_unit="deg", coordinates=True
    )[0]
    assert (place["lat"].tolist(), place["lon"].tolist()) == ([59.25, 59.0], [2.5, 3.0])


def test_bounds_are_positions_of_middles(volume: Path) -> None:
    # Cell 0 has its middle at (10 + 0.5) * 8nm.
    source = WindowDataSource(
        volume, {"x": 1}, start={"x": "92nm"}, stop={"x": "100.5nm"}, coordinates=["x"]
    )
    assert [record["x"][0] for record in records(source)] == [92, 100]
    halves: list[Any] = [{"stop": {"x": "210nm"}}, {"start": {"x": "210nm"}}]
    assert sum(len(WindowDataSource(volume, {"x": 1}, **half)) for half in halves) == 40


def test_bounds_hold_for_every_level(volume: Path) -> None:
    source = WindowDataSource(
        volume,
        {"x": 2},
        {"x": 1},
        stop={"x": 21},
        fields={"detail": Field(), "context": Field(resolution={"x": 16})},
        tolerance="8nm",
        coordinates=["x"],
    )
    edge = (10 + 21) * 8
    assert max(record["context_x"].max() for record in records(source)) + 8 <= edge
    assert len(source) > 10


def test_an_open_store_has_the_units_that_it_declares(volume: Path) -> None:
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "file", "path": f"{volume}/"},
    }
    store = ts.open(spec).result()
    wide = ts.downsample(store, [2, 1, 1, 1], "mean")
    source = WindowDataSource(wide, {0: "64nm"}, coordinates=False)
    assert source[0].shape[0] == 4
    # A view has its cells where they lie in the whole store; voxel_offset is 10.
    views = [(wide, 88, 16), (store[::2], 84, 16), (store[11::2], 92, 16), (store[20:], 164, 8)]
    views.append((store.translate_to[0, 0, 0, 0], 84, 8))
    for view, first, step in views:
        found = WindowDataSource(view, {"x": 2}, coordinates=["x"])[0]
        assert found["x"].tolist() == [first, first + step]
    with pytest.raises(ArgumentError, match="does not say where the cells along x lie"):
        WindowDataSource(store[::-1], {"x": "64nm"})


# --- errors --------------------------------------------------------------------------------------

LEVELS = "the levels are\n  8_8_40: x 8nm, y 8nm, z 40nm\n  16_16_40: x 16nm, y 16nm, z 40nm"
BOTH = {"a": Field(), "b": Field(resolution={"x": 16})}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"resolution": {"x": 12}}, SourceError, f"resolution is {{'x': 12}}, which no level has; {LEVELS}"),
        ({"resolution": {"z": "40nm"}}, SourceError, f"which several levels have: name more axes; {LEVELS}"),
        ({"resolution": {"w": 8}}, ArgumentError, f"resolution names 'w', and the axes are ['x', 'y', 'z', 'channel']; {LEVELS}"),
        ({"resolution": {"x": "8deg"}}, ArgumentError, "resolution['x'] is '8deg', an angle, and the axis counts in nm; give a length, or cells"),
        ({"resolution": {"x": None}}, ArgumentError, "resolution['x'] must be a number, or a string such as '8nm', got None"),
        ({"resolution": {"x": 8}, "fields": ["a"]}, ArgumentError, "fields must be a dict of Field by name"),
        ({"resolution": 8}, ArgumentError, "resolution must be a dict by axis, such as {'x': '8nm'}, got 8"),
        ({"resolution": {"x": 8}, "names": ["a"]}, ArgumentError, "names and resolution do not go together"),
        ({"sizes": {"x": "100nm"}}, SourceError, "sizes['x'] is '100nm', which is 12.5 cells of 8nm along x; choose 96nm or 104nm, or tolerance='4nm' for the nearest number of cells"),
        ({"sizes": {"x": "3nm"}}, SourceError, "is 0.375 cells of 8nm along x; choose 8nm, or tolerance='5nm'"),
        ({"sizes": {"x": "0nm"}}, SourceError, "sizes['x'] must be above 0, got '0nm'"),
        ({"sizes": {"x": "8"}}, ArgumentError, "sizes['x'] is '8'; write a number and its unit, such as '320nm'"),
        ({"sizes": {"x": "8 parsec"}}, ArgumentError, "with the unknown unit 'parsec'; known are pm"),
        ({"sizes": {"channel": "8nm"}}, ArgumentError, "the store does not say where the cells along channel lie"),
        ({"start": {"x": "2h"}}, ArgumentError, "start['x'] is '2h', a time, and the axis counts in nm"),
        ({"tolerance": "4nm"}, ArgumentError, "tolerance is '4nm', and all sizes are in cells of one resolution; leave it out"),
        ({"tolerance": "-4nm", "fields": BOTH}, ArgumentError, "tolerance must be at least 0, got '-4nm'"),
        ({"fields": BOTH, "strides": {"x": 3}}, SourceError, "the windows of field 'b', with cells of 16nm along x, cannot have the same middles as windows that begin at cells of 8nm: they are up to 8nm apart; choose strides that are a multiple of 2 cells, or give tolerance='8nm'"),
        ({"fields": BOTH, "centers": [[20], [21]]}, SourceError, "move centers[1], or give tolerance='8nm'"),
        ({"fields": BOTH, "sizes": {"x": 100}}, SourceError, "does not fit into 40"),
        ({"centers": [[100.5]]}, ArgumentError, "got dtype float64; positions in the world need their unit, such as centers_unit='nm'"),
        ({"centers": [[math.nan]], "centers_unit": "nm"}, ArgumentError, "centers must be finite numbers"),
        ({"centers": [[100]], "centers_unit": "deg"}, ArgumentError, "centers_unit is 'deg', an angle, and the axis counts in nm; give a length, or cells"),
        ({"centers": [[100]], "centers_unit": "voxel"}, ArgumentError, "with the unknown unit 'voxel'; known are pm"),
        ({"centers": [[40]], "centers_unit": "nm"}, RecordIndexError, "centers[0] is [-5], and the cells along ['x'] are [0, 40)"),
        ({"centers_unit": "nm"}, ArgumentError, "centers_unit is given without centers; leave it out"),
        ({"centers": [[10]], "centers_unit": "8nm"}, ArgumentError, "centers_unit must be a unit, such as 'nm', got '8nm'"),
        ({"centers": [[1e300]], "centers_unit": "nm"}, ArgumentError, "centers[0] is [1e+300] in nm, which is far from all cells"),
        ({"fields": BOTH, "anchors": {"x": [4]}}, ArgumentError, "anchors count cells of 'x', and the fields have several resolutions there"),
        ({"fields": {**BOTH, "c": Field(offsets={"x": 1})}}, ArgumentError, "so that a field has no offset there"),
        ({"fields": BOTH, "select": {"y": 3}}, ArgumentError, "select takes cells of 'y', and the arrays have other cells there"),
        ({"fields": {"a": Field("8_8_40", resolution={"x": 8})}}, ArgumentError, "fields['a'] has a resolution, and '8_8_40' is one level of a pyramid"),
        ({"fields": {"a": Field("4_4_40", resolution={"x": 8})}}, ArgumentError, "fields['a'] is of array '4_4_40'; there are 8_8_40, 16_16_40"),
    ],
)  # fmt: skip
def test_messages(volume: Path, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        WindowDataSource(volume, **{"sizes": {"x": 4}, **given})
    assert message in str(raised.value)


def test_messages_about_coordinates(weather: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"along p are not evenly spaced: 1\.0 \(cell 0\) and 2"):
        WindowDataSource(weather, {"p": "2m"})
    with pytest.raises(ArgumentError, match=r"start\['lat'\] is '3deg', and the coordinates of"):
        WindowDataSource(weather, {"lat": 2}, start={"lat": "3deg"})
    with pytest.raises(
        ArgumentError, match="centers_unit is 'h', and the positions along time are"
    ):
        WindowDataSource(weather, {"time": 2}, centers=[[3]], centers_unit="h")
    with pytest.raises(ArgumentError, match="this source has neither; leave it out"):
        WindowDataSource(weather, {"lat": 2}, resolution={"lat": 0.25})
    levels = {"0": (VOLUME[0], [scale(1, 1)]), "1": (VOLUME[0, ::2, ::2], [scale(2, 2)])}
    path = ome(tmp_path / "image", levels, [{"name": "y"}, {"name": "x"}], "0.4")
    with pytest.raises(ArgumentError, match="'8um', and the axis has no unit; give cells"):
        WindowDataSource(path, {"x": "8um"})
    # Without a translation the middles of the first cells meet, and not their edges.
    fields = {"a": Field(), "b": Field(resolution={"x": 2})}
    with pytest.raises(SourceError, match=r"up to 0\.5 apart; choose other sizes, or give tol"):
        WindowDataSource(path, {"x": 4}, {"x": 2}, fields=fields)
    source = WindowDataSource(path, {"x": 4}, {"x": 2}, fields=fields, tolerance=0.5)
    assert np.array_equal(source[0]["a"], VOLUME[0][:, 1:5])
    assert np.array_equal(source[0]["b"], VOLUME[0, ::2, ::2][:, 0:4])


def test_a_center_must_be_a_cell_of_the_finest_level(volume: Path) -> None:
    with pytest.raises(RecordIndexError, match=r"centers\[0\] is \[40\]"):
        WindowDataSource(volume, {"x": 4}, centers=[[40]], fields=BOTH)


def test_transformations_that_are_not_known_leave_levels_without_resolution(tmp_path: Path) -> None:
    levels = {"0": (VOLUME[0], [{"type": "affine"}]), "1": (VOLUME[0, ::2], [scale(2, 1)])}
    path = ome(tmp_path / "image", levels, space("y", "x"))
    with pytest.raises(SourceError, match="0: the resolution is not stored\n  1: y 2um, x 1um"):
        WindowDataSource(path, {"x": 4}, resolution={"y": 1})
    # The level of which nothing is known is not aligned, and the other one is.
    with pytest.raises(ArgumentError, match="does not say where the cells along y lie"):
        WindowDataSource(path, {"y": "4um"}, fields={"a": Field("0")})
    source = WindowDataSource(path, {"y": "4um"}, fields={"a": Field("1")})
    assert np.array_equal(source[0]["a"], VOLUME[0, ::2][:2])
