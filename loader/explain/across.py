"""Across processes: what each process reads of a stream that several share, and how often all of them read a chunk.

Each process runs a chain of its own, which makes its part of each batch. A short dry run of each shows
what it reads and holds. Where there are many, some are run, and the others are taken to be like them.

Invariant: as for dry runs, nothing is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from windrow.core.text import counted
from windrow.explain.advice import has_blocks
from windrow.explain.explanation import AcrossProcesses, Advice, ProcessCosts
from windrow.explain.read_costs import figures_of
from windrow.stats.costs import in_numbers, known
from windrow.transforms.nodes import Node, tail_of, walk
from windrow.transforms.nodes.reading import as_block_shuffle

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

    def sample(self) -> Sequence[int]:
        """The processes that are run, at equal distances."""
        return self.processes[:: -(-len(self.processes) // _MOST_RUN)]


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
    shuffle = next((each for each in walk(shared.whole) if each.shuffles), None)
    pairs = zip(found.epoch, found.alone, strict=True)
    bytes_of = [(known(c.decoded_bytes).middle, known(a.decoded_bytes).middle) for c, a in pairs]
    more = max((all_of / max(1.0, alone) for all_of, alone in bytes_of), default=1.0)
    if lanes == 1 or more < _OFTEN or shuffle is None or tail_of(shared.whole).lanes > 1:
        return
    if not has_blocks(shuffle) or len(shuffle.parent.layout().bounds) <= lanes:
        return
    times = " or ".join(in_numbers(each) for each in found.times_read if each is not None)
    before = f"use block_shuffle in place of {shuffle.written}, and "
    yield Advice(
        "lanes",
        max(numbers.values()),
        f"{counted(found.count, 'process')} read each chunk {times} times in all, and"
        f" decode {more:.3g} times the bytes of one process alone",
        f"{'' if as_block_shuffle(shuffle) else before}to_iter_dataset(lanes={lanes}) before the"
        f" batch, or a multiple of {lanes} lanes",
        "each chunk is read by one process",
    )
