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
from windrow.sources.zarr.offsets import values_per_block
from windrow.transforms.nodes.packing import ENOUGH
from windrow.transforms.positions import positions

M = windrow.MapDataset
ALONE = windrow.ReadOptions(num_threads=0, prefetch_buffer_size=0)
ROW, BATCH, LANES = 64, 16, 4
CHUNK = 256
LENGTHS = np.random.default_rng(5).integers(1, 60, 4_000)
OFFSETS = np.cumsum([0, *LENGTHS])
ROOT = Path(__file__).resolve().parents[2]


def written(path: Path, offsets: Any = OFFSETS, **layout: Any) -> Path:
    """Documents of tokens, about 8 in a chunk of `CHUNK`."""
    group, total = zarr.create_group(path), int(offsets[-1])
    values = (np.arange(total) % 60_000 + 1).astype(np.uint16)
    group.create_array("values", data=values, **(layout or {"chunks": (CHUNK,)}))
    group.create_array("offsets", data=offsets, chunks=(512,), compressors=None)
    return path


def chunk_bytes(records: list[int], offsets: Any = OFFSETS, size: int = CHUNK) -> int:
    """Bytes of the chunks that hold these documents."""
    chunks = {
        chunk
        for record in records
        for chunk in range(offsets[record] // size, (offsets[record + 1] - 1) // size + 1)
    }
    return 2 * size * len(chunks)


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


def elsewhere(function: str, *arguments: Any) -> Any:
    """What a function of this module returns in a new process."""
    script = (
        "import json, sys\n"
        f"from tests.chain.test_restored_elsewhere import {function} as run\n"
        "json.dump(run(*json.load(sys.stdin)), sys.stdout)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(arguments).encode(),
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout)


# In lanes the open rows are read again: as many as a batch has rows.
@pytest.mark.parametrize(("kind", "batches"), [("lanes", 2), ("planned", 1)])
def test_a_new_process_continues_and_reads_little(tmp_path: Path, kind: str, batches: int) -> None:
    path = str(written(tmp_path / "tokens"))
    with iter(stream_of(path, kind)) as iterator:
        for _ in range(40):
            next(iterator)
        state = iterator.get_state()
        expected = [checksum(batch) for batch in itertools.islice(iterator, 6)]
    restored, first, records, sums = elsewhere("restore", path, kind, state, 6)
    assert sums == expected
    assert restored == 0
    assert 0 < first <= batches * chunk_bytes(records) < OFFSETS[-1]


def file_bytes() -> int:
    """Bytes of files that this process has read so far, from wherever the system has them."""
    return int(Path("/proc/self/io").read_text().split()[1])


def restore_counted(paths: list[str], state: dict[str, Any]) -> list[list[Any]]:
    """For each store: bytes read to open, restore and give a batch; its records; its checksum."""
    found = []
    for path in paths:
        before = file_bytes()
        with iter(stream_of(path, "planned")) as iterator:
            iterator.set_state(state)
            batch = next(iterator)
            count = file_bytes() - before
            rows: Any = iterator.records_of_last()
        found.append([count, [each.record for row in rows for each in row], checksum(batch)])
    return found


@pytest.mark.jobs
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count reads")
def test_of_the_lengths_a_new_process_reads_those_of_a_window(tmp_path: Path) -> None:
    chunk, offsets = 2048, np.cumsum([0, *np.random.default_rng(6).integers(1, 60, 120_000)])
    plain = written(tmp_path / "plain", offsets, chunks=(chunk,), shards=(64 * chunk,))
    indexed, size = tmp_path / "indexed", values_per_block(chunk, 2)
    group = zarr.create_group(indexed)
    for name in ("values", "offsets"):
        (indexed / name).symlink_to(plain / name)
    blocks = np.searchsorted(offsets, np.arange(0, offsets[-1], size))
    noted: dict[str, Any] = {"windrow_block_values": size}
    group.create_array("blocks", data=blocks, compressors=None, attributes=noted)
    with iter(stream_of(str(plain), "planned")) as iterator:
        iterator.skip(40)
        state = iterator.get_state()
        expected = checksum(next(iterator))
    # The first store is read for the modules that are loaded on the way.
    paths = [str(plain), str(plain), str(indexed)]
    _, whole, part = elsewhere("restore_counted", paths, state)
    assert [expected] * 2 == [whole[-1], part[-1]]
    source = M.source(RaggedDataSource(indexed))
    shuffled: Any = source.block_shuffle(window_blocks=LANES, seed=1)._node
    order = shuffled.to_parent(positions(np.arange(len(offsets) - 1), len(offsets) - 1)).offsets
    # Windows that are smaller are planned together.
    windows = np.split(order, range(ENOUGH, len(order), ENOUGH))
    chunks = [np.unique(np.concatenate([some, some + 1]) // 512) for some in windows]
    lengths = 4096 * (max(map(len, chunks)) + 1) + blocks.nbytes
    metadata = 4 * sum(file.stat().st_size for file in tmp_path.rglob("zarr.json"))
    metadata += 1028 * -(-int(offsets[-1]) // (64 * chunk))  # the indexes of shards
    assert part[0] <= lengths + chunk_bytes(part[1], offsets, chunk) + metadata
    assert lengths < 0.4 * offsets.nbytes < offsets.nbytes < whole[0]
