"""What is trained on: files with damaged records, and the chains that read them.

A damaged record raises whenever it is read, from any place, so the stream does not depend on where the
files are.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import zarr

import windrow
from tests.array_record_bytes import written
from windrow.sources import ArrayRecordDataSource, RemoteOptions, ZarrDataSource

RECORDS: Final = 960
WIDTH: Final = 1000
DAMAGED: Final = 20
# Rows of a global batch, and its lanes: any of 1 to 4 processes can share them.
ROWS: Final = 24
LANES: Final = 4
PROCESSES: Final = (1, 2, 3, 4)

RECORDS_TASK: Final = "records"  # ArrayRecord, a stream with lanes; bad records are skipped
ARRAYS_TASK: Final = "arrays"  # Zarr, random access; bad records are replaced
TASKS: Final = (RECORDS_TASK, ARRAYS_TASK)
# Keys of states that differ from those of a run in one process: the chain in words names the workers.
IGNORED: Final = ("chain",)

_FILES: Final = tuple(f"records-{n:05d}-of-00002.array_record" for n in range(2))
_CHUNK: Final = 4

Columns = dict[str, npt.NDArray[Any]]


def values(seed: int) -> npt.NDArray[np.float32]:
    """The `x` of every record; none is the fill value."""
    return np.random.default_rng(seed).random((RECORDS, WIDTH), np.float32) + 1


def write(folder: Path, seed: int) -> None:
    """Write the records as ArrayRecord files and as Zarr arrays, and damage some in both."""
    data = values(seed)
    bad = random.Random(seed).sample(range(RECORDS), DAMAGED)
    _write_records(folder, data, bad)
    _write_arrays(folder, data, bad)


def _write_records(folder: Path, data: npt.NDArray[np.float32], bad: list[int]) -> None:
    for name, numbers in zip(_FILES, np.split(np.arange(RECORDS), len(_FILES)), strict=True):
        records = [number.tobytes() + data[number].tobytes() for number in numbers.astype(np.int64)]
        raw = bytearray(written(folder / name, records, "group_size:1,uncompressed"))
        for number in set(bad) & set(numbers.tolist()):
            whole = data[number].tobytes()
            # Headers of blocks of 64 KiB lie within some records.
            at = max(raw.find(whole[1000:1100]), raw.find(whole[2000:2100]))
            assert at > 0
            raw[at] ^= 1
        (folder / name).write_bytes(raw)


def _write_arrays(folder: Path, data: npt.NDArray[np.float32], bad: list[int]) -> None:
    group = zarr.create_group(str(folder / "arrays.zarr"))
    group.create_array("number", data=np.arange(RECORDS), chunks=(_CHUNK,))
    group.create_array("x", data=data, chunks=(_CHUNK, WIDTH))
    for chunk in {number // _CHUNK for number in bad}:
        path = folder / "arrays.zarr" / "x" / "c" / str(chunk) / "0"
        path.write_bytes(path.read_bytes()[:-100])


def chain(
    task: str,
    place: str,
    seed: int,
    remote: RemoteOptions | None = None,
    options: windrow.ReadOptions | None = None,
) -> Any:
    """The batches of a task, without end, of the files in a folder or under a URL."""
    if task == RECORDS_TASK:
        source: Any = ArrayRecordDataSource([f"{place}/{name}" for name in _FILES], remote=remote)
        records = windrow.MapDataset.source(source).seed(seed).shuffle().map(decoded)
        stream = records.on_bad("skip").to_iter_dataset(options, lanes=LANES).filter(is_kept)
        return stream.window_shuffle(16, seed=seed).repeat().batch(ROWS)
    source = ZarrDataSource(f"{place}/arrays.zarr", names=["number", "x"], remote=remote)
    arrays = windrow.MapDataset.source(source).seed(seed).shuffle().map(accepted)
    return arrays.on_bad("replace").repeat().batch(ROWS).to_iter_dataset(options)


def decoded(record: bytes) -> Columns:
    """The columns of a record of an ArrayRecord file."""
    number = np.frombuffer(record[:8], np.int64)[0]
    return accepted({"number": number, "x": np.frombuffer(record[8:], np.float32)})


def accepted(element: Columns) -> Columns:
    """The element, unless its number is one that the program cannot use."""
    if not is_usable(int(element["number"])):
        raise ValueError(f"record {int(element['number'])} cannot be used")
    return element


def is_usable(number: int) -> bool:
    """Whether `accepted` takes a record."""
    return number % 97 != 13


def is_kept(element: Columns) -> bool:
    """The filter of the stream."""
    return int(element["number"]) % 5 != 0
