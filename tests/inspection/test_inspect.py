"""`windrow inspect`: every format as tables and as JSON, what is damaged or unfinished, requests."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorstore as ts
import zarr

import windrow
from tests.array_record_bytes import write
from tests.object_store import ObjectStore
from tests.range_server import RangeServer
from tests.texts import lines_of, texts, write_lines
from windrow.cli.main import main
from windrow.converters import encode_example, write_records
from windrow.converters.job.manifest import (
    MANIFEST_NAME,
    UNFINISHED,
    InputFile,
    Manifest,
    OutputFile,
    Skipped,
)
from windrow.errors import (
    NotFoundError,
    ReadError,
    SourceError,
    WindrowError,
)
from windrow.inspection import records as inspection
from windrow.inspection.content import content_of

ERA5 = Path(__file__).parents[2] / "examples" / "data" / "era5_uk_t2m_2019_03.zarr"
EXAMPLES = [
    encode_example({"label": i, "name": f"no {i}", "x": np.arange(8, dtype=np.float32) * i})
    for i in range(20)
]


def shown(url: str | Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What the command prints."""
    assert main(["inspect", str(url), *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def as_json(url: str | Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(url, capsys, "--json"))
    return found


def has_row(text: str, *cells: str) -> bool:
    """Whether a line of a table begins with these cells."""
    wanted = " ".join(cells).split()
    return any(line.split()[: len(wanted)] == wanted for line in text.splitlines())


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder.parent)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- arrays


def test_a_group_of_zarr_v3(capsys: pytest.CaptureFixture[str]) -> None:
    found = windrow.inspect(ERA5)
    assert (found.format, found.variant, found.records) == ("zarr", "v3 group", 744)
    t2m = {array.name: array for array in found.arrays}["t2m"]
    assert (t2m.shape, t2m.dtype) == ((744, 33, 49), "float32")
    assert (t2m.chunks, t2m.shards) == ((24, 33, 49), (744, 33, 49))
    assert t2m.codecs == ("blosc(zstd, 9, shuffle)",)
    assert t2m.dims == ("time", "latitude", "longitude")
    assert t2m.decoded_bytes == 744 * 33 * 49 * 4
    assert t2m.stored_bytes == sum(len(data) for data in files_of(ERA5 / "t2m" / "c").values())
    assert t2m.attributes["units"] == "K"
    assert [array.name for array in found.arrays if array.holds_records] == ["t2m"]
    assert found.attributes["license"] == "Licence to use Copernicus Products"
    assert found.stored_bytes == sum(array.stored_bytes or 0 for array in found.arrays)
    text = shown(ERA5, capsys)
    assert text == f"{found}\n"
    assert "Zarr v3 group, 744 records, 4 arrays, 1.69 MB stored, 4.82 MB decoded" in text
    assert has_row(text, "t2m", "744 x 33 x 49", "float32", "time, latitude, longitude")
    assert has_row(text, "t2m: units", "K")
    # Stored as the base64 of its bytes, since JSON has no NaN.
    assert t2m.attributes["_FillValue"] == "AAAAAAAA+H8="
    assert has_row(text, "t2m: _FillValue", "NaN")
    told = as_json(ERA5, capsys)
    assert told == json.loads(json.dumps(found.to_json()))
    assert told["arrays"][2]["chunks"] == [24, 33, 49]
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_group_of_zarr_v2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = zarr.create_group(tmp_path / "g", zarr_format=2, attributes={"title": "a group"})
    array = group.create_array(
        "deep/x",
        shape=(10, 4),
        chunks=(5, 4),
        dtype="<i2",
        fill_value=0,
        compressors=numcodecs.Blosc("lz4", 5, 1),
    )
    array[:] = np.arange(40).reshape(10, 4)
    zarr.consolidate_metadata(group.store)
    found = windrow.inspect(tmp_path / "g")
    assert (found.format, found.variant, found.records) == ("zarr", "v2 group", 10)
    (x,) = found.arrays
    assert (x.name, x.shape, x.dtype, x.chunks, x.shards) == (
        "deep/x",
        (10, 4),
        "int16",
        (5, 4),
        None,
    )
    assert x.codecs == ("blosc(lz4, 5, shuffle)",)
    assert found.attributes == {"title": "a group"}
    text = shown(tmp_path / "g", capsys)
    assert has_row(text, "deep/x", "10 x 4", "int16", "5 x 4")
    assert has_row(text, "title", "a group")


@pytest.mark.parametrize("shape", [(0, 3), (0,), (1, 3), ()], ids=str)
def test_empty_and_tiny_arrays(
    shape: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=shape, dtype="float32", fill_value=0)
    found = windrow.inspect(tmp_path / "a")
    assert found.records == (shape[0] if shape else None)
    assert found.decoded_bytes == int(np.prod(shape, dtype=int)) * 4
    assert "(the array)" in shown(tmp_path / "a", capsys)


def test_texts_and_bfloat16_are_told_though_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = zarr.create_group(tmp_path / "g")
    group.create_array("half", shape=(4, 2), dtype="i4")
    group.create_array("name", shape=(4,), dtype=str)
    meta = tmp_path / "g" / "half" / "zarr.json"
    told = json.loads(meta.read_text())
    told["data_type"] = "bfloat16"
    meta.write_text(json.dumps(told))
    arrays = {array.name: array for array in windrow.inspect(tmp_path / "g").arrays}
    assert (arrays["half"].dtype, arrays["half"].decoded_bytes) == ("bfloat16", 16)
    assert (arrays["name"].dtype, arrays["name"].decoded_bytes) == ("string", None)
    assert has_row(shown(tmp_path / "g", capsys), "name", "4", "string")


def test_an_array_of_n5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ts.open(
        {"driver": "n5", "kvstore": {"driver": "file", "path": f"{tmp_path}/n/"}},
        create=True,
        dtype=ts.uint16,
        shape=(9, 5),
        chunk_layout=ts.ChunkLayout(read_chunk_shape=(3, 5)),
    ).result()
    store[...] = 7
    found = windrow.inspect(tmp_path / "n")
    assert (found.format, found.records) == ("n5", 9)
    assert (found.arrays[0].dtype, found.arrays[0].chunks) == ("uint16", (3, 5))
    assert found.arrays[0].codecs
    assert "N5 array, 9 records" in shown(tmp_path / "n", capsys)


# --- files of records


def test_a_folder_of_array_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "d" / "x-00000-of-00002.array_record", EXAMPLES[:12])
    second = tmp_path / "d" / "x-00001-of-00002.array_record"
    write(second, EXAMPLES[12:], "group_size:4,brotli:5")
    for url in (tmp_path / "d", f"{tmp_path}/d/x-*"):
        found = windrow.inspect(url)
        (files,) = found.files
        assert (found.format, found.records, files.files) == ("array_record", 20, 2)
        assert files.group_records == (1, 4)
        assert files.decoded_bytes == sum(map(len, EXAMPLES))
        assert files.stored_bytes == 2 * second.stat().st_size
        assert [text.split(",")[0] for text in files.options] == ["group_size:1", "group_size:4"]
        assert files.sample is not None
        assert (files.sample.least_bytes, files.sample.most_bytes) == (
            min(map(len, EXAMPLES)),
            max(map(len, EXAMPLES)),
        )
        assert files.first is not None
        assert files.first.kind == "example"
        assert [(f.name, f.kind, f.values) for f in files.first.features] == [
            ("label", "int64", 1),
            ("name", "bytes", 1),
            ("x", "float32", 8),
        ]
    text = shown(tmp_path / "d", capsys)
    assert has_row(text, "records", "20")
    assert has_row(text, "written with", "group_size:1, zstd:3; group_size:4, brotli:5")
    assert has_row(text, "name", "bytes", "1", "4 bytes", "text: no 0")
    assert as_json(tmp_path / "d", capsys)["files"][0]["first"]["kind"] == "example"


