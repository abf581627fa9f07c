"""Folders of tfds: which one a path or a name stands for, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.range_server import RangeServer
from tests.tfds_folders import LABELS, write_folder
from windrow.errors import (
    ArgumentError,
    ConversionError,
    NotFoundError,
    SourceError,
    WindrowError,
)
from windrow.sources.tfds.folder import FileInstruction, TfdsFolder

SPLITS = {"train": [5, 0, 3], "test": [2]}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No dataset of the machine is found, and no folder of the project is taken for one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "datasets"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two versions, a third one that is older by number and not by text, two configs."""
    root = tmp_path / "datasets"
    for version in ("1.2.0", "1.10.0", "0.9.9"):
        write_folder(root / "counts" / version, {"train": [1]}, version=version)
    for config, version in (("small", "1.0.0"), ("large", "2.0.0"), ("large", "2.1.0")):
        folder = root / "my_sums" / config / version
        write_folder(folder, SPLITS, name="my_sums", version=version, configName=config)
    (root / "my_sums" / ".config").mkdir()
    told = json.dumps({"default_config_name": "large"})
    (root / "my_sums" / ".config" / "metadata.json").write_text(told)
    (root / "counts" / "incomplete.ABCDEF_1.11.0").mkdir()
    return root


@pytest.mark.parametrize(
    ("named", "full_name"),
    [
        ("counts", "counts/1.10.0"),
        ("counts:1.2.0", "counts/1.2.0"),
        ("counts:1.*.*", "counts/1.10.0"),
        ("counts:0.*.*", "counts/0.9.9"),
        ("Counts", "counts/1.10.0"),
        ("MySums", "my_sums/large/2.1.0"),
        ("my_sums/small", "my_sums/small/1.0.0"),
        ("my_sums/large:2.0.*", "my_sums/large/2.0.0"),
        ("my_sums:2.0.0", "my_sums/large/2.0.0"),
    ],
)
def test_names(data: Path, named: str, full_name: str) -> None:
    found = TfdsFolder.found(named, data_dir=data)
    assert found.full_name == full_name
    assert found.path == str(data / full_name)
    assert TfdsFolder.found(named).path == found.path  # by the environment
    assert TfdsFolder.found(named, data_dir=str(data)).path == found.path


