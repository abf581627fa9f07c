"""Building with Zarr beside the records: what comes out is what the generator yielded, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tfds_values import assert_same
from windrow.converters import check
from windrow.converters.tfds import AlsoZarr, check_version
from windrow.converters.tfds_build import Bucket
from windrow.converters.tfds_to_zarr import read_split
from windrow.errors import ArgumentError, ConversionError, WindrowError
from windrow.sources import TFDSDataSource, ZarrDataSource

pytestmark = pytest.mark.tfds

ROOT = Path(__file__).parents[1]
SIZES = {"train": 57, "test": 8}

# A builder in a folder: `MIXIN` and `BASE` make its class, `BODY` its examples.
BUILDER = """
import numpy as np
import tensorflow_datasets as tfds
{imports}


def example(i):
    rng = np.random.default_rng(i)
    return {{
        "image": rng.integers(0, 256, (4, 4, 3), dtype=np.uint8),
        "label": i % 3,
        "text": "text " * (i % 4),
        "numbers": np.arange(i % 5, dtype=np.int32),
    }}


class Builder({bases}):
    VERSION = tfds.core.Version("1.0.0")
{settings}

    def _info(self):
        features = tfds.features.FeaturesDict({{
            "image": tfds.features.Tensor(shape=(4, 4, 3), dtype=np.uint8, encoding="bytes"),
            "label": tfds.features.ClassLabel(names=["a", "b", "c"]),
            "text": tfds.features.Text(),
            "numbers": tfds.features.Sequence(np.int32),
        }})
        return self.dataset_info_from_configs(features=features)

    def _split_generators(self, dl_manager):
        return {{"train": self._generate_examples(57), "test": self._generate_examples(8)}}

{generate}
"""
PLAIN = """
    def _generate_examples(self, n):
        for i in range(n):
            yield i, example(i)
"""
BEAM = """
    def _generate_examples(self, n):
        beam = tfds.core.lazy_imports.apache_beam
        return beam.Create(range(n)) | beam.Map(lambda i: (i, example(i)))
"""
FAILING = """
    def _generate_examples(self, n):
        for i in range(n):
            yield i, example(i)
        if n == 8:
            raise RuntimeError("no more of these")
"""
ALSO = "from windrow.converters.tfds import AlsoZarr"


def write_builder(
    folder: Path,
    *,
    name: str = "small",
    bases: str = "tfds.core.GeneratorBasedBuilder",
    imports: str = "",
    settings: str = "",
    generate: str = PLAIN,
) -> Path:
    """A folder with a builder, for `tfds build`."""
    (folder / name).mkdir(parents=True)
    text = BUILDER.format(bases=bases, imports=imports, settings=settings, generate=generate)
    (folder / name / f"{name}_dataset_builder.py").write_text(text)
    return folder / name


def example(i: int) -> dict[str, Any]:
    """What the builders yield."""
    rng = np.random.default_rng(i)
    return {
        "image": rng.integers(0, 256, (4, 4, 3), dtype=np.uint8),
        "label": i % 3,
        "text": ("text " * (i % 4)).encode(),
        "numbers": np.arange(i % 5, dtype=np.int32),
    }


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def built(builder: Path, data: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return ran("-m", "windrow", "tfds-build", str(builder), "--data_dir", str(data), *flags)


def rows(columns: Any) -> Iterator[dict[str, Any]]:
    for at in range(len(columns["label"])):
        yield {name: column[at] for name, column in columns.items()}


def assert_all_there(folder: Path) -> None:
    """Assert that the records and the arrays have every example of the generator, in one order."""
    for split, size in SIZES.items():
        source = TFDSDataSource(folder, split=split)
        records = source.read(np.arange(len(source)))
        assert_same(read_split(folder / "zarr" / split), records, split)
        found = {row["image"].tobytes(): row for row in rows(records)}
        assert len(records["label"]) == len(found) == size
        for i in range(size):
            wanted = example(i)
            row = found[wanted["image"].tobytes()]
            assert (int(row["label"]), row["text"]) == (wanted["label"], wanted["text"])
            assert_same(row["numbers"], wanted["numbers"])
    assert check(folder / "zarr", progress=False).ok


def assert_nothing_opens(data: Path) -> None:
    """Assert that no dataset and no group under `data` can be opened."""
    for path in [data, *(path for path in data.rglob("*") if path.is_dir())]:
        with pytest.raises((WindrowError, OSError)):
            TFDSDataSource(path, split="train")
        with pytest.raises((WindrowError, OSError)):
            ZarrDataSource(path)


@pytest.mark.parametrize("generate", [PLAIN, BEAM], ids=["plain", "beam"])
def test_the_command_on_a_builder_as_it_is(tmp_path: Path, generate: str) -> None:
    bases = "tfds.core.GeneratorBasedBuilder"
    builder = write_builder(tmp_path / "code", generate=generate, bases=bases)
    done = built(builder, tmp_path / "data", "--also", "zarr")
    assert done.returncode == 0, done.stderr
    assert_all_there(tmp_path / "data" / "small" / "1.0.0")


def test_the_command_without_zarr(tmp_path: Path) -> None:
    builder = write_builder(tmp_path / "code")
    data = tmp_path / "data"
    done = built(builder, data, "--file_format=tfrecord")
    assert done.returncode == 0, done.stderr
    folder = data / "small" / "1.0.0"
    assert any("tfrecord" in path.name for path in folder.iterdir())
    assert not (folder / "zarr").exists()
    again = built(builder, data, "--also=zarr", "--file_format=tfrecord")
    assert again.returncode == 1
    assert "is there from an earlier build, without Zarr; build it anew with --over" in again.stderr
    anew = built(builder, data, "--also=zarr", "--file_format=tfrecord", "--overwrite")
    assert anew.returncode == 0, anew.stderr
    assert check(folder / "zarr", progress=False).ok
    for split, size in SIZES.items():
        assert len(read_split(folder / "zarr" / split)["text"]) == size


def test_the_mixin_and_configs(tmp_path: Path) -> None:
    settings = """
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="one"), tfds.core.BuilderConfig(name="two")]
    also_zarr = {"codecs": "zstd:3"}
