"""Ten million ragged rows: all that metadata show is at hand in seconds."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import zarr

from windrow import MapDataset
from windrow.sources import RaggedDataSource
from windrow.transforms.nodes import PlannedNode

ROWS = 10_000_000


def test_ten_million_rows_are_planned_from_metadata(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    ends = np.arange(1, ROWS + 1) * 100 - np.arange(ROWS) % 2  # rows of 99 and 101
    # Chunks that are not written have zeros: the values are never read.
    group.create_array("values", shape=(int(ends[-1]),), chunks=(1 << 16,), dtype="u2")
    offsets = np.append(0, ends)
    group.create_array("offsets", data=offsets, chunks=(ROWS + 1,), compressors=None)
    began_s = time.process_time()
    source = RaggedDataSource(tmp_path)
    lengths = source.lengths()
    assert lengths is not None
    assert (len(lengths), int(lengths.max())) == (ROWS, 101)
    rows = MapDataset.source(source).shuffle(seed=1).repeat().pack(2_048)
    node = rows._node.parent
    assert isinstance(node, PlannedNode)
    (counts,) = node.planned_counts(node.indices_from(0, 1)).values()
    assert counts.documents == 16_384
    iterator = iter(rows.batch(8))
    assert iterator.skip(10) == 10
    state = iterator.get_state()
    assert state["rows"] == 80
    again = iter(rows.batch(8))
    again.set_state(state)
    assert len(rows.batch(8).records_of(10)) == 8
    planned_s = time.process_time()
    padded = MapDataset.source(source).shuffle(seed=1).to_iter_dataset().batch(8, pad_to=101)
    assert padded.explain().batches.high == ROWS // 8
    explained_s = time.process_time()
    # Of this process's processor time, whatever else the machine does.
    assert explained_s - planned_s < 2
    assert explained_s - began_s < 3
