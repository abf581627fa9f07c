"""The native core reads what the plain readers read, and reports what they report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr import codecs

from tests.zarr_codecs import V3
from windrow.core import native
from windrow.errors import ReadError
from windrow.sources import WindowDataSource
from windrow.sources.chunks import Span
from windrow.sources.zarr.local import native_chunks as seam
from windrow.sources.zarr.local.metadata import PlainArray, plain_array

pytestmark = pytest.mark.skipif(native.native() is None, reason="there is no native core")


def rows_of(folder: Path, values: Any, **named: Any) -> PlainArray:
    array = zarr.create_array(folder, shape=values.shape, dtype=values.dtype, fill_value=0, **named)
    array[...] = values
    plain = plain_array(str(folder))
    assert isinstance(plain, PlainArray), plain
    return plain


def test_reads_that_are_dropped_end_first(tmp_path: Path) -> None:
    values = np.zeros((4_000, 500), "u2")
    plain = rows_of(tmp_path / "a", values, chunks=(20, 500), compressors=V3["gzip"])
    chunks = seam.native_chunks(plain)
    assert chunks is not None
    for _ in range(20):
        outs = [np.ones((20, 500), "u2") for _ in range(200)]
        reading = chunks.start([Span(20 * k, 20 * k + 20, o) for k, o in enumerate(outs)])
        del reading
        was = [out.tobytes() for out in outs]
        assert was == [out.tobytes() for out in outs]


def ran(program: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "WINDROW_NATIVE": ""},
    )


ENDED = """
import sys, numpy as np
from windrow.sources.zarr.local.metadata import plain_array
from windrow.sources.zarr.local.native_chunks import native_chunks
from windrow.sources.chunks import Span
chunks = native_chunks(plain_array(sys.argv[1]))
spans = [Span(20 * k, 20 * k + 20, np.empty((20, 500), "u2")) for k in range(200)] * 5
reading = chunks.start(spans)
print("ends now")
"""


def test_the_interpreter_ends_while_chunks_are_read(tmp_path: Path) -> None:
    values = np.zeros((4_000, 500), "u2")
    rows_of(tmp_path / "a", values, chunks=(20, 500), compressors=V3["gzip"])
    for _ in range(2):
        done = ran(ENDED, str(tmp_path / "a"))
        assert (done.returncode, done.stdout, done.stderr) == (0, "ends now\n", "")


def large_chunks(path: Path, codec: codecs.ZstdCodec) -> np.ndarray[Any, Any]:
    """Numbers in two chunks of 1 MB, and the last bytes of the second one damaged."""
    values = np.random.default_rng(0).integers(0, 200, 500_000).astype("u4")
    zarr.create_array(str(path), data=values, chunks=(250_000,), compressors=[codec])
    file = path / "c" / "1"
    data = bytearray(file.read_bytes())
    data[-100:-20] = bytes(80)
    file.write_bytes(data)
    return values


def test_the_rest_of_a_chunk_is_not_decoded_for_its_first_rows(tmp_path: Path) -> None:
    values = large_chunks(tmp_path / "x", codecs.ZstdCodec(level=1))
    windows = WindowDataSource(tmp_path / "x", {0: 1_000}, {0: 500})
    # One window lies on both sides of the border, and one begins at it.
    for number in (499, 500, 501):
        expected = values[500 * number :][:1_000]
        np.testing.assert_array_equal(windows.read(np.array([number]))[0], expected)
    with pytest.raises(ReadError, match="c/1"):
        windows.read(np.array([900]))
    with pytest.raises(ReadError, match="c/1"):
        windows.read(np.array([500, 900]))


def test_a_chunk_with_a_checksum_is_decoded_to_its_end(tmp_path: Path) -> None:
    values = large_chunks(tmp_path / "x", codecs.ZstdCodec(level=1, checksum=True))
    windows = WindowDataSource(tmp_path / "x", {0: 1_000}, {0: 500})
    np.testing.assert_array_equal(windows.read(np.array([3]))[0], values[1_500:2_500])
    with pytest.raises(ReadError, match="c/1"):
        windows.read(np.array([500]))


FEW_FILES = """
import os, resource, sys
import numpy as np
from windrow.sources import ZarrDataSource

source = ZarrDataSource(sys.argv[1])
opened = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 40, opened + 40))
order = np.random.default_rng(0).permutation(len(source))
for rows in np.split(order, 10):
    assert (source.read(rows)[:, 0] == rows).all()
kept = len(os.listdir("/proc/self/fd")) - opened
assert 10 <= kept <= (opened + 40) // 4, kept
print("read")
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_files_of_raw_chunks_stay_open_while_there_is_room(tmp_path: Path) -> None:
    rows = np.repeat(np.arange(400, dtype="i4")[:, None], 300, axis=1)
    zarr.create_array(str(tmp_path / "x"), data=rows, chunks=(2, 300), compressors=None)
    command = [sys.executable, "-c", FEW_FILES, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "read\n", done.stderr