"""
    bases = "AlsoZarr, tfds.core.GeneratorBasedBuilder"
    builder = write_builder(tmp_path / "code", imports=ALSO, bases=bases, settings=settings)
    data = tmp_path / "data"
    # tfds' own command: the mixin needs nothing else.
    command = ("-m", "tensorflow_datasets.scripts.cli.main", "build", str(builder))
    done = ran(*command, f"--data_dir={data}", "--file_format=array_record")
    assert done.returncode == 0, done.stderr
    for config in ("one", "two"):
        assert_all_there(data / "small" / config / "1.0.0")


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"generate": FAILING}, 1, "no more of these"),
        (
            {
                "bases": "AlsoZarr, tfds.core.GeneratorBasedBuilder",
                "imports": ALSO,
                "settings": '    also_zarr = {"names": ["nothing"]}',
            },
            2,
            "there is no feature 'nothing'",
        ),
    ],
    ids=["generator", "export"],
)
def test_a_failure_fails_the_build_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, str], code: int, message: str
) -> None:
    builder = write_builder(tmp_path / "code", **changes)
    done = built(builder, tmp_path / "data", "--also", "zarr")
    assert done.returncode == code
    assert message in done.stderr
    assert not list((tmp_path / "data").rglob("*.array_record*"))
    assert not list((tmp_path / "data").rglob("zarr*"))
    assert_nothing_opens(tmp_path / "data")


KILLED = """
import os, signal, sys

def killing(event, args):
    if event == "open" and isinstance(args[0], str) and "/zarr/" in args[0]:
        if "journal" in args[0] or "claims" in args[0]:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(killing)
from windrow.commands import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_build_that_is_killed_in_the_export(tmp_path: Path) -> None:
    builder = write_builder(tmp_path / "code")
    data = tmp_path / "data"
    command = ("tfds-build", str(builder), f"--data_dir={data}", "--also=zarr")
    killed = ran("-c", KILLED, *command)
    assert killed.returncode == -signal.SIGKILL
    assert list(data.rglob("incomplete*/zarr/_WINDROW_UNFINISHED"))
    assert_nothing_opens(data)
    again = built(builder, data, "--also=zarr")
    assert again.returncode == 0, again.stderr
    assert_all_there(data / "small" / "1.0.0")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--file_format=parquet",), "parquet files of tfds lack most"),
        (("--file_format", "riegeli"), "file_format is 'riegeli'"),
        (("--publish_dir=/nowhere",), "--publish_dir does not go with --also zarr"),
        (("--download_only",), "nothing is built here"),
        (("--also", "parquet"), "'parquet' is not 'zarr'"),
        (("--no_such_flag",), "no_such_flag"),
    ],
)
def test_wrong_arguments(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    builder = write_builder(tmp_path / "code")
    done = built(builder, tmp_path / "data", "--also", "zarr", *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "data" / "small").exists()


def test_another_version_of_tfds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "tensorflow_datasets-5.0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: tensorflow-datasets\nVersion: 5.0.0\n")
    check_version()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConversionError, match=r"5\.0\.0 is installed.*tested with 4\.9\.10 alone"):
        check_version()


def test_a_mixin_in_the_wrong_place() -> None:
    import tensorflow_datasets as tfds

    with pytest.raises(ArgumentError, match=r"write class Late\(AlsoZarr, "):

        class Late(tfds.core.GeneratorBasedBuilder, AlsoZarr):  # type: ignore[misc]
            pass


@pytest.mark.parametrize("held_bytes", [0, 1000])
def test_shuffling_by_files_is_that_of_tfds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    from tensorflow_datasets.core import shuffle

    def shuffled() -> list[Any]:
        shuffler = shuffle.Shuffler(tmp_path / "shuffling", "salt", disable_shuffling=False)
        for i in range(3000):
            shuffler.add(i, bytes([i % 256]) * (i % 70))
        return list(shuffler)

    wanted = shuffled()
    monkeypatch.setattr(shuffle, "MAX_MEM_BUFFER_SIZE", held_bytes)
    monkeypatch.setattr(shuffle, "_Bucket", Bucket)
    assert shuffled() == wanted
    assert not list((tmp_path / "shuffling").iterdir())
