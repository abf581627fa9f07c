"""A restore in a new process, over ragged Zarr: the batches that follow, and few bytes read before the first."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import windrow
from windrow.sources import RaggedDataSource

M = windrow.MapDataset
ALONE = windrow.ReadOptions(num_threads=0, prefetch_buffer_size=0)
ROW, BATCH, LANES = 64, 16, 4
CHUNK = 256
LENGTHS = np.random.default_rng(5).integers(1, 60, 4_000)
OFFSETS = np.cumsum([0, *LENGTHS])
ROOT = Path(__file__).resolve().parents[2]


def written(path: Path) -> Path:
    """Documents of tokens, about 8 in a chunk."""
    group, total = zarr.create_group(path), int(LENGTHS.sum())
    values = (np.arange(total) % 60_000 + 1).astype(np.uint16)
    group.create_array("values", data=values, chunks=(CHUNK,))
    group.create_array("offsets", data=OFFSETS)
    return path


def chunk_bytes(records: list[int]) -> int:
    """Bytes of the chunks that hold these documents."""
    chunks = {
        chunk
        for record in records
        for chunk in range(OFFSETS[record] // CHUNK, (OFFSETS[record + 1] - 1) // CHUNK + 1)
    }
    return 2 * CHUNK * len(chunks)


def as_tokens(document: Any) -> dict[str, Any]:
    return {"tokens": document}


def stream_of(path: str, kind: str) -> windrow.IterDataset[Any]:
    """Packed rows: in lanes as documents come, or planned from lengths."""
    chain = M.source(RaggedDataSource(path)).block_shuffle(window_blocks=LANES, seed=1).repeat()
    if kind == "planned":
        return chain.pack(ROW, window=64, read_options=ALONE).batch(BATCH)
    lanes = chain.map(as_tokens).to_iter_dataset(ALONE, lanes=LANES)
    return lanes.pack({"tokens": ROW}, "best_fit", num_packing_bins=4).batch(BATCH)


def checksum(batch: dict[str, Any]) -> int:
    return zlib.crc32(b"".join(batch[name].tobytes() for name in sorted(batch)))


def decoded_bytes(iterator: Any) -> float:
    """Bytes of the chunks that were read so far."""
    (costs,) = iterator.stats().sources
    return float(costs.decoded_bytes.high)


def restore(path: str, kind: str, state: dict[str, Any], count: int) -> list[Any]:
    """The bytes decoded once restored, and with the first batch; its records; checksums of batches."""
    with iter(stream_of(path, kind)) as iterator:
        iterator.set_state(state)
        restored = decoded_bytes(iterator)
        sums = [checksum(next(iterator))]
        first = decoded_bytes(iterator)
        rows: Any = iterator.records_of_last()
        records = [each.record for row in rows for each in row]
        sums += [checksum(batch) for batch in itertools.islice(iterator, count - 1)]
    return [restored, first, records, sums]


# In lanes the open rows are read again: as many as a batch has rows.
@pytest.mark.parametrize(("kind", "batches"), [("lanes", 2), ("planned", 1)])
def test_a_new_process_continues_and_reads_little(tmp_path: Path, kind: str, batches: int) -> None:
    path = str(written(tmp_path / "tokens"))
    with iter(stream_of(path, kind)) as iterator:
        for _ in range(40):
            next(iterator)
        state = iterator.get_state()
        expected = [checksum(batch) for batch in itertools.islice(iterator, 6)]
    job = tmp_path / "job.json"
    job.write_text(json.dumps([path, kind, state, 6]))
    script = (
        "import json, pathlib, sys\n"
        "from tests.chain.test_restored_elsewhere import restore\n"
        "job = json.loads(pathlib.Path(sys.argv[1]).read_text())\n"
        "json.dump(restore(*job), sys.stdout)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(job)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=300,
    )
    restored, first, records, sums = json.loads(done.stdout)
    assert sums == expected
    assert restored == 0
    assert 0 < first <= batches * chunk_bytes(records) < OFFSETS[-1]
