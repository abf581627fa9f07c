"""Building with Zarr alongside the records, each in a process: all of it is there, or nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tfds_builders import (
    BEAM,
    MIXED,
    PLAIN,
    assert_all_there,
    assert_nothing_opens,
    write_builder,
)
from windrow.converters import check
from windrow.converters.tfds.build import Bucket
from windrow.errors import ConversionError
from windrow.sources import ZarrDataSource

pytestmark = pytest.mark.tfds

ROOT = Path(__file__).parents[3]


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


@pytest.mark.parametrize("generate", [PLAIN, BEAM], ids=["plain", "beam"])
def test_the_command_on_a_builder_as_it_is(tmp_path: Path, generate: str) -> None:
    builder = write_builder(tmp_path / "code", generate=generate)
    done = built(builder, tmp_path / "data", "--also", "zarr")
    assert done.returncode == 0, done.stderr
    assert_all_there(tmp_path / "data" / "small" / "1.0.0")


@pytest.mark.parametrize(
    ("base", "generate"),
    [("GeneratorBasedBuilder", PLAIN), ("BeamBasedBuilder", BEAM)],
    ids=["plain", "beam"],
)
def test_the_mixin_and_configs(tmp_path: Path, base: str, generate: str) -> None:
    settings = """
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="one"), tfds.core.BuilderConfig(name="two")]
    also_zarr = {"codecs": "zstd:3"}
"""
    mixed = {**MIXED, "bases": f"AlsoZarr, tfds.core.{base}"}
    builder = write_builder(tmp_path / "code", **mixed, settings=settings, generate=generate)
    data = tmp_path / "data"
    # tfds' own command: the mixin needs nothing else.
    command = ("-m", "tensorflow_datasets.scripts.cli.main", "build", str(builder))
    done = ran(*command, f"--data_dir={data}", "--file_format=array_record")
    assert done.returncode == 0, done.stderr
    for config in ("one", "two"):
        assert_all_there(data / "small" / config / "1.0.0")


# Runs a build in forked processes. Each ends at another of the renames that it makes, which Python
# reports before it makes them: files of Zarr get their names by one, and the dataset by the last.
FAULTS = """
import errno, json, os, signal, sys
import tensorflow_datasets
from windrow.cli.main import main

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def fill():
    raise OSError(errno.ENOSPC, "No space left on device")

def run(folder, at=None, fault=None):
    seen = []
    def hook(event, args):
        if event == "os.rename" and "incomplete." in str(args[0]):
            seen.append(str(args[0]))
            if len(seen) - 1 == at:
                fault()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.dup2(2, 1)
    sys.addaudithook(hook)
    code = main(["tfds-build", sys.argv[1], f"--data_dir={folder}", "--also=zarr"])
    if fault is None:
        with open(f"{folder}/renames.json", "w") as file:
            json.dump(seen, file)
    sys.stderr.flush()
    os._exit(code)

data = sys.argv[2]
codes = {"whole": run(f"{data}/whole")}
with open(f"{data}/whole/renames.json") as file:
    last = len(json.load(file)) - 1
for fault, at in [*((kill, last * part // 4) for part in range(5)), (kill, last - 1), (fill, last // 3), (fill, last - 1)]:
    name = f"{fault.__name__}{at}"
    codes[name] = run(f"{data}/{name}", at, fault)
print(json.dumps([last, codes]))
"""


def test_builds_that_end_in_the_export(tmp_path: Path) -> None:
    builder, data = write_builder(tmp_path / "code"), tmp_path / "data"
    done = ran("-c", FAULTS, str(builder), str(data))
    assert done.returncode == 0, done.stderr
    last, codes = json.loads(done.stdout.splitlines()[-1])
    assert codes.pop("whole") == 0
    assert_all_there(data / "whole" / "small" / "1.0.0")
    assert len(codes) == 8
    for name, code in codes.items():
        assert code == (-signal.SIGKILL if name.startswith("kill") else 1)
        left = list((data / name).rglob("incomplete*/zarr"))
        assert bool(left) == name.startswith("kill")  # what fails, tfds removes
        assert_nothing_opens(data / name)
    # Between the last file of Zarr and the name of the dataset.
    (zarr,) = (data / f"kill{last}").rglob("incomplete*/zarr")
    assert check(zarr, progress=False).ok
    for group in (zarr, zarr / "train", zarr / "train" / "label"):
        with pytest.raises(
            ConversionError, match=r"which tfds is building or .* build the dataset"
        ):
            ZarrDataSource(group)
    again = built(builder, data / f"kill{last // 2}", "--also=zarr")
    assert again.returncode == 0, again.stderr
    assert_all_there(data / f"kill{last // 2}" / "small" / "1.0.0")


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
