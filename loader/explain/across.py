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
from windrow.explain.explanation import AcrossProcesses, Advice, ProcessCosts
from windrow.explain.prediction import quick_figures
from windrow.stats.costs import Amount
from windrow.transforms.nodes import BlockShuffleNode, Node, chains_of, tail_of
from windrow.transforms.nodes.dealing import dealt

# The most processes that are run, and the seconds of planning that all runs of a chain may take.
_MOST_RUN: Final = 8
_MOST_S: Final = 0.4
# Reads of a chunk by all processes: from when on lanes are advised, and how many they may leave.
_OFTEN: Final = 1.5
_ONCE: Final = 1.1
_WINDOW_BLOCKS: Final = 16  # of a block shuffle that names no other number


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
    return _across(shared, shared.whole)


def _across(shared: SharedStream, whole: Node) -> AcrossProcesses:
    sample = shared.sample()
    most_s = _MOST_S / (1 + len(sample))
    found = []
    for process in sample:
        run = quick_figures(tail_of(shared.chain_of(whole, process)).explained(), most_s)
        found.append(ProcessCosts(process, run.costs, run.peak))
    alone = quick_figures(tail_of(whole).explained(), most_s)
    return AcrossProcesses(len(shared.processes), tuple(found), alone.costs)


# --- lanes ---------------------------------------------------------------------------------------


def advice_on_lanes(
    shared: SharedStream, found: AcrossProcesses, numbers: Mapping[int, int]
) -> Iterator[Advice]:
    """Advise lanes where processes read the chunks of one another, and would not in lanes.

    Args:
        shared: The stream.
        found: Its costs.
        numbers: The numbers of the nodes of this process's chain by `id`.
    """
    lanes = tail_of(shared.chain_of(shared.whole, shared.own)).shards
    more = _more_decoded(found)
    if lanes == 1 or more.low < _OFTEN:
        return
    times = " or ".join(str(each) for each in found.times_read if each is not None)
    for shuffle, chain in _ways(shared.whole, lanes):
        if _more_decoded(_across(shared, chain)).high > _ONCE:
            continue
        block = "" if shuffle is None else f"use block_shuffle in place of {shuffle.written}, and "
        yield Advice(
            "lanes",
            max(numbers.values()),
            f"{counted(found.count, 'process')} read each chunk {times} times in all, and"
            f" decode {more} times the bytes of one process alone",
            f"{block}to_iter_dataset(lanes={lanes}) before the batch, or a multiple of {lanes} lanes",
            "each chunk is read by one process",
        )
        return


def _more_decoded(found: AcrossProcesses) -> Amount:
    """Bytes that all processes decode per byte of one alone, of the source where they are most."""
    ratios = [Amount.exactly(1)]
    for costs, alone in zip(found.epoch, found.alone, strict=True):
        if costs.decoded_bytes is not None and alone.decoded_bytes is not None:
            ratios.append(costs.decoded_bytes.times(1 / max(1, alone.decoded_bytes.high)))
    return max(ratios, key=lambda ratio: ratio.middle)


def _ways(whole: Node, lanes: int) -> Iterator[tuple[Node | None, Node]]:
    """The stream in lanes, as it is and with a block shuffle in place of a shuffle, which comes too."""
    for shuffle in (None, *(node for node in whole.walk() if node.shuffles)):
        try:
            chain = whole if shuffle is None else _with(whole, shuffle, _block_shuffle(shuffle))
            yield shuffle, _in_lanes(chain, lanes)
        except PlanError:  # there are no blocks, or fewer blocks than lanes
            continue


def _block_shuffle(shuffle: Node) -> Node:
    return BlockShuffleNode((shuffle.parent,), 0, None, _WINDOW_BLOCKS)


def _in_lanes(node: Node, lanes: int) -> Node:
    """The stream with lanes, which begin before its last batch."""
    stream, tail = chains_of(node)[0], tail_of(node)
    if not tail.is_indexed or tail.batch is None:
        parents = (dealt(stream.parent, lanes),)
        return _with(node, stream, dataclasses.replace(stream, parents=parents, lanes=lanes))
    parents = (dealt(tail.batch.parent, lanes),)
    rows = dataclasses.replace(stream, parents=parents, lanes=lanes)
    batches = dataclasses.replace(tail.batch, parents=(rows,))
    return _with(node, stream, _with(stream.parent, tail.batch, batches))


def _with(node: Node, old: Node, new: Node) -> Node:
    """The chain with another node for `old`, checked again."""
    if node is old:
        return new
    if not node.parents:
        return node
    return dataclasses.replace(node, parents=tuple(_with(each, old, new) for each in node.parents))