@pytest.mark.parametrize("count", [0, 1])
def test_files_of_none_and_of_one_record(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [b"only"][:count]
    paths = [write(tmp_path / "x.array_record", records), tmp_path / "x.tfrecord"]
    write_records(paths[1], records)
    (tmp_path / "x.tfrecord.gz").write_bytes(gzip.compress(paths[1].read_bytes()))
    (tmp_path / "y.tfrecord.gzip").write_bytes(gzip.compress(paths[1].read_bytes()))
    for path in (*paths, tmp_path / "x.tfrecord.gz", tmp_path / "y.tfrecord.gzip"):
        found = windrow.inspect(path)
        (files,) = found.files
        assert (found.records, files.decoded_bytes) == (count, 4 * count)
        assert (files.first is None) == (count == 0)
        assert (files.sample is None) == (count == 0)
        assert has_row(shown(path, capsys), "records", str(count))


def test_tfrecord_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shard in range(2):
        write_records(tmp_path / f"x.tfrecord-{shard:05}-of-00002", EXAMPLES[shard * 10 :][:10])
    for url in (tmp_path, f"{tmp_path}/x.tfrecord-*"):
        found = windrow.inspect(url)
        (files,) = found.files
        assert (found.format, found.records, files.files) == ("tfrecord", 20, 2)
        assert files.decoded_bytes == sum(map(len, EXAMPLES))
        assert files.stored_bytes == files.decoded_bytes + 16 * 20
    text = shown(tmp_path, capsys)
    assert "TFRecord folder, 20 records, 2 files" in text
    assert has_row(text, "x", "float32", "8", "32 bytes", "0, 0, 0, 0, ...")


def test_a_file_of_another_name_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    made = write(tmp_path / "x.array_record", EXAMPLES)
    shutil.move(made, tmp_path / "records")
    write_records(tmp_path / "frames", EXAMPLES)
    assert windrow.inspect(tmp_path / "records").format == "array_record"
    assert windrow.inspect(tmp_path / "frames").format == "tfrecord"


def test_a_file_of_netcdf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5py")
    data = xarray.Dataset(
        {"t": (("time", "x"), np.zeros((6, 4), "f4"), {"units": "K"})},
        coords={"time": np.arange(6)},
        attrs={"title": "a file"},
    )
    encoding = {"t": {"chunksizes": (2, 4), "zlib": True, "complevel": 4}}
    data.to_netcdf(tmp_path / "x.nc", engine="h5netcdf", encoding=encoding)
    found = windrow.inspect(tmp_path / "x.nc")
    assert (found.format, found.stored_bytes) == ("netcdf", (tmp_path / "x.nc").stat().st_size)
    arrays = {array.name: array for array in found.arrays}
    assert (arrays["t"].shape, arrays["t"].chunks) == ((6, 4), (2, 4))
    assert (arrays["t"].dims, arrays["t"].holds_records) == (("time", "x"), True)
    assert not arrays["time"].holds_records
    text = shown(tmp_path / "x.nc", capsys)
    assert has_row(text, "t", "6 x 4", "float32", "time, x", "2 x 4")


def test_a_broken_file_of_netcdf(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    (tmp_path / "broken.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(ReadError, match="cannot be opened as NetCDF"):
        windrow.inspect(tmp_path / "broken.nc")


def test_a_file_of_old_netcdf_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.nc").write_bytes(b"CDF\x01" + bytes(28))
    assert shown(tmp_path / "old.nc", capsys).endswith("NetCDF 3, 32 bytes stored\n")


# --- lines and tables


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    write_lines(tmp_path / "a.jsonl", texts(10))
    write_lines(tmp_path / "b.jsonl.zst", texts(5))
    return tmp_path


def test_json_lines(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = windrow.inspect(lines / "a.jsonl")
    assert (found.format, found.records) == ("json_lines", None)
    (files,) = found.files
    assert files.first is not None
    assert files.sample is not None
    assert files.first.looks_like.startswith('text: {"id": 0, "text": "a row of cut')
    sizes = [len(line) for line in lines_of(texts(10)).splitlines()]
    assert (files.sample.records, files.sample.most_bytes) == (10, max(sizes))
    both = windrow.inspect(lines)
    assert both.files[0].options == ("compressed",)
    assert both.files[0].files == 2
    assert main(["inspect", str(lines)]) == 0
    said = capsys.readouterr().out
    assert "JSON Lines folder, 2 files" in said
    assert "not counted" in said
    assert main(["verify", str(lines / "a.jsonl")]) == 2
    assert "convert it first: windrow convert SRC DST" in capsys.readouterr().err


def test_empty_and_broken_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert windrow.inspect(tmp_path / "a.jsonl").records == 0
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ReadError, match=r"b\.jsonl\.gz: cannot be read after byte 0"):
        windrow.inspect(tmp_path / "b.jsonl.gz")
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    with pytest.raises(ReadError, match=r"c\.parquet: cannot be read as Parquet"):
        windrow.inspect(tmp_path / "c.parquet")


def test_parquet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pyarrow.table({"id": range(10), "text": texts(10)})
    for name in ("a.parquet", "b.parquet"):
        pyarrow.parquet.write_table(table, tmp_path / name, row_group_size=4)
    found = windrow.inspect(tmp_path)
    assert (found.format, found.records) == ("parquet", 20)
    assert found.files[0].group_records == (2, 4)
    assert found.attributes["features"] == {"id": "int64", "text": "string"}
    assert main(["inspect", str(tmp_path)]) == 0
    assert "feature text  string" in capsys.readouterr().out
    monkeypatch.setattr(inspection, "_MOST_FOOTERS", 1)
    assert windrow.inspect(tmp_path).records is None


def test_a_folder_is_an_input(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["convert", str(lines), str(lines / "out"), "--to", "array_record", "--field", "text"]
    assert main(argv) == 0
    assert "15 records in 2 files" in capsys.readouterr().err


# --- what conversions leave


def manifest_of(files: Mapping[str, Path], records: int, **settings: Any) -> Manifest:
    outputs = tuple(OutputFile(n, p.stat().st_size, records, "0") for n, p in files.items())
    skipped = (Skipped("in.tfrecord", 3, "bad"),)
    inputs = (InputFile("in.tfrecord", 1234, records),)
    return Manifest("array_record", inputs, settings, outputs, skipped)


def test_the_manifest_of_a_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "x.array_record"
    raw = [encode_example({"f": np.arange(6, dtype="<f4").tobytes()})] * 3
    path = write(tmp_path / "d" / name, raw)
    features = {"f": {"dtype": "float32", "shape": [2, 3], "raw": True}}
    manifest = manifest_of({name: path}, 3, features=features, options="group_size:1")
    (tmp_path / "d" / MANIFEST_NAME).write_text(json.dumps(manifest.to_json()))
    found = windrow.inspect(tmp_path / "d")
    told = found.manifest
    assert told is not None
    assert (told.format, told.records, told.skipped_records) == ("array_record", 3, 1)
    assert (told.inputs, told.input_bytes, told.files) == (1, 1234, 1)
    assert told.file_bytes == path.stat().st_size
    assert told.windrow == manifest.versions["windrow"]
    assert told.settings["options"] == "group_size:1"
    assert found.finished
    text = shown(tmp_path / "d", capsys)
    assert has_row(text, "f", "bytes", "1", "24 bytes", "float32, 2 x 3")
    assert has_row(text, "skipped records", "1")
    assert has_row(text, "inputs", "1 file, 1.23 KB")
    assert as_json(tmp_path / "d", capsys)["manifest"]["skipped_records"] == 1


def test_an_unfinished_folder_is_shown_and_is_bad_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "d" / "x.array_record", EXAMPLES)
    marker = {
        "note": "This folder is not finished.",
        "resume": "windrow convert a.tfrecord d --to array_record",
        "format": "array_record",
        "inputs": [{"name": "a.tfrecord", "size_bytes": 2000, "version": ""}],
        "settings": {"options": "group_size:1"},
    }
    (tmp_path / "d" / UNFINISHED).write_text(json.dumps(marker))
    found = windrow.inspect(tmp_path / "d")
    assert (found.format, found.finished, found.records) == ("unfinished", False, None)
    assert main(["inspect", f"{tmp_path}/d"]) == 1
    captured = capsys.readouterr()
    assert has_row(captured.out, "inputs", "1 file, 2 KB")
    assert has_row(captured.out, "options", "group_size:1")
    assert captured.err == (
        f"windrow inspect: {tmp_path}/d is unfinished; to resume:"
        " windrow convert a.tfrecord d --to array_record\n"
    )
    assert main(["inspect", f"{tmp_path}/d", "--json", "--picture", f"{tmp_path}/s.png"]) == 1
    assert json.loads(capsys.readouterr().out)["finished"] is False
    assert not (tmp_path / "s.png").exists()


@pytest.mark.parametrize("marker", [b"", b'{"format": 3, "inputs": [7], "settings": []}', b"[1"])
def test_a_damaged_marker_still_marks(
    marker: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / UNFINISHED).write_bytes(marker)
    assert main(["inspect", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "unfinished conversion" in captured.out
    assert "run the conversion again with the same arguments" in captured.err


# --- what cannot be shown


def damaged(tmp_path: Path) -> dict[str, tuple[Path, type[WindrowError], str, int]]:
    """Places by name: with the error, its words and the exit code."""
    records = write(tmp_path / "cut.array_record", EXAMPLES)
    records.write_bytes(records.read_bytes()[:-1000])
    write_records(tmp_path / "cut.tfrecord", EXAMPLES)
    whole = (tmp_path / "cut.tfrecord").read_bytes()
    (tmp_path / "cut.tfrecord").write_bytes(whole[:-3])
    (tmp_path / "bad.tfrecord").write_bytes(whole[:40] + b"#" + whole[41:])
    (tmp_path / "length.tfrecord").write_bytes(whole[:3] + b"#" + whole[4:])
    (tmp_path / "cut.tfrecord.gz").write_bytes(gzip.compress(whole)[:-20])
    (tmp_path / "json.zarr").mkdir()
    (tmp_path / "json.zarr" / "zarr.json").write_text("{")
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / MANIFEST_NAME).write_text("{")
    (tmp_path / "nothing").touch()
    # A record that is cut off lies after the first ones: its length shows it.
    return {
        "cut array_record": (records, SourceError, "is cut off", 1),
        "cut tfrecord": (
            tmp_path / "cut.tfrecord",
            ReadError,
            "record 19 at byte .* is cut off",
            1,
        ),
        "bad tfrecord": (
            tmp_path / "bad.tfrecord",
            ReadError,
            "record 0 at byte 0: the checksum",
            1,
        ),
        "bad length": (tmp_path / "length.tfrecord", ReadError, "the checksum of the length", 1),
        "cut gzip": (tmp_path / "cut.tfrecord.gz", ReadError, "its gzip data do not end", 1),
        "zarr": (tmp_path / "json.zarr", SourceError, "zarr.json in .* is not JSON", 1),
        "manifest": (tmp_path / "manifest", ReadError, "windrow_manifest.json: cannot be read", 1),
        "absent": (tmp_path / "nothin", NotFoundError, "did you mean .*/nothing?", 2),
        "absent zarr": (tmp_path / "x.zarr", NotFoundError, "does not exist", 2),
        "absent glob": (tmp_path / "x-*", NotFoundError, "no file matches", 2),
    }


def test_damage_is_told_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (path, kind, words, code) in damaged(tmp_path).items():
        with pytest.raises(kind, match=words):
            windrow.inspect(path)
        assert main(["inspect", str(path)]) == code, name
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("windrow inspect: "), name
        assert "Traceback" not in captured.err


def test_files_of_several_kinds_are_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "x.tfrecord", EXAMPLES)
    write(tmp_path / "x.array_record", EXAMPLES)
    with pytest.raises(SourceError, match="more than one kind"):
        windrow.inspect(f"{tmp_path}/x.*")


# --- remote


def test_an_array_far_away_takes_a_request_per_file_of_metadata() -> None:
    files = files_of(ERA5)
    with RangeServer(files) as server:
        found = windrow.inspect(server.url(ERA5.name))
        asked = [path for _, path, _ in server.counts().asked]
    assert (found.records, found.stored_bytes) == (744, None)
    assert found.decoded_bytes == windrow.inspect(ERA5).decoded_bytes
    # The manifest, the group (again after it was listed), its listing, four arrays; and the marker,
    # for which sources look too, also in the folder above.
    assert not [path for path in asked if "/c/" in path]
    assert len(asked) <= 11
    again = {f"{ERA5.name}/zarr.json", f"{ERA5.name}/{UNFINISHED}"}
    assert {path for path in asked if asked.count(path) > 1} <= again


def test_a_file_of_array_record_far_away_takes_few_requests(tmp_path: Path) -> None:
    path = write(tmp_path / "x.array_record", [bytes([i]) * 900 for i in range(200)])
    local = windrow.inspect(path)
    with RangeServer({"x.array_record": path.read_bytes()}) as server:
        found = windrow.inspect(server.url("x.array_record"))
        counts = server.counts()
    assert found.files == local.files
    # The end, whether a conversion is unfinished, and 16 record groups, some of them together.
    assert counts.requests <= 2 + 16


def test_a_tfrecord_file_far_away_is_not_read_whole(tmp_path: Path) -> None:
    record = np.random.default_rng(0).bytes(10_000)
    write_records(tmp_path / "x.tfrecord", [record] * 500)
    data = (tmp_path / "x.tfrecord").read_bytes()
    with RangeServer({"x.tfrecord": data}) as server:
        found = windrow.inspect(server.url("x.tfrecord"))
        counts = server.counts()
    (files,) = found.files
    assert (found.records, files.estimated_records) == (None, 500)
    assert files.stored_bytes == len(data)
    assert "about 500" in str(found)
    assert counts.requests <= 3
    assert counts.body_bytes < len(data) / 4


@pytest.mark.jobs
def test_a_store_of_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "d" / "x.array_record", EXAMPLES)
    with ObjectStore() as store:
        for name, data in {**files_of(ERA5), **files_of(tmp_path / "d")}.items():
            store.put(name, data)
        options = store.storage_options
        found = windrow.inspect(store.url(ERA5.name), storage_options=options)
        sized = windrow.inspect(store.url(ERA5.name), storage_options=options, sizes=True)
        assert (found.records, found.stored_bytes) == (744, None)
        assert sized.stored_bytes == windrow.inspect(ERA5).stored_bytes
        argv = [f"--storage-option={key}={json.dumps(value)}" for key, value in options.items()]
        assert main(["inspect", store.url("d"), "--json", *argv]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["format"], told["records"]) == ("array_record", 20)
        assert main(["inspect", store.url("none"), *argv]) == 2
        captured = capsys.readouterr()
        assert "there is nothing at" in captured.err
        assert "secret-not-to-be-seen" not in captured.err + captured.out
        store.put(f"d/{UNFINISHED}", b"{}")
        assert main(["inspect", store.url("d"), *argv]) == 1


def test_the_sizes_of_a_converted_store_come_from_its_manifest(tmp_path: Path) -> None:
    shutil.copytree(ERA5, tmp_path / "z")
    chunks = {str(p.relative_to(tmp_path / "z")): p for p in (tmp_path / "z").rglob("c/**/*")}
    chunks = {name: path for name, path in chunks.items() if path.is_file()}
    manifest = manifest_of(chunks, 744)
    (tmp_path / "z" / MANIFEST_NAME).write_text(json.dumps(manifest.to_json()))
    with RangeServer(files_of(tmp_path / "z")) as server:
        found = windrow.inspect(server.url("z"))
    assert found.stored_bytes == windrow.inspect(ERA5).stored_bytes
    assert found.records == 744


# --- what bytes are


def test_what_records_are() -> None:
    assert content_of(b"").kind == "empty"
    assert content_of("Grüße\naus  Bremen".encode()).looks_like == "text: Grüße aus Bremen"
    assert content_of(("ü" * 5000).encode()).kind == "text"
    assert content_of(b"\x00\x01\x02").looks_like == "bytes, beginning with 00 01 02"
    assert content_of(b"\n\xff\xff\xff").kind == "bytes"
    assert content_of(b"\n a line").kind == "text"
    assert content_of(EXAMPLES[0]).kind == "example"