@pytest.mark.parametrize("below", ["counts", "counts/1.10.0", "my_sums", "my_sums/large"])
def test_folders(data: Path, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = data / below
    found = TfdsFolder.found(path)
    assert found.path.startswith(str(path))
    assert TfdsFolder.found(str(path) + "/").path == found.path
    assert TfdsFolder.found(path.as_uri()).path == found.path
    monkeypatch.chdir(data)
    assert TfdsFolder.found(below).path == found.path
    assert TfdsFolder.found(Path(below)).path == found.path


def test_the_code_of_a_builder_is_no_dataset(data: Path) -> None:
    Path("counts").mkdir()  # where `tfds new counts` puts it
    Path("counts/counts_dataset_builder.py").touch()
    assert TfdsFolder.found("counts").path == str(data / "counts" / "1.10.0")
    with pytest.raises(NotFoundError, match=r"has no dataset_info\.json, .*counts_dataset_build"):
        TfdsFolder.found(Path("counts"))


def test_what_a_folder_tells(tmp_path: Path) -> None:
    found = TfdsFolder.found(write_folder(tmp_path / "a", SPLITS, description="Numbers."))
    assert (found.name, found.config, found.version) == ("counts", None, "1.0.0")
    assert (found.formats, found.description) == (("array_record",), "Numbers.")
    assert found.shards == {"train": (5, 0, 3), "test": (2,)}
    assert found.labels == {"label": LABELS}
    assert pickle.loads(pickle.dumps(found)).shards == found.shards
    files = [str(tmp_path / "a" / f"counts-train.array_record-0000{k}-of-00003") for k in range(3)]
    assert found.files("train", "array_record") == files
    assert all(map(os.path.isfile, files))
    assert found.instructions("train[4:6]") == [
        FileInstruction(files[0], 4, 1, 5),
        FileInstruction(files[2], 0, 1, 3),
    ]
    assert found.instructions("train[:0]") == [FileInstruction(files[0], 0, 0, 5)]


def test_a_split_must_be_chosen_among_several(tmp_path: Path) -> None:
    found = TfdsFolder.found(write_folder(tmp_path / "a", SPLITS))
    assert found.chosen("test") == "test"
    with pytest.raises(SourceError, match=r"has train \(8 records\), test \(2 records\); choose"):
        found.chosen(None)
    assert TfdsFolder.found(write_folder(tmp_path / "b", {"x": [1]})).chosen(None) == "x"


@pytest.mark.parametrize(
    "template",
    [
        "{SPLIT}/{DATASET}.{FILEFORMAT}-{SHARD_INDEX}",
        "{DATASET}_{SPLIT}-{SHARD_INDEX}-{NUM_SHARDS}.{FILEFORMAT}",
    ],
)
def test_names_of_files_are_those_of_the_template(tmp_path: Path, template: str) -> None:
    found = TfdsFolder.found(write_folder(tmp_path / "a", SPLITS, template=template))
    assert not found.absent
    assert all(os.path.isfile(file) for file in found.files("train", "array_record"))
    os.remove(found.files("train", "array_record")[2])
    with pytest.raises(NotFoundError, match=r"00002.* is missing in"):
        TfdsFolder.found(tmp_path / "a").instructions("train")


def test_a_missing_file_matters_where_it_is_needed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", SPLITS)
    (folder / "counts-train.array_record-00002-of-00003").unlink()
    found = TfdsFolder.found(folder)
    assert len(found.instructions("test+train[:5]")) == 2
    match = r"counts-train\.array_record-00002-of-00003 is missing in .*a \(in all, 1 files"
    with pytest.raises(NotFoundError, match=match):
        found.instructions("train[4:6]")
    with pytest.raises(NotFoundError, match=match):
        found.files("train", "array_record")


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "dataset_info.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_formats(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", {"train": [1]})
    edit(folder, fileFormat="tfrecord", alternativeFileFormats=["array_record"])
    found = TfdsFolder.found(folder)
    assert found.formats == ("tfrecord", "array_record")
    assert found.absent == {"counts-train.tfrecord-00000-of-00001"}
    assert len(found.instructions("train")) == 1
    edit(folder, fileFormat="", alternativeFileFormats=[])  # of an old tfds
    assert TfdsFolder.found(folder).formats == ("tfrecord",)


@pytest.mark.parametrize(
    ("named", "error", "match"),
    [
        ("other", NotFoundError, r"no dataset in .*datasets/other: there is no such folder\. Name"),
        (
            "counts:3.*.*",
            NotFoundError,
            r"no dataset of version 3\.\*\.\* in .*it holds 0\.9\.9, 1",
        ),
        ("my_sums/mid", NotFoundError, "there is no such folder"),
        ("my_sums:1.0.0", NotFoundError, "it holds .config, large, small; a folder in it may be"),
        ("some:counts", NotFoundError, "some:counts does not exist"),
        ("counts/x/y", NotFoundError, "does not exist"),
        ("", ArgumentError, "must be a string"),
    ],
)
def test_what_is_not_found(data: Path, named: str, error: type[WindrowError], match: str) -> None:
    with pytest.raises(error, match=match):
        TfdsFolder.found(named)


