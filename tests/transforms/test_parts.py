"""Chains narrowed to boxes: the parts are the elements, bit for bit, and other chunks are not read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import ZstdCodec

from windrow import IterDataset, MapDataset, ReadOptions
from windrow.errors import ArgumentError, ElementError, PlanError
from windrow.sources import ArraySpec, Field, Window, WindowDataSource, ZarrDataSource
from windrow.sources.cells import Boxes, Cells, cut, whole
from windrow.transforms.locality import array_leaves
from windrow.transforms.nodes import fingerprint, narrowed, sources_of
from windrow.transforms.nodes.values import grid_spec

SIZES = {"lat": 12, "lon": 16}
OPTIONS = ReadOptions(num_threads=2, prefetch_buffer_size=4)


@pytest.fixture(scope="module")
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


def doubled(element: Any) -> Any:
    return {**element, "x": element["x"] * 2}


def smoothed(element: Any) -> Any:
    """Needs one cell on each side along lat, and two along lon, which is a circle."""
    x = element["x"]
    ends = [(0, 0)] * (x.ndim - 2) + [(1, 1), (0, 0)]
    padded = np.pad(x, ends, mode="edge")
    along_lat = padded[..., :-2, :] - padded[..., 2:, :]
    return {**element, "x": along_lat + np.roll(x, 2, -1) * np.roll(x, -1, -1)}


def normed(element: Any) -> Any:
    """Needs the whole element."""
    return {**element, "x": element["x"] - element["x"].mean()}


class Normed:
    """Declares what it makes, and promises nothing."""

    def __call__(self, element: Any) -> Any:
        return normed(element)

    def output_spec(self, spec: Any) -> Any:
        return spec


BOTH = ("lat", "lon")
AROUND: dict[str, Any] = {"local": BOTH, "halo": {"lat": 1, "lon": 2}, "wrap": "lon"}


def source_of(folder: str, kind: str) -> Any:
    match kind:
        case "rows":
            return ZarrDataSource(folder)
        case "windows":
            given = {"x": Field("x", {"time": [0, 2]}), "m": Field("m", {"time": 1})}
            return WindowDataSource(folder, fields=given, coordinates=["lat", "lon"])
        case "padded":
            padded = {"lat": Window(12, pad="reflect"), "lon": Window(16, pad="reflect")}
            centers = np.array([[0, 3], [6, 8], [11, 15], [5, 0], [4, 4], [9, 9]])
            given = {"x": Field("x", select={"time": 3}), "m": Field("m", select={"time": 1})}
            return WindowDataSource(
                folder, padded, centers=centers, fields=given, coordinates=["lat"]
            )
        case _:
            raise ValueError(kind)


def steps(kind: str, dataset: Any) -> Any:
    match kind:
        case "shuffle":
            return dataset.shuffle(seed=3)
        case "slice":
            return dataset[1:].slice(slice(None, None, 2))
        case "repeat":
            return dataset.repeat(2)
        case "concatenate":
            return MapDataset.concatenate([dataset[:2], dataset])
        case "mix":
            return MapDataset.mix([dataset, dataset[2:]], weights=[0.3, 0.7])
        case "double":
            return dataset.map(doubled, local=BOTH)
        case "columns":
            return dataset.map(doubled, local=BOTH, batched=True)
        case "smooth":
            return dataset.map(smoothed, **AROUND)
        case "norm":
            return dataset.map(Normed())
        case _:
            raise ValueError(kind)


KINDS = [
    "shuffle",
    "slice",
    "repeat",
    "concatenate",
    "mix",
    "double",
    "columns",
    "smooth",
    "norm",
]


def drawn_box(data: st.DataObject, names: tuple[str | None, ...], shape: Any) -> Any:
    box = []
    for name, size in zip(names, shape, strict=True):
        if name not in SIZES:
            box.append(whole(size or 0))
            continue
        start = data.draw(st.integers(0, size - 1))
        box.append(Cells(start, data.draw(st.integers(start + 1, size)), size))
    return tuple(box)


def drawn_boxes(data: st.DataObject, dataset: Any) -> dict[Any, Any]:
    leaves = array_leaves(grid_spec(dataset._node))
    return {
        path: drawn_box(data, leaf.dims or (None,) * len(leaf.shape), leaf.shape)
        for path, leaf in leaves
        if leaf.dims and data.draw(st.booleans(), str(path))
    }


def part_of(tree: Any, boxes: Boxes, path: Any = ()) -> Any:
    if isinstance(tree, dict):
        return {key: part_of(child, boxes, (*path, key)) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(part_of(child, boxes, (*path, n)) for n, child in enumerate(tree))
    box = boxes.get(path)
    return tree if box is None else cut(tree, box, [whole(cells.size) for cells in box])


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        assert np.shape(found) == np.shape(expected)
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


@given(data=st.data())
def test_parts_are_the_elements(fields: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["rows", "windows", "padded"]), "source")
    dataset = MapDataset.source(source_of(fields, kind))
    if data.draw(st.booleans(), "block_shuffle"):
        dataset = dataset.block_shuffle(seed=3)
    for step in data.draw(st.lists(st.sampled_from(KINDS), max_size=4), "steps"):
        # Slices take most of a dataset, and a mixture needs elements of all its parts.
        dataset = steps(step, dataset) if len(dataset) > 2 else dataset.repeat(3)
    if data.draw(st.booleans(), "zip"):
        dataset = MapDataset.zip([dataset, dataset.map(smoothed, **AROUND)])
    if data.draw(st.booleans(), "batch"):
        dataset = dataset.batch(2)
    boxes = drawn_boxes(data, dataset)
    node = narrowed(dataset._node, boxes)
    assert fingerprint(node) == fingerprint(dataset._node)
    part = MapDataset[Any](node)
    assert len(part) == len(dataset)
    for found, whole_one in zip(part, dataset, strict=True):
        assert_same(found, part_of(whole_one, boxes))
    assert_same(part[0], part_of(dataset[0], boxes))


@given(data=st.data())
def test_parts_of_streams(fields: str, data: st.DataObject) -> None:
    source = MapDataset.source(source_of(fields, "rows")).shuffle(seed=1)
    streams = [source[:6].to_iter_dataset(OPTIONS), source.to_iter_dataset(OPTIONS)]
    stream: Any = IterDataset.mix(streams, weights=[0.5, 0.5])
    match data.draw(st.sampled_from(["plain", "window_shuffle", "filter", "lanes", "pad"])):
        case "window_shuffle":
            stream = stream.window_shuffle(4, seed=2).map(smoothed, **AROUND).batch(2)
        case "filter":
            stream = stream.filter(lambda r: r["x"].mean() > 0).map(doubled, local=BOTH).batch(2)
        case "lanes":
            stream = source.to_iter_dataset(OPTIONS, lanes=2).map(doubled, local="lat").batch(4)
        case "pad":
            stream = stream.batch(4, remainder="pad", mask="real")
    boxes = drawn_boxes(data, stream)
    part = IterDataset[Any](narrowed(stream._node, boxes))
    with iter(part) as parts, iter(stream) as wholes:
        for found, whole_one in itertools.zip_longest(parts, wholes):
            assert_same(found, part_of(whole_one, boxes))
        keys = ("rows", "lanes", "fingerprint", "functions")
        states = parts.get_state(), wholes.get_state()
        assert [states[0][key] for key in keys] == [states[1][key] for key in keys]


def test_a_map_that_breaks_its_promise_is_an_error(fields: str) -> None:
    source = MapDataset.source(source_of(fields, "rows"))
    half = Cells(0, 6, 12), whole(16)
    boxes: Boxes = {("x",): (whole(2), *half), ("m",): half}

    def part(function: Callable[[Any], Any]) -> Any:
        return MapDataset[Any](narrowed(source.map(function, local="lat")._node, boxes))[0]

    with pytest.raises(ElementError, match=r"made the leaves \['x', 'y'\].*declare them"):
        part(lambda r: {"x": r["x"], "y": r["x"]})
    with pytest.raises(
        ElementError, match=r"leaf 'x' of shape \(2, 16\).*\(2, 6, 16\) was expected"
    ):
        part(lambda r: {**r, "x": r["x"].mean(axis=1)})


def test_explain_says_where_whole_elements_are_cut(fields: str) -> None:
    half = Cells(0, 6, 12), whole(16)
    boxes: Boxes = {("x",): (whole(2), *half), ("m",): half}
    source = MapDataset.source(source_of(fields, "rows"))

    def lines(dataset: Any) -> list[str]:
        return [line.runs for line in MapDataset(narrowed(dataset._node, boxes)).explain().nodes]

    assert not any("cut" in line for line in lines(source.shuffle(seed=1)))
    declared = source.shuffle(seed=1).map(Normed())
    assert "whole elements are made, then cut" in lines(declared)


# --- what is read --------------------------------------------------------------------------------


def bytes_read() -> int:
    """Bytes that this process has read from files, page cache included."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def bytes_of(read: Callable[[], Any]) -> int:
    read()  # opens what stays open
    noise = -bytes_read() + bytes_read()
    before = bytes_read()
    read()
    return bytes_read() - before - noise


