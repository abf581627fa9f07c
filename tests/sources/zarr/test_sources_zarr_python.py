"""Arrays that zarr-python reads: what TensorStore has no codec or dtype for, and what is refused."""

from __future__ import annotations

import bz2
import json
import lzma
import pickle
import re
import shutil
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
import zarr
import zarr.codecs.numcodecs as v3
import zstandard

from windrow import MapDataset, verify
from windrow.errors import ReadError, SourceError
from windrow.sources import Window, WindowDataSource, ZarrDataSource
from windrow.sources.zarr.open_array import open_arrays
from windrow.sources.zarr.source import ArrayTree

AnyArray = npt.NDArray[Any]
pytestmark = pytest.mark.filterwarnings("ignore")  # zarr-python warns writers of such arrays

INTEGERS = np.arange(1, 145, dtype="i4").reshape(36, 4)
FLOATS = INTEGERS.astype("f8")
TIMES = INTEGERS.astype("M8[h]")
WORDS = np.array(["a", "bb", "ccc"])[INTEGERS % 3]
V2: dict[str, tuple[AnyArray, dict[str, Any], str]] = {
    "delta": (INTEGERS, {"filters": [numcodecs.Delta(dtype="i4")]}, "filter 'delta'"),
    "fixed scale": (
        FLOATS,
        {"filters": [numcodecs.FixedScaleOffset(0, 1, "f8", "u1")]},
        "filter 'fixedscaleoffset'",
    ),
    "shuffle": (
        INTEGERS,
        {"filters": [numcodecs.Shuffle(4)], "compressors": numcodecs.BZ2()},
        "filter 'shuffle'",
    ),
    "lzma": (INTEGERS, {"compressors": numcodecs.LZMA()}, "compressor 'lzma'"),
    "bits": (INTEGERS % 3 == 0, {"filters": [numcodecs.PackBits()]}, "filter 'packbits'"),
    "big endian": (
        INTEGERS.astype(">i4"),
        {"filters": [numcodecs.Delta(dtype=">i4")], "order": "F"},
        "filter 'delta'",
    ),
    "S": (INTEGERS.astype("S10"), {}, r"dtype '\|S10'"),
    "U": (INTEGERS.astype("U5"), {}, r"dtype '<U5'"),
    "times": (TIMES.astype("M8[ns]"), {}, r"dtype '<M8\[ns\]'"),
    "durations": (INTEGERS.astype("m8[s]"), {}, r"dtype '<m8\[s\]'"),
    "categories": (
        WORDS,
        {"filters": [numcodecs.Categorize(["a", "bb", "ccc"], dtype="<U3")]},
        "filter 'categorize'",
    ),
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # these codecs warn who makes them
    V3: dict[str, tuple[AnyArray, dict[str, Any], str]] = {
        "delta": (
            INTEGERS,
            {"filters": [v3.Delta(dtype="i4")], "compressors": [v3.BZ2()]},
            "codec 'numcodecs.delta'",
        ),
        "sharded": (
            INTEGERS,
            {"filters": [v3.Delta(dtype="i4")], "compressors": [v3.LZMA()], "shards": (20, 4)},
            "codec 'numcodecs.delta'",
        ),
        "S": (INTEGERS.astype("S10"), {}, "dtype 'null_terminated_bytes'"),
        "U": (INTEGERS.astype("U5"), {}, "dtype 'fixed_length_utf32'"),
        "times": (TIMES, {"shards": (20, 4)}, r"dtype 'numpy\.datetime64'"),
        "durations": (INTEGERS.astype("m8[10s]"), {}, r"dtype 'numpy\.timedelta64'"),
        "two axes of one name": (
            INTEGERS,
            {"dimension_names": ["x", "x"], "chunks": (10, 3)},
            "two axes have one name",
        ),
    }
CASES = [(2, *case) for case in V2.values()] + [(3, *case) for case in V3.values()]
IDS = [f"v2 {name}" for name in V2] + [f"v3 {name}" for name in V3]


def write(path: Path, version: Any, values: AnyArray, **layout: Any) -> Path:
    layout = {"chunks": (10, 4), **layout}
    array = zarr.create_array(
        str(path), shape=values.shape, dtype=values.dtype, zarr_format=version, **layout
    )
    array[...] = values
    return path


@pytest.mark.parametrize(("version", "values", "layout", "why"), CASES, ids=IDS)
def test_what_tensorstore_can_not_decode(
    tmp_path: Path, version: int, values: AnyArray, layout: dict[str, Any], why: str
) -> None:
    path = write(tmp_path / "a", version, values, **layout)
    direct = False if "one name" in why else None
    source = ZarrDataSource(path, direct=direct)
    native = values.dtype.newbyteorder("=")
    assert re.search(rf", read by zarr-python \({why}\)\)$", repr(source))
    wanted = np.array([35, 0, 7, 7, 12, -1])
    for again in (source, pickle.loads(pickle.dumps(source))):
        got = again.read(wanted)
        assert got.dtype == native
        np.testing.assert_array_equal(got, values[wanted])
    batches = list(MapDataset.source(source).seed(3).shuffle().batch(5).to_iter_dataset())
    whole = np.concatenate(batches)
    np.testing.assert_array_equal(np.sort(whole, axis=0), np.sort(values.astype(native), axis=0))
    dims = ("a", "b") if "one name" in why else None
    windows = WindowDataSource(path, {0: Window(3, 2)}, dims=dims, direct=direct)
    np.testing.assert_array_equal(windows[4], values[8:11])
    if direct is None:
        with pytest.raises(SourceError, match="cannot be decoded directly"):
            ZarrDataSource(path, direct=True)
    with pytest.raises(SourceError, match=r"is read by zarr-python .* open it with zarr\.open_arr"):
        _ = source.arrays


@pytest.mark.parametrize("version", [2, 3])
def test_texts_of_any_length_are_coordinates_and_no_records(tmp_path: Path, version: Any) -> None:
    words = np.array(["a", "", "ccc\x00d", "long" * 9], object)
    data = xr.Dataset({"t": ("name", np.arange(4))}, coords={"name": ("name", words)})
    data.to_zarr(tmp_path / "g", zarr_format=version)
    source = ZarrDataSource(tmp_path / "g")
    assert source[2] == {"t": 2}
    (name,) = open_arrays("source", ArrayTree("source", tmp_path / "g").left_out)
    assert name.part.read(np.array([3, 0, 2, 1])).tolist() == [words[k] for k in (3, 0, 2, 1)]
    with pytest.raises(SourceError, match=r"array 'name' in .*/g/name is not read: .* any length"):
        ZarrDataSource(tmp_path / "g", names=["name"])


def test_verifying_reports_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "a", 2, INTEGERS, filters=[numcodecs.Delta(dtype="i4")])
    (path / "2.0").write_bytes(b"no chunk")
    (path / "3.0").unlink()
    report = verify(ZarrDataSource(path), progress=False)
    (bad,) = report.bad
    assert (bad.chunk, bad.file, bad.first_record) == (2, str(path / "2.0"), 20)
    assert bad.error.startswith("zarr-python says")
    assert (report.chunks, report.missing) == (4, 1)
    sharded = write(tmp_path / "s", 3, INTEGERS, **V3["sharded"][1])
    (sharded / "c/1/0").write_bytes(b"short")
    report = verify(ZarrDataSource(sharded), progress=False)
    assert [(bad.chunk, bad.file) for bad in report.bad] == [
        (2, str(sharded / "c/1/0")),
        (3, str(sharded / "c/1/0")),
    ]


