"""TFRecord to ArrayRecord: one file to one file, stopped anywhere, and never half a file."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from windrow.converters import Manifest, tfrecord_to_array_record, write_records
from windrow.converters.job.manifest import MANIFEST_NAME, UNFINISHED
from windrow.core.progress import Progress
from windrow.errors import (
    ArgumentError,
    ConversionError,
    NotFoundError,
    ReadError,
)

RECORDS = [
    [b"%d of %d" % (i, k) * 30 for i in range(count)] for k, count in enumerate((5, 0, 1, 9))
]


def shards(folder: Path) -> str:
    """Four files of 5, 0, 1 and 9 records; the glob that names them."""
    folder.mkdir()
    for k, records in enumerate(RECORDS):
        write_records(folder / f"x.tfrecord-{k:05}-of-00004", records)
    return str(folder / "x.tfrecord-*")


def read(path: Path) -> list[bytes]:
    reader = ArrayRecordReader(str(path))
    records: list[bytes] = reader.read_all() if reader.num_records() else []
    return records


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_one_file_to_one_file_in_order(tmp_path: Path) -> None:
    steps: list[Progress] = []
    manifest = tfrecord_to_array_record(
        shards(tmp_path / "in"), tmp_path / "out", progress=steps.append
    )
    files = [f"x.array_record-{k:05}-of-00004" for k in range(4)]
    assert names(tmp_path / "out") == [MANIFEST_NAME, *files]
    assert [read(tmp_path / "out" / name) for name in files] == RECORDS
    assert [file.name for file in manifest.files] == files
    assert [file.records for file in manifest.files] == [5, 0, 1, 9]
    assert [file.records for file in manifest.inputs] == [5, 0, 1, 9]
    assert manifest.records == 15
    assert manifest.settings == {"writer_options": "group_size:1,zstd:3"}
    assert Manifest.read(tmp_path / "out") == manifest
    total = sum(file.size_bytes for file in manifest.inputs)
    assert (steps[-1].records, steps[-1].done_bytes) == (15, total)
    assert {step.total_bytes for step in steps} == {total}


def test_lists_gzip_and_names(tmp_path: Path) -> None:
    inputs = ["a.tfrecord.gz", "b.tfrecords", "plain", "c-00001-of-00002", "d[1].tfrecord"]
    inputs += ["e.tfrecord.gzip", "f.tfrecord-00000-of-00001.GZ"]
    for k, name in enumerate(inputs):
        write_records(tmp_path / name, [b"%d" % k])
    paths: list[str | Path] = [tmp_path / name for name in inputs[:2]]
    paths += [str(tmp_path / name) for name in inputs[2:]]
    manifest = tfrecord_to_array_record(paths, tmp_path / "out")
    expected = [
        "a.array_record",
        "b.array_record",
        "plain.array_record",
        "c.array_record-00001-of-00002",
        "d[1].array_record",
        "e.array_record",
        "f.array_record-00000-of-00001",
    ]
    assert [file.name for file in manifest.files] == expected
    assert [read(tmp_path / "out" / name) for name in expected] == [[b"%d" % k] for k in range(7)]


def test_damaged_manifests(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no conversion was finished"):
        Manifest.read(tmp_path)
    manifest = tfrecord_to_array_record(shards(tmp_path / "in"), tmp_path / "out")
    where = tmp_path / "out" / MANIFEST_NAME
    for key in manifest.to_json():
        value = manifest.to_json()
        if key in ("records", "fingerprint"):  # for people: they are made from the inputs
            continue
        value[key] = None
        where.write_text(json.dumps(value))
        with pytest.raises(ReadError, match=f"damaged: '{key}' should be"):
            Manifest.read(tmp_path / "out")
    where.write_text(json.dumps({**manifest.to_json(), "version": 3}))
    with pytest.raises(ReadError, match="a manifest of version 3; this Windrow reads version 2"):
        Manifest.read(tmp_path / "out")
    where.write_text("{")
    with pytest.raises(ReadError, match=r"windrow_manifest\.json: cannot be read"):
        Manifest.read(tmp_path / "out")


def test_wrong_inputs(tmp_path: Path) -> None:
    glob, out = shards(tmp_path / "in"), tmp_path / "out"
    (tmp_path / "other").mkdir()
    write_records(tmp_path / "other" / "x.tfrecord-00000-of-00004", [])
    one = str(tmp_path / "in" / "x.tfrecord-00000-of-00004")
    with pytest.raises(NotFoundError, match="nowhere does not exist"):
        tfrecord_to_array_record(tmp_path / "nowhere", out)
    with pytest.raises(NotFoundError, match="matches no file"):
        tfrecord_to_array_record(str(tmp_path / "*.nothing"), out)
    with pytest.raises(NotFoundError, match="an empty list"):
        tfrecord_to_array_record([], out)
    with pytest.raises(NotFoundError, match=r"the folder .* has no file with \.tfrecord in"):
        tfrecord_to_array_record(tmp_path, out)
    with pytest.raises(ArgumentError, match="00000-of-00004 comes twice"):
        tfrecord_to_array_record([glob, one], out)
    with pytest.raises(ConversionError, match=r"other.*would both become x\.array_record-00000"):
        tfrecord_to_array_record([one, str(tmp_path / "other" / "*")], out)
    with pytest.raises(ArgumentError, match="cannot be opened"):
        tfrecord_to_array_record("nosuchprotocol://a", out)
    with pytest.raises(ArgumentError, match="writer_options='bogus:1': Unknown option bogus"):
        tfrecord_to_array_record(glob, out, writer_options="bogus:1")
    assert not out.exists()


def bad_shards(folder: Path) -> str:
    """Write `shards`, with wrong data in records 1 and 4 of the first file and 0 of the last."""
    inputs = shards(folder)
    for name, numbers in (("00000", (1, 4)), ("00003", (0,))):
        path = folder / f"x.tfrecord-{name}-of-00004"
        whole = bytearray(path.read_bytes())
        size = 16 + len(RECORDS[0][0])
        for number in numbers:
            whole[number * size + 12] ^= 1
        path.write_bytes(whole)
    return inputs


@pytest.mark.parametrize("processes", [1, 2])
def test_bad_records_are_left_out_and_listed(tmp_path: Path, processes: int) -> None:
    inputs, out = bad_shards(tmp_path / "in"), tmp_path / "out"
    manifest = tfrecord_to_array_record(inputs, out, max_bad_records=3, processes=processes)
    assert read(out / "x.array_record-00000-of-00004") == [RECORDS[0][k] for k in (0, 2, 3)]
    assert read(out / "x.array_record-00003-of-00004") == RECORDS[3][1:]
    assert [(one.file[-14:], one.record) for one in manifest.skipped] == [
        ("00000-of-00004", 1),
        ("00000-of-00004", 4),
        ("00003-of-00004", 0),
    ]
    assert {one.error for one in manifest.skipped} == {
        "the checksum of its 180 bytes is wrong: the file is damaged"
    }
    assert [(file.records, file.skipped) for file in manifest.inputs] == [
        (3, 2),
        (0, 0),
        (1, 0),
        (8, 1),
    ]
    assert Manifest.read(out) == manifest


def test_more_bad_records_than_allowed(tmp_path: Path) -> None:
    inputs, out = bad_shards(tmp_path / "in"), tmp_path / "out"
    one = str(tmp_path / "in" / "x.tfrecord-00000-of-00004")
    with pytest.raises(ReadError, match=r"record 4 at byte \d+.*more than max_bad_records=1 are"):
        tfrecord_to_array_record(one, tmp_path / "one", max_bad_records=1)
    assert not (tmp_path / "one" / "x.array_record-00000-of-00004").exists()

    # No file has more than two; all together have.
    told = r"^x.tfrecord-\d+-of-00004: record \d+: .*; 3 records of the inputs are bad, and max_bad"
    with pytest.raises(ReadError, match=told):
        tfrecord_to_array_record(inputs, out, max_bad_records=2)
    assert (out / UNFINISHED).exists()
    assert MANIFEST_NAME not in names(out)
    kept = {name: (out / name).stat().st_ino for name in names(out) if name.startswith("x.")}
    assert len(kept) == 4
    # What is finished stays when more are allowed.
    assert tfrecord_to_array_record(inputs, out, max_bad_records=3).records == 12
    assert {name: (out / name).stat().st_ino for name in kept} == kept


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system has no such call")
def test_records_go_to_the_disk_while_their_file_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def posix_fadvise(descriptor: int, first: int, size_bytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        assert first + size_bytes <= os.fstat(descriptor).st_size
        told.append((first, size_bytes))

    # Nothing of them compresses, so that as much is written as is read.
    records = [np.random.default_rng(seed).bytes(1 << 18) for seed in range(80)]
    write_records(tmp_path / "x.tfrecord", records)
    monkeypatch.setattr(os, "posix_fadvise", posix_fadvise)
    tfrecord_to_array_record(tmp_path / "x.tfrecord", tmp_path / "out", progress=False)
    batch_bytes = 17 << 20
    assert told[0][0] == 0
    assert all(a + size == b for (a, size), (b, _) in itertools.pairwise(told))
    assert max(size for _, size in told) <= batch_bytes
    assert sum(size for _, size in told) > sum(map(len, records)) - batch_bytes
