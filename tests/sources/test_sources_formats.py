"""N5, precomputed volumes, specs and views as sources; layouts of zarr-python; hostile metadata."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import TransposeCodec

import windrow
from tests.hypothesis_profiles import examples
from tests.range_server import RangeServer
from tests.volumes import volume
from windrow import MapDataset
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError, WindrowError
from windrow.sources import WindowDataSource, ZarrDataSource
from windrow.sources.zarr.source import ArrayTree
from windrow.transforms.record_sizes import record_bytes

AnyArray = npt.NDArray[Any]

VALUES = np.arange(101 * 6, dtype="i4").reshape(101, 6)
VOLUME = np.random.default_rng(0).integers(0, 255, (20, 12, 9, 2)).astype("u1")


def agrees(source: ZarrDataSource, values: AnyArray) -> None:
    """Rows in any order, and rows of a chain, equal those in `values`."""
    assert len(source) == len(values)
    order = np.random.default_rng(1).integers(0, len(values), 77)
    got = source.read(order)
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got, values[order])
    np.testing.assert_array_equal(source.read(np.arange(len(values))), values)
    numbered = MapDataset.zip([MapDataset.source(source), MapDataset.range(len(values))])
    shuffled = numbered.seed(2).shuffle().batch(7).to_iter_dataset()
    seen = 0
    for rows, numbers in shuffled:
        np.testing.assert_array_equal(rows, values[numbers])
        seen += len(numbers)
    assert seen == len(values)


def stored(path: Path, driver: str = "zarr3", chunk: tuple[int, ...] = (10, 4)) -> Any:
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    layout = ts.ChunkLayout(chunk_shape=chunk)
    store = ts.open(
        spec, create=True, dtype=ts.int32, shape=VALUES.shape, chunk_layout=layout
    ).result()
    store[...] = VALUES
    return store


def precomputed(path: Path, values: AnyArray = VOLUME, **more: Any) -> Any:
    resolution, offset = [8 * 20 // len(values)] * 3, [100, 200, 300]
    return volume(
        path,
        values,
        chunk_size=[8, 8, 4],
        resolution=resolution,
        voxel_offset=offset,
        **more,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return stored(tmp_path_factory.mktemp("zarr"))


VIEWS: dict[str, tuple[Callable[[Any], Any], AnyArray]] = {
    "transpose": (lambda s: s.T, VALUES.T),
    "cast": (lambda s: ts.cast(s, ts.float64), VALUES.astype("f8")),
    "downsample": (lambda s: ts.downsample(s, [2, 3], "stride"), VALUES[::2, ::3]),
    "downsample mean": (
        lambda s: ts.downsample(ts.cast(s, ts.float32)[:100], [2, 2], "mean"),
        VALUES[:100].reshape(50, 2, 3, 2).mean((1, 3), dtype="f4"),
    ),
    "stack": (
        lambda s: ts.stack([s, s[::-1][ts.d[0].translate_to[0]]]),
        np.stack([VALUES, VALUES[::-1]]),
    ),
    "stack inside": (lambda s: ts.stack([s, s], axis=1), np.stack([VALUES, VALUES], 1)),
    "concat": (lambda s: ts.concat([s, s[5:]], axis=0), np.concatenate([VALUES, VALUES[5:]])),
    "reversed": (lambda s: s[::-1], VALUES[::-1]),
    "strided": (lambda s: s[3::7], VALUES[3::7]),
    "strided backwards": (lambda s: s[::-3, ::-2], VALUES[::-3, ::-2]),
    "new axis": (lambda s: s[ts.newaxis], VALUES[None]),
    "columns by index": (lambda s: s[:, [5, 0, 0]], VALUES[:, [5, 0, 0]]),
    "one column": (lambda s: s[:, 2], VALUES[:, 2]),
    "elsewhere": (lambda s: s[ts.d[:].translate_by[-33, 7]], VALUES),
    "part": (lambda s: s[13:77, 2:], VALUES[13:77, 2:]),
    "spec": (lambda s: s.spec(), VALUES),
    "spec in JSON": (lambda s: s.spec().to_json(), VALUES),
    "spec of a view": (lambda s: s[50:].T.spec().to_json(), VALUES[50:].T),
    "spec with a cast": (
        lambda s: {"driver": "cast", "dtype": "float32", "base": s.spec().to_json()},
        VALUES.astype("f4"),
    ),
    "spec of values": (
        lambda s: {"driver": "array", "dtype": "int32", "array": VALUES.tolist()},
        VALUES,
    ),
    "URL": (lambda s: f"{s.kvstore.url}|zarr3:", VALUES),
    "URL of any format": (lambda s: f"{s.kvstore.url}|auto:", VALUES),
    "array": (lambda s: ts.array(VALUES), VALUES),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_specs(store: Any, name: str) -> None:
    view, values = VIEWS[name]
    source = ZarrDataSource(view(store))
    agrees(source, values)
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again.read(np.array([0])), values[:1])
    assert again.fingerprint == source.fingerprint


def numbered(domain: Any, chunk: Any, parameters: Any) -> None:
    chunk[...] = np.arange(domain[0].inclusive_min, domain[0].exclusive_max)[:, None]


def test_values_of_a_function(store: Any) -> None:
    layout = ts.ChunkLayout(read_chunk_shape=[7, 3])
    view = ts.virtual_chunked(numbered, dtype=ts.int64, shape=[50, 3], chunk_layout=layout)
    values = np.repeat(np.arange(50), 3).reshape(50, 3)
    agrees(ZarrDataSource(view), values)
    agrees(ZarrDataSource(view[::-2]), values[::-2])
    for arrays in (view, {"x": view[3:]}, ts.stack([view, view])):
        with pytest.raises(ArgumentError, match=r"cannot be pickled: .* ts\.virtual_chunked"):
            pickle.dumps(ZarrDataSource(arrays))


def test_a_function_that_fails_is_a_read_error() -> None:
    def broken(domain: Any, chunk: Any, parameters: Any) -> None:
        raise ValueError("nothing here")

    source = ZarrDataSource(ts.virtual_chunked(broken, dtype=ts.int64, shape=[5]))
    with pytest.raises(ReadError, match="nothing here"):
        source[3]


def test_n5(tmp_path: Path) -> None:
    opened = stored(tmp_path / "a", "n5")
    for value in (opened, tmp_path / "a", f"{(tmp_path / 'a').as_uri()}/|n5:"):
        agrees(ZarrDataSource(value), VALUES)
    assert pickle.loads(pickle.dumps(ZarrDataSource(tmp_path / "a")))[100].tolist()[0] == 600
    (tmp_path / "a" / "2" / "0").write_bytes(b"\x00\x00\x00\x02")
    with pytest.raises(ReadError, match="records 20 to 29"):
        ZarrDataSource(tmp_path / "a")[25]


@pytest.mark.parametrize(
    "attributes",
    [{"contrast": math.nan}, {"units": ["nm"], "resolution": [4.0]}, {"axes": ["y", "y", "x"]}],
)
def test_attributes_of_users_do_not_matter_to_n5(tmp_path: Path, attributes: Any) -> None:
    stored(tmp_path / "a", "n5")
    file = tmp_path / "a" / "attributes.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **attributes}))
    source = ZarrDataSource(tmp_path / "a")
    agrees(source, VALUES)
    agrees(pickle.loads(pickle.dumps(source)), VALUES)
    assert windrow.inspect(tmp_path / "a").records == len(VALUES)
    file.write_text(file.read_text().replace("compression", "compressionType"))
    with pytest.raises(SourceError, match=r"attributes\.json"):
        ZarrDataSource(tmp_path / "a")  # what TensorStore would guess is not read


@pytest.mark.parametrize("way", ["", "http"])
def test_n5_blocks_of_varying_length_are_not_bad_records(tmp_path: Path, way: str) -> None:
    stored(tmp_path / "a", "n5")
    for file in (tmp_path / "a").glob("*/*"):
        if file.is_file():
            raw = file.read_bytes()
            file.write_bytes(b"\0\1" + raw[2:])  # its mode
    with RangeServer(tmp_path) as server:
        source = ZarrDataSource(f"{server.address}/a" if way else tmp_path / "a")
        said = r"varlength .* not supported\. They are not damaged"
        with pytest.raises(ReadError, match=said) as caught:
            source.read(np.arange(2))
        assert caught.value.is_unanswered
        with pytest.raises(ReadError, match=said):
            list(MapDataset.source(source).on_bad("skip").to_iter_dataset())
        windows = WindowDataSource(source.arrays[""], {0: 2})
        with pytest.raises(ReadError, match=said):
            list(MapDataset.source(windows).on_bad("skip").to_iter_dataset())


def test_groups_of_n5(tmp_path: Path) -> None:
    top = tmp_path / "g"
    for name in ("raw", "deep/er/labels"):
        stored(top / name, "n5")
    (top / "attributes.json").write_text('{"n5": "2.5.1"}')
    meta = json.loads((top / "raw" / "attributes.json").read_text())
    named = {**meta, "axes": ["x", "y"], "units": ["nm", "nm"], "resolution": [4, 4]}
    (top / "raw" / "attributes.json").write_text(json.dumps(named))
    source = ZarrDataSource(top)
    assert source[7]["deep"]["er"]["labels"].tolist() == VALUES[7].tolist()
    (raw,) = ArrayTree("source", top, names=["raw"]).open()
    assert raw.dims == ("x", "y")
    assert raw.attributes["resolution"] == [4, 4]
    zipped = shutil.make_archive(str(tmp_path / "g"), "zip", top)
    assert set(ZarrDataSource(f"file://{zipped}|zip:").arrays) == {"raw", "deep/er/labels"}


def test_precomputed(tmp_path: Path) -> None:
    path = tmp_path / "volume"
    opened = precomputed(path)
    small = VOLUME[::2, ::2, ::2]
    precomputed(path, small, key="half/of it")
    assert ZarrDataSource(path)[0].shape == VOLUME.shape[1:]
    for value in (opened, path, path / "8_8_8", path.as_uri()):
        agrees(ZarrDataSource(value), VOLUME)
    agrees(ZarrDataSource(path / "half" / "of it"), small)
    agrees(ZarrDataSource(f"{path.as_uri()}/|neuroglancer-precomputed:"), VOLUME)
    (array,) = ArrayTree("source", path).open()
    assert array.dims == ("x", "y", "z", "channel")
    assert array.attributes["resolution"] == [8, 8, 8]
    with pytest.raises(NotFoundError, match="is not a Zarr array or group"):
        ZarrDataSource(path / "half")
    zipped = shutil.make_archive(str(tmp_path / "v"), "zip", path)
    agrees(ZarrDataSource(f"file://{zipped}|zip:half/of it"), small)


# --- layouts that zarr-python writes -------------------------------------------------------------


@st.composite
def layouts(draw: Any) -> tuple[AnyArray, dict[str, Any]]:
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=5)))
    chunks = tuple(draw(st.integers(1, 9)) for _ in shape)
    dtype = draw(st.sampled_from(["u1", "<i2", ">i4", "<f8", ">f4", "?", ">c8", "<f2"]))
    version = draw(st.sampled_from([2, 3]))
    layout: dict[str, Any] = {
        "chunks": chunks,
        "zarr_format": version,
        "fill_value": draw(st.sampled_from([0, 1])),
        "compressors": draw(st.sampled_from([None, "auto"])),
    }
    if version == 2:
        layout["order"] = draw(st.sampled_from("CF"))
        if np.dtype(dtype).kind in "iu" and draw(st.booleans()):
            layout["filters"] = [numcodecs.Delta(dtype=dtype)]
        layout["chunk_key_encoding"] = {"name": "v2", "separator": draw(st.sampled_from("./"))}
    elif draw(st.booleans()):
        layout["shards"] = tuple(chunk * draw(st.integers(1, 3)) for chunk in chunks)
    if version == 3 and draw(st.booleans()):
        layout["filters"] = [TransposeCodec(order=draw(st.permutations(range(len(shape)))))]
    values = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    return values, layout


@settings(deadline=None, max_examples=examples(80))
@given(made=layouts(), data=st.data())
@pytest.mark.filterwarnings("ignore")
def test_layouts_of_zarr_python(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[AnyArray, dict[str, Any]], data: Any
) -> None:
    values, layout = made
    path = tmp_path_factory.mktemp("a") / "a"
    array = zarr.create_array(str(path), shape=values.shape, dtype=values.dtype, **layout)
    expected = np.full(values.shape, layout["fill_value"], values.dtype.newbyteorder("="))
    # What is not written is not stored.
    written = data.draw(st.integers(0, len(values)))
    if values[:written].size:
        array[:written] = values[:written]
    expected[:written] = values[:written]
    rows = st.integers(0, max(0, len(values) - 1))
    wanted = np.array(data.draw(st.lists(rows, max_size=12 if len(values) else 0)), np.int64)
    for direct in (None, False):
        source = ZarrDataSource(path, direct=direct)
        assert len(source) == len(values)
        for order in (wanted, np.arange(len(values))):
            got = source.read(order)
            assert got.dtype == expected.dtype
            assert got.shape == (len(order), *values.shape[1:])
            np.testing.assert_array_equal(got, expected[order])


# --- metadata that are anything ---------------------------------------------------------------

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats(allow_nan=False)
    | st.sampled_from(
        ["", "x", "O", "|O", "<i4", "i8", "zstd", "bytes", "delta", "pickle", "string"]
    )
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "name", "configuration", "dtype", "codecs", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def changed(data: Any, value: Any) -> Any:
    """`value` with one part of it replaced or left out, at any depth."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    if not keys or data.draw(st.integers(0, 4)) == 0:
        return data.draw(ANYTHING)
    key = data.draw(st.sampled_from(keys))
    if isinstance(value, dict) and data.draw(st.integers(0, 9)) == 0:
        return {k: item for k, item in value.items() if k != key}
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    copied[key] = changed(data, value[key])
    return copied


