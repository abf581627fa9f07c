"""`python -m benchmarks.hosts`: what a process of a run on 1 to 4,096 hosts plans, holds and asks of the store.

The store is simulated: 10^9 records of 3 KB in 10^6 chunks, whose reads end at once and fill no memory. All
else is measured. A real run has the same chains, planner and iterators. Each case has an interpreter of its own,
which runs some of the processes one after the other. A host is one process with 4 devices, and a step takes 16 rows of each process.
Packed rows are made from 10^7 documents, since each process holds 8 bytes for the length of each.

It prints a JSON line per case and then the tables. `--page docs/scaling.md` also puts them, and a picture, into
the page.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import psutil

from benchmarks import hosts_pictures, report
from windrow import IterDataset, MapDataset
from windrow.sources import ArrayPart, Columns, IntArray, LaidOutSource, Span
from windrow.transforms.nodes.planned import PlannedNode
from windrow.transforms.positions import positions

MIB = 1 << 20
RECORD_BYTES, CHUNK_RECORDS = 3_072, 1_000
ROWS = 16  # of a process in a step
_TOKENS, _MEDIAN_LOG, _SPREAD = 8_192, 6.5, 1.0  # of a packed row; of the lengths of documents
_DONE: Future[None] = Future()
_DONE.set_result(None)
_BEGIN, _END = "<!-- hosts -->", "<!-- end of hosts -->"

Kind = Literal["global shuffle", "block shuffle", "lanes", "filtered lanes", "packed rows"]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A chain on some hosts.

    Args:
        kind: "global shuffle" takes rows of a shuffle of all records, "block shuffle" of a block shuffle; "lanes"
            takes lanes of a block shuffle, one for each host, and "filtered lanes" has a filter after them;
            "packed rows" takes rows that are planned from lengths, of a block shuffle.
        hosts: The number of processes.
        records: Records, or documents, of the store.
        warm: Steps before those that are measured.
        steps: Steps that are measured.
    """

    kind: Kind
    hosts: int
    records: int = 1_000_000_000
    warm: int = 1_500
    steps: int = 1_500

    @property
    def processes(self) -> list[int]:
        """The processes that are measured."""
        return sorted({0, self.hosts // 2, self.hosts - 1})


class Found(TypedDict):
    """The figures of a case. A figure per step or per process is the largest one among the measured processes.

    Args:
        kind, hosts: The fields of the case.
        plan_ms: Milliseconds of planning per step; for packed rows, per 1,000 documents of the global batch.
        loader_ms: Milliseconds of a core that the whole loader takes for a step, without reading.
        memory_mb: Growth of resident memory from before the first process to after the last one.
        state_bytes: Bytes of the state of the process, as JSON.
        first_reads: Reads of chunks until the first batch, and ahead of it.
        reads: Reads of chunks in a step.
        requests: Reads of all processes in a step.
        read_again: How many times a chunk is read in an epoch, by all processes.
        sharing: Processes that read a chunk, on average.
        shared: The share of chunks that more than one process reads.
        open_s, restore_s: Seconds until the first batch, from nothing and from a state.
    """

    kind: Kind
    hosts: int
    plan_ms: float
    loader_ms: float
    memory_mb: float
    state_bytes: int
    first_reads: int
    reads: float
    requests: float
    read_again: float
    sharing: float
    shared: float
    open_s: float
    restore_s: float


HOSTS = (1, 16, 256, 4_096)
CASES = (
    *(Case("global shuffle", hosts) for hosts in HOSTS),
    *(Case("block shuffle", hosts, warm=500) for hosts in HOSTS),
    *(Case("lanes", hosts, warm=200) for hosts in HOSTS),
    *(Case("filtered lanes", hosts, warm=200, steps=500) for hosts in HOSTS),
    *(Case("packed rows", hosts, 10_000_000, 8, 4_096 // hosts + 8) for hosts in HOSTS),
)
SMALL_CASES = tuple(
    dataclasses.replace(case, records=200_000, warm=5, steps=5)
    for case in CASES
    if case.hosts <= 16
)


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

    def __init__(self, case: Case) -> None:
        self.reader, self._records = NoReads(), case.records
        self._lengths: IntArray | None = None
        if case.kind != "packed rows":
            self._part = ArrayPart(
                "", case.records, (RECORD_BYTES,), np.dtype("u1"), CHUNK_RECORDS, self.reader
            )
            return
        lengths = np.random.default_rng(0).lognormal(_MEDIAN_LOG, _SPREAD, case.records)
        self._lengths = np.maximum(lengths, 1).astype(np.int64)
        stops = np.cumsum(self._lengths)
        tokens = int(stops[-1])
        self._part = ArrayPart(
            "",
            tokens,
            (),
            np.dtype("u2"),
            tokens * CHUNK_RECORDS // case.records,
            self.reader,
            starts=lambda indices: stops[indices] - self.known[indices],
            lengths=lambda indices: self.known[indices],
        )

    @property
    def known(self) -> IntArray:
        """The lengths of documents."""
        if self._lengths is None:
            raise TypeError("records of one size have no lengths")
        return self._lengths

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


def dataset(
    case: Case, records: MapDataset[Any], lengths: IntArray | None = None
) -> IterDataset[Any]:
    """The chain of a case, with global batches."""
    if case.kind == "global shuffle":
        return records.shuffle(seed=1).repeat().batch(ROWS * case.hosts).to_iter_dataset()
    blocks = records.block_shuffle(seed=1, block=CHUNK_RECORDS).repeat()
    if case.kind == "block shuffle":
        return blocks.batch(ROWS * case.hosts).to_iter_dataset()
    if case.kind == "lanes":
        return blocks.to_iter_dataset(lanes=case.hosts).batch(ROWS * case.hosts)
    if case.kind == "filtered lanes":
        lanes = blocks.to_iter_dataset(lanes=case.hosts)
        return lanes.filter(_kept).batch(ROWS * case.hosts)
    return blocks.pack(_TOKENS, lengths=lengths).batch(ROWS * case.hosts)


def _kept(record: Any) -> bool:
    return True


def measured(case: Case) -> Found:
    """The figures of a case, in this process."""
    idle_bytes = psutil.Process().memory_info().rss
    found = [_of_process(case, process) for process in case.processes]
    memory_bytes = psutil.Process().memory_info().rss - idle_bytes
    most = {name: max(each[name] for each in found) for name in found[0]}
    documents = most.pop("documents")
    steps = case.records / (documents or ROWS * case.hosts)  # of an epoch
    reads = float(np.mean([each["reads"] for each in found]))
    of_chunks = readers_of(case)
    return {
        "kind": case.kind,
        "hosts": case.hosts,
        "plan_ms": round(most["plan_ms"], 3),
        "loader_ms": round(most["loader_ms"], 3),
        "memory_mb": round(memory_bytes / MIB),
        "state_bytes": round(most["state_bytes"]),
        "first_reads": round(most["first_reads"]),
        "reads": round(reads, 3),
        "requests": round(reads * case.hosts, 1),
        "read_again": round(reads * case.hosts * steps * CHUNK_RECORDS / case.records, 2),
        "sharing": round(float(of_chunks.mean()), 2),
        "shared": round(float((of_chunks > 1).mean()), 4),
        "open_s": round(most["open_s"], 2),
        "restore_s": round(most["restore_s"], 2),
    }


def _of_process(case: Case, process: int) -> dict[str, float]:
    store, began_s = Store(case), time.perf_counter()
    shard = dataset(case, MapDataset.source(store), store._lengths).shard(process, case.hosts)
    with iter(shard) as batches:
        next(batches)
        open_s, first_reads = time.perf_counter() - began_s, store.reader.chunks
        for _ in range(case.warm):
            next(batches)
        before, chunks, core_s = batches.stats(), store.reader.chunks, time.process_time()
        for _ in range(case.steps):
            next(batches)
        core_s, after = time.process_time() - core_s, batches.stats()
        chunks = store.reader.chunks - chunks
        state = batches.get_state()
    began_s = time.perf_counter()
    with iter(shard) as again:
        again.set_state(state)
        next(again)
        restore_s = time.perf_counter() - began_s
    planned_s = after.waited_for.get("planning", 0.0) - before.waited_for.get("planning", 0.0)
    plan_ms, documents = 1e3 * planned_s / case.steps, 0.0
    if after.packing is not None:
        plan_ms = _packed_ms(case, process, store)
        documents = after.packing.documents / after.packing.rows * ROWS * case.hosts
    return {
        "plan_ms": plan_ms,
        "loader_ms": 1e3 * core_s / case.steps,
        "state_bytes": len(json.dumps(state)),
        "first_reads": first_reads,
        "reads": chunks / case.steps,
        "documents": documents,
        "open_s": open_s,
        "restore_s": restore_s,
    }


def _packed(case: Case, store: Store) -> PlannedNode:
    rows = dataset(case, MapDataset.source(store), store.known)
    return next(node for node in rows._node.walk() if isinstance(node, PlannedNode))


def _packed_ms(case: Case, process: int, store: Store) -> float:
    """Milliseconds to plan 1,000 documents of global batches, and the rows of a process in them."""
    packed, size, at = _packed(case, store), ROWS * case.hosts, 0
    packed.plan_of(case.records // 32_768)  # opens the order
    began_s, batches = time.perf_counter(), max(1, 4_096 // case.hosts)
    for _ in range(batches):
        rows = packed.indices_from(at, size)
        at = int(rows[-1]) + 1
        own = rows[process * ROWS : (process + 1) * ROWS]
        packed.to_rows(positions(own, packed.length))
    spent_s, windows = time.perf_counter() - began_s, (at >> 32) + 1
    return 1e6 * spent_s / sum(len(packed.lengths_of_window(n)) for n in range(windows))


def readers_of(case: Case) -> IntArray:
    """How many processes read each chunk: counted along the order, of chunks that it reads whole."""
    if case.hosts == 1:
        return np.ones(1, np.int64)
    size = ROWS * case.hosts
    if case.kind in ("global shuffle", "block shuffle"):
        records = min(case.records, 10_000_000)  # it depends on the records of a chunk alone
        whole = MapDataset.range(records)
        blocks = whole.block_shuffle(seed=1, block=CHUNK_RECORDS)
        order = whole.shuffle(seed=1) if case.kind == "global shuffle" else blocks
        given = np.asarray(order.read(range(records)))
        return counted_readers(given, np.arange(records) % size // ROWS, case.hosts)
    if case.kind == "filtered lanes":  # the filter keeps all
        return readers_of(dataclasses.replace(case, kind="lanes"))
    if case.kind == "lanes":
        steps = min(4 * CHUNK_RECORDS // ROWS, case.records // size)
        batches = iter(dataset(case, MapDataset.range(case.records)))
        given = np.concatenate([next(batches) for _ in range(steps)])
        batches.close()
        return counted_readers(given, np.arange(len(given)) % size // ROWS, case.hosts)
    packed = _packed(case, Store(case))
    plans = [packed.plan_of(window) for window in range(min(20, case.records // 16_384))]
    sizes = [len(plan.given) for plan in plans]
    order = MapDataset.range(case.records).block_shuffle(seed=1, block=CHUNK_RECORDS)
    given = np.asarray(order.read(range(sum(sizes))))
    firsts = np.cumsum([0, *sizes])
    documents = np.concatenate(
        [first + p.documents for first, p in zip(firsts, plans, strict=False)]
    )
    per_row = np.concatenate([np.diff(plan.bounds) for plan in plans])
    row = np.repeat(np.arange(len(per_row)), per_row)
    return counted_readers(given[documents], row % size // ROWS, case.hosts)


def counted_readers(records: IntArray, processes: IntArray, hosts: int) -> IntArray:
    """The number of processes that have records of each chunk, for chunks whose records are all given."""
    chunks = records // CHUNK_RECORDS
    numbers, which, counts = np.unique(chunks, return_inverse=True, return_counts=True)
    pairs = np.unique(which * hosts + processes) // hosts
    found: IntArray = np.bincount(pairs, minlength=len(numbers))[counts >= CHUNK_RECORDS]
    return found


def run(cases: Sequence[Case] = CASES) -> list[Found]:
    """The figures of each case, each of an interpreter of its own."""
    found = []
    for case in cases:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append(pool.apply(measured, (case,)))
        print(json.dumps(found[-1]), flush=True)
    return found


def tables(found: Sequence[Found]) -> str:
    """The figures as Markdown: what was measured, and what follows for the simulated store."""
    heads = (
        "chain",
        "hosts",
        "plan, ms",
        "loader, ms",
        "memory, MB",
        "state, bytes",
        "open, s",
        "restore, s",
    )
    measured_rows = [
        (
            each["kind"],
            f"{each['hosts']:,}",
            f"{each['plan_ms']:.3f}",
            f"{each['loader_ms']:.2f}",
            f"{each['memory_mb']:,}",
            f"{each['state_bytes']:,}",
            f"{each['open_s']:.2f}",
            f"{each['restore_s']:.2f}",
        )
        for each in found
    ]
    simulated = [
        (
            each["kind"],
            f"{each['hosts']:,}",
            f"{each['reads']:.3g}",
            f"{each['requests']:,.0f}",
            f"{each['read_again']:,.3g}",
            f"{each['sharing']:,.3g}",
            f"{100 * each['shared']:.3g}%",
        )
        for each in found
    ]
    other = (
        "chain",
        "hosts",
        "reads of a process",
        "requests/s in all",
        "times a chunk is read",
        "by processes",
        "chunks of several",
    )
    return "\n\n".join(
        [
            "Measured (memory is of the sampled processes together):",
            report.table(heads, measured_rows, left=1),
            "Simulated, at one step a second:",
            report.table(other, simulated, left=1),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts")
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the tables into a page")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="use the lines of such a run"
    )
    args = parser.parse_args(argv)
    if args.from_json:
        lines = [line for line in args.from_json.read_text().splitlines() if line.startswith("{")]
        found: list[Found] = [json.loads(line) for line in lines]
    else:
        found = run(SMALL_CASES if args.small else CASES)
    text = tables(found)
    print(text)
    if args.page:
        report.put_into_page(args.page, text, begin=_BEGIN, end=_END)
        hosts_pictures.draw(args.page.parent / "images" / "hosts.png", found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
