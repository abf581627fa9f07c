"""What is measured over: the data of one run, made once, and its sizes.

Values are random of 6 bits in a byte, so that zstd takes off a quarter and has to work for it.

Invariant: the same setting gives the same bytes; ours, the peer and the floor read the same files.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore as ts
from array_record.python import array_record_module

_DATA_SEED = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """Where the data is, and how much of it.

    Args:
        folder: Folder of the files, as text, since it travels as JSON.
        records: Records in each of the two formats.
        record_bytes: Bytes of a record.
        chunk_rows: Records per Zarr chunk.
        batch_size: Records per batch.
        elements: Elements of the chain without data.
        restores: How often one round restores an iterator.
    """

    folder: str
    records: int = 50_000
    record_bytes: int = 3_072
    chunk_rows: int = 256
    batch_size: int = 256
    elements: int = 100_000
    restores: int = 5

    @property
    def array_record(self) -> str:
        """The ArrayRecord file: one record per chunk, zstd at its default level of 3."""
        return str(Path(self.folder) / "records.array_record")

    @property
    def zarr(self) -> str:
        """The Zarr v3 array: zstd level 1."""
        return str(Path(self.folder) / "records.zarr")

    def dumps(self) -> str:
        """The setting as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loads(cls, text: str) -> Setting:
        """The setting that `dumps` wrote."""
        return cls(**json.loads(text))


def small(folder: str) -> Setting:
    """A run of seconds, for tests: its figures say nothing."""
    return Setting(folder, records=600, elements=1_000, batch_size=64, chunk_rows=64, restores=2)


def write(setting: Setting) -> None:
    """Write the records in both formats. They are in the page cache afterwards."""
    writer = array_record_module.ArrayRecordWriter(setting.array_record, "group_size:1,zstd")
    store = ts.open(_zarr_spec(setting), create=True).result()
    for start, rows in _chunks(setting):
        for row in rows:
            writer.write(row.tobytes())
        store[start : start + len(rows)].write(rows).result()
    writer.close()


def _chunks(setting: Setting) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    random = np.random.default_rng(_DATA_SEED)
    for start in range(0, setting.records, setting.chunk_rows):
        rows = min(setting.chunk_rows, setting.records - start)
        yield start, random.integers(0, 64, (rows, setting.record_bytes), np.uint8)


def _zarr_spec(setting: Setting) -> dict[str, Any]:
    chunk = [setting.chunk_rows, setting.record_bytes]
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": setting.zarr},
        "metadata": {
            "shape": [setting.records, setting.record_bytes],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}],
        },
    }