BASES: dict[str, dict[str, Any]] = {
    "v2": {"zarr_format": 2},
    "v2 with a filter": {"zarr_format": 2, "filters": [numcodecs.Delta(dtype="i4")]},
    "v3": {"zarr_format": 3, "dimension_names": ["x", "y"]},
    "v3 in shards": {"zarr_format": 3, "shards": (20, 6), "attributes": {"coordinates": "x"}},
}


@pytest.mark.parametrize("name", BASES)
@settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.filterwarnings("ignore")
def test_metadata_of_any_form_are_read_or_refused(tmp_path: Path, name: str, data: Any) -> None:
    path = tmp_path / "g" / "a"
    if not path.exists():
        array = zarr.create_array(
            str(path), shape=VALUES.shape, chunks=(10, 3), dtype="i4", **BASES[name]
        )
        array[...] = VALUES
        for file in (".zarray", "zarr.json"):
            if (path / file).exists():
                (path / file).rename(path / f"{file}.sound")
        (tmp_path / "g" / ".zgroup").write_text('{"zarr_format": 2}')
    sound = next(path.glob("*.sound"))
    meta = changed(data, json.loads(sound.read_text()))
    sound.with_suffix("").write_text(json.dumps(meta))
    for value, direct in ((path, None), (path, False), (path.parent, None)):
        with contextlib.suppress(WindrowError):  # anything else would be a crash
            source = ZarrDataSource(value, direct=direct)
            size = record_bytes(source)
            # Metadata may claim records that no memory holds: to read one would end the process.
            if len(source) and (size is None or size.high <= 2**24):
                source.read(np.array([0, len(source) - 1]))