def stored(
    folder: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dims: Any
) -> zarr.Array[Any]:
    array = zarr.create_array(
        folder,
        shape=shape,
        chunks=chunks,
        dtype="f4",
        compressors=ZstdCodec(),
        filters=None,
        dimension_names=dims,
    )
    array[:] = np.random.default_rng(1).normal(size=shape)
    return array


proc_io = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes in /proc")


@proc_io
@pytest.mark.parametrize("kind", ["rows", "windows"])
@pytest.mark.parametrize("lats", [364, 360])
def test_fields_are_read_by_the_chunks_that_latitudes_touch(
    tmp_path: Path, kind: str, lats: int
) -> None:
    stored(tmp_path, (3, 2, lats, 360), (1, 1, 91, 180), ("time", "level", "lat", "lon"))
    source = ZarrDataSource(tmp_path) if kind == "rows" else WindowDataSource(tmp_path, {"time": 1})
    dataset = MapDataset.source(source)
    axes = (whole(2), None, whole(360))
    box_axes = axes if kind == "rows" else (whole(1), *axes)
    for half in range(2):
        cells = Cells(half * lats // 2, (half + 1) * lats // 2, lats)
        box = tuple(cells if each is None else each for each in box_axes)
        part = MapDataset[Any](narrowed(dataset._node, {(): box}))
        touched = range(cells.start // 91, -(-cells.stop // 91))
        files = [*(tmp_path / "c").glob("*/*/*/*")]
        expected = sum(f.stat().st_size for f in files if int(f.parent.name) in touched)
        read = bytes_of(lambda part=part: part.read(range(3)))  # type: ignore[misc]
        assert expected <= read <= 1.05 * expected
        with iter(part) as elements:
            for _ in elements:
                pass
            (costs,) = elements.stats().sources
        assert costs.chunks.high == 3 * 2 * 2 * len(touched)


NORTH: Boxes = {(): (Cells(0, 4, 8), whole(8))}
OF_TWO: Boxes = {(): (whole(2), Cells(0, 4, 8), whole(8))}
IN_PAIRS: Boxes = {(n,): box for n in (0, 1) for box in NORTH.values()}
NARROW: dict[str, tuple[Callable[[Any], Any], Boxes]] = {
    "slice": (lambda s: s[1:], NORTH),
    "repeat": (lambda s: s.repeat(2), NORTH),
    "concatenate": (lambda s: MapDataset.concatenate([s[:2], s]), NORTH),
    "mix": (lambda s: MapDataset.mix([s, s[2:]], [0.3, 0.7]), NORTH),
    "zip": (lambda s: MapDataset.zip([s, s.shuffle(seed=1)]), IN_PAIRS),
    "block_shuffle": (lambda s: s.block_shuffle(seed=1), NORTH),
    "batch": (lambda s: s.batch(2), OF_TWO),
    "local map": (lambda s: s.map(np.negative, local=BOTH).shuffle(seed=2).batch(2), OF_TWO),
    "window_shuffle": (lambda s: s.to_iter_dataset().window_shuffle(3, seed=1).batch(2), OF_TWO),
    "lanes": (lambda s: s.to_iter_dataset(lanes=2).batch(2), OF_TWO),
    "mix of streams": (
        lambda s: IterDataset.mix([s.to_iter_dataset(), s[:4].to_iter_dataset()]).batch(2),
        OF_TWO,
    ),
    "zip of streams": (lambda s: IterDataset.zip([s.to_iter_dataset()] * 2), IN_PAIRS),
}


@pytest.mark.parametrize("name", NARROW)
def test_no_node_reads_a_chunk_outside_the_box(tmp_path: Path, name: str) -> None:
    make, boxes = NARROW[name]
    stored(tmp_path, (8, 8, 8), (1, 4, 4), ("time", "lat", "lon"))
    expected = [
        np.asarray(each)[..., :4, :] for each in make(MapDataset.source(ZarrDataSource(tmp_path)))
    ]
    for path in (tmp_path / "c").glob("*/1/*"):
        path.write_bytes(b"not a chunk")
    dataset = make(MapDataset.source(ZarrDataSource(tmp_path)))
    found = list(type(dataset)(narrowed(dataset._node, boxes)))
    assert len(found) == len(expected) > 0
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(own), np.asarray(other))


def test_one_source_serves_what_parts_share(fields: str) -> None:
    source = MapDataset.source(source_of(fields, "rows"))
    both = MapDataset.zip([source, source.map(doubled, local="lat")])
    box = (whole(2), Cells(0, 6, 12), whole(16))
    node = narrowed(
        both._node, {(0, "x"): box, (1, "x"): box, (0, "m"): box[1:], (1, "m"): box[1:]}
    )
    assert len(sources_of(node)) == 1


def test_packed_rows_are_cut_after_they_are_made() -> None:
    class Documents:
        fingerprint, spec = "documents", ArraySpec((None,), np.dtype("i4"))

        def __len__(self) -> int:
            return 60

        def __getitem__(self, n: int) -> Any:
            return np.arange(n % 7 + 1, dtype=np.int32) + n

    documents = MapDataset.source(Documents()).shuffle(seed=1).repeat()
    packed = documents.pack(8, names="maxtext", lengths=np.arange(60) % 7 + 1).batch(4)
    boxes: Boxes = {
        ("inputs",): (whole(4), Cells(2, 6, 8)),
        ("targets",): (whole(4), Cells(2, 6, 8)),
    }
    part: Any = IterDataset(narrowed(packed._node, boxes))
    for found, batch in itertools.islice(zip(part, packed, strict=False), 6):
        for name, leaf in batch.items():
            expected = leaf[:, 2:6] if (name,) in boxes else leaf
            np.testing.assert_array_equal(found[name], expected)
    assert "part" in part.explain().details()


# --- promises ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"local": "height"},
        {"local": 3},
        {"local": "lat", "halo": 1},
        {"local": "lat", "halo": {"lat": -1}},
        {"local": "lat", "halo": {"lat": 13}},
        {"local": "lat", "halo": {"lon": 1}},
        {"halo": {"lon": 1}},
        {"local": "lat", "wrap": "lon"},
    ],
)
def test_wrong_promises(fields: str, arguments: dict[str, Any]) -> None:
    dataset = MapDataset.source(ZarrDataSource(fields))
    with pytest.raises((ArgumentError, PlanError)):
        dataset.map(lambda element: element, **arguments)
    with pytest.raises((ArgumentError, PlanError)):
        dataset.to_iter_dataset().map(lambda element: element, **arguments)
    every: dict[str, Any] = {
        "local": ("lat", "lon"),
        "halo": {"lat": 12, "lon": 0},
        "wrap": ["lon"],
    }
    dataset.map(lambda element: element, **every)  # the largest halo


def test_cells_around_a_circle_become_the_whole_axis() -> None:
    around = Cells(10, 14, 12)
    assert around.grown(1, wrap=False) == around.joined(Cells(2, 3, 12)) == whole(12)
