"""How the peers open what they read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorstore as ts
from array_record.python import array_record_module

NO_READ_AHEAD = "readahead_buffer_size:0,max_parallelism:0"
"""Options of the ArrayRecord reader that suit records picked one by one."""


def zarr(path: str, cache_bytes: int = 0) -> ts.TensorStore:
    """A Zarr v3 array with a cache of its own, which is not asked whether it is still true."""
    return ts.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}},
        context=ts.Context({"cache_pool": {"total_bytes_limit": cache_bytes}}),
        recheck_cached_data=False,
        recheck_cached_metadata=False,
    ).result()


def far_zarr(url: str, cache_bytes: int, requests: int) -> ts.TensorStore:
    """The same over HTTP, with so many requests in flight at a time."""
    context = {
        "cache_pool": {"total_bytes_limit": cache_bytes},
        "http_request_concurrency": {"limit": requests},
    }
    return ts.open(
        {"driver": "zarr3", "kvstore": f"{url}/"},
        context=ts.Context(context),
        recheck_cached_data=False,
        recheck_cached_metadata=False,
    ).result()


def folder_reader(folder: str) -> Iterator[bytes]:
    """All records of a folder's ArrayRecord files, read 1,024 a call, reading ahead."""
    for path in sorted(Path(folder).glob("*.array_record*")):
        reader = array_record(str(path), "")
        records = reader.num_records()
        for first in range(0, records, 1_024):
            yield from reader.read(first, min(first + 1_024, records))
        reader.close()


def array_record(path: str, options: str = NO_READ_AHEAD) -> Any:
    """The reader of an ArrayRecord file."""
    return array_record_module.ArrayRecordReader(path, options)
