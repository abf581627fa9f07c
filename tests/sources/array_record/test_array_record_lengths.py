"""Lengths of ArrayRecord records come from the index at the end of each file, and read no record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow import MapDataset
from windrow.errors import ArgumentError, PlanError, SourceError
from windrow.sources import ArrayRecordDataSource
from windrow.transforms.nodes import lengths_of
from windrow.transforms.positions import positions


def write(path: Path, sizes: list[int], options: str = "group_size:1") -> str:
    writer = ArrayRecordWriter(str(path), options)
    for number, size in enumerate(sizes):
        writer.write(bytes([number % 256]) * size)
    writer.close()
    return str(path)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([0, 2, 4, 300, 70_000]), min_size=1, max_size=9),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["group_size:1", "group_size:1,uncompressed", "group_size:1,zstd:1"]),
)
def test_lengths_are_those_of_the_records(
    tmp_path_factory: Any, sizes: list[list[int]], options: str
) -> None:
    folder = tmp_path_factory.mktemp("records")
    paths = [write(folder / f"{n}.array_record", some, options) for n, some in enumerate(sizes)]
    source = ArrayRecordDataSource([*paths, f"{paths[0]}[0:1]"])
    records = source.__getitems__(range(len(source)))
    assert source.lengths().tolist() == list(map(len, records))
    assert source.lengths("<u2").tolist() == [len(record) // 2 for record in records]


@pytest.mark.parametrize("direct", [None, False])
def test_a_shuffled_chain_has_them(tmp_path: Path, direct: bool | None) -> None:
    path = write(tmp_path / "x.array_record", [5, 0, 3, 9])
    dataset = MapDataset.source(ArrayRecordDataSource(path, direct=direct)).shuffle(seed=0)
    found = lengths_of(dataset._node, positions(np.arange(4), 4))
    assert found.tolist() == [len(record) for record in dataset if record is not None]


def test_what_has_no_lengths_says_so(tmp_path: Path) -> None:
    grouped = ArrayRecordDataSource(write(tmp_path / "g.array_record", [4, 4], "group_size:2"))
    message = r"groups of 2 records, .* group_size:1, give lengths=, or count .* windrow\.lengths"
    with pytest.raises(PlanError, match=message):
        grouped.lengths()
    path = write(tmp_path / "x.array_record", [4, 3])
    source = ArrayRecordDataSource(path)
    with pytest.raises(SourceError, match=r"record 1 has 3 bytes, .* items of uint16 \(2 bytes\)"):
        source.lengths("uint16")
    for wrong in ("tokens", "S0"):
        with pytest.raises(ArgumentError, match=r"in items of a dtype.*, got '(tokens|S0)'"):
            source.lengths(wrong)
    os.remove(path)
    write(tmp_path / "x.array_record", [4, 3, 2])
    with pytest.raises(SourceError, match=r"has changed since the source was made"):
        source.lengths()
