"""Datasets of tfds as a source: examples, splits, nodes, workers, stores, faults, commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.array_record_bytes import write
from tests.kitchen import kitchen_folder
from tests.range_server import RangeServer
from tests.tfds_folders import LABELS, example, write_folder
from windrow.cli.main import main
from windrow.converters import encode_example
from windrow.errors import (
    ArgumentError,
    NotFoundError,
    ReadError,
    SourceError,
)
from windrow.sources import RemoteOptions, TFDSDataSource, even_splits

SPLITS = {"train": [23, 0, 18], "test": [9]}
QUICK = RemoteOptions(backoff_s=0.01, max_backoff_s=0.05, outage_s=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("data") / "counts" / "1.0.0", SPLITS)


def ids(columns: Any) -> list[int]:
    found: list[int] = columns["id"].tolist()
    return found


def everything(source: TFDSDataSource) -> list[int]:
    return ids(source.read(np.arange(len(source))))


def test_examples(folder: Path) -> None:
    source = TFDSDataSource(folder, split="train")
    assert len(source) == 41
    order = np.random.default_rng(0).permutation(41)
    columns = source.read(order)
    assert columns["id"].tolist() == order.tolist()
    assert columns["id"].dtype == columns["label"].dtype == np.int64
    assert columns["text"] == [example("train", int(i))["text"] for i in order]
    assert source[-1] == example("train", 40)
    assert source.__getitems__([3, 3, 0]) == [example("train", i) for i in (3, 3, 0)]


def test_what_it_tells(folder: Path) -> None:
    source = TFDSDataSource(folder, split="train[:50%]+test")
    assert source.splits == {"train": 41, "test": 9}
    assert (source.split, len(source)) == ("train[:50%]+test", 29)
    assert source.class_names("label") == LABELS
    assert source.class_names("id") is None
    with pytest.raises(ArgumentError, match="no feature 'lable'; there are id, label, text"):
        source.class_names("lable")
    assert (source.folder.full_name, source.is_remote_source) == ("counts/1.0.0", False)
    assert [leaf.name for leaf in source.features.leaves] == ["id", "label", "text"]
    assert repr(source) == (
        f"TFDSDataSource(29 examples of counts/1.0.0, split train[:50%]+test, in {folder})"
    )
    assert source.spec["id"] == windrow.sources.ArraySpec((), np.int64)
    assert source.spec["text"] is bytes


def test_no_indices_give_columns_of_the_spec(folder: Path) -> None:
    for split in ("train", "train[:0]"):
        source = TFDSDataSource(folder, split=split)
        columns = source.read(np.arange(0))
        assert (columns["id"].shape, columns["id"].dtype) == ((0,), np.int64)
        assert columns["text"] == []
    assert len(source) == 0
    assert list(windrow.MapDataset.source(source).batch(2)) == []


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[10%:20%]+test", [*range(4, 8), *range(1000, 1009)]),
        ("test[-2:]+train[:1]", [1007, 1008, 0]),
        ("train[22:24]", [22, 23]),
        ("train[2shard]", list(range(23, 41))),
        ("test+test[:1]", [*range(1000, 1009), 1000]),
        ("all", [*range(41), *range(1000, 1009)]),
    ],
)
def test_splits(folder: Path, split: str, expected: list[int]) -> None:
    assert everything(TFDSDataSource(folder, split=split)) == expected


def test_names_of_features(folder: Path) -> None:
    source = TFDSDataSource(folder, split="test", names=["text", "id"])
    assert list(source[0]) == ["text", "id"]
    assert source.fingerprint != TFDSDataSource(folder, split="test").fingerprint
    with pytest.raises(NotFoundError, match=r"no feature 'strings' at the top; there is id, label"):
        TFDSDataSource(folder, split="test", names=["strings"])
    for names in ("id", 5, [5], {"id": 1}):
        with pytest.raises(ArgumentError, match="names must be a list of names, got "):
            TFDSDataSource(folder, split="test", names=names)  # type: ignore[arg-type]


# ---- chains


def chain(source: TFDSDataSource) -> Any:
    return (
        windrow.MapDataset.source(source)
        .shuffle(seed=4)
        .map(lambda row: {**row, "twice": row["id"] * 2})
        .filter(lambda row: row["label"] != 1)
        .repeat(2)
        .to_iter_dataset()
        .batch(4)
    )


def told(stream: Any) -> list[Any]:
    return [(b["id"].tolist(), b["twice"].tolist(), list(b["text"])) for b in stream]


def test_fingerprints(folder: Path, tmp_path: Path) -> None:
    source = TFDSDataSource(folder, split="train")
    copied = write_folder(tmp_path / "elsewhere", SPLITS)
    assert TFDSDataSource(copied, split="train").fingerprint == source.fingerprint
    assert TFDSDataSource(folder, split="train[:41]").fingerprint == source.fingerprint
    others = [
        TFDSDataSource(folder, split="train[1:]"),
        TFDSDataSource(folder, split="train", images=True),
        TFDSDataSource(write_folder(tmp_path / "b", SPLITS, version="1.0.1"), split="train"),
        TFDSDataSource(write_folder(tmp_path / "c", SPLITS, configName="c"), split="train"),
    ]
    renamed = write_folder(tmp_path / "d", SPLITS)
    (renamed / "label.labels.txt").write_text("two\none\nthree\n")
    others.append(TFDSDataSource(renamed, split="train"))
    assert len({source.fingerprint, *(other.fingerprint for other in others)}) == 6
    numbers = TFDSDataSource(folder, split="train", names=["id"]).fingerprint
    assert TFDSDataSource(renamed, split="train", names=["id"]).fingerprint == numbers
    assert str(folder) not in source.fingerprint


# ---- remote


def test_at_a_server(folder: Path) -> None:
    here = TFDSDataSource(folder, split="train[30%:]+test")
    for listings in (True, False):
        with RangeServer(folder.parent.parent, listings=listings) as server:
            url = server.url("counts/1.0.0")
            there = TFDSDataSource(url, split="train[30%:]+test", remote=QUICK)
            assert there.is_remote_source
            assert there.fingerprint == here.fingerprint
            assert there.class_names("label") == LABELS
            assert everything(there) == everything(here)
            assert there.stats()["requests"] > 0
            assert told(chain(there)) == told(chain(here))


# ---- what is refused, and faults


def test_another_format_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", SPLITS, fileFormat="tfrecord")
    match = (
        r"is of format tfrecord, .*windrow convert .*a DST --to zarr.*--file_format=array_record"
    )
    with pytest.raises(SourceError, match=match):
        TFDSDataSource(folder, split="train")


@pytest.mark.parametrize(
    ("record", "why"),
    [(b"no Example", "not a tf.train.Example"), (encode_example({"id": 1, "text": "a"}), "label")],
)
def test_a_record_that_is_no_example_is_named(tmp_path: Path, record: bytes, why: str) -> None:
    folder = write_folder(tmp_path / "a", SPLITS)
    file = folder / "counts-train.array_record-00002-of-00003"
    records = [encode_example(example("train", 23 + at)) for at in range(18)]
    write(file, [*records[:11], record, *records[12:]], "group_size:4")
    source = TFDSDataSource(folder, split="test+train[25:]")
    good = [i for i in range(len(source)) if i != 18]
    assert ids(source.read(np.array(good[::-1])))[-1] == 1000
    match = rf"record 11 of {file}, record 18 of this source, cannot be decoded: .*{why}"
    with pytest.raises(ReadError, match=match) as caught:
        source.read(np.array([3, 20, 18, 5]))
    assert (caught.value.file, caught.value.records) == (str(file), (18, 19))
    assert "features=" not in str(caught.value)  # this source does not take features=
    assert str(caught.value).endswith("such as 'train[:5]+train[6:]'")
    with pytest.raises(ReadError, match=match):
        list(windrow.MapDataset.source(source).shuffle(seed=0).batch(5))


# ---- commands


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command: exit code, stdout and stderr."""

    def command(*args: object) -> tuple[int, str, str]:
        code = main([str(arg) for arg in args])
        return code, *capsys.readouterr()

    return command