# --- metadata that lie ---------------------------------------------------------------------------

HUGE = 2**40
DELTA = [{"id": "delta", "dtype": "<f8"}]
LIES: dict[str, tuple[int, dict[str, Any], str]] = {
    "one chunk": (2, {"shape": [HUGE], "chunks": [HUGE]}, r"a chunk has 8,796,.* bytes"),
    "many cells": (2, {"shape": [HUGE, HUGE], "chunks": [1, 1]}, r"it has 9,671,.* bytes"),
    "no integer of 64 bits": (2, {"shape": [2**70]}, "shape|bytes"),
    "chunk of no 64 bits": (2, {"chunks": [2**70]}, "chunk"),
    "too many axes": (2, {"shape": [4] * 33, "chunks": [1] * 33}, "shape|bytes"),
    "no list": (2, {"shape": None}, "shape"),
    "dtype": (2, {"dtype": "<f99999999999"}, "dtype"),
    "v3": (3, {"shape": [HUGE], "chunk": [HUGE]}, r"a chunk has 8,796,.* bytes"),
    "shard of many": (3, {"inner": [1], "chunk": [2**29], "shape": [HUGE]}, "index of a shard has"),
    "shard of too many": (3, {"inner": [1], "chunk": [HUGE]}, "grid shape|index of a shard"),
    "inner chunk": (3, {"inner": [HUGE], "chunk": [HUGE], "shape": [HUGE]}, "a chunk has 8,796,"),
}


