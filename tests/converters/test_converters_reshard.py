"""ArrayRecord to ArrayRecord: every record once, in its own order or in the shuffle's."""

from __future__ import annotations

import json
import os
import random
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.array_record_bytes import write as write_records
from tests.conversion_cases import tree
from tests.hypothesis_profiles import examples
from windrow.converters import Manifest, array_record_to_array_record
from windrow.converters.job.manifest import MANIFEST_NAME, UNFINISHED
from windrow.converters.records.record_writing import HELD_BYTES
from windrow.core.progress import Progress
from windrow.errors import (
    ArgumentError,
    ConversionError,
    ReadError,
)
from windrow.sources import ArrayRecordDataSource
from windrow.transforms import orders as shuffled_orders

SMALL = 1 << 18


def write(path: Path, records: Sequence[bytes], group: int = 1) -> None:
    write_records(path, records, f"group_size:{group},zstd:1")


def shards(folder: Path, counts: Sequence[int], *, group: int = 1, size: int = 60) -> list[bytes]:
    """Write files `x.array_record-...` of `counts` records into a new folder; return all records."""
    folder.mkdir(parents=True)
    rng = random.Random(len(counts))
    records = []
    for k, count in enumerate(counts):
        some = [b"%d/%d " % (i, k) + rng.randbytes(rng.randint(0, size)) for i in range(count)]
        write(folder / f"x.array_record-{k:05}-of-{len(counts):05}", some, group)
        records += some
    return records


def read(folder: Path | str, **more: Any) -> list[bytes]:
    source = ArrayRecordDataSource(str(folder), **more)
    return source.read(np.arange(len(source)))


def shuffled(folder: Path, seed: int) -> list[bytes]:
    """What the chain gives that people would write."""
    chain = windrow.MapDataset.source(ArrayRecordDataSource(str(folder))).shuffle(seed)
    found: list[bytes] = chain.read(np.arange(len(chain)))
    return found


def counts_of(manifest: Manifest) -> list[int]:
    return [file.records for file in manifest.files]


def test_file_by_file_with_other_options(tmp_path: Path) -> None:
    records = shards(tmp_path / "in", (5, 0, 1, 9), group=2)
    steps: list[Progress] = []
    manifest = array_record_to_array_record(
        tmp_path / "in", tmp_path / "out", writer_options="group_size:3", progress=steps.append
    )
    assert read(tmp_path / "out") == records
    names = [f"x.array_record-{k:05}-of-00004" for k in range(4)]
    assert [file.name for file in manifest.files] == names
    assert counts_of(manifest) == [5, 0, 1, 9]
    assert [file.records for file in manifest.inputs] == [5, 0, 1, 9]
    options = ArrayRecordReader(str(tmp_path / "out" / names[3])).writer_options_string()
    assert "group_size:3" in options
    total = sum(os.path.getsize(path) for path in (tmp_path / "in").iterdir())
    assert (steps[-1].records, steps[-1].done_bytes) == (15, total)


@pytest.mark.jobs
@settings(max_examples=examples(25))
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    group=st.integers(1, 9),
    files=st.integers(1, 12),
    seed=st.none() | st.integers(0, 2**32 - 1),
    memory=st.sampled_from([SMALL, 1 << 22]),
)
def test_every_record_once_in_its_place(
    counts: list[int], group: int, files: int, seed: int | None, memory: int
) -> None:
    """More files than records too, and none at all."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        records = shards(here / "in", counts, group=group, size=2000)
        manifest = array_record_to_array_record(
            here / "in",
            here / "out",
            files=files,
            shuffle_seed=seed,
            memory_bytes=memory,
            writer_options=f"group_size:{group}",
            progress=False,
        )
        wanted = records
        if seed is not None and records:
            wanted = shuffled(here / "in", seed)
        assert read(here / "out") == wanted
        assert len(manifest.files) == files
        assert sum(counts_of(manifest)) == len(records)
        assert max(counts_of(manifest)) - min(counts_of(manifest)) <= 1
        assert [file.records for file in manifest.inputs] == counts
        assert len(os.listdir(here / "out")) == files + 1


def test_the_order_is_frozen(tmp_path: Path) -> None:
    # People name a shuffled dataset by its seed.
    write(tmp_path / "x.array_record", [b"%d" % k for k in range(10)])
    array_record_to_array_record(tmp_path / "x.array_record", tmp_path / "out", shuffle_seed=7)
    assert read(tmp_path / "out") == [b"%d" % k for k in (4, 0, 3, 7, 2, 9, 6, 8, 1, 5)]


@pytest.mark.jobs
def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    memory = 2 << 20
    rng = np.random.default_rng(0)
    records = [rng.bytes(int(rng.integers(1, 4000))) for _ in range(6000)]  # some 12 MB
    write(tmp_path / "x.array_record", records, group=16)
    tracemalloc.start()
    array_record_to_array_record(
        tmp_path / "x.array_record",
        tmp_path / "out",
        files=2,
        shuffle_seed=1,
        memory_bytes=memory,
        progress=False,
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Memory holds records, blocks of files that are read back, indices, and what each of the two
    # files written at a time compresses together, as it is and as it is stored.
    assert peak < memory + (3 << 20) + 4 * HELD_BYTES, peak


def test_names(tmp_path: Path) -> None:
    for name in ("a.array_record", "b.arrayrecord", "c"):
        write(tmp_path / name, [name.encode()])
    paths = [tmp_path / "a.array_record", tmp_path / "b.arrayrecord", tmp_path / "c"]
    manifest = array_record_to_array_record(paths, tmp_path / "one")
    assert [f.name for f in manifest.files] == ["a.array_record", "b.arrayrecord", "c.array_record"]
    manifest = array_record_to_array_record(paths, tmp_path / "two", files=2)
    assert [f.name for f in manifest.files] == [
        "records.array_record-00000-of-00002",
        "records.array_record-00001-of-00002",
    ]
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "c", [b"c too"])
    with pytest.raises(ConversionError, match=r"would both become c\.array_record; .*files="):
        array_record_to_array_record([paths[2], tmp_path / "other" / "c"], tmp_path / "out")
    # As one set they may have one name.
    array_record_to_array_record([paths[2], tmp_path / "other" / "c"], tmp_path / "out", files=1)
    assert read(tmp_path / "out") == [b"c", b"c too"]


# Damage.


def damage(path: Path, share: float) -> None:
    """Change a byte of the data of a record group, at a share of the file's groups."""
    data = bytearray(path.read_bytes())
    reader = ArrayRecordDataSource(str(path))
    data[int(reader.files[0].facts.data_bytes * share)] ^= 0xFF
    path.write_bytes(data)


