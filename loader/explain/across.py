"""Across processes: what each process reads of a stream that several share, and how often all of them read a chunk.

Each process runs a chain of its own, which makes its part of each batch. A short dry run of each shows
what it reads and holds. Where there are many, some are run, and the others are taken to be like them.

Invariant: as for dry runs, nothing is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from windrow.core.text import counted
from windrow.errors import PlanError
from windrow.explain.advice import in_place_of
from windrow.explain.explanation import (
    AcrossProcesses,
    Advice,
    ProcessCosts,
    in_numbers,
)
from windrow.explain.read_costs import figures_of
from windrow.transforms.nodes import Node, tail_of, walk

# The most processes that are run, and the seconds of planning that all runs of a chain may take.
_MOST_RUN: Final = 8
_MOST_S: Final = 0.4
# Bytes decoded by all processes per byte of one alone, from when on lanes are advised.
_OFTEN: Final = 1.5


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SharedStream:
    """A stream that several processes share.

    Args:
        whole: The stream as written.
        own: The number of this process.
        processes: The numbers of all processes, ascending.
        chain_of: Returns the chain that a process runs of a stream.
    """

    whole: Node
    own: int
    processes: Sequence[int]
    chain_of: Callable[[Node, int], Node]

    def sample(self) -> list[int]:
        """The processes that are run: this one, and others at equal distances."""
        count = len(self.processes)
        if count <= _MOST_RUN:
            return list(self.processes)
        at = np.linspace(0, count - 1, _MOST_RUN - 1).astype(int).tolist()
        return sorted({self.own, *(self.processes[n] for n in at)})


def across(shared: SharedStream) -> AcrossProcesses:
    """The costs of each process that shares a stream, and of one process that runs all of it."""
    whole, sample = shared.whole, shared.sample()
    most_s = _MOST_S / (1 + len(sample))
    found = []
    for process in sample:
        run = figures_of(tail_of(shared.chain_of(whole, process)).explained(), most_s)
        found.append(ProcessCosts(process, run.costs, run.buffers))
    alone = figures_of(tail_of(whole).explained(), most_s)
    return AcrossProcesses(len(shared.processes), tuple(found), alone.costs)


# --- lanes ---------------------------------------------------------------------------------------


def advice_on_lanes(
    shared: SharedStream, found: AcrossProcesses, numbers: Mapping[int, int]
) -> Iterator[Advice]:
    """Advise lanes where processes read the chunks of one another.

    Args:
        shared: The stream.
        found: Its costs.
        numbers: The numbers of the nodes of this process's chain by `id`.
    """
    lanes = tail_of(shared.chain_of(shared.whole, shared.own)).shards
    more = _more_decoded(found)
    orders = [each for each in walk(shared.whole) if each.shuffles]
    if lanes == 1 or more < _OFTEN or not orders or tail_of(shared.whole).lanes > 1:
        return
    shuffle = orders[0]
    if _blocks_of(shuffle) < lanes:
        return
    times = " or ".join(in_numbers(each) for each in found.times_read if each is not None)
    yield Advice(
        "lanes",
        max(numbers.values()),
        f"{counted(found.count, 'process')} read each chunk {times} times in all, and"
        f" decode {more:.3g} times the bytes of one process alone",
        f"{in_place_of(shuffle)}to_iter_dataset(lanes={lanes}) before the batch, or a multiple of {lanes} lanes",
        "each chunk is read by one process",
    )


def _blocks_of(shuffle: Node) -> int:
    """The blocks that a block shuffle in place of a shuffle has; 0 if it has none."""
    try:
        return len(shuffle.parent.layout().bounds) - 1
    except PlanError:
        return 0


def _more_decoded(found: AcrossProcesses) -> float:
    """Bytes that all processes decode per byte of one alone, of the source where they are most."""
    return max(
        (
            costs.decoded_bytes.middle / max(1.0, alone.decoded_bytes.middle)
            for costs, alone in zip(found.epoch, found.alone, strict=True)
            if costs.decoded_bytes is not None and alone.decoded_bytes is not None
        ),
        default=1.0,
    )
