"""ArrayRecord files that conversions have open: which are opened again, and what is known of them."""

from __future__ import annotations

import collections
import itertools
from pathlib import Path
from typing import Any

import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from windrow.converters import array_record_to_zarr, encode_example
from windrow.converters.job.inputs import Input, find_inputs
from windrow.converters.records.record_reading import OpenRecordFiles
from windrow.sources import ArrayRecordDataSource

BOUNDS = (0, 7, 8, 33)


@pytest.fixture
def files(tmp_path: Path) -> list[Input]:
    """Three files, of 7, 1 and 25 records; each record is its number."""
    (tmp_path / "in").mkdir()
    for k, (start, stop) in enumerate(itertools.pairwise(BOUNDS)):
        path = tmp_path / "in" / f"x.array_record-{k:05}-of-00003"
        writer = ArrayRecordWriter(str(path), "group_size:2")
        for row in range(start, stop):
            writer.write(encode_example({"row": row}))
        writer.close()
    return list(find_inputs(tmp_path / "in", marks=("array_record",)))


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files were opened, each time that some were."""
    counted: list[int] = []

    def counting(paths: list[str], **options: Any) -> ArrayRecordDataSource:
        counted.append(len(paths))
        return ArrayRecordDataSource(paths, **options)

    monkeypatch.setattr("windrow.converters.records.record_reading.ArrayRecordDataSource", counting)
    none: collections.deque[OpenRecordFiles] = collections.deque(maxlen=2)
    monkeypatch.setattr("windrow.converters.records.record_reading._opened", none)
    return counted


def test_a_conversion_opens_files_once(
    files: list[Input], openings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.converters.records.record_reading.native", lambda: True)
    monkeypatch.setattr("windrow.converters.zarr.records_work._PIECE_BYTES", 1)
    folder = Path(files[0].url).parent
    array_record_to_zarr(folder, folder.parent / "out", chunk_rows=2, shard_rows=4)
    assert openings == [3]  # to count records, to find out features, and for all row ranges