def test_what_was_left_incomplete_is_refused(data: Path, tmp_path: Path) -> None:
    left = data / "counts" / "incomplete.ABCDEF_1.11.0"
    with pytest.raises(ConversionError, match=r"1\.11\.0 is being built by tfds, or was left inc"):
        TfdsFolder.found(left)
    write_folder(left / "x", SPLITS).rename(tmp_path / "whole")
    for name in os.listdir(tmp_path / "whole"):
        (tmp_path / "whole" / name).rename(left / name)
    with pytest.raises(ConversionError, match="is being built by tfds"):  # all but renamed
        TfdsFolder.found(left)
    (tmp_path / "only" / "incomplete.ABCDEF_1.0.0").mkdir(parents=True)
    with pytest.raises(ConversionError, match="and no finished version; build the dataset again"):
        TfdsFolder.found(tmp_path / "only")
    with pytest.raises(ConversionError, match=r"only holds incomplete\.ABCDEF_1\.0\.0, which tfds"):
        TfdsFolder.found("only", data_dir=tmp_path)
    folder = write_folder(tmp_path / "b", SPLITS)
    (folder / "_WINDROW_UNFINISHED").write_text("{}")
    with pytest.raises(ConversionError, match=r"conversion that writes .*/b has not finished"):
        TfdsFolder.found(folder)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("features.json", None, r"has no features\.json: it was built by a tfds before 4\.0"),
        ("features.json", "{", r"features\.json: not JSON"),
        (
            "dataset_info.json",
            "[]",
            r"dataset_info\.json: not in the form that tfds writes: TypeError: it",
        ),
        (
            "dataset_info.json",
            '{"splits": [{"name": "a", "shardLengths": ["-1"]}]}',
            "'a' is not a split of tfds",
        ),
        (
            "dataset_info.json",
            '{"splits": [{"name": "a", "shardLengths": ["1"]}, {"name": "a"}]}',
            "two splits have the same name",
        ),
        ("label.labels.txt", "caf\u00e9", r"label\.labels\.txt: not UTF-8 text: 'utf-8' codec"),
        (
            "dataset_info.json",
            '{"name": "a", "version": "1.0.0", "splits":'
            ' [{"name": "b", "shardLengths": [1], "filepathTemplate": "../{SPLIT}"}]}',
            r"has files named '\.\./\{SPLIT\}', an unknown pattern",
        ),
    ],
)
def test_files_that_tell_nothing(tmp_path: Path, name: str, text: str | None, match: str) -> None:
    folder = write_folder(tmp_path / "a", SPLITS)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text, encoding="latin-1")
    with pytest.raises(SourceError, match=match):
        TfdsFolder.found(folder)


def test_names_of_classes_are_as_many_as_there_are_classes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", SPLITS)
    (folder / "label.labels.txt").write_text("one\n")
    found = TfdsFolder.found(folder)
    match = r"feature 'label' has 3 classes, and label\.labels\.txt names 1; build or copy"
    with pytest.raises(SourceError, match=match):
        _ = found.features
    assert [leaf.name for leaf in found.features_of(["id"]).leaves] == ["id"]
    (folder / "label.labels.txt").unlink()  # a label of numbers alone has none
    assert TfdsFolder.found(folder).features.class_names("label") is None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(tmp_path) as running:
        yield running


def test_at_urls(data: Path, server: RangeServer) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(data), "/tfds/", recursive=True)
    here = TfdsFolder.found("my_sums", data_dir=data)
    for url in ("memory://tfds/datasets", server.url("datasets")):
        there = TfdsFolder.found("my_sums", data_dir=url)
        assert there.path == f"{url}/my_sums/large/2.1.0"
        assert TfdsFolder.found(f"{url}/my_sums/large").path == there.path
        assert TfdsFolder.found(there.path).shards == here.shards
        assert there.labels == here.labels
        with pytest.raises(NotFoundError, match="has no dataset_info"):
            TfdsFolder.found(f"{url}/nothing")
    memory.rm("/tfds/datasets/my_sums/large/2.1.0/my_sums-test.array_record-00000-of-00001")
    with pytest.raises(NotFoundError, match="00000-of-00001 is missing in memory://tfds"):
        TfdsFolder.found("memory://tfds/datasets/my_sums").instructions("all")
