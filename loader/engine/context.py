"""The run context: threads, budgets and a stop signal that all streams of one iterator share.

Invariant: nothing here decides which rows come, or in which order.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, ClassVar

from windrow.core.cancellation import CancelScope
from windrow.core.machine import usable_cores
from windrow.core.threads import DaemonPool
from windrow.engine import execute
from windrow.engine.budgets import Budget, PartRoom, budget_of
from windrow.engine.chunk_cache import ChunkCache
from windrow.engine.executors import Count, Executors, LocalExecutor, StageExecutor
from windrow.engine.prefetch import Prefetcher, cache_of
from windrow.engine.stages import ChainStage, DropWatch, Result
from windrow.engine.thread_map import StageThreads, ThreadMap
from windrow.sources.chunks import LaidOutSource
from windrow.sources.remote.options import is_remote_source
from windrow.stats.profiler import Clock, Profiler
from windrow.transforms.amounts import PackCounts
from windrow.transforms.nodes import (
    STREAM,
    Node,
    ToStreamNode,
    chains_of,
    options_of,
    random_access_parts,
    sources_of,
    walk,
)
from windrow.transforms.nodes.split import Halves
from windrow.transforms.options import ReadOptions
from windrow.transforms.row_blocks import KeptBlocks, OwnStates

if TYPE_CHECKING:
    from windrow.engine.bad_records import BadRecords

# Read batches of a remote source are read in parallel: while one waits, the other decodes.
_REMOTE_READS = 2


class RunContext:
    """State shared by all streams of one iterator: threads, budget and stop signal."""

    has_values: ClassVar[bool] = True
    """Whether elements have values; in a dry run they have sizes only."""

    def __init__(
        self,
        node: Node,
        executors: Executors | None = None,
        meter: Profiler | None = None,
        clock: Clock = time.perf_counter,
        own_states: OwnStates | None = None,
        bad: BadRecords | None = None,
    ) -> None:
        parts = chains_of(node)
        found = [part.read_options for part in parts]
        self.options = next((options for options in found if options.ahead), found[0])
        self.chain_numbers = {id(chain): k for k, chain in enumerate(random_access_parts(node))}
        self._dataset_options = options_of(node)
        self.budget = budget_of(self.options)
        self.clock = clock
        self.kept: dict[tuple[int, int], KeptBlocks] = {}  # by node and lane
        self.own_states = OwnStates() if own_states is None else own_states
        self.bad = bad
        self.stopped = threading.Event()
        self.cancel_scope = CancelScope()
        self._executors = Executors(node) if executors is None else executors
        meter = Profiler(node) if meter is None else meter
        self._read_counters, self.maker = meter.read_counters, meter.renew(in_turn=not self.ahead)
        self.maker.watch(self._executors)
        self._threads = max(options.num_threads for options in found)
        self._pool: Executor | None = None
        self._lanes: dict[int, Executor] = {}
        self._decoding: DaemonPool | None = None
        self._streams = len(parts)
        self._here = LocalExecutor()
        if self.options.ahead:
            self._here = LocalExecutor(ThreadMap(self._threads))
            self._pool = self._new_pool(self._threads, "windrow-read")
        threads = StageThreads(self._here.thread_map, self._pool, self.options.num_threads)
        self._executors.begin(threads, self.maker)

    @property
    def ahead(self) -> bool:
        """Whether a thread makes elements ahead of the consumer."""
        return self.options.ahead or bool(self._executors)

    def executor_of(self, stage: ChainStage) -> StageExecutor:
        """The executor that does the work of a stage."""
        return self._executors.of(stage, self._here)

    def stop(self) -> None:
        """Stop the run: make no later element, and end reads that wait for a network."""
        self.stopped.set()
        self.cancel_scope.set()
        self._executors.interrupt()

    def budget_of(self, node: ToStreamNode) -> Budget:
        """The budget of one of several streams."""
        return budget_of(node.read_options).share(self._streams)

    def reader(
        self, options: ReadOptions, prefetcher: Prefetcher | None, number: int
    ) -> execute.Reader:
        """A reader for a read batch, on the iterator's threads where the stream may use them."""
        return execute.Reader(
            self._pool if options.ahead else None,
            options.num_threads,
            lane_of=self._lane_of,
            prefetcher=prefetcher,
            read_batch=number,
            thread_map=self._here.thread_map if options.ahead else None,
            read_counters=self._read_counters,
        )

    def packed(self, counts: PackCounts) -> None:
        """Add a window that was planned from lengths to the counters."""
        self._read_counters.packed(counts)

    def heard(self, result: Result, halves: Halves | None) -> None:
        """Add a worker's time, and its reads for the upper half of a chain, to the counters."""
        self.maker.heard(result.worked_s)
        if result.arrived and halves is not None:
            self._read_counters.add(sources_of(halves.upper), result.arrived)

    def counting_bad(self, chain: int | None = None) -> Count | None:
        """Counts the bad rows of results; `chain` is the number of the chain that is read, if one is."""
        return None if self.bad is None else functools.partial(self.bad.count, chain)

    def drop_watch(self, nodes: Iterable[Node]) -> DropWatch | None:
        """Watches the filters among some nodes that run together, or else the functions of elements.

        Where a function makes fewer elements than there are indices, or where bad rows are left out, what
        is absent does not count.
        """
        nodes = list(nodes)
        dropping = [node for node in nodes if node.drops and not node.takes_bad]
        if not all(node.keeps_values for node in dropping):
            return None
        if not dropping and not any(node.takes_bad for node in nodes):
            dropping = [node for node in nodes if node.functions and node.length != STREAM]
        if not dropping:
            return None
        return DropWatch(dropping, self._dataset_options, self.clock)

    def prefetcher(self, node: ToStreamNode) -> Prefetcher | None:
        """A prefetcher for one of several streams; None if no read can be planned."""
        found = {id(s): s for s in sources_of(node) if isinstance(s, LaidOutSource)}
        if not found or not node.read_options.ahead:
            return None
        if self._decoding is None:
            self._decoding = self._new_pool(usable_cores(), "windrow-decode")
        return (
            Prefetcher(
                list(found.values()),
                self.budget_of(node),
                self._decoding,
                self._read_counters,
                self.new_cache,
            )
            or None
        )

    def new_cache(self, room: PartRoom) -> ChunkCache:
        """Memory for chunks of a part."""
        return cache_of(room)

    def _new_pool(self, threads: int, name: str) -> DaemonPool:
        # Daemons: a read or a function that hangs keeps no program from its end.
        return DaemonPool(threads, name, self.cancel_scope.enter)

    def _new_lane(self, source: Any) -> Executor:
        return self._new_pool(_REMOTE_READS if is_remote_source(source) else 1, "windrow-read")

    def _lane_of(self, source: Any) -> Executor:
        lane = self._lanes.get(id(source))
        if lane is None:
            known = list(dict.fromkeys(self._lanes.values()))
            full = len(known) >= self._threads  # sources share threads then
            lane = known[len(self._lanes) % len(known)] if full else self._new_lane(source)
            self._lanes[id(source)] = lane
        return lane

    def end_threads(self, *, wait: bool = True) -> None:
        """End the reads under way and let the threads go, after their calls if `wait` is set."""
        self.cancel_scope.set()
        if self._here.thread_map is not None:
            self._here.thread_map.close(wait=wait)
        for pool in (self._pool, self._decoding, *self._lanes.values()):
            if pool is not None:
                pool.shutdown(wait, cancel_futures=True)


def bad_records(node: Node) -> BadRecords | None:
    """Counts the bad records that a run of a chain meets; None without an `on_bad` node."""
    if not any(each.takes_bad for each in walk(node)):
        return None
    from windrow.engine.bad_records import BadRecords  # few chains need it

    return BadRecords(node)
