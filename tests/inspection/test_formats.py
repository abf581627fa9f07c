"""Formats by names of files."""

from __future__ import annotations

import pytest

from windrow.sources import signatures


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.array_record", "array_record"),
        ("a.arrayrecords", "array_record"),
        ("a.ARRAY_RECORD-00000-of-00002", "array_record"),
        ("a.array_record[0:5]", "array_record"),
        ("a.tfrecord", "tfrecord"),
        ("a.tfrec.gz", "tfrecord"),
        ("a.tfrecords-00001-of-00002", "tfrecord"),
        ("a.nc", "netcdf"),
        ("a.jsonl", "json_lines"),
        ("a.ndjson.zst", "json_lines"),
        ("a.jsonl-00000-of-00002.gz", "json_lines"),
        ("a.parquet", "parquet"),
        ("a.zarr", None),
        ("a.tfrecord[0:5]", None),
        ("tfrecord", None),
    ],
)
def test_names(name: str, format: str | None) -> None:
    found = signatures.of_name(name)
    assert (None if found is None else found.name) == format
