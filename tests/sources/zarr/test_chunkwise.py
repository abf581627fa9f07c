"""Chunks that TensorStore does not open: of unequal size, and files that were compressed once more."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import zstandard

import windrow
from tests.far_arrays import TWICE
from tests.range_server import RangeServer
from tests.volumes import volume
from tests.zarr_layouts import rectilinear
from windrow import MapDataset
from windrow.errors import MissingExtraError, ReadError, SourceError
from windrow.sources import Window, WindowDataSource, ZarrDataSource

VOLUME = np.random.default_rng(0).integers(1, 200, (11, 9, 5), "u4")
ENDINGS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".zstd": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


def segmentation(path: Path, encoding: str = "raw", **more: Any) -> Path:
    """A volume of 3 x 3 x 2 chunks of (4, 4, 4), which begins at (3, -2, 10)."""
    if encoding == "compressed_segmentation":
        more["compressed_segmentation_block_size"] = [2, 2, 2]
    scale = {"chunk_size": [4, 4, 4], "resolution": [8, 8, 40], "voxel_offset": [3, -2, 10]}
    volume(path, VOLUME, kind="segmentation", encoding=encoding, key="s", **{**scale, **more})
    return path


def compress(path: Path, ending: str, which: slice = slice(None)) -> None:
    """Compress chunk files, as CloudVolume writes them."""
    files = sorted((path / "s").iterdir())[which]
    for file in files:
        Path(f"{file}{ending}").write_bytes(ENDINGS[ending](file.read_bytes()))
        file.unlink()


@pytest.mark.parametrize("encoding", ["raw", "compressed_segmentation"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_volumes_with_compressed_files(tmp_path: Path, ending: str, encoding: str) -> None:
    compress(
        segmentation(tmp_path / "v", encoding), ending, slice(3, None)
    )  # the first three are plain
    source = ZarrDataSource(tmp_path / "v")
    assert f"chunk by chunk (chunk files end in {ending})" in repr(source)
    read = pickle.loads(pickle.dumps(source)).read(np.arange(11))
    np.testing.assert_array_equal(read[..., 0], VOLUME)
    windows = WindowDataSource(tmp_path / "v", {"x": 3, "y": 3})
    np.testing.assert_array_equal(windows[4][..., 0], VOLUME[3:6, 3:6])
    report = windrow.verify(source, missing="error", progress=False)
    assert (report.missing, report.chunks, report.untold) == (0, 18, 0)
    (bad,) = report.bad  # other readers do not find them
    assert (bad.chunk, f"chunk files end in {ending}" in bad.error) == (-1, True)
    assert windrow.verify(source, progress=False).ok
    with RangeServer(tmp_path) as server:
        far = ZarrDataSource(f"{server.address}/v", remote=TWICE)
        np.testing.assert_array_equal(far.read(np.array([10, 0]))[..., 0], VOLUME[[10, 0]])


def test_a_far_volume_whose_first_chunk_is_absent(tmp_path: Path) -> None:
    compress(segmentation(tmp_path / "v"), ".gz")
    (tmp_path / "v" / "s" / "3-7_-2-2_10-14.gz").unlink()
    with RangeServer(tmp_path) as server:
        far = ZarrDataSource(f"{server.address}/v", remote=TWICE)
        np.testing.assert_array_equal(far[9][..., 0], VOLUME[9])


def test_damaged_and_too_large_files_are_bad_records(tmp_path: Path) -> None:
    compress(segmentation(tmp_path / "v"), ".gz")
    first, last = (tmp_path / "v/s/3-7_-2-2_10-14.gz", tmp_path / "v/s/11-14_6-7_14-15.gz")
    first.write_bytes(first.read_bytes()[:-9])
    last.write_bytes(gzip.compress(bytes(9 << 20)))
    source = ZarrDataSource(tmp_path / "v")
    with pytest.raises(
        ReadError, match=r"records 0 to 3 .*3-7_-2-2_10-14\.gz cannot be decompressed"
    ):
        source.read(np.arange(2))
    with pytest.raises(
        ReadError, match=r"11-14_6-7_14-15\.gz has more than .* bytes, decompressed"
    ):
        source.read(np.arange(8, 11))
    kept = list(MapDataset.source(source).on_bad("skip").to_iter_dataset())
    assert [row[0, 0, 0] for row in kept] == VOLUME[4:8, 0, 0].tolist()


def test_brotli_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = segmentation(tmp_path / "v")
    for file in (path / "s").iterdir():
        file.rename(f"{file}.br")
    monkeypatch.setitem(sys.modules, "brotli", None)
    with pytest.raises(MissingExtraError, match=r"chunk files end in \.br, needs brotli"):
        ZarrDataSource(path)


def test_files_that_no_chunk_may_be_are_refused(tmp_path: Path) -> None:
    for file in (segmentation(tmp_path / "v") / "s").iterdir():
        file.rename(f"{file}.lz4")
    with pytest.raises(SourceError, match=r"no chunk of the volume .* lies where its metadata say"):
        ZarrDataSource(tmp_path / "v")
    with pytest.raises(SourceError, match="no chunk of the volume"):
        windrow.inspect(tmp_path / "v")


def test_a_volume_whose_first_chunk_is_written_now_is_whole(tmp_path: Path) -> None:
    for file in (segmentation(tmp_path / "v") / "s").iterdir():
        file.rename(f"{file}.__lock")
    (tmp_path / "v" / "s" / "notes.txt").touch()
    source = ZarrDataSource(tmp_path / "v")
    assert not source.read(np.arange(len(source))).any()


def test_chunks_in_shards_of_a_volume_are_found(tmp_path: Path) -> None:
    sharding: dict[str, Any] = {"@type": "neuroglancer_uint64_sharded_v1"}
    sharding["hash"] = "murmurhash3_x86_128"
    sharding |= {"preshift_bits": 1, "minishard_bits": 2, "shard_bits": 1}
    segmentation(tmp_path / "v", chunk_size=[2, 4, 1], sharding=sharding)
    store = ts.open(
        {"driver": "neuroglancer_precomputed", "kvstore": f"file://{tmp_path}/v/"}
    ).result()
    store[9:11, 2:6, 12:13] = 0  # the chunk (3, 1, 2), in C order 52
    report = windrow.verify(ZarrDataSource(tmp_path / "v"), missing="error", progress=False)
    assert (report.chunks, report.untold, [bad.chunk for bad in report.bad]) == (90, 0, [52])


# --- the rectilinear grid of Zarr v3 -------------------------------------------------------------


GRID = 1 + np.arange(13 * 10, dtype="i2").reshape(13, 10)
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
SHARDED = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [1, 2],
        "codecs": [LITTLE, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
        "index_codecs": [LITTLE, {"name": "crc32c"}],
    },
}
TRANSPOSED = {"name": "transpose", "configuration": {"order": [1, 0]}}


@pytest.mark.parametrize(
    ("shapes", "codecs"),
    [
        ([[1, 2, 10], [10]], None),
        ([[[4, 2], 1, [3, 2]], 4], [TRANSPOSED, LITTLE]),
        ([5, [4, 8]], [SHARDED]),
    ],
)
def test_chunks_of_unequal_size(tmp_path: Path, shapes: list[Any], codecs: Any) -> None:
    rectilinear(tmp_path / "a", GRID, shapes, codecs)
    source = ZarrDataSource(tmp_path / "a")
    for again in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(again.read(np.arange(13)), GRID)
        np.testing.assert_array_equal(again.read(np.array([12, 0, 5, 5])), GRID[[12, 0, 5, 5]])
    windows = WindowDataSource(tmp_path / "a", {0: Window(4, 3), 1: Window(3, 2)})
    expected = [GRID[a : a + 4, b : b + 3] for a in (0, 3, 6, 9) for b in (0, 2, 4, 6)]
    np.testing.assert_array_equal(windows.read(np.arange(16)), expected)
    shuffled = MapDataset.source(source).seed(0).shuffle().batch(4).to_iter_dataset()
    assert np.sort(np.concatenate(list(shuffled))[:, 0]).tolist() == GRID[:, 0].tolist()
    assert windrow.verify(source, missing="error", progress=False).ok
    assert windrow.inspect(tmp_path / "a").records == 13


def test_what_is_wrong_with_unequal_chunks_is_said(tmp_path: Path) -> None:
    rectilinear(tmp_path / "a", GRID, [[6, 7], [10]])
    file = tmp_path / "a" / "zarr.json"
    meta = json.loads(file.read_text())
    meta["codecs"].append({"name": "numcodecs.delta", "configuration": {"dtype": "<i2"}})
    file.write_text(json.dumps(meta))
    said = r"chunks of unequal size \(chunk_grid 'rectilinear'\), and is not read: .*of one size"
    with pytest.raises(SourceError, match=said):
        ZarrDataSource(tmp_path / "a")
    meta["codecs"].pop()
    meta["chunk_grid"]["configuration"]["chunk_shapes"] = [[6, 6], [10]]
    file.write_text(json.dumps(meta))
    with pytest.raises(SourceError, match="do not make up an axis of 13 cells"):
        ZarrDataSource(tmp_path / "a")
    for absurd in (0, -1, True, [[1, 10**13]], [[13, 1.5]], {"a": 1}, None):
        meta["chunk_grid"]["configuration"]["chunk_shapes"] = [absurd, [10]]
        file.write_text(json.dumps(meta))
        with pytest.raises(SourceError, match=said):
            ZarrDataSource(tmp_path / "a")
