"""`windrow convert` detects the input format, picks the conversion and reports the result."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import windrow
from tests.processes import LIMIT_S
from tests.tfds_folders import tfrecord_of, write_folder
from windrow.cli.main import main
from windrow.converters import Manifest, encode_example, write_records
from windrow.converters.tfds.build import check_version
from windrow.errors import MissingExtraError
from windrow.sources import ArrayRecordDataSource, ZarrDataSource
from windrow.sources.tf_example.message import decode_example

DOCS = Path(__file__).resolve().parents[2] / "docs"
IMAGES = np.arange(40 * 6, dtype=np.uint8).reshape(40, 6)


def records(count: int = 40) -> list[bytes]:
    return [encode_example({"image": IMAGES[i].tobytes(), "label": i}) for i in range(count)]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two TFRecord files, 40 records in all, as the current one."""
    monkeypatch.chdir(tmp_path)
    for shard in range(2):
        write_records(f"x.tfrecord-0000{shard}-of-00002", records()[shard * 20 : shard * 20 + 20])
    return tmp_path


def convert(*arguments: str, code: int = 0) -> None:
    assert main(["convert", *arguments]) == code


def test_every_conversion_by_what_there_is(there: Path) -> None:
    convert("x.tfrecord-*", "a", "--to", "array_record")
    convert("x.tfrecord-00000-of-00002", "x.tfrecord-00001-of-00002", "z1", "--to", "zarr")
    convert("a", "b", "--to", "array_record", "--files", "3")
    convert("b", "z2", "--to", "zarr")
    convert("z2", "c", "--to", "array_record")
    convert("c", "z3", "--to", "zarr")
    convert("z3", "z4", "--to", "zarr", "--chunks", "8", "--shards", "0")
    for name in ("a", "b"):
        assert list(ArrayRecordDataSource(there / name)) == records()  # type: ignore[call-overload]
    assert len(list((there / "b").glob("*.array_record-*-of-00003"))) == 3
    for name in ("z1", "z2", "z3", "z4"):
        source = ZarrDataSource(there / name)
        columns = source.read(np.arange(40))
        assert isinstance(columns, dict)
        np.testing.assert_array_equal(columns["image"], IMAGES)
        np.testing.assert_array_equal(columns["label"], np.arange(40))


def test_a_split_of_a_dataset_of_tfds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = write_folder(tmp_path / "counts" / "1.0.0", {"train": [5, 0, 6], "test": [3]})
    tfrecord_of(dataset, tmp_path / "old" / "1.0.0")

    def ids(folder: str) -> list[int]:
        source = ArrayRecordDataSource(tmp_path / folder)
        records = source.read(np.arange(len(source)))
        return [int(np.asarray(decode_example(record)["id"])[0]) for record in records]

    convert("old", "a", "--to", "array_record", "--split", "train")
    assert ids("a") == list(range(11))
    convert("counts", "b", "--to", "array_record", "--split", "train", "--shuffle-seed", "1")
    assert sorted(ids("b")) == list(range(11)) != ids("b")
    for flags, message in (
        ((), "has the splits train, test, and one is converted at a time"),
        (("--split", "train", "--split", "test"), "name it with --split train"),
        (("--split", "valid"), "no split 'valid'; it has 'train', 'test'"),
        (("--split", "train", "--files", "3"), "files is for ArrayRecord, and .*old/1.0.0 is of"),
    ):
        capsys.readouterr()
        convert("old", "c", "--to", "array_record", *flags, code=2)
        assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "c").exists()


