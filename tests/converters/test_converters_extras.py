"""Packages that are not installed: the error names the extra, and nothing is begun."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import LIMIT_S
from windrow.converters import write_records
from windrow.converters.tfds.build import check_version
from windrow.errors import MissingExtraError

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