def test_inspect_tells_splits_and_features(folder: Path, run: Run) -> None:
    for path in (folder, folder.parent):
        found = windrow.inspect(path)
        assert (found.format, found.variant, found.records) == ("tfds", "of ArrayRecord", 50)
        assert [(one.name, one.records) for one in found.files] == [("train", 41), ("test", 9)]
        told = found.attributes["features"]
        assert told["label"] == "ClassLabel int64 3 classes: one, two, three"
    code, out, _ = run("inspect", folder)
    assert code == 0
    for words in ("tfds folder of ArrayRecord", "version", "feature text", "1.0.0", "counts"):
        assert words in out


def test_pictures_of_a_dataset_are_drawn(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("matplotlib")
    kitchen = kitchen_folder(tmp_path)
    for path in (kitchen, kitchen.parent):
        picture = tmp_path / f"{path.name}.png"
        code, _, err = run(
            "inspect", path, "--picture", picture, "--field", "image", "--records", "0,3"
        )
        assert code == 0
        assert "2 records of" in err
        assert picture.stat().st_size > 1000


def test_verify_reads_all_splits_and_misses_files(tmp_path: Path, run: Run) -> None:
    folder = write_folder(tmp_path / "a", SPLITS)
    code, out, _ = run("verify", folder, "--json", "--quiet")
    assert code == 0
    assert json.loads(out)["records"] == 50
    (folder / "counts-train.array_record-00002-of-00003").unlink()
    code, out, _ = run("verify", folder, "--quiet")
    assert code == 1
    assert "counts-train.array_record-00002-of-00003" in out


# ---- next to tfds


@pytest.mark.tfds
@pytest.mark.parametrize(
    "split",
    ["train", "test[:50%]+train[-30%:]", "train[2shard]", "all", "train[20:30]", "test+test[1:]"],
)
def test_examples_are_those_of_tfds(folder: Path, split: str) -> None:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    pairs: list[tuple[Any, Any]] = [(split, split)]
    pairs += zip(even_splits(split, 3), tfds.even_splits(split, 3), strict=True)
    for ours, theirs in pairs:
        source, expected = TFDSDataSource(folder, split=ours), builder.as_data_source(split=theirs)
        assert list(source.__getitems__(range(len(source)))) == list(expected)
        assert source.class_names("label") == tuple(builder.info.features["label"].names)


@pytest.mark.tfds
@pytest.mark.parametrize(
    "named", ["counts", "counts:1.*.*", "counts:1.2.0", "my_sums", "my_sums/small", "Counts:0.*.*"]
)
def test_names_are_found_where_tfds_finds_them(tmp_path: Path, named: str) -> None:
    import tensorflow_datasets as tfds

    for version in ("1.2.0", "1.10.0", "0.9.9"):
        write_folder(tmp_path / "counts" / version, {"train": [1]}, version=version)
    for config in ("small", "large"):
        folder = tmp_path / "my_sums" / config / "1.0.0"
        write_folder(folder, {"train": [1]}, name="my_sums", configName=config)
    (tmp_path / "my_sums" / ".config").mkdir()
    told = json.dumps({"default_config_name": "large"})
    (tmp_path / "my_sums" / ".config" / "metadata.json").write_text(told)
    found = tfds.core.read_only_builder.builder_from_files(named, data_dir=tmp_path)
    ours = TFDSDataSource(named, data_dir=tmp_path)
    assert ours.folder.path == str(found.data_dir).rstrip("/")
    assert ours.folder.full_name == found.info.full_name
