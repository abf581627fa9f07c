"""Inputs of every conversion, small; and what each makes of them, by the bytes of its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet

from tests.texts import END, saved, texts, write_lines
from tests.tfds_folders import write_folder
from windrow.converters import beam as transforms
from windrow.converters import encode_example, tfrecord_to_array_record, write_records
from windrow.converters.job.manifest import Manifest
from windrow.converters.records.reshard import array_record_to_array_record
from windrow.converters.texts.to_records import (
    json_lines_to_array_record,
    parquet_to_array_record,
)
from windrow.converters.texts.to_zarr import json_lines_to_zarr, parquet_to_zarr
from windrow.converters.tfds.conversions import tfds_to_zarr
from windrow.converters.zarr.from_records import array_record_to_zarr, tfrecord_to_zarr
from windrow.converters.zarr.rechunk import zarr_to_zarr
from windrow.converters.zarr.to_records import zarr_to_array_record

COUNTS = (5, 0, 9, 26)
RECORDS = sum(COUNTS)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A conversion: the function, the PTransform, what it reads of `make_inputs`, its arguments."""

    function: Callable[..., Manifest]
    transform: type[transforms.ConversionTransform]
    source: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", ""))

    def run(self, inputs: Path, output: Path, **run: Any) -> Manifest:
        return self.function(str(inputs / self.source), output, **self.given(inputs), **run)

    def given(self, inputs: Path) -> dict[str, Any]:
        """The arguments; a tokenizer lies beside the inputs."""
        settings = dict(self.settings)
        if "tokenizer" in settings:
            settings["tokenizer"] = str(inputs / settings["tokenizer"])
        return settings


_TOKENS = {"field": "text", "tokenizer": "tokenizer.json", "end_token": END}
CASES = [
    Case(
        array_record_to_array_record,
        transforms.ArrayRecordToArrayRecord,
        "records/*array_record*",
        {"files": 3, "shuffle_seed": 5, "memory_bytes": 1 << 16},
    ),
    Case(tfrecord_to_array_record, transforms.TFRecordToArrayRecord, "x.tfrecord-*"),
    Case(
        tfrecord_to_zarr,
        transforms.TFRecordToZarr,
        "x.tfrecord-*",
        {"chunk_rows": 4, "shard_rows": 16},
    ),
    Case(array_record_to_zarr, transforms.ArrayRecordToZarr, "records/*array_record*"),
    Case(zarr_to_zarr, transforms.ZarrToZarr, "arrays", {"chunks": 3, "shards": 9}),
    Case(zarr_to_array_record, transforms.ZarrToArrayRecord, "arrays", {"files": 3}),
    Case(json_lines_to_zarr, transforms.JsonLinesToZarr, "x.jsonl", _TOKENS),
    Case(
        json_lines_to_array_record,
        transforms.JsonLinesToArrayRecord,
        "x.jsonl",
        {"field": "text", "files": 3},
    ),
    Case(parquet_to_zarr, transforms.ParquetToZarr, "x.parquet", {"names": ["id"]}),
    Case(parquet_to_array_record, transforms.ParquetToArrayRecord, "x.parquet", _TOKENS),
    Case(tfds_to_zarr, transforms.TFDSToZarr, "counts", {"chunk_rows": 2, "shard_rows": 6}),
]


def make_inputs(folder: Path) -> Path:
    """TFRecord files, ArrayRecord files and a Zarr group made from them, texts, a folder of tfds."""
    rows = np.random.default_rng(0).integers(-99, 99, (RECORDS, 64)).astype(np.float32)
    records = [encode_example({"x": row, "label": i % 7}) for i, row in enumerate(rows)]
    folder.mkdir()
    start = 0
    for number, count in enumerate(COUNTS):
        path = folder / f"x.tfrecord-{number:05}-of-{len(COUNTS):05}"
        write_records(path, records[start : start + count])
        start += count
    tfrecord_to_array_record(str(folder / "x.tfrecord-*"), folder / "records")
    tfrecord_to_zarr(str(folder / "x.tfrecord-*"), folder / "arrays")
    write_lines(folder / "x.jsonl", texts(RECORDS))
    table = pyarrow.table({"id": range(RECORDS), "text": texts(RECORDS)})
    pyarrow.parquet.write_table(table, folder / "x.parquet", row_group_size=9)
    saved(folder / "tokenizer.json")
    write_folder(folder / "counts" / "1.0.0", {"train": COUNTS[:3], "test": COUNTS[3:]})
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files below a folder, by their paths in it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
