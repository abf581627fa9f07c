"""What a process of a run on 1 to 4,096 hosts plans, holds and asks of the store.

The store is simulated: 10^9 records of 3 KB in 10^6 chunks, whose reads end at once and fill no memory.
All else is measured: a real run has the same chains, planner and iterators. The processes 0, n / 2 and
n - 1 of n run one after the other in one interpreter, and the largest figure counts. A host is one
process, and a step takes 16 rows of each.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, Literal

import numpy as np
import psutil

from benchmarks.harness import OURS, Case, Metrics, Place, Regime, Side
from windrow import IterDataset, MapDataset
from windrow.sources import ArrayPart, Columns, LaidOutSource, Span
from windrow.sources.base import IntArray

RECORD_BYTES, CHUNK_RECORDS = 3_072, 1_000
ROWS: Final = 16  # of a process in a step
_DONE: Future[None] = Future()
_DONE.set_result(None)

Kind = Literal["global shuffle", "block shuffle", "lanes"]
KINDS: Final[tuple[Kind, ...]] = ("global shuffle", "block shuffle", "lanes")
HOSTS: Final = (1, 16, 256, 4_096)


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A chain on some hosts.

    Args:
        kind: "global shuffle" takes rows of a shuffle of all records, "block shuffle" of a block
            shuffle; "lanes" takes lanes of a block shuffle, one for each host.
        hosts: The number of processes.
        records: Records of the store.
        warm: Steps before those that are measured.
        steps: Steps that are measured.
    """

    kind: Kind
    hosts: int
    records: int = 1_000_000_000
    warm: int = 1_500
    steps: int = 1_500

    @classmethod
    def of(cls, kind: Kind, hosts: int) -> Run:
        """With as many records and steps as its kind needs."""
        return cls(
            kind, hosts, warm={"global shuffle": 1_500, "block shuffle": 500, "lanes": 200}[kind]
        )

    @property
    def step_rows(self) -> int:
        """The rows of a step of all processes."""
        return ROWS * self.hosts


# --- what is simulated ---------------------------------------------------------------------------


class NoReads:
    """Rows that a read leaves as they are in memory; it counts the chunks."""

    def __init__(self) -> None:
        self.chunks = 0

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Count the chunks."""
        self.chunks += len(spans)
        return _DONE

    def read(self, rows: IntArray) -> Any:
        """Refuse: all reads of these chains are planned."""
        raise NotImplementedError

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Half of the decoded bytes."""
        return np.full(len(chunks), CHUNK_RECORDS * RECORD_BYTES // 2)


class Store(LaidOutSource):
    """Records in chunks that are not there."""

    def __init__(self, run: Run) -> None:
        self.reader, self._records = NoReads(), run.records
        self._part = ArrayPart(
            "", run.records, (RECORD_BYTES,), np.dtype("u1"), CHUNK_RECORDS, self.reader
        )

    def __len__(self) -> int:
        return self._records

    @property
    def parts(self) -> Sequence[ArrayPart]:
        """The one part."""
        return [self._part]

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """The column."""
        return columns[0]

    def read(self, indices: IntArray) -> Columns:
        """Refuse: all reads of these chains are planned."""
        raise NotImplementedError

    def blocks(self) -> IntArray:
        """Bounds of chunks, in records."""
        return np.append(np.arange(0, self._records, CHUNK_RECORDS), self._records)

    @property
    def fingerprint(self) -> str:
        """Of this size."""
        return f"simulated({self._records})"


# --- what is measured ----------------------------------------------------------------------------


def dataset(run: Run, records: MapDataset[Any]) -> IterDataset[Any]:
    """The chain of a run, with global batches."""
    if run.kind == "global shuffle":
        return records.shuffle(seed=1).repeat().batch(run.step_rows).to_iter_dataset()
    blocks = records.block_shuffle(seed=1, block=CHUNK_RECORDS).repeat()
    if run.kind == "block shuffle":
        return blocks.batch(run.step_rows).to_iter_dataset()
    return blocks.to_iter_dataset(lanes=run.hosts).batch(run.step_rows)


def measured(run: Run) -> Metrics:
    """The figures of a run; one per step or per process is the largest of the measured processes."""
    idle_bytes = psutil.Process().memory_info().rss
    found = [_of_process(run, process) for process in sorted({0, run.hosts // 2, run.hosts - 1})]
    memory_bytes = psutil.Process().memory_info().rss - idle_bytes
    most = {name: max(each[name] for each in found) for name in found[0]}
    steps = run.records / run.step_rows  # of an epoch
    reads = float(np.mean([each["reads"] for each in found]))
    return most | {
        "memory_mb": memory_bytes / 1e6,
        "reads": reads,
        "requests": reads * run.hosts,
        "times_read": reads * run.hosts * steps * CHUNK_RECORDS / run.records,
    }


def _of_process(run: Run, process: int) -> dict[str, float]:
    store, begun_s = Store(run), time.perf_counter()
    shard = dataset(run, MapDataset.source(store)).shard(process, run.hosts)
    with iter(shard) as batches:
        next(batches)
        open_s = time.perf_counter() - begun_s
        for _ in range(run.warm):
            next(batches)
        before, chunks, core_s = batches.stats(), store.reader.chunks, time.process_time()
        for _ in range(run.steps):
            next(batches)
        core_s, after = time.process_time() - core_s, batches.stats()
        chunks = store.reader.chunks - chunks
        state = batches.get_state()
    begun_s = time.perf_counter()
    with iter(shard) as again:
        again.set_state(state)
        next(again)
        restore_s = time.perf_counter() - begun_s
    planned_s = after.waited_for.get("planning", 0.0) - before.waited_for.get("planning", 0.0)
    return {
        "plan_ms": 1e3 * planned_s / run.steps,
        "loader_ms": 1e3 * core_s / run.steps,
        "state_bytes": len(json.dumps(state)),
        "reads": chunks / run.steps,
        "open_s": open_s,
        "restore_s": restore_s,
    }


def _case(kind: Kind, hosts: int) -> Case:
    def opened(place: Place) -> Metrics:
        if place.small:
            return measured(Run(kind, min(hosts, 16), records=200_000, warm=5, steps=5))
        return measured(Run.of(kind, hosts))

    shows = f"{kind} on {hosts:,} hosts"
    return Case(f"hosts.{kind}, {hosts:,}", shows, (Side(OURS, opened),), Regime.FIGURES, rounds=1)


CASES: Final = tuple(_case(kind, hosts) for kind in KINDS for hosts in HOSTS)
