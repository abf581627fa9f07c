"""`windrow tfds-build` and the mixin in one process: what is refused, and what is left alone."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tfds_builders import (
    FAILING,
    MIXED,
    SIZES,
    assert_all_there,
    assert_nothing_opens,
    write_builder,
)
from windrow.cli.main import main
from windrow.converters import check
from windrow.converters.tfds.build import check_version
from windrow.converters.tfds.conversions import read_split
from windrow.errors import ConversionError
from windrow.sources import ZarrDataSource

pytestmark = pytest.mark.tfds

NUMBERS = itertools.count()
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def name() -> str:
    """A name for a builder that this process has not imported yet."""
    return f"kind{next(NUMBERS)}"


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `windrow tfds-build` into tmp_path/data: exit code and stderr."""

    def command(*args: object) -> tuple[int, str]:
        data = f"--data_dir={tmp_path / 'data'}"
        code = main(["tfds-build", *map(str, args), *([] if "--data_dir" in args else [data])])
        return code, capfd.readouterr().err

    return command


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mixed_class(builder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of a builder in a folder."""
    monkeypatch.syspath_prepend(str(builder.parent))
    return importlib.import_module(f"{builder.name}.{builder.name}_dataset_builder").Builder


# What is there from an earlier build.


def test_a_dataset_in_another_format(tmp_path: Path, name: str, run: Run) -> None:
    builder, folder = (
        write_builder(tmp_path / "code", name=name),
        tmp_path / "data" / name / "1.0.0",
    )
    assert run(builder, "--file_format=tfrecord")[0] == 0
    assert any("tfrecord" in path.name for path in folder.iterdir())
    assert not (folder / "zarr").exists()
    before = files_in(folder)
    for flags in ([], ["--also", "zarr"]):
        code, err = run(builder, *flags)
        assert code == 1
        assert "is there from an earlier build, in format tfrecord, and array_record is" in err
    code, err = run(builder, "--also=zarr", "--file_format=tfrecord")
    assert code == 1
    assert "1.0.0 is there, without Zarr of train, test; build it anew (--overwrite" in err
    assert files_in(folder) == before
    assert run(builder, "--also=zarr", "--file_format=tfrecord", "--overwrite")[0] == 0
    assert check(folder / "zarr", progress=False).ok
    assert run(builder, "--also=zarr", "--overwrite")[0] == 0
    assert_all_there(folder)
    assert run(builder, "--also=zarr")[0] == 0  # nothing is left to do


OWN = "\nclass Own(tfds.features.Tensor):\n    pass\n"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (
            {"settings": "    also_zarr = {'image': True}"},
            2,
            "also_zarr: 'image' is not one of splits",
        ),
        ({"settings": "    also_zarr = True"}, 2, "also_zarr is a dict of splits"),
        (
            {"settings": "    also_zarr = {'names': ['nothing']}"},
            2,
            "there is no feature 'nothing'",
        ),
        ({"settings": "    also_zarr = {'splits': 'train'}"}, 2, "splits must be a list of names"),
        ({"settings": "    also_zarr = {'codecs': 'nothing'}"}, 2, "nothing"),
        (
            {"features": "'__x': tfds.features.Scalar(np.int32),", "values": "'__x': 1,"},
            2,
            "'__x' cannot name a Zarr array",
        ),
        (
            {
                "imports": OWN,
                "features": "'own': Own(shape=(), dtype=np.int32),",
                "values": "'own': 1,",
            },
            1,
            "feature 'own' is of type 'kind",
        ),
    ],
    ids=["key", "dict", "names", "splits", "codecs", "array", "type"],
)
def test_what_is_refused_is_refused_before_anything_is_removed(
    tmp_path: Path, name: str, run: Run, changes: dict[str, str], code: int, message: str
) -> None:
    builder = write_builder(tmp_path / "code", name=name, **changes)
    assert run(builder)[0] == 0
    before = files_in(tmp_path / "data")
    refused, err = run(builder, "--also", "zarr", "--overwrite")
    assert refused == code
    assert message in err
    assert files_in(tmp_path / "data") == before


PICTURES = {
    "features": "'x': tfds.features.Image(shape=(None, None, 3)),",
    "values": "'x': picture(i),",
}
GOOD = "\ndef picture(i):\n    return np.full((2, 2, 3), i, np.uint8)\n"
# One of the files is not a picture.
BAD = """
import io
import PIL.Image

def picture(i):
    out = io.BytesIO()
    PIL.Image.new("RGB", (2, 2), (i, i, i)).save(out, "PNG")
    return io.BytesIO(b"damaged" if i == 50 else out.getvalue())
"""


def test_images_are_decoded_on_request(
    tmp_path: Path, name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = write_builder(tmp_path / "code", name=name, imports=GOOD, **PICTURES)
    folder = tmp_path / "data" / name / "1.0.0"
    assert run(builder, "--images")[0] == 2  # without Zarr there is nothing to decode for
    assert run(builder, "--also", "zarr")[0] == 0
    assert read_split(folder / "zarr" / "test")["x"][0].startswith(b"\x89PNG")
    before = files_in(folder)
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "PIL.Image", None)
        code, err = run(builder, "--also", "zarr", "--images", "--overwrite")
    assert code == 2
    assert "windrow-data[images" in err
    assert files_in(folder) == before
    assert run(builder, "--also", "zarr", "--images", "--overwrite")[0] == 0
    pictures = read_split(folder / "zarr" / "test")["x"]
    assert sorted(image.tolist() for image in pictures) == [[[[i] * 3] * 2] * 2 for i in range(8)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generate": FAILING}, "RuntimeError: no more of these (in "),
        (
            {**PICTURES, "imports": BAD, "settings": "    also_zarr = {'images': True}"},
            "feature 'x' is not an image that Pillow decodes",
        ),
        ({"settings": "    also_zarr = {'splits': ['valid']}"}, "no split 'valid'"),
    ],
    ids=["generator", "record", "split"],
)
def test_a_failure_fails_the_build_and_leaves_nothing(
    tmp_path: Path, name: str, run: Run, changes: dict[str, str], message: str
) -> None:
    builder = write_builder(tmp_path / "code", name=name, **changes)
    code, err = run(builder, "--also", "zarr")
    assert code != 0
    assert message in err.splitlines()[-1]
    assert not list((tmp_path / "data").rglob("*.array_record*"))
    assert not list((tmp_path / "data").rglob("zarr*"))
    assert_nothing_opens(tmp_path / "data")


def test_zarr_that_is_not_all_there(tmp_path: Path, name: str, run: Run) -> None:
    builder, folder = (
        write_builder(tmp_path / "code", name=name),
        tmp_path / "data" / name / "1.0.0",
    )
    assert run(builder)[0] == 0
    zarr = folder / "zarr"
    zarr.mkdir()
    code, err = run(builder, "--also", "zarr")
    assert (code, "without Zarr of train, test" in err) == (1, True)
    (zarr / "_WINDROW_UNFINISHED").write_text("{}")
    code, err = run(builder, "--also", "zarr")
    assert (code, "has not finished" in err) == (1, True)
    (zarr / "_WINDROW_UNFINISHED").unlink()
    zarr.rmdir()
    assert main(["convert", str(folder), str(zarr), "--to", "zarr", "--split", "train", "-q"]) == 0
    code, err = run(builder, "--also", "zarr")
    assert (code, "without Zarr of test; build it" in err) == (1, True)


# Arguments.


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--file_format=parquet",), "parquet files of tfds lack most"),
        (("--file_format", "riegeli"), "file_format is 'riegeli'"),
        (("--publish_dir=/nowhere",), "--publish_dir does not go with --also zarr"),
        (("--download_only",), "nothing is built here"),
        (("--also", "parquet"), "'parquet' is not 'zarr'"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, name: str, run: Run, flags: tuple[str, ...], message: str
) -> None:
    builder = write_builder(tmp_path / "code", name=name)
    code, err = run(builder, "--also", "zarr", *flags)
    assert code == 2
    assert message in err
    assert not (tmp_path / "data").exists()


def test_nothing_of_tfds_stays_changed(tmp_path: Path, name: str, run: Run) -> None:
    from absl import logging
    from tensorflow_datasets.core import shuffle, visibility
    from tensorflow_datasets.scripts.cli import build, cli_utils

    def state() -> list[Any]:
        own = [shuffle.MAX_MEM_BUFFER_SIZE, shuffle._Bucket, build._make_builder]
        return [*own, cli_utils.download_and_prepare, logging.get_verbosity(), available()]

    def available() -> list[Any]:
        found: list[Any] = visibility.get_availables()
        return found

    before_all = available()
    try:
        visibility.set_availables([visibility.DatasetType.TFDS_PUBLIC])
        before = state()
        for changes in ({}, {"generate": FAILING}):
            one = f"{name}_{len(changes)}"
            run(write_builder(tmp_path / "code", name=one, **changes), "--also", "zarr")
            assert state() == before
    finally:
        visibility.set_availables(before_all)


# Other ways to name what is built.


def test_a_registered_name_and_a_config(
    tmp_path: Path, name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = """
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="one"), tfds.core.BuilderConfig(name="two")]
"""
    monkeypatch.syspath_prepend(
        str(write_builder(tmp_path / "code", name=name, settings=settings).parent)
    )
    imports = f"--imports={name}.{name}_dataset_builder"
    assert run(name, imports, "--config", "two", "--also", "zarr")[0] == 0
    assert_all_there(tmp_path / "data" / name / "two" / "1.0.0")
    assert not (tmp_path / "data" / name / "one").exists()
    assert run(f"{name}/one:1.0.0", imports, "--also", "zarr")[0] == 0
    assert_all_there(tmp_path / "data" / name / "one" / "1.0.0")


# The mixin.


def test_a_mixin_builds_what_others_host(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorflow_datasets.core.utils import gcs_utils

    asked = []
    monkeypatch.setattr(gcs_utils, "is_dataset_on_gcs", lambda full_name: True)
    monkeypatch.setattr(gcs_utils, "download_gcs_dataset", lambda **given: asked.append(given))
    kind = mixed_class(write_builder(tmp_path / "code", name=name, **MIXED), monkeypatch)
    kind(data_dir=tmp_path / "data").download_and_prepare()
    assert not asked
    folder = tmp_path / "data" / name / "1.0.0"
    assert any("tfrecord" in path.name for path in folder.iterdir())
    for split, size in SIZES.items():
        assert len(ZarrDataSource(folder / "zarr" / split, names=["label"])) == size


@pytest.mark.parametrize("package", ["tensorflow_datasets", "tfds_nightly"])
def test_another_version_of_tfds_is_refused_before_anything_is_built(
    tmp_path: Path, name: str, run: Run, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    kind = mixed_class(write_builder(tmp_path / "code", name=name, **MIXED), monkeypatch)
    kind(data_dir=tmp_path / "there").download_and_prepare()
    check_version()
    installed = tmp_path / "site" / f"{package}-5.0.0.dist-info"
    installed.mkdir(parents=True)
    told = package.replace("_", "-")
    (installed / "METADATA").write_text(f"Name: {told}\nVersion: 5.0.0\n")
    if package == "tfds_nightly":  # which is installed in the place of the other
        monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    match = rf"{told} 5\.0\.0 is installed.*tensorflow-datasets 4\.9\.10 alone"
    with pytest.raises(ConversionError, match=match):
        kind(data_dir=tmp_path / "data").download_and_prepare()
    code, err = run(tmp_path / "code" / name, "--also", "zarr")
    assert (code, "5.0.0 is installed" in err) == (1, True)
    assert not (tmp_path / "data").exists()
    kind(data_dir=tmp_path / "there").download_and_prepare()  # reading what is there needs no build


def test_the_extra_installs_the_version_that_was_tested() -> None:
    import tomllib

    from windrow.converters.tfds.build import TESTED

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extra = tomllib.loads(text)["project"]["optional-dependencies"]["tfds"]
    (pin,) = [one for one in extra if one.startswith("tensorflow-datasets")]
    (tested,) = TESTED
    *first, last = map(int, tested.split("."))
    above = ".".join(map(str, [*first, last + 1]))
    assert pin == f"tensorflow-datasets>={tested},<{above}"