def liar(path: Path, version: Any, changed: dict[str, Any]) -> Path:
    shards = (32,) if "inner" in changed else None
    array = zarr.create_array(
        str(path), shape=(64,), chunks=(16,), shards=shards, dtype="f8", zarr_format=version
    )
    array[...] = np.arange(64)
    file = path / (".zarray" if version == 2 else "zarr.json")
    meta = json.loads(file.read_text())
    for key, value in changed.items():
        if key == "inner":
            meta["codecs"][0]["configuration"]["chunk_shape"] = value
        elif key == "chunk":
            meta["chunk_grid"]["configuration"]["chunk_shape"] = value
        else:
            meta[key] = value
    file.write_text(json.dumps(meta))
    return path


@pytest.mark.parametrize("name", LIES)
def test_absurd_sizes_are_refused(tmp_path: Path, name: str) -> None:
    version, changed, why = LIES[name]
    path = liar(tmp_path / "a", version, changed)
    for direct in (None, False):
        with pytest.raises(SourceError, match=why):
            ZarrDataSource(path, direct=direct)
    if version == 2:
        path = liar(tmp_path / "b", version, {"filters": DELTA, **changed})
        with pytest.raises(SourceError, match=why):
            ZarrDataSource(path)


@pytest.mark.parametrize("direct", [None, False])
@pytest.mark.parametrize("filters", [None, DELTA])
def test_chunks_that_hold_less_than_they_should(
    tmp_path: Path, direct: bool | None, filters: Any
) -> None:
    path = liar(tmp_path / "a", 2, {"chunks": [2**20], "shape": [2**21], "filters": filters})
    source = ZarrDataSource(path, direct=direct)
    with pytest.raises(ReadError, match=r"records 0 to 1048575"):
        source[3]
    with pytest.raises(ReadError, match=r"records 0 to 1048575"):
        next(iter(MapDataset.source(source).batch(2).to_iter_dataset()))


