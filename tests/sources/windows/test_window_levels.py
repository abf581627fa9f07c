"""Levels of volumes at several resolutions."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.range_server import RangeServer
from tests.volumes import ome, precomputed, scale, space, translation
from windrow.errors import ArgumentError, SourceError
from windrow.sources import Field, WindowDataSource, ZarrDataSource

PLANE = np.arange(40 * 40).reshape(40, 40).astype("u2")
VOLUME = np.random.default_rng(0).integers(0, 256, (40, 36, 20)).astype("u1")


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    half = VOLUME[::2, ::2]
    path = tmp_path_factory.mktemp("pyramid") / "volume"
    return precomputed(path, (VOLUME, [8, 8, 40], [10, 20, 5]), (half, [16, 16, 40], [5, 10, 5]))


# --- levels --------------------------------------------------------------------------------------


def test_levels_of_a_precomputed_volume(volume: Path) -> None:
    size = {"x": 8, "y": 8, "z": 4}
    plain = WindowDataSource(volume, size)
    finest = WindowDataSource(volume, size, resolution={"x": 8, "z": "40nm"})
    assert finest.fingerprint == plain.fingerprint
    for given in ({"x": 16.05}, {"x": "0.016um"}, "16_16_40"):
        coarse = WindowDataSource(volume, size, resolution=given)
        again = pickle.loads(pickle.dumps(coarse))
        assert again.fingerprint == coarse.fingerprint
        assert np.array_equal(again[1][..., 0], VOLUME[::2, ::2][:8, :8, 4:8])
    named = WindowDataSource(volume, size, fields={"far": Field("16_16_40")})
    assert np.array_equal(named[1]["far"], coarse[1])


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
    for given in ({"y": "100nm", "x": 0.1}, "a/1"):
        coarse = WindowDataSource(path, {"x": 3}, resolution=given)
        assert np.array_equal(coarse[1], fine[:, ::2, ::2][:, :, 3:6])
    # The names of levels stay names of arrays.
    named = WindowDataSource(path, {2: 3}, names=["a/1"])
    assert np.array_equal(named[0]["a"]["1"], fine[:, ::2, ::2][:, :, :3])


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_an_image_of_one_level_is_as_one_of_two(tmp_path: Path, version: str) -> None:
    places = {"x": 4, "y": 2}
    one = {"s0": (PLANE, [scale(2, 2)])}
    for levels in (one, {**one, "s1": (PLANE[::2, ::2], [scale(4, 4)])}):
        path = ome(tmp_path / str(len(levels)), levels, space("y", "x"), version)
        if version == "0.5":  # the axes of OME-Zarr are the only ones
            meta = json.loads((path / "s0" / "zarr.json").read_text())
            (path / "s0" / "zarr.json").write_text(json.dumps({**meta, "dimension_names": None}))
        assert np.array_equal(WindowDataSource(path, places)[1], PLANE[:2, 4:8])


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_levels_with_nested_paths_that_are_not_listed(tmp_path: Path, version: str) -> None:
    levels = {
        "scale0/image": (PLANE, [scale(2, 2)]),
        "scale1/image": (PLANE[::2, ::2], [scale(4, 4)]),
    }
    path = ome(tmp_path / "image", levels, space("y", "x"), version)
    with RangeServer(tmp_path) as server:
        for where in (path, server.url("image")):
            source = WindowDataSource(where, {"x": 4, "y": 4}, resolution={"x": "4um"})
            assert np.array_equal(source[1], PLANE[::2, ::2][:4, 4:8])
            both = ZarrDataSource(where, names=["scale1/image"])
            assert np.array_equal(both[3]["scale1"]["image"], PLANE[6, ::2])


def test_volumes_of_their_own_have_one_resolution(tmp_path: Path, volume: Path) -> None:
    labels = np.arange(20 * 18 * 20).reshape(20, 18, 20).astype("u4")
    precomputed(tmp_path / "labels", (labels, [16, 16, 40], [5, 10, 5]))
    arrays = {"raw": volume, "labels": tmp_path / "labels"}
    size = {"x": 4, "y": 4, "z": 2}
    fields = {"a": Field("raw"), "b": "labels"}
    options: list[dict[str, Any]] = [{}, {"fields": fields}]
    for given in options:
        record = WindowDataSource(arrays, size, resolution={"x": 16}, **given)[1]
        raw, other = record.values()
        assert np.array_equal(raw[..., 0], VOLUME[::2, ::2][:4, :4, 2:4])
        assert np.array_equal(other[..., 0], labels[:4, :4, 2:4])
    with pytest.raises(SourceError, match="the arrays differ in length along 'x'"):
        WindowDataSource(arrays, size)


def test_volumes_of_their_own_that_begin_elsewhere_are_refused(
    tmp_path: Path, volume: Path
) -> None:
    labels = np.arange(20 * 18 * 20).reshape(20, 18, 20).astype("u4")
    precomputed(tmp_path / "labels", (labels, [16, 16, 40], [5, 11, 5]))
    arrays = {"raw": volume, "labels": tmp_path / "labels"}
    with pytest.raises(
        SourceError, match="along 'y' the first cell of 'labels/16_16_40' is 16nm around 184nm, and"
    ):
        WindowDataSource(arrays, {"x": 4}, resolution={"x": "16nm"})
    fields = {"a": "raw/16_16_40", "b": "labels"}  # without a resolution, cells are cells
    assert len(WindowDataSource(arrays, {"x": 4}, fields=fields)) == 5


def test_resolutions_without_a_unit_are_numbers(tmp_path: Path) -> None:
    axes = [{"name": "y"}, {"name": "x"}]
    levels = {"0": (VOLUME[0], [scale(1, 1)]), "1": (VOLUME[0, ::2, ::2], [scale(2, 2)])}
    path = ome(tmp_path / "image", levels, axes)
    assert len(WindowDataSource(path, {"y": 2}, resolution={"x": 2})) == 9
    with pytest.raises(ArgumentError, match="is '2um', and the axis has no unit; give a number"):
        WindowDataSource(path, {"y": 2}, resolution={"x": "2um"})


# --- errors --------------------------------------------------------------------------------------

LEVELS = "the levels are\n  8_8_40: x 8nm, y 8nm, z 40nm\n  16_16_40: x 16nm, y 16nm, z 40nm"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"resolution": {"x": 12}}, SourceError, f"resolution is {{'x': 12}}, which no level has; {LEVELS}"),
        ({"resolution": "4_4_40"}, SourceError, f"resolution is '4_4_40', which no level has; {LEVELS}"),
        ({"resolution": {"z": 40}}, SourceError, f"which several levels have: name more axes; {LEVELS}"),
        ({"resolution": {"channel": 1}}, SourceError, f"resolution is {{'channel': 1}}, which no level has; {LEVELS}"),
        ({"resolution": {"w": 8}}, ArgumentError, f"resolution names 'w', and the axes are ['x', 'y', 'z', 'channel']; {LEVELS}"),
        ({"resolution": {"x": "8s"}}, ArgumentError, "resolution['x'] is '8s', a time, and the axis counts in nm; give a length, or a number"),
        ({"resolution": {"x": "8"}}, ArgumentError, "resolution['x'] is '8'; write a number and its unit, such as '8nm' or '0.5um', or give a number"),
        ({"resolution": {"x": "8 px"}}, ArgumentError, "with the unknown unit 'px'; known are pm, Å, nm"),
        ({"resolution": {"x": None}}, ArgumentError, "resolution['x'] must be a number, or a string such as '8nm', got None"),
        ({"resolution": {}}, ArgumentError, "got {}"),
        ({"resolution": 8}, ArgumentError, "must be the name of a level, or a dict by axis, such as {'x': '8nm'}, got 8"),
        ({"resolution": {"x": 8}, "fields": ["a"]}, ArgumentError, "fields must be a dict of Field by name"),
        ({"resolution": {"x": 8}, "names": ["a"]}, ArgumentError, "names and resolution do not go together"),
        ({"resolution": {"x": 8}, "fields": {"a": Field("4_4_40")}}, ArgumentError, "fields['a'] is of array '4_4_40'; there are 8_8_40, 16_16_40"),
        ({"fields": {"a": Field(), "b": Field("16_16_40")}}, SourceError, "the arrays differ in length along 'x'"),
    ],
)  # fmt: skip
def test_messages(volume: Path, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        WindowDataSource(volume, **{"windows": {"x": 4}, **given})
    assert message in str(raised.value)


def test_transformations_that_are_not_known_leave_levels_without_resolution(tmp_path: Path) -> None:
    levels = {"0": (VOLUME[0], [{"type": "affine"}]), "1": (VOLUME[0, ::2], [scale(2, 1)])}
    path = ome(tmp_path / "image", levels, space("y", "x"))
    with pytest.raises(SourceError, match="0: the resolution is not stored\n  1: y 2um, x 1um"):
        WindowDataSource(path, {"x": 4}, resolution={"y": 1})
    assert np.array_equal(WindowDataSource(path, {"y": 2}, resolution="0")[0], VOLUME[0][:2])
    assert np.array_equal(
        WindowDataSource(path, {"y": 2}, resolution={"y": "2um"})[0], VOLUME[0, ::2][:2]
    )
