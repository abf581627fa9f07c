"""Conversions as PTransforms, in pipelines of the user's; and the pipeline of array_record's name."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from tests.conversion_cases import BY_NAME, CASES, RECORDS, Case, reference, spoilt, tree
from windrow.converters import beam as transforms
from windrow.converters import convert_tf_to_arrayrecord_disk_match_shards, tfrecord_to_array_record
from windrow.converters.beam import TFRecordToArrayRecord
from windrow.converters.job.locks import LEASE
from windrow.converters.job.manifest import MANIFEST_NAME, UNFINISHED, Manifest
from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources import ArrayRecordDataSource

pytestmark = pytest.mark.jobs

CASE = BY_NAME["tfrecord_to_array_record"]
COUNTS = [len(records) for records in RECORDS]
# By the names of the functions.
TRANSFORMS = {name.lower(): kind for name, kind in vars(transforms).items()}


def run(transform: beam.PTransform[Any, Any], *, repeat: int = 0) -> list[Manifest]:
    """Return what a pipeline of `transform` yields; the runner repeats each step `repeat` times."""
    found: list[Manifest] = []
    Found.lists.append(found)
    pipeline = beam.Pipeline(runner=FnApiRunner(bundle_repeat=repeat))
    step: Any = beam.Map  # it has no types
    number = len(Found.lists) - 1
    _ = pipeline | transform | "keep" >> step(functools.partial(keep, number))
    result: Any = pipeline.run()
    result.wait_until_finish()
    return found


class Found:
    """What pipelines of this process have yielded; they are pickled, and find it by number."""

    lists: list[list[Manifest]] = []  # noqa: RUF012


def keep(number: int, manifest: Manifest) -> None:
    Found.lists[number].append(manifest)


# --- PTransforms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("repeat", [0, 1])
def test_a_transform_yields_the_manifest_and_gives_the_same_bytes(
    case: Case, tmp_path: Path, repeat: int
) -> None:
    transform = TRANSFORMS[case.name.replace("_", "")]
    inputs, out = reference(case).inputs, tmp_path / "out"
    found = run(transform(inputs, out, **case.settings), repeat=repeat)
    assert found == [Manifest.read(out)] * (1 + repeat)
    assert tree(out) == reference(case).whole


# --- leases --------------------------------------------------------------------------------------


def test_a_failed_pipeline_leaves_its_lease_until_it_is_taken_over(tmp_path: Path) -> None:
    source, last, whole = spoilt(tmp_path / "spoilt")
    out = tmp_path / "out"
    with pytest.raises(ReadError, match="record 8"):
        run(TFRecordToArrayRecord(source, out))
    assert (out / LEASE).exists()
    assert (out / UNFINISHED).exists()
    last.write_bytes(whole)

    refusal = r"another run is writing it \(process \d+ on .*, since .*\); .* take_over=True"
    with pytest.raises(ConversionError, match=refusal):
        run(TFRecordToArrayRecord(source, out))
    with pytest.raises(ConversionError, match=refusal):  # nor does a run without a pipeline
        tfrecord_to_array_record(source, out)

    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("x.*")}
    assert 0 < len(kept) < len(COUNTS)
    (manifest,) = run(TFRecordToArrayRecord(source, out, take_over=True))
    assert manifest.records == sum(COUNTS)
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert sorted(os.listdir(out)) == sorted(
        [MANIFEST_NAME, *(file.name for file in manifest.files)]
    )


def test_finished_and_overwritten(tmp_path: Path) -> None:
    source, out = reference(CASE).inputs, tmp_path / "out"
    expected = tfrecord_to_array_record(source, out)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert run(TFRecordToArrayRecord(source, out)) == [expected]
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    other = functools.partial(TFRecordToArrayRecord, source, out, writer_options="group_size:2")
    with pytest.raises(ConversionError, match="was written with other settings"):
        run(other())
    (manifest,) = run(other(overwrite=True), repeat=1)[:1]
    assert manifest.settings["writer_options"] == "group_size:2"
    assert tree(out).keys() == before.keys()


# --- array_record's name -------------------------------------------------------------------------

GUIDE = """
import sys
from windrow.converters import convert_tf_to_arrayrecord_disk_match_shards
assert "apache_beam" not in sys.modules
from apache_beam.options.pipeline_options import PipelineOptions

args = {"input": sys.argv[1], "output": sys.argv[2]}
pipeline = convert_tf_to_arrayrecord_disk_match_shards(
    args=args, pipeline_options=PipelineOptions([])
)
print(pipeline.run().wait_until_finish())
assert "tensorflow" not in sys.modules
"""


def test_match_shards_as_the_guide_calls_it(tmp_path: Path) -> None:
    arguments = [reference(CASE).inputs, str(tmp_path / "out" / "train")]
    done = subprocess.run(
        [sys.executable, "-c", GUIDE, *arguments], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout) == (0, "DONE\n"), done.stderr
    names = [f"train-{k:05}-of-00003.arrayrecord" for k in range(3)]
    assert sorted(os.listdir(tmp_path / "out")) == sorted([*names, MANIFEST_NAME])
    # Each has the records of one input, in order, as array_record itself writes them.
    expected = tfrecord_to_array_record(arguments[0], tmp_path / "expected")
    for name, file in zip(names, expected.files, strict=True):
        found = (tmp_path / "out" / name).read_bytes()
        assert found == (tmp_path / "expected" / file.name).read_bytes()
    assert len(ArrayRecordDataSource(str(tmp_path / "out" / "*.arrayrecord"))) == sum(COUNTS)


@pytest.mark.parametrize("options", [None, [], {"direct_num_workers": 1}])
def test_match_shards_goes_on_when_told_to(tmp_path: Path, options: object) -> None:
    source, last, whole = spoilt(tmp_path / "spoilt")
    args = {"input": source, "output": str(tmp_path / "out" / "x")}
    pipeline = convert_tf_to_arrayrecord_disk_match_shards(args, options)
    with pytest.raises(ReadError, match="record 8"):
        pipeline.run().wait_until_finish()
    last.write_bytes(whole)
    pipeline = convert_tf_to_arrayrecord_disk_match_shards(args, options, take_over=True)
    assert pipeline.run().wait_until_finish() == "DONE"
    manifest = Manifest.read(tmp_path / "out")
    assert [file.name for file in manifest.files] == [
        f"x-0000{k}-of-00003.arrayrecord" for k in range(3)
    ]
    assert [file.records for file in manifest.files] == COUNTS
    paths = [str(tmp_path / "out" / file.name) for file in manifest.files]
    assert [len(ArrayRecordDataSource(path)) for path in paths] == COUNTS


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"input": "x"}, r"args must be a dict with 'input' .* and 'output' .*; it lacks 'output'"),
        ({"input": "x", "output": "out/"}, r"args\['output'\]='out/' must be the prefix of files"),
        ("x", r"args must be a dict"),
    ],
)
def test_match_shards_refuses_other_arguments(args: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        convert_tf_to_arrayrecord_disk_match_shards(args)