def test_an_array_of_very_many_chunks(tmp_path: Path) -> None:
    source = ZarrDataSource(liar(tmp_path / "a", 2, {"shape": [HUGE]}))
    assert source.read(np.array([63, HUGE - 1])).tolist() == [63, 0]
    chain = MapDataset.source(source).seed(0).shuffle().batch(3).to_iter_dataset()
    assert next(iter(chain)).shape == (3,)
    with pytest.raises(SourceError, match=r"lie in 68,719,476,736 chunks .* shuffle all records"):
        source.blocks()


@pytest.mark.parametrize("direct", [None, False])
def test_rows_of_absurd_size(tmp_path: Path, direct: bool | None) -> None:
    path = liar(tmp_path / "a", 2, {"shape": [64, HUGE], "chunks": [16, 2**10]})
    for file in path.glob("[0-9]"):
        file.rename(path / f"{file.name}.0")
    with pytest.raises(SourceError, match=r"a row of the array .* has 8,796,093,022,208 bytes"):
        ZarrDataSource(path, direct=direct)


def test_a_spec_of_absurd_size(tmp_path: Path) -> None:
    path = liar(tmp_path / "a", 2, {"chunks": [HUGE]})
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}}
    for value in (spec, f"{path.as_uri()}/|zarr2:", ts.open(spec).result()):
        with pytest.raises(SourceError, match=r"a chunk has 8,796,093,022,208 bytes"):
            ZarrDataSource(value)


def test_a_volume_of_absurd_size(tmp_path: Path) -> None:
    precomputed(tmp_path / "v")
    info = json.loads((tmp_path / "v" / "info").read_text())
    info["scales"][0] |= {"size": [2**30] * 3, "chunk_sizes": [[2**12] * 3]}
    (tmp_path / "v" / "info").write_text(json.dumps(info))
    with pytest.raises(SourceError, match=rf"a chunk has {2 * math.prod([2**12] * 3):,} bytes"):
        ZarrDataSource(tmp_path / "v")
    stored(tmp_path / "n", "n5")
    meta = json.loads((tmp_path / "n" / "attributes.json").read_text())
    meta |= {"dimensions": [2**30, 6], "blockSize": [2**29, 4]}
    (tmp_path / "n" / "attributes.json").write_text(json.dumps(meta))
    with pytest.raises(SourceError, match=r"exceeds maximum chunk size of 2GB"):
        ZarrDataSource(tmp_path / "n")
