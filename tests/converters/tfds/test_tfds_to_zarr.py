"""Folders of tfds to Zarr: all features, there and back; splits; stopped runs; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conversion_cases import tree
from tests.kitchen import kitchen_folder
from tests.tfds_builders import assert_same
from tests.tfds_folders import LABELS, example, tfrecord_of, write_folder
from tests.tfds_json import TEXT, sequence, tensor, write_dataset
from windrow.cli.main import main
from windrow.converters import Manifest, check, tfds_to_zarr
from windrow.converters.tfds.conversions import read_split
from windrow.core.progress import Progress
from windrow.errors import (
    ArgumentError,
    ConversionError,
    NotFoundError,
    ReadError,
    SourceError,
)
from windrow.sources import TFDSDataSource, ZarrDataSource

SPLITS = {"train": [23, 0, 18], "test": [9]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("data") / "counts" / "1.0.0", SPLITS)


# All features, there and back.


@pytest.mark.jobs
@pytest.mark.parametrize("images", [False, True])
def test_all_features_come_back_bit_for_bit(tmp_path: Path, images: bool) -> None:
    dataset = kitchen_folder(tmp_path)
    tfds_to_zarr(dataset, tmp_path / "zarr", images=images, progress=False)
    for split in ("train", "test"):
        source = TFDSDataSource(dataset, split=split, images=images)
        assert_same(
            read_split(tmp_path / "zarr" / split), source.read(np.arange(len(source))), split
        )
        assert_same(
            read_split(tmp_path / "zarr" / split, 1, 4), source.read(np.arange(1, 4)), split
        )
    assert check(tmp_path / "zarr", progress=False).ok


# Splits, and what lies there.


def test_splits_are_groups_with_all_their_records(folder: Path, tmp_path: Path) -> None:
    manifest = tfds_to_zarr(folder, tmp_path / "zarr", progress=False)
    assert manifest.records == 50
    for split, records in (("train", 41), ("test", 9)):
        source = ZarrDataSource(tmp_path / "zarr" / split)
        assert source.read(np.arange(records))["id"].tolist() == [
            example(split, at)["id"] for at in range(records)
        ]
        assert read_split(tmp_path / "zarr" / split)["text"] == [
            example(split, at)["text"] for at in range(records)
        ]
    told = json.loads((tmp_path / "zarr/train/label/zarr.json").read_text())["attributes"]["tfds"]
    assert told["names"] == list(LABELS)


def test_some_splits_and_features(folder: Path, tmp_path: Path) -> None:
    tfds_to_zarr(folder, tmp_path / "zarr", splits=["test"], names=["label"], progress=False)
    assert list(read_split(tmp_path / "zarr" / "test")) == ["label"]
    assert not (tmp_path / "zarr" / "train").exists()


def test_a_split_without_records(tmp_path: Path) -> None:
    dataset = write_folder(tmp_path / "counts" / "1.0.0", {"train": [3], "test": []})
    tfds_to_zarr(dataset, tmp_path / "zarr", progress=False)
    found = read_split(tmp_path / "zarr" / "test")
    assert found["text"] == []
    assert found["id"].shape == (0,)
    assert found["id"].dtype == np.int64


def test_tfrecord_gives_what_array_record_gives(folder: Path, tmp_path: Path) -> None:
    other = tfrecord_of(folder, tmp_path / "counts" / "1.0.0")
    tfds_to_zarr(folder, tmp_path / "a", progress=False)
    tfds_to_zarr(other, tmp_path / "b", progress=False)
    for split in SPLITS:
        assert_same(read_split(tmp_path / "b" / split), read_split(tmp_path / "a" / split))


class StopError(Exception):
    """Stops a run."""


@pytest.mark.parametrize("calls", [1, 3, 5])
def test_a_run_that_was_stopped_goes_on(folder: Path, tmp_path: Path, calls: int) -> None:
    left = calls

    def stopping(_: Progress) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise StopError

    with pytest.raises(StopError):
        tfds_to_zarr(folder, tmp_path / "zarr", progress=stopping)
    with pytest.raises(ConversionError, match="has not finished"):
        ZarrDataSource(tmp_path / "zarr")
    with pytest.raises(ConversionError, match="has not finished"):
        ZarrDataSource(tmp_path / "zarr" / "train")
    tfds_to_zarr(folder, tmp_path / "zarr", progress=False)
    tfds_to_zarr(folder, tmp_path / "whole", progress=False)
    assert tree(tmp_path / "zarr") == tree(tmp_path / "whole")


def test_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    above, output = str(folder.parent), str(tmp_path / "zarr")
    assert main(["convert", above, output, "--to", "zarr", "--dry-run"]) == 0
    assert "tfds_to_zarr" in capsys.readouterr().out
    assert main(["convert", above, output, "--to", "zarr", "--split", "test", "-q"]) == 0
    assert Manifest.read(output).records == 9
    assert main(["verify", output]) == 0
    assert main(["convert", above, output, "--to", "array_record", "--codecs", "none"]) == 2
    assert "tfds to array_record does not take it" in capsys.readouterr().err


# What is refused.


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"splits": ["valid"]}, NotFoundError, "no split 'valid'; it has 'train', 'test'"),
        ({"splits": []}, NotFoundError, "no split to convert"),
        ({"splits": "train"}, ArgumentError, "splits must be a list of names, got 'train'"),
        ({"splits": 5}, ArgumentError, "splits must be a list of names, got 5"),
        ({"names": "id"}, ArgumentError, "names must be a list of names, got 'id'"),
        ({"names": 5}, ArgumentError, "names must be a list of names, got 5"),
        ({"names": ["image"]}, NotFoundError, "'image'"),
        ({"images": 1}, ArgumentError, "images is a bool"),
        ({"chunk_rows": 0}, ArgumentError, "chunk_rows"),
    ],
)
def test_wrong_arguments(
    folder: Path, tmp_path: Path, settings: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tfds_to_zarr(folder, tmp_path / "zarr", progress=False, **settings)
    assert not (tmp_path / "zarr").exists()


def changed(folder: Path, into: Path, file: str, old: str, new: str) -> Path:
    """A copy of the folder with a string in one of its small files replaced."""
    into.mkdir(parents=True)
    for path in folder.iterdir():
        (into / path.name).write_bytes(path.read_bytes())
    text = (folder / file).read_text()
    assert old in text
    (into / file).write_text(text.replace(old, new))
    return into


def test_other_counts_than_tfds_told(folder: Path, tmp_path: Path) -> None:
    wrong = changed(folder, tmp_path / "1.0.0", "dataset_info.json", '"23"', '"24"')
    with pytest.raises(ReadError, match=r"00000-of-00003: has 23 records, and .* says 24"):
        tfds_to_zarr(wrong, tmp_path / "zarr", progress=False)
    with pytest.raises(ConversionError, match="has not finished"):
        ZarrDataSource(tmp_path / "zarr" / "train")


NUMBER_64 = tensor("int64")


@pytest.mark.parametrize(
    ("features", "record", "owners"),
    [
        (
            {"x": sequence(sequence(NUMBER_64)), "x/flat": NUMBER_64},
            {"x/ragged_flat_values": [1], "x/ragged_row_lengths_0": [1], "x/flat": 1},
            "feature 'x' and feature 'x/flat'",
        ),
        (
            {"windrow_absent": NUMBER_64, "t": TEXT},
            {"windrow_absent": 1, "t": b"x"},
            "feature 'windrow_absent' and the array of absent features",
        ),
    ],
)
def test_two_features_that_would_be_one_array(
    tmp_path: Path, features: Any, record: Any, owners: str
) -> None:
    dataset = write_dataset(tmp_path / "odd" / "1.0.0", features, [record])
    with pytest.raises(ArgumentError, match=rf"{owners} would both be .*leave a feature out by"):
        tfds_to_zarr(dataset, tmp_path / "zarr", progress=False)
    name, *_ = features
    tfds_to_zarr(dataset, tmp_path / "zarr", names=[name], progress=False)
    assert list(read_split(tmp_path / "zarr" / "train")) == [name]


def test_a_dataset_without_features(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "odd" / "1.0.0", {}, [{}])
    with pytest.raises(SourceError, match=r"1\.0\.0 has no features to make arrays of"):
        tfds_to_zarr(dataset, tmp_path / "zarr", progress=False)


def test_what_tfds_to_zarr_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text('{"attributes": {}}')
    with pytest.raises(SourceError, match="name the group of a split"):
        read_split(tmp_path)
    with pytest.raises(NotFoundError, match="does not exist"):
        read_split(tmp_path / "nothing")


def test_records_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    tfds_to_zarr(folder, tmp_path / "zarr", splits=["test"], progress=False)
    with pytest.raises(ArgumentError, match=r"records \[5, 10\) of .*, which has 9"):
        read_split(tmp_path / "zarr" / "test", 5, 10)
