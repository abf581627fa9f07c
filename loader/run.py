"""A run: what the streams of one iterator share, which is threads, budgets and a wish to go on.

Invariant: nothing here decides which rows come, or in which order.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from windrow import execute
from windrow.crew import Crew, Crews, Here
from windrow.lookahead import Lookahead
from windrow.memory import budget_of
from windrow.meter import Meter
from windrow.sources import LaidOutSource, is_far
from windrow.sources.daemons import DaemonPool
from windrow.sources.halts import Halt
from windrow.sources.process import cores
from windrow.sources.threads import HelpedPool
from windrow.spread import Spread
from windrow.steps import Outcome, Stage
from windrow.tallies import sources_of
from windrow.transforms.halves import Halves
from windrow.transforms.nodes import Node, SourceNode
from windrow.transforms.options import ReadOptions
from windrow.transforms.streams import ToStreamNode

# Rounds of a source that is far away are read side by side: while one waits, the other decodes.
_FAR_READS = 2


class Run:
    """What the streams of one iterator share: its threads, its budget, and whether it goes on."""

    def __init__(self, node: Node, crews: Crews | None = None, meter: Meter | None = None) -> None:
        parts = _to_streams(node)
        found = [part.read_options for part in parts]
        self.options = next((options for options in found if options.ahead), found[0])
        self._share_bytes = self.options.block_bytes // len(parts)
        self.stopped = threading.Event()
        self.halt = Halt()
        self._crews = Crews(node) if crews is None else crews
        meter = Meter(node) if meter is None else meter
        self._tallies, self.maker = meter.tallies, meter.renew(in_turn=not self.ahead)
        self.maker.watch(self._crews)
        self._threads = max(options.num_threads for options in found)
        self._pool: ThreadPoolExecutor | None = None
        self._lanes: dict[int, Executor] = {}
        self._decoding: HelpedPool | None = None
        self._streams = len(parts)
        self._here = Here()
        if self.options.ahead:
            self._here = Here(Spread(self._threads))
            self._pool = self._new_pool(self._threads, "windrow-read")

    @property
    def ahead(self) -> bool:
        """Whether a thread makes elements ahead of the consumer."""
        return self.options.ahead or bool(self._crews)

    def crew_of(self, stage: Stage) -> Crew:
        """Who does the work of a stage."""
        return self._crews.of(stage, self._here)

    def stop(self) -> None:
        """Nobody wants what comes next: reads that wait for a network end."""
        self.stopped.set()
        self.halt.set()
        self._crews.interrupt()

    def options_of(self, node: ToStreamNode) -> ReadOptions:
        """How to read one of several streams: with its part of the bytes of a round."""
        own = node.read_options
        return dataclasses.replace(own, block_bytes=max(1, min(own.block_bytes, self._share_bytes)))

    def reader(
        self, options: ReadOptions, lookahead: Lookahead | None, number: int
    ) -> execute.Reader:
        """A reader for a round, on the iterator's threads where the stream may use them."""
        return execute.Reader(
            self._pool if options.ahead else None,
            options.num_threads,
            lane_of=self._lane_of,
            lookahead=lookahead,
            round=number,
            spread=self._here.spread if options.ahead else None,
            tallies=self._tallies,
        )

    def heard(self, outcome: Outcome, halves: Halves | None) -> None:
        """Count in what a worker has done, and read itself for the upper half of a chain."""
        self.maker.heard(outcome.worked_s)
        if outcome.arrived and halves is not None:
            self._tallies.add(sources_of(halves.upper), outcome.arrived)

    def lookahead(self, node: ToStreamNode) -> Lookahead | None:
        """A look-ahead for one of several streams; None where there is nothing to plan."""
        found = {id(source): source for source in _laid_out(node)}
        if not found or not node.read_options.ahead:
            return None
        if self._decoding is None:
            self._decoding = HelpedPool(self._new_pool(cores(), "windrow-decode"), cores())
        far = any(map(is_far, found.values()))
        budget = budget_of(node.read_options, far=far).share(1 / self._streams)
        return Lookahead(list(found.values()), budget, self._decoding, self._tallies) or None

    def _new_pool(self, threads: int, name: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(threads, name, initializer=self.halt.enter)

    def _new_lane(self, source: Any) -> Executor:
        if not is_far(source):
            return self._new_pool(1, "windrow-read")
        # The interpreter waits for the threads of others when it ends, before it tells any halt.
        return DaemonPool(_FAR_READS, "windrow-read", self.halt.enter)

    def _lane_of(self, source: Any) -> Executor:
        lane = self._lanes.get(id(source))
        if lane is None:
            known = list(dict.fromkeys(self._lanes.values()))
            full = len(known) >= self._threads  # sources share threads then
            lane = known[len(self._lanes) % len(known)] if full else self._new_lane(source)
            self._lanes[id(source)] = lane
        return lane

    def end_threads(self) -> None:
        """End the reads under way and let the threads go."""
        self.halt.set()
        if self._here.spread is not None:
            self._here.spread.close()
        for pool in (self._pool, self._decoding, *self._lanes.values()):
            if pool is not None:
                pool.shutdown(cancel_futures=True)


def _to_streams(node: Node) -> list[ToStreamNode]:
    if isinstance(node, ToStreamNode):
        return [node]
    return [part for parent in node.parents for part in _to_streams(parent)]


def _laid_out(node: Node) -> Iterator[LaidOutSource]:
    if isinstance(node, SourceNode) and isinstance(node.source, LaidOutSource):
        yield node.source
    for parent in node.parents:
        yield from _laid_out(parent)
