"""Windows of arrays of any rank: by grid, offsets and location, as NumPy would cut and pad them."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import TransposeCodec

from tests.hypothesis_profiles import examples
from tests.room import room_for
from windrow import MapDataset, verify
from windrow.errors import ArgumentError, RecordIndexError, SourceError
from windrow.sources import Field, Window, WindowDataSource

AnyArray = npt.NDArray[Any]
NAMES = ("t", "z", "y", "x")
PADS = ("constant", "edge", "reflect", "symmetric", "wrap")
WAYS = pytest.mark.parametrize("direct", [True, False])


def write(
    path: Path,
    array: AnyArray,
    chunks: Sequence[int],
    dims: Sequence[str] | None = None,
    **more: Any,
) -> Path:
    store = zarr.create_array(
        str(path),
        shape=array.shape,
        dtype=array.dtype,
        chunks=tuple(chunks),
        dimension_names=None if dims is None else list(dims),
        **more,
    )
    store[...] = array
    return path


def numbered(shape: Sequence[int], dtype: str = "i4") -> AnyArray:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def cut(
    array: AnyArray, first: Sequence[int], size: Sequence[int], pad: str | None, fill: Any
) -> AnyArray:
    """The box of an array from `first` on, padded as NumPy pads the whole array."""
    if pad is not None:
        widths = [
            (max(0, -f), max(0, f + s - n))
            for f, s, n in zip(first, size, array.shape, strict=True)
        ]
        more: dict[str, Any] = {"constant_values": fill} if pad == "constant" else {}
        array = np.pad(array, widths, pad, **more)  # type: ignore[call-overload]
        first = [f + before for f, (before, _) in zip(first, widths, strict=True)]
    return array[tuple(slice(f, f + s) for f, s in zip(first, size, strict=True))]


def grid(cells: range, size: int, stride: int, pad: bool) -> list[int]:
    """The origins of windows of a grid, counted one by one."""
    origins: list[int] = []
    at = cells.start
    while True:
        fits = at + size <= cells.stop
        needed = not origins or origins[-1] + size < cells.stop
        if not (fits or (pad and needed and at < cells.stop)):
            return origins
        origins.append(at)
        at += stride


# --- by grid -------------------------------------------------------------------------------------


@st.composite
def layouts(draw: Any) -> tuple[AnyArray, tuple[int, ...], dict[str, Any]]:
    """An array, its chunks and how they are stored."""
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, (40, 14, 8, 6)[rank - 1])) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, n + 2)) for n in shape)
    kind = draw(st.sampled_from(["zstd", "raw", "shards", "turned"]))
    more: dict[str, Any] = {}
    if kind == "raw":
        more["compressors"] = None
    elif kind == "turned":
        more["filters"] = [TransposeCodec(order=draw(st.permutations(range(rank))))]
    elif kind == "shards":
        more["shards"] = tuple(c * draw(st.integers(1, 3)) for c in chunks)
    return numbered(shape, draw(st.sampled_from(["i4", "u1", "f8"]))), chunks, more


@settings(deadline=None, max_examples=examples(100))
@given(direct=st.booleans(), data=st.data())
def test_any_grid_of_any_array(direct: bool, data: Any) -> None:
    array, chunks, more = data.draw(layouts(), "layout")
    dims = NAMES[: array.ndim]
    moving = data.draw(st.sets(st.sampled_from(dims), min_size=1), "moving")
    pad = data.draw(st.none() | st.sampled_from(PADS[:-1]), "pad")
    given: dict[str, Window] = {}
    cells, windows, bounds = [], [], []
    for dim, n in zip(dims, array.shape, strict=True):
        first, end = 0, n
        if data.draw(st.booleans(), f"bounds of {dim}"):
            first = data.draw(st.integers(0, n - 1), f"start of {dim}")
            end = data.draw(st.integers(first + 1, n), f"stop of {dim}")
        bounds.append(range(first, end))
        if dim in moving:
            size = data.draw(st.integers(1, end - first + 3 if pad else end - first), "size")
            stride = data.draw(st.none() | st.integers(1, 6), f"stride along {dim}")
            given[dim] = Window(size, stride, cells=slice(first, end), pad=pad)
            cells.append(grid(bounds[-1], size, stride or size, pad is not None))
            windows.append(size)
        else:
            given[dim] = Window(cells=slice(first, end))
            cells.append([first])
            windows.append(end - first)
    inside = array[tuple(slice(b.start, b.stop) for b in bounds)]
    expected = np.stack(
        [
            cut(inside, [o - b.start for o, b in zip(origin, bounds, strict=True)], windows, pad, 7)
            for origin in itertools.product(*cells)
        ]
    )
    folder = Path(tempfile.mkdtemp())
    try:
        path = write(folder / "a", array, chunks, dims, **more)
        source = WindowDataSource(path, given, fill=7, direct=direct)
        assert len(source) == len(expected)
        check_all(source, expected, data)
    finally:
        shutil.rmtree(folder)


def check_all(source: WindowDataSource, expected: AnyArray, data: Any) -> None:
    """By `read`, by chains in any order and budget, after pickling, by block."""
    n = len(expected)
    indices = np.array(data.draw(st.lists(st.integers(-n, n - 1), max_size=9), "indices"), np.int64)
    for each in (source, pickle.loads(pickle.dumps(source))):
        found = each.read(indices)
        assert (found.dtype, found.flags.c_contiguous) == (expected.dtype, True)
        np.testing.assert_array_equal(found, expected[indices])
    assert source.fingerprint == pickle.loads(pickle.dumps(source)).fingerprint
    order = data.draw(st.sampled_from(["in order", "shuffle", "blocks"]), "order")
    dataset: MapDataset[Any] = MapDataset.source(source)
    numbers: MapDataset[Any] = MapDataset.source(np.arange(n))
    if order == "shuffle":
        dataset, numbers = dataset.shuffle(seed=3), numbers.shuffle(seed=3)
    elif order == "blocks":
        dataset = dataset.block_shuffle(seed=3, window_blocks=2)
    options = room_for(data.draw(st.integers(1, 6 * expected.nbytes), "room"))
    batches = list(
        dataset.repeat(2).batch(data.draw(st.integers(1, 9), "batch")).to_iter_dataset(options)
    )
    assert all(batch.flags.c_contiguous and batch.flags.writeable for batch in batches)
    found = np.concatenate(batches)
    if order == "blocks":
        for epoch in (found[:n], found[n:]):
            assert sorted(map(bytes, epoch)) == sorted(map(bytes, expected))
    else:
        wanted = numbers.repeat(2)
        np.testing.assert_array_equal(found, expected[wanted.read(np.arange(2 * n))])


def test_numbers_of_windows_are_exact_for_huge_arrays(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    shape = (360_001, 721, 1_441)
    zarr.create_array(str(path), shape=shape, dtype="f4", chunks=(1, 721, 1_441), fill_value=0)
    source = WindowDataSource(path, {0: Window(3, 1), 1: Window(32, 1), 2: Window(32, 1)})
    counts = (360_001 - 2, 721 - 31, 1_441 - 31)
    assert len(source) == int(np.prod(counts, dtype=object))
    assert source[len(source) - 1].shape == (3, 32, 32)
    with pytest.raises(RecordIndexError, match="out of range"):
        source[len(source)]
    last = source.parts[0].needs(np.array([len(source) - 1]))
    assert last.chunks.tolist() == [359_998, 359_999, 360_000]


# --- by offsets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", PADS)
def test_offsets_reach_into_the_padding(tmp_path: Path, pad: str) -> None:
    array = numbered((20, 3))
    path = write(tmp_path / "a", array, (4, 3), ("t", "x"))
    fields = {
        "run": Field(offsets={"t": [-3, 0, 2]}),
        "two": Field(offsets={"t": [0, 5]}, sizes={"t": 2}),
    }
    found = WindowDataSource(path, {"t": Window(pad=pad)}, fields=fields, fill=9).read(
        np.arange(20)
    )
    for name, cells in (("run", (-3, 0, 2)), ("two", (0, 1, 5, 6))):
        wanted = [[cut(array, (t + o, 0), (1, 3), pad, 9)[0] for o in cells] for t in range(20)]
        np.testing.assert_array_equal(found[name], wanted)


@WAYS
def test_arrays_are_aligned_by_the_names_of_their_axes(tmp_path: Path, direct: bool) -> None:
    group = zarr.create_group(str(tmp_path / "g"))
    t2m, flux = numbered((30, 4, 5)), numbered((4, 30), "f4")
    mask, one = numbered((4, 5), "u1"), numbered((5,), "f8")
    for name, array, chunks, dims in (
        ("t2m", t2m, (3, 4, 5), ("time", "lat", "lon")),
        ("flux", flux, (2, 7), ("lat", "time")),
        ("mask", mask, (2, 2), ("lat", "lon")),
        ("one", one, (5,), ("lon",)),
    ):
        group.create_array(name, data=array, chunks=chunks, dimension_names=dims)
    source = WindowDataSource(
        tmp_path / "g",
        {"time": Window(3, 1), "lat": 2},
        names=["t2m", "flux", "mask", "one"],
        direct=direct,
    )
    indices = np.array([55, 0, 31, 55])
    found = source.read(indices)
    time, lat = indices // 2, indices % 2 * 2
    for row, (t, y) in enumerate(zip(time, lat, strict=True)):
        np.testing.assert_array_equal(found["t2m"][row], t2m[t : t + 3, y : y + 2])
        np.testing.assert_array_equal(found["flux"][row], flux[y : y + 2, t : t + 3])
        np.testing.assert_array_equal(found["mask"][row], mask[y : y + 2])
        np.testing.assert_array_equal(found["one"][row], one)
    found["one"][:] = 0  # the caller's own
    np.testing.assert_array_equal(source[0]["one"], one)
    assert (
        sum(len(batch["one"]) for batch in MapDataset.source(source).block_shuffle(seed=1).batch(5))
        == 56
    )


def test_a_field_that_does_not_move_is_read_once(tmp_path: Path) -> None:
    group = zarr.create_group(str(tmp_path / "g"))
    group.create_array("x", data=numbered((30, 2)), chunks=(3, 2), dimension_names=("t", "x"))
    group.create_array("still", data=numbered((2, 2)), chunks=(1, 1), dimension_names=("x", "z"))
    source = WindowDataSource(tmp_path / "g", {"t": 3})
    assert source[0]["still"].tolist() == [[0, 1], [2, 3]]
    shutil.rmtree(tmp_path / "g" / "still")
    assert source[9]["still"].tolist() == [[0, 1], [2, 3]]


def firsts(source: WindowDataSource) -> list[int]:
    return [int(np.ravel(window)[0]) for window in source.read(np.arange(len(source)))]


def test_windows_read_selected_cells_alone(tmp_path: Path) -> None:
    array = numbered((50,))
    path = write(tmp_path / "a", array, (8,), ("t",))
    mask = np.ones(50, np.bool_)
    mask[[10, 30, 31]] = False
    source = WindowDataSource(path, {"t": Window(4, 1, select=mask)})
    expected = [t for t in range(47) if mask[t : t + 4].all()]
    assert firsts(source) == expected
    assert f"{47 - len(expected)} masked along t" in repr(source)
    fields = {"x": Field(offsets={"t": [-12, 0]}), "y": Field(offsets={"t": 6})}
    expected = [t for t in range(12, 44) if mask[[t - 12, t, t + 6]].all()]
    for time in (Window(select=mask), [slice(0, 10), slice(32, None), slice(11, 30)]):
        source = WindowDataSource(path, {"t": time}, fields=fields)
        assert source.read(np.arange(len(source)))["x"][:, 1].tolist() == expected
    with pytest.raises(SourceError, match="holds none of the 50 cells"):
        WindowDataSource(path, {"t": Window(4, select=np.zeros(50, np.bool_))})
    with pytest.raises(SourceError, match="the selection along 't' allows no window"):
        WindowDataSource(path, {"t": Window(4, select=[slice(0, 3), slice(5, 8)])})
    with pytest.raises(SourceError, match=r"the mask of 't' has 49 values, and there are 50"):
        WindowDataSource(path, {"t": Window(4, select=mask[1:])})


def test_slices_with_holes_are_padded_at_their_ends_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a", numbered((20,)), (8,), ("t",))
    holes = [slice(2, 6), slice(9, 12)]
    source = WindowDataSource(path, {"t": Window(3, 1, select=holes, pad="edge")})
    assert source.read(np.arange(len(source))).tolist() == [[2, 3, 4], [3, 4, 5], [9, 10, 11]]
    inputs = {"x": Field(offsets={"t": [-1, 0]})}
    source = WindowDataSource(path, {"t": Window(select=holes, pad="edge")}, fields=inputs)
    found = source.read(np.arange(len(source)))["x"].tolist()
    assert found == [[2, 2], [2, 3], [3, 4], [4, 5], [9, 10], [10, 11]]
    joined = WindowDataSource(path, {"t": Window(3, 1, select=[slice(2, 6), slice(6, 12)])})
    whole = WindowDataSource(path, {"t": Window(3, 1, select=slice(2, 12))})
    assert joined.fingerprint == whole.fingerprint
    for more in ({"anchors": [2, 9]}, {"size": 2}):
        centers = [[3]] if "size" in more else None
        with pytest.raises(ArgumentError, match="one slice at most"):
            WindowDataSource(path, {"t": Window(select=holes, **more)}, centers=centers)


def test_a_list_gives_the_origins_in_its_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a", numbered((50, 3)), (8, 2), ("t", "x"))
    listed = Window(4, anchors=[40, 3, -4, 3])
    source = WindowDataSource(path, {"t": listed, "x": Window(2, 1)})
    assert firsts(source) == [120, 121, 9, 10, 138, 139, 9, 10]
    epoch = np.concatenate(
        [b[:, 0, 0] for b in MapDataset.source(source).block_shuffle(seed=2).batch(3)]
    )
    assert sorted(epoch.tolist()) == [9, 9, 10, 10, 120, 121, 138, 139]
    rows = WindowDataSource(path, {"t": Window(anchors=[7, 2])})
    assert rows.read(np.arange(2)).tolist() == [[21, 22, 23], [6, 7, 8]]
    with pytest.raises(
        SourceError, match=r"anchors\['t'\]\[1\] is 47, whose window would be the cells \[47, 51\)"
    ):
        WindowDataSource(path, {"t": Window(4, anchors=[3, 47])})
    for wrong, message in (
        (Window(4, 2, anchors=[3]), "leave stride out"),
        (Window(4, anchors=np.ones(50, np.bool_)), r"a mask of cells is Window\(select=...\)"),
    ):
        with pytest.raises(ArgumentError, match=message):
            WindowDataSource(path, {"t": wrong})


# --- by location ---------------------------------------------------------------------------------


def viewed(data: Any, path: Path, array: AnyArray) -> tuple[ts.TensorStore, AnyArray]:
    """A view of a stored array, and the same of the array in memory."""
    store = ts.open({"driver": "zarr3", "kvstore": f"file://{path}/"}).result()
    axis = data.draw(st.integers(0, array.ndim - 1), "axis of the view")
    at: tuple[Any, ...] = (slice(None),) * axis
    rows = np.arange(array.shape[axis])[::-1]
    views: list[tuple[ts.TensorStore, AnyArray]] = [
        (store[ts.d[axis].translate_by[-5]], array),
        (store[ts.d[axis].stride[-1]], array[(*at, slice(None, None, -1))]),
        (store[ts.d[axis].stride[2]], array[(*at, slice(None, None, 2))]),
        (store.T, array.T),
        (store[ts.d[axis][rows.tolist()]], array[(*at, rows)]),
    ]
    number: int = data.draw(st.integers(0, len(views) - 1), "view")
    return views[number]


@settings(deadline=None, max_examples=examples(80))
@given(direct=st.booleans(), data=st.data())
def test_windows_around_any_centers(direct: bool, data: Any) -> None:
    array, chunks, more = data.draw(layouts(), "layout")
    dims = NAMES[: array.ndim]
    moving = data.draw(st.permutations(dims), "moving")[: data.draw(st.integers(1, array.ndim))]
    pad = data.draw(st.sampled_from(PADS), "pad")
    sizes = {dim: data.draw(st.integers(1, 9), f"size along {dim}") for dim in moving}
    count = data.draw(st.integers(1, 12), "centers")
    folder = Path(tempfile.mkdtemp())
    try:
        given: Any = write(folder / "a", array, chunks, dims, **more)
        way: dict[str, Any] = {"direct": direct}
        if data.draw(st.booleans(), "a view"):
            given, array = viewed(data, given, array)
            way = {"dims": dims}
        centers = np.array(
            [
                [data.draw(st.integers(0, array.shape[dims.index(d)] - 1)) for d in moving]
                for _ in range(count)
            ],
            data.draw(st.sampled_from(["i8", "u2", "i4"]), "dtype"),
        )
        boxes = []
        for center in centers.astype(int):
            first = [0] * array.ndim
            for dim, at in zip(moving, center, strict=True):
                first[dims.index(dim)] = at - sizes[dim] // 2
            size = [sizes.get(d, n) for d, n in zip(dims, array.shape, strict=True)]
            boxes.append(cut(array, first, size, pad, 9))
        windows = {dim: Window(size, pad=pad) for dim, size in sizes.items()}
        source = WindowDataSource(given, windows, centers=centers, fill=9, **way)
        check_all(source, np.stack(boxes), data)
    finally:
        shutil.rmtree(folder)


def test_centers_may_be_memory_mapped_and_are_in_the_fingerprint(tmp_path: Path) -> None:
    path = write(tmp_path / "a", numbered((64, 64)), (16, 16))
    random = np.random.default_rng(0)
    np.save(tmp_path / "c.npy", random.integers(4, 60, (1_000, 2)))
    centers = np.load(tmp_path / "c.npy", mmap_mode="r")
    source = WindowDataSource(path, {0: 8, 1: 8}, centers=centers)
    sent = pickle.dumps(source)
    assert len(sent) < 10_000  # the file's name, not its numbers
    again = pickle.loads(sent)
    np.testing.assert_array_equal(again[999], source[999])
    assert again.fingerprint == source.fingerprint
    other = np.array(centers)
    other[999, 1] -= 1
    assert WindowDataSource(path, {0: 8, 1: 8}, centers=other).fingerprint != source.fingerprint
    assert len(json.dumps(source.fingerprint)) < 600


def test_centers_that_can_not_be(tmp_path: Path) -> None:
    path = write(tmp_path / "a", numbered((20, 30)), (8, 8), ("y", "x"))
    both = {"y": 4, "x": 4}
    with pytest.raises(
        SourceError, match=r"around centers\[1\], \[1, 9\], reaches out of the array"
    ):
        WindowDataSource(path, both, centers=[(9, 9), (1, 9)])
    with pytest.raises(RecordIndexError, match=r"centers\[0\] is \[9, 30\].* \[0, 20\), \[0, 30\)"):
        WindowDataSource(path, dict.fromkeys("yx", Window(4, pad="edge")), centers=[(9, 30)])
    with pytest.raises(ArgumentError, match=r"shape \(n, 2\), one column for each of \['y', 'x'\]"):
        WindowDataSource(path, both, centers=[1, 2, 3])
    with pytest.raises(ArgumentError, match="centers must be integers"):
        WindowDataSource(path, both, centers=[(1.5, 2.0)])
    with pytest.raises(ArgumentError, match="centers list the windows; leave strides and anchors"):
        WindowDataSource(path, {"y": Window(4, 1), "x": 4}, centers=[(9, 9)])
    assert len(WindowDataSource(path, both, centers=np.zeros((0, 2), np.int64))) == 0


def test_block_shuffle_of_patches_keeps_to_home_chunks(tmp_path: Path) -> None:
    path = write(tmp_path / "a", numbered((64, 64)), (16, 16))
    centers = np.random.default_rng(0).integers(4, 60, (500, 2))
    source = WindowDataSource(path, {0: 8, 1: 8}, centers=centers)
    order = MapDataset.source(source).block_shuffle(seed=5, window_blocks=2)
    first = order.read(np.arange(500))[:, 0, 0]
    homes = first // 64 // 16 * 4 + first % 64 // 16
    seen = np.concatenate([[0], np.flatnonzero(np.diff(homes)) + 1])
    assert len(set(homes.tolist())) == 16
    # Two blocks at a time: a home that was left for the window after the next is not come back to.
    last = {home: np.flatnonzero(homes == home).max() for home in set(homes.tolist())}
    begun = {home: np.flatnonzero(homes == home).min() for home in last}
    alive = [sum(begun[h] <= k <= last[h] for h in last) for k in range(500)]
    assert max(alive) <= 2
    assert len(seen) > 16


# --- arguments -----------------------------------------------------------------------------------


def test_arguments_that_can_not_be(tmp_path: Path) -> None:
    path = write(tmp_path / "a", numbered((20, 30)), (8, 8), ("y", "x"))
    wrong: list[tuple[Any, type[Exception], str]] = [
        ({"z": 3}, ArgumentError, r"no array has the dimension 'z', they have \['y', 'x'\]"),
        ({2: 3}, ArgumentError, "no array has the dimension 2"),
        ({"y": 0}, SourceError, r"windows\['y'\] must be at least 1, got 0"),
        ({"y": 2.5}, ArgumentError, r"windows\['y'\] must be an integer, got 2.5; a label is"),
        ({"y": "2019"}, ArgumentError, "which is not a duration .*; a label is Window"),
        (
            {"y": [-6, 0]},
            ArgumentError,
            r"a list of labels is Window\(select=...\), and a Field has",
        ),
        (3, ArgumentError, "windows must be a dict by dimension"),
        ({"y": 21}, SourceError, r"a window of 21 cells along y does not fit into 20"),
        (
            {"y": 2, "x": Window(stride=2)},
            ArgumentError,
            "stride is given along 'x', and windows do",
        ),
        (
            {"y": 2, "x": Window(pad="wrap")},
            ArgumentError,
            "pad is given along 'x', and windows do",
        ),
        ({"y": 2, "x": Window(tolerance="1h")}, ArgumentError, "no field has one along 'x'; leave"),
        (None, ArgumentError, "the size of windows is not given"),
        ({"y": Window(2, cells=slice(30, None))}, SourceError, "holds none of the 20 cells of 'y'"),
        ({"y": Window(2, select="a")}, SourceError, "without a coordinate, give cells"),
        ({"y": Window(2, select=3)}, ArgumentError, "a slice, a list of slices or a mask selects"),
        ({"y": 3, 0: 4}, ArgumentError, "names 'y' twice, the second time as 0"),
    ]
    for windows, error, message in wrong:
        with pytest.raises(error, match=message):
            WindowDataSource(path, windows)
    padded = {"y": Window(2, pad="constant")}
    others: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"windows": padded, "fill": 0.5}, ArgumentError, "fill 0.5 does not fit the array"),
        ({"dims": ("y",)}, ArgumentError, r"1 names, and array '' has 2 axes"),
        ({"fields": {"x": Field("b")}}, ArgumentError, "is of array 'b'"),
        ({"fields": {"x": 3}}, ArgumentError, "must be a Field, got 3"),
        ({"decode": 1}, ArgumentError, "decode must be True, False or a float dtype"),
        ({"coordinates": True}, SourceError, "the store has no coordinates along"),
    ]
    for more, error, message in others:
        with pytest.raises(error, match=message):
            WindowDataSource(path, **{"windows": {"y": 2}, **more})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pad": "mean"}, "pad must be one of .*, got 'mean'"),
        ({"method": "pad"}, "method must be None or"),
        ({"tolerance": "-3h"}, "tolerance must be a duration"),
        ({"tolerance": "4nm"}, "tolerance is '4nm', which is not a duration"),
        ({"select": 1, "cells": 2}, "give one of them"),
        ({"size": 2**63}, "must be within"),
        ({"stride": 2**70}, "must be within"),
    ],
)
def test_windows_that_can_not_be(given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Window(**given)


# --- labels and values ---------------------------------------------------------------------------


def test_grids_of_very_many_windows_are_verified_by_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a"
    zarr.create_array(str(path), shape=(1, 16_500, 16_500), dtype="u1", chunks=(1, 5_500, 5_500))
    source = WindowDataSource(path, {1: Window(2, 1), 2: Window(2, 1)})
    assert len(source) == 16_499**2
    report = verify(source, missing="error", progress=False)
    assert (report.chunks, len(report.bad)) == (9, 9)
    assert {(bad.first_record, bad.stop_record) for bad in report.bad} == {(0, len(source))}


def test_fields_select_levels_of_their_own(tmp_path: Path) -> None:
    array = numbered((9, 3, 4))
    group = zarr.create_group(str(tmp_path / "g"))
    dims = ("time", "level", "x")
    group.create_array("z", data=array, chunks=(2, 3, 4), dimension_names=dims)
    group.create_array("u", data=-array, chunks=(9, 1, 4), dimension_names=dims)
    group.create_array("level", data=np.array([1000, 850, 500]), dimension_names=("level",))
    fields = {
        "z500": Field("z", {"time": 1}, select={"level": 500}),
        "z": Field("z", {"time": [0, 1]}, select={"level": [500, 1000]}),
        "u": Field("u", {"time": 0}, select={"level": slice(1000, 850)}),
        "all": Field("u", {"time": 0}),
    }
    source = WindowDataSource(tmp_path / "g", fields=fields, coordinates=["level"])
    assert len(source) == 8
    found = source.read(np.array([7, 2]))
    np.testing.assert_array_equal(found["z500"], array[[8, 3], 2])
    np.testing.assert_array_equal(found["z"], np.stack([array[7:9, [2, 0]], array[2:4, [2, 0]]]))
    np.testing.assert_array_equal(found["u"], -array[[7, 2], :2])
    np.testing.assert_array_equal(found["all"], -array[[7, 2]])
    assert found["z_level"].tolist() == [[500, 1000]] * 2
    assert found["z500_level"].tolist() == [500, 500]
    whole = WindowDataSource(tmp_path / "g", {"level": Window(select=850)}, fields=fields)
    np.testing.assert_array_equal(whole[0]["all"], -array[0, 1])
    np.testing.assert_array_equal(whole[0]["z500"], array[1, 2])
    with pytest.raises(
        ArgumentError, match="windows move along 'time', so a field cannot select 3"
    ):
        WindowDataSource(tmp_path / "g", {"time": 1}, fields={"z": Field("z", select={"time": 3})})
    with pytest.raises(
        SourceError, match=r"holds none .* they fall, so write slice\(1000, 850, None\)"
    ):
        WindowDataSource(tmp_path / "g", {"time": 1, "level": slice(850, 1000)})


def test_cells_are_selected_as_by_isel(tmp_path: Path) -> None:
    array = numbered((9, 4, 5))
    path = write(tmp_path / "a", array, (2, 4, 5), ("time", "channel", "x"))
    for label in (2, -1, [3, 0], slice(1, 3), slice(None, None, -2), slice(-2, None)):
        for channel in (Window(select=label), Window(cells=label)):
            source = WindowDataSource(path, {"time": 2, "channel": channel})
            np.testing.assert_array_equal(source[1], array[2:4, label])
    bounded = WindowDataSource(path, {"time": Window(2, select=slice(3, 8))})
    np.testing.assert_array_equal(bounded[0], array[3:5])
    for wrong, message in (
        (4, "the selection 4 along 'channel' is not among its 4 cells"),
        ("red", "'red' along 'channel' .*without a coordinate, give cells"),
    ):
        with pytest.raises(SourceError, match=message):
            WindowDataSource(path, {"time": 2, "channel": Window(select=wrong)})