def damaged(folder: Path) -> tuple[Path, list[bytes], tuple[int, int]]:
    """Two files of groups of 4; one group of the second cannot be read: records, and which."""
    records = shards(folder, (20, 40), group=4, size=3000)
    path = folder / "x.array_record-00001-of-00002"
    damage(path, 0.5)
    with pytest.raises(ReadError) as found:
        read(path)
    assert found.value.records is not None
    first, stop = found.value.records
    assert stop - first == 4
    return path, records, (20 + first, 20 + stop)


MANNERS: list[dict[str, Any]] = [
    {},
    {"files": 3},
    {"shuffle_seed": 5, "files": 2},
    {"shuffle_seed": 5, "memory_bytes": SMALL},
]


@pytest.mark.parametrize("manner", MANNERS)
def test_a_damaged_group_costs_its_records_on_request(
    tmp_path: Path, manner: dict[str, Any]
) -> None:
    path, records, (first, stop) = damaged(tmp_path / "in")
    out = tmp_path / "out"
    match = rf"record {first - 20} of .*x\.array_record-00001-of-00002 \(chunk \d+, stored with"
    with pytest.raises(ReadError, match=match):
        array_record_to_array_record(tmp_path / "in", out, **manner)
    assert UNFINISHED in os.listdir(out)
    with pytest.raises(ReadError, match="max_bad_records=3"):
        array_record_to_array_record(tmp_path / "in", out, max_bad_records=3, **manner)
    manifest = array_record_to_array_record(tmp_path / "in", out, max_bad_records=4, **manner)
    left = [*records[:first], *records[stop:]]
    if "shuffle_seed" in manner:
        order = shuffled_orders.shuffled(np.arange(60), 60, 5).tolist()
        left = [records[k] for k in order if not first <= k < stop]
    assert read(out) == left
    assert [(one.file, one.record) for one in manifest.skipped] == [
        (path.name, record - 20) for record in range(first, stop)
    ]
    assert [(file.records, file.skipped) for file in manifest.inputs] == [(20, 0), (36, 4)]
    assert Manifest.read(out) == manifest


def test_wrong_arguments(tmp_path: Path) -> None:
    shards(tmp_path / "in", (3,))
    for wrong, match in (
        ({"files": 0}, "files must be an integer from 1"),
        ({"files": True}, "files must be an integer from 1"),
        ({"shuffle_seed": -1}, "shuffle_seed must be an integer from 0 to 4,294,967,295, got -1"),
        ({"memory_bytes": 10}, "memory_bytes must be an integer from 65,536"),
        ({"writer_options": 3}, "writer_options is a str"),
    ):
        with pytest.raises(ArgumentError, match=match):
            array_record_to_array_record(tmp_path / "in", tmp_path / "out", **wrong)


def test_an_output_that_holds_the_input_is_refused(tmp_path: Path) -> None:
    shards(tmp_path / "in", (3, 4))
    out = tmp_path / "out"
    array_record_to_array_record(tmp_path / "in", out)
    before = tree(out)
    for inputs in (out, f"{out}/*record-0*", f"{out}/x.array_record-00000-of-00002"):
        with pytest.raises(ArgumentError, match="lies in it; choose another folder"):
            array_record_to_array_record(inputs, out, overwrite=True, files=1)
    assert tree(out) == before


def test_what_is_known_of_the_features_is_kept(tmp_path: Path) -> None:
    shards(tmp_path / "in", (8,))
    array_record_to_array_record(tmp_path / "in", tmp_path / "one")
    where = tmp_path / "one" / MANIFEST_NAME
    value = json.loads(where.read_text())
    value["settings"] |= {"features": {"a": 1}, "arrays": {"a": 2}, "encode": None}
    where.write_text(json.dumps(value))
    manifest = array_record_to_array_record(tmp_path / "one", tmp_path / "two", shuffle_seed=3)
    assert manifest.settings["features"] == {"a": 1}
    assert manifest.settings["arrays"] == {"a": 2}
    assert "encode" not in manifest.settings
