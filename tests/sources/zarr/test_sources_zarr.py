"""Zarr arrays and groups: rows as NumPy gives them, whatever the layout, and damage named."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr

from tests.array_record_bytes import needs_core
from tests.zarr_layouts import DIRECTLY
from windrow.errors import (
    NotFoundError,
    SourceError,
)
from windrow.sources import ZarrDataSource
from windrow.sources.zarr import tensorstore

AnyArray = npt.NDArray[Any]


def values(rows: int = 100, dtype: Any = "f4") -> AnyArray:
    return np.arange(rows * 4).reshape(rows, 4).astype(dtype)


def write(path: Path, array: AnyArray, **layout: Any) -> Path:
    store = zarr.create_array(str(path), shape=array.shape, dtype=array.dtype, **layout)
    store[...] = array
    return path


def test_raw_bits_are_refused_and_do_not_abort(tmp_path: Path) -> None:
    path = write(tmp_path / "a", np.zeros(4, "u2"), chunks=(2,))
    meta = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps({**meta, "data_type": "r16"}))
    with pytest.raises(SourceError, match=r"the array in .*/a is not read: dtype 'r16'"):
        ZarrDataSource(path)


def test_unreadable_metadata(tmp_path: Path) -> None:
    path = write(tmp_path / "a", values(4), chunks=(2, 4))
    whole = (path / "zarr.json").read_text()
    for content, message in (
        (whole[:40], r"zarr\.json in .*/a is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"node_type": "tree"}', "node_type 'tree'"),
        (whole.replace("regular", "odd"), "cannot be opened: .*odd"),
    ):
        (path / "zarr.json").write_text(content)
        with pytest.raises(SourceError, match=message):
            ZarrDataSource(path)


def test_pickles_as_a_spec_and_opens_lazily(tmp_path: Path) -> None:
    path = write(tmp_path / "a", values(), chunks=(16, 4))
    sent = pickle.dumps(ZarrDataSource({"x": path}))
    assert len(sent) < 3000
    again = pickle.loads(sent)
    np.testing.assert_array_equal(again[9]["x"], values()[9])
    shutil.rmtree(path)
    lazy = pickle.loads(sent)
    assert len(lazy) == 100
    assert lazy.fingerprint == "zarr(x: float32 [100, 4] chunks [16, 4])"
    with pytest.raises(NotFoundError, match="there is no array at"):
        lazy[0]
    write(path, values(99), chunks=(16, 4))
    with pytest.raises(SourceError, match=r"changed since the source was made\n  then: .*100"):
        lazy[0]


def test_fingerprint_and_repr(tmp_path: Path) -> None:
    path = write(tmp_path / "a", values(), chunks=(16, 4))
    other = write(tmp_path / "b", values() + 1, chunks=(16, 4))
    source = ZarrDataSource(path)
    assert source.fingerprint == "zarr(float32 [100, 4] chunks [16, 4])"
    assert ZarrDataSource(other).fingerprint == source.fingerprint
    assert repr(source) == f"ZarrDataSource(100 records of float32 [4] in {path}, {DIRECTLY})"
    wide = ZarrDataSource({f"name{i}": path for i in range(20)})
    assert wide.fingerprint.startswith("zarr(100 records, 20 arrays, sha256:")
    assert "and 16 more arrays" in repr(wide)


def test_blocks_of_a_group_are_the_chunks_that_spare_the_others(tmp_path: Path) -> None:
    def written(name: str, width: int, chunk_rows: int) -> Path:
        nothing = np.zeros((600, width), "u1")
        return write(tmp_path / name, nothing, chunks=(chunk_rows, width))

    image, depth = written("image", 48, 10), written("depth", 40, 100)
    label = written("label", 1, 200)
    both = ZarrDataSource({"image": image, "depth": depth, "label": label})
    # Blocks of 10 would have each chunk of depth decoded for every window that has some of it.
    assert both.blocks().tolist() == list(range(0, 601, 100))
    # Labels weigh nothing: their chunks may be decoded many times.
    small = ZarrDataSource({"image": image, "label": label})
    assert small.blocks().tolist() == list(range(0, 601, 10))


def test_shards_whose_axes_are_turned(tmp_path: Path) -> None:
    # An order that is not its own inverse: earlier versions of TensorStore turned its grid back to front.
    stored, order, inner = (
        np.arange(4 * 6 * 10, dtype="<i4").reshape(4, 6, 10),
        (1, 2, 0),
        (3, 5, 2),
    )
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    shards = {"chunk_shape": inner, "codecs": [little], "index_codecs": [little]}
    (tmp_path / "zarr.json").write_text(
        json.dumps(
            {
                "zarr_format": 3,
                "node_type": "array",
                "shape": stored.shape,
                "data_type": "int32",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": stored.shape}},
                "chunk_key_encoding": {"name": "default"},
                "fill_value": 0,
                "codecs": [
                    {"name": "transpose", "configuration": {"order": order}},
                    {"name": "sharding_indexed", "configuration": shards},
                ],
            }
        )
    )
    turned, body, index = stored.transpose(order), b"", list[int]()
    for cell in np.ndindex(2, 2, 2):
        part = tuple(slice(c * n, c * n + n) for c, n in zip(cell, inner, strict=True))
        index += [len(body), 3 * 5 * 2 * 4]
        body += turned[part].tobytes()
    (tmp_path / "c/0/0").mkdir(parents=True)
    (tmp_path / "c/0/0/0").write_bytes(body + np.array(index, "<u8").tobytes())
    np.testing.assert_array_equal(ZarrDataSource(tmp_path).read(np.arange(4)), stored)


def test_rounds_within_the_byte_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorstore, "IN_FLIGHT_BYTES", 300)
    wanted = np.random.default_rng(0).integers(0, 100, 500)
    for chunk in (1, 8):
        path = write(tmp_path / str(chunk), values(), chunks=(chunk, 4), shards=(32, 4))
        source = ZarrDataSource(path, direct=False)
        np.testing.assert_array_equal(source.read(wanted), values()[wanted])


@needs_core
def test_few_modules_are_entered_to_open_a_local_store(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a")
    group.create_array("x", data=values(), chunks=(8, 4))
    zarr.consolidate_metadata(group.store)
    folder = Path(str(sys.modules[ZarrDataSource.__module__].__file__)).parent
    for place in (tmp_path / "a", tmp_path / "a" / "x"):
        entered = set[Path]()

        def note(frame: Any, event: str, _: Any, entered: set[Path] = entered) -> None:
            if event == "call":
                entered.add(Path(frame.f_code.co_filename))

        sys.setprofile(note)
        try:
            ZarrDataSource(place)
        finally:
            sys.setprofile(None)
        assert len([path for path in entered if path.parent == folder]) <= 9