@pytest.mark.parametrize("dtype", ["f8", "?", "U5", "M8[ns]"])
def test_arrays_of_v2_without_a_fill_value(tmp_path: Path, dtype: str) -> None:
    values = INTEGERS.astype(dtype)
    path = write(tmp_path / "a", 2, values, filters=[numcodecs.Shuffle(4)])
    meta = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps({**meta, "fill_value": None}))
    (path / "1.0").unlink()
    source = ZarrDataSource(path)
    np.testing.assert_array_equal(source[3], values[3])
    np.testing.assert_array_equal(source[13], zarr.open_array(str(path), mode="r")[13])
    report = verify(source, progress=False)
    assert (report.ok, report.missing, report.untold) == (True, 1, 0)
    lazy = pickle.loads(pickle.dumps(source))
    lazy[3]
    shutil.rmtree(path)
    with pytest.raises(ReadError, match="was removed or replaced since the source was made"):
        lazy[13]


def hostile(path: Path, **changed: Any) -> Path:
    """An array of v2 whose metadata say something else than what is stored."""
    write(path, 2, INTEGERS)
    meta = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps({**meta, **changed}))
    return path


class Touch:
    """Unpickling one makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "filter 'pickle'"),
        ({"compressor": {"id": "pickle"}}, "compressor 'pickle'"),
        ({"dtype": "|O", "filters": [{"id": "json2"}]}, "filter 'json2'"),
        ({"dtype": "|O", "filters": [{"id": "delta", "dtype": "i4"}]}, "any length"),
        ({"filters": [{"id": "delta", "dtype": "O"}]}, "with dtype 'O'"),
        ({"filters": [{"id": "astype", "encode_dtype": "|O", "decode_dtype": "i4"}]}, "encode_dty"),
        ({"filters": [{"id": "zlib"}, {"id": "delta", "dtype": "f8"}]}, "compressed twice"),
        ({"filters": [{"id": "zlib"}]}, "compressed twice"),
        ({"filters": {"id": "delta"}}, "zarr-python says|is not read"),
        ({"compressor": {"id": "lzma", "format": 3}}, "'lzma' with format 3"),
        ({"filters": [{"id": "os.system"}]}, "filter 'os.system'"),
        ({"filters": ["delta"]}, "is not read"),
        ({"filters": [{"id": "delta", "odd": 3}]}, "zarr-python says"),
        ({"filters": [{"id": "delta", "dtype": "i4"}], "dtype": [["a", "<i4"]]}, "dtype"),
    ],
)
def test_codecs_that_could_run_anything_are_refused(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    path = hostile(tmp_path / "a", **changed)
    (path / "0.0").write_bytes(pickle.dumps(Touch(tmp_path / "touched")))
    with pytest.raises(SourceError, match=why):
        ZarrDataSource(path)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    "codecs",
    [
        {"numcodecs.pickle": {}},
        ["bytes", {"name": "numcodecs.pickle"}],
        [{"name": "numcodecs.delta"}, "bytes", {"name": "sharding_indexed"}],
        [{"name": "sharding_indexed", "configuration": {"codecs": {"numcodecs.pickle": 0}}}],
    ],
)
def test_codecs_of_v3_that_are_refused(tmp_path: Path, codecs: Any) -> None:
    path = write(tmp_path / "a", 3, INTEGERS, filters=[v3.Delta(dtype="i4")])
    meta = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps({**meta, "codecs": codecs}))
    with pytest.raises(SourceError, match=r"is not read: (codec|.*shape)"):
        ZarrDataSource(path)


def packed(codec: str, size: int) -> bytes:
    """Zeros, compressed; more than is in memory at a time."""
    part = bytes(2**20)
    if codec == "zstd":
        stream: Any = zstandard.ZstdCompressor().compressobj()  # it does not say its size
    elif codec in ("zlib", "gzip"):
        stream = zlib.compressobj(9, wbits=15 if codec == "zlib" else 31)
    else:
        stream = {"bz2": bz2.BZ2Compressor, "lzma": lzma.LZMACompressor}[codec]()
    found = [stream.compress(part) for _ in range(size // len(part))]
    return b"".join([*found, stream.flush()])


@pytest.mark.parametrize("codec", ["zlib", "gzip", "bz2", "lzma", "zstd"])
@pytest.mark.parametrize(("version", "zipped"), [(2, False), (3, True)])
def test_chunks_that_decompress_to_far_more(
    tmp_path: Path, codec: str, version: Any, zipped: bool
) -> None:
    names = {"zlib": "Zlib", "gzip": "GZip", "bz2": "BZ2", "lzma": "LZMA", "zstd": "Zstd"}
    of = numcodecs if version == 2 else v3
    filters = [of.Delta(dtype="i4")]
    compressor = getattr(of, names[codec])()
    path = write(tmp_path / "a", version, INTEGERS, filters=filters, compressors=compressor)
    (path / ("2.0" if version == 2 else "c/2/0")).write_bytes(packed(codec, 8 * 2**20))
    place: Any = path
    if zipped:
        place = f"file://{shutil.make_archive(str(tmp_path / 'z'), 'zip', path)}|zip:"
    source = ZarrDataSource(place)
    np.testing.assert_array_equal(source[3], INTEGERS[3])
    with pytest.raises(ReadError, match=r"records 20 to 29 .*: it decompresses to more than 68,09"):
        source[22]


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("shard", [10, 40])
def test_chunks_of_shards_that_decompress_to_far_more(
    tmp_path: Path, shard: int, location: Any
) -> None:
    path = write(
        tmp_path / "a",
        3,
        INTEGERS,
        shards={"shape": (shard, 4), "index_location": location},
        filters=[v3.Delta(dtype="i4")],
        compressors=[v3.BZ2()],
    )
    file = path / "c/0/0"
    whole, bomb = file.read_bytes(), packed("bz2", 8 * 2**20)
    count = shard // 10
    at = 0 if location == "start" else len(whole) - 16 * count - 4
    index = np.frombuffer(whole[at : at + 16 * count], "<u8").reshape(count, 2).copy()
    head, body = (whole[: 16 * count + 4], whole[16 * count + 4 :])
    if location == "end":
        head, body = b"", whole[:at]
    index[0] = len(head) + len(body), len(bomb)
    told = index.tobytes() + struct.pack("<I", google_crc32c.value(index.tobytes()))
    file.write_bytes(told + body + bomb if location == "start" else body + bomb + told)
    source = ZarrDataSource(path)
    for wanted in (np.array([3]), np.arange(36)):
        with pytest.raises(ReadError, match="it decompresses to more than 68,096 bytes"):
            source.read(wanted)
    np.testing.assert_array_equal(source[35], INTEGERS[35])
    if shard > 10:
        np.testing.assert_array_equal(source[12], INTEGERS[12])