def test_a_dry_run_writes_nothing(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(os.listdir(there))
    convert("x.tfrecord-*", "a", "--to", "array_record", "--dry-run")
    out, err = capsys.readouterr()
    assert "tfrecord_to_array_record" in out
    assert "2, 0.0 MB" in out
    assert "new: DST holds nothing yet" in out
    assert err == ""
    assert sorted(os.listdir(there)) == before
    convert("x.tfrecord-*", "a", "--to", "array_record", "--quiet")
    convert("x.tfrecord-*", "a", "--to", "array_record", "--dry-run", "--json")
    out, err = capsys.readouterr()
    assert json.loads(out)["state"] == "finished"
    convert("x.tfrecord-*", "a", "--to", "array_record", "--dry-run")
    out, _ = capsys.readouterr()
    assert re.search(r"done +1 part, 2 files, [0-9.]+ MB", out)
    convert("x.tfrecord-*", "a", "--to", "array_record", "--writer-options", "zstd:1", "--dry-run")
    out, _ = capsys.readouterr()
    assert "DST holds another conversion: refused without --overwrite" in out
    assert "writer_options: 'group_size:1,zstd:3' there, 'zstd:1' asked for" in out


def test_json_is_the_manifest(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert("x.tfrecord-*", "z", "--to", "zarr", "--json")
    out, err = capsys.readouterr()
    assert json.loads(out) == Manifest.read("z").to_json()
    assert err == ""


def test_what_the_docs_show_is_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (1000, 64), dtype=np.uint8)
    examples = [{"image": images[i].tobytes(), "label": i % 10} for i in range(1000)]
    write_records("digits.tfrecord", map(encode_example, examples))
    convert("digits.tfrecord", "digits", "--to", "array_record", "--quiet")
    convert("digits", "digits_zarr", "--to", "zarr")
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    shown = page.partition("$ windrow convert digits digits_zarr --to zarr\n")[2].partition("```")[
        0
    ]
    assert shown == capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "z", "--to", "zarr"], "convert: .*/a does not exist"),
        (["z", "--to", "zarr"], "Missing argument 'SRC...'"),
        (["a", "z"], "Missing option '--to'"),
        (["x.tfrecord-*", "z", "--to", "zarr", "--files", "2"], "--files: a conversion from tfrec"),
        (["x.tfrecord-*", "z", "--to", "zarr", "--chunks", "2"], "--chunks: .* takes --chunk-rows"),
        (
            ["x.tfrecord-*", "z", "--to", "zarr", "--memory", "1XB"],
            "'1XB' is not a size; write 512MB",
        ),
        (
            ["x.tfrecord-*", "z", "--to", "zarr", "--features", "{"],
            "'{' is neither a file nor JSON",
        ),
        (["x.tfrecord-*", "z", "--to", "zarr", "--decode", "json"], "write module:function"),
        (["x.tfrecord-*", "z", "--to", "zarr", "--decode", "json:x"], "no attribute 'x'"),
        (["x.tfrecord-*", "z", "--to", "zarr", "--decode", "json:__name__"], "is not a function"),
        (
            ["x.tfrecord-*", "z", "--to", "zarr", "--from", "netcdf", "--chunk-rows", "2"],
            "netcdf to",
        ),
        (["x.tfrecord-*", "z", "--to", "pickle"], "'pickle' is not one of"),
        (["x.tfrecord-*", "no://z", "--to", "zarr"], "output no://z: cannot be opened: Protocol"),
        ([".", "z", "--to", "zarr", "--from", "array_record"], "no file with .array_record"),
    ],
)
def test_bad_arguments(
    there: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    convert(*arguments, code=2)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(message, err), err
    assert not (there / "z").exists()


def test_bad_data_is_told_or_skipped(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = there / "x.tfrecord-00001-of-00002"
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    convert("x.tfrecord-*", "a", "--to", "array_record", code=1)
    assert "x.tfrecord-00001-of-00002: record 19 at byte " in capsys.readouterr().err
    convert("x.tfrecord-*", "a", "--to", "array_record", "--max-bad-records", "1")
    assert "a: 39 records in 2 files" in (err := capsys.readouterr().err)
    assert "1 damaged ones skipped" in err
    assert Manifest.read("a").skipped[0].record == 19


def test_functions_features_and_sizes(there: Path) -> None:
    (there / "mine.py").write_text(
        "import numpy as np\n"
        "from windrow.converters import decode_example\n"
        "def decode(record):\n"
        "    found = decode_example(record)\n"
        "    return {'image': np.frombuffer(found['image'][0], np.uint8).reshape(2, 3)}\n"
    )
    convert("x.tfrecord-*", "z", "--to", "zarr", "--decode", "mine:decode", "--memory", "400MB")
    sys.modules.pop("mine")
    assert ZarrDataSource(there / "z").read(np.arange(2))["image"].shape == (2, 2, 3)
    features = {"image": {"dtype": "uint8", "shape": [3, 2], "raw": True}}
    (there / "f.json").write_text(json.dumps(features))
    convert("x.tfrecord-*", "y", "--to", "zarr", "--features", "f.json")
    assert ZarrDataSource(there / "y").read(np.arange(2))["image"].shape == (2, 3, 2)


def test_what_is_unfinished_names_the_command_that_goes_on(
    there: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["x.tfrecord-*", "a b", "--to", "array_record", "--storage-option", "key=secret99"]
    replace, left = os.replace, iter(range(4))

    def failing(*names: str) -> None:
        if next(left, None) is None:
            raise OSError("no more")
        replace(*names)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        convert(*arguments, "--overwrite", code=1)
    told = "windrow convert 'x.tfrecord-*' 'a b' --to array_record --storage-option key=..."
    with pytest.raises(windrow.errors.ConversionError) as refused:
        ArrayRecordDataSource(there / "a b")
    assert str(refused.value).endswith(f"\n  {told}")
    for path in (there / "a b").rglob("*"):
        assert path.is_dir() or b"secret99" not in path.read_bytes()
    convert("x.tfrecord-*", "a b", "--to", "array_record", "--dry-run")
    assert "begun: resumes with the remaining parts" in capsys.readouterr().out
    convert("x.tfrecord-*", "a b", "--to", "array_record")
    assert len(ArrayRecordDataSource(there / "a b")) == 40


# --- packages that are not installed --------------------------------------------------------------

WITHOUT = """
import sys
for name in ("s3fs", "gcsfs", "apache_beam"):
    sys.modules[name] = None
from windrow.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("source", "output", "more", "extra"),
    [
        ("s3://bucket/x.tfrecord", "out", (), "s3"),
        ("gs://bucket/x.array_record", "out", (), "gcs"),
        ("s3://bucket/x.nc", "out", (), "s3"),
        ("x.tfrecord", "s3://bucket/out", (), "s3"),
        ("x.tfrecord", "out", ("--runner", "DirectRunner"), "beam"),
        ("x.tfrecord", "out", ("--pipeline-option=--streaming",), "beam"),
    ],
    ids=str,
)
def test_the_error_names_the_extra_and_nothing_is_begun(
    source: str, output: str, more: tuple[str, ...], extra: str, tmp_path: Path
) -> None:
    write_records(tmp_path / "x.tfrecord", [b"one"])
    argv = ("convert", source, output, "--to", "array_record", *more)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *argv],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
    )
    assert done.returncode == 2, done.stderr
    assert f"needs the packages of windrow-data[{extra}]" in done.stderr
    assert done.stderr.startswith("windrow convert: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_build_without_tfds_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("tensorflow-datasets", "tfds-nightly"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(MissingExtraError, match=r"run: pip install .*tensorflow-datasets; or in"):
        check_version()
