"""What `explain()` says becomes of each node, against the threads, processes and calls that are seen."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

from tests.laid_out import PiecedSource
from tests.processes import workers
from windrow import IterDataset, MapDataset, ReadOptions
from windrow.explain.running import running
from windrow.transforms.nodes import Node

Dataset: TypeAlias = Any  # with random access or a stream
Apply: TypeAlias = Callable[[Dataset], Dataset]

_AHEAD = ("windrow-ahead", "windrow-map", "windrow-read")
# Elements until threads are used at the latest.
_MOST = 4_000


class Call(NamedTuple):
    """A call of a function: where, and with how many elements."""

    pid: int
    thread: str
    elements: int


class Noting:
    """Functions of every kind, and sources, that note their calls in a file, from any process."""

    def __init__(self, path: Path, *, waits: bool = True) -> None:
        self.path, self.waits = path, waits
        path.touch()

    def note(self, elements: int) -> None:
        line = f"{os.getpid()} {threading.current_thread().name} {elements}\n"
        with self.path.open("a") as file:
            file.write(line)
        if self.waits:  # as who asks a server does, so that threads are worth it
            threading.Event().wait(0.002)

    def calls(self) -> list[Call]:
        lines = [line.split(" ") for line in self.path.read_text().splitlines()]
        return [Call(int(pid), thread, int(count)) for pid, thread, count in lines]

    def each(self, element: Any) -> Any:
        self.note(1)
        return element

    def with_index(self, index: int, element: Any) -> Any:
        self.note(1)
        return element

    def with_rng(self, element: Any, rng: np.random.Generator) -> Any:
        self.note(1)
        return element

    def keeps(self, element: Any) -> bool:
        self.note(1)
        return True

    def columns(self, values: Any) -> Any:
        self.note(len(values))
        return values

    def stacked(self, elements: Sequence[Any]) -> Any:
        self.note(len(elements))
        return np.stack(elements)


class OneByOne:
    """A user's source, read record by record."""

    def __init__(self, noting: Noting, records: int = 64) -> None:
        self.noting, self.records = noting, records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> Any:
        self.noting.note(1)
        return np.int64(index)


class AtOnce(OneByOne):
    """The same, which reads many records in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.noting.note(len(indices))
        return [np.int64(index) for index in indices]


KINDS: dict[str, tuple[str, Callable[[Dataset, Noting], Dataset]]] = {
    "map": ("map(Noting.each)", lambda ds, noting: ds.map(noting.each)),
    "map_with_index": (
        "map_with_index(Noting.with_index)",
        lambda ds, noting: ds.map_with_index(noting.with_index),
    ),
    "random_map": ("random_map(", lambda ds, noting: ds.random_map(noting.with_rng, seed=1)),
    "filter": ("filter(", lambda ds, noting: ds.filter(noting.keeps)),
    "map of columns": (
        "map(Noting.columns, batched=True)",
        lambda ds, noting: ds.map(noting.columns, batched=True).batch(4),
    ),
    "batch_fn": ("batch(4, batch_fn", lambda ds, noting: ds.batch(4, batch_fn=noting.stacked)),
}


def with_threads(threads: int, queue: int = 8) -> ReadOptions:
    return ReadOptions(num_threads=threads, prefetch_buffer_size=queue)


def numbers() -> MapDataset[Any]:
    return MapDataset.source(np.arange(64)).repeat()


def in_access(options: ReadOptions) -> Callable[[Apply], Dataset]:
    return lambda apply: apply(numbers()).to_iter_dataset(options)


def in_stream(options: ReadOptions) -> Callable[[Apply], Dataset]:
    return lambda apply: apply(numbers().to_iter_dataset(options))


def other(options: ReadOptions) -> IterDataset[Any]:
    return numbers().batch(4).to_iter_dataset(options)


# Where the function stands, and the words for one that takes one element and for others.
_PROCESSES = "in 2 worker processes"
_THREADS, _THREAD, _ASKED = "on up to 3 threads, ahead", "on a thread, ahead", "when asked for"
PLACES: dict[str, tuple[Callable[[Apply], Dataset], str, str]] = {
    "random access, threads": (in_access(with_threads(3)), _THREADS, _THREAD),
    "random access, one thread": (in_access(with_threads(1)), _THREAD, _THREAD),
    "random access, no threads": (in_access(with_threads(0)), _ASKED, _ASKED),
    "random access, no queue": (in_access(with_threads(3, 0)), _ASKED, _ASKED),
    "stream, threads": (in_stream(with_threads(3)), _THREADS, _THREAD),
    "stream, one thread": (in_stream(with_threads(1)), _THREAD, _THREAD),
    "stream, no threads": (in_stream(with_threads(0)), _ASKED, _ASKED),
    "above a mixture": (
        lambda apply: apply(
            IterDataset.mix([other(with_threads(0)), other(with_threads(3))]).map(_first)
        ),
        _THREADS,
        _THREAD,
    ),
}


def _first(batch: Any) -> Any:
    return batch[0]


def node_of(node: Node, label: str) -> Node | None:
    """The first node from the top with such a label."""
    if node.written.startswith(label):
        return node
    return next(filter(None, (node_of(parent, label) for parent in node.parents)), None)


def runs_of(dataset: Dataset, label: str) -> str:
    """The words for that node, as in `explain()`."""
    words = running(dataset._node)
    return words[id(node_of(dataset._node, label))]


def run(dataset: Dataset, noting: Noting, *, threads: int = 1, elements: int = 24) -> list[Call]:
    """The calls for some elements, or for as many as it takes to see the wanted number of threads."""
    with iter(dataset) as iterator:
        for number, _ in enumerate(iterator, 1):
            enough = len({call.thread for call in noting.calls()}) >= threads
            if number >= elements and (enough or number >= _MOST):
                break
    return noting.calls()


def check_place(words: str, calls: Sequence[Call]) -> None:
    """That calls were made where the words say."""
    pids = {call.pid for call in calls}
    threads = {call.thread for call in calls}
    assert calls
    if found := re.search(r"in (\d+) worker process", words):
        assert os.getpid() not in pids
        assert len(pids) <= int(found[1])
        return
    assert pids == {os.getpid()}
    if found := re.search(r"on up to (\d+) threads, ahead$", words):
        assert 1 < len(threads) <= int(found[1])
        assert all(name.startswith(_AHEAD) for name in threads)
    elif words.endswith("on a thread, ahead"):
        (name,) = threads
        assert name.startswith(_AHEAD)
    else:
        assert words.endswith("when asked for")
        assert threads == {threading.current_thread().name}


def check_calls(words: str, calls: Sequence[Call]) -> None:
    """That calls were of as many elements as the words say."""
    counts = {call.elements for call in calls}
    if words.startswith(("one by one", "record by record")):
        assert counts == {1}
    else:
        assert words.startswith(("many at once", "many records"))
        assert max(counts) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_functions_are_called_where_it_is_said(tmp_path: Path, place: str, kind: str) -> None:
    noting = Noting(tmp_path / "calls")
    (label, attach), (make, of_each, of_many) = KINDS[kind], PLACES[place]
    dataset = make(lambda ds: attach(ds, noting))
    words = runs_of(dataset, label)
    is_of_each = kind not in ("map of columns", "batch_fn")
    assert words.endswith(of_each if is_of_each else "many at once")
    calls = run(dataset, noting, threads=2 if " up to " in words else 1)
    check_place(of_each if is_of_each else of_many, calls)
    check_calls(words, calls)


# --- worker processes ----------------------------------------------------------------------------


def test_functions_below_workers_are_called_in_them_and_others_here(tmp_path: Path) -> None:
    places = ("source", "inner", *KINDS, *(f"{kind} above" for kind in KINDS))
    notings = {place: Noting(tmp_path / place, waits=False) for place in places}

    def attached(chain: Dataset, where: str) -> Dataset:
        for kind, (_, attach) in KINDS.items():
            chain = attach(chain, notings[kind + where])
            chain = chain.map(_first) if kind in ("map of columns", "batch_fn") else chain
        return chain

    source = OneByOne(notings["source"], 256)
    below = MapDataset.source(source).map(notings["inner"].each).to_iter_dataset(with_threads(0))
    middle = attached(below, "").mp_prefetch(2)
    dataset = attached(middle, " above")
    assert runs_of(dataset, "mp_prefetch") == "functions below in 2 worker processes"
    assert runs_of(dataset, "source") == "record by record, in 2 worker processes"
    with iter(dataset) as iterator:
        next(iterator)
        assert len(workers()) == 2
    words = running(dataset._node)
    for place, noting in notings.items():
        check_place("on a thread, ahead" if "above" in place else _PROCESSES, noting.calls())
    for kind, (label, _) in KINDS.items():
        for chain, where, expected in (
            (middle, "", _PROCESSES),
            (dataset, " above", "on a thread, ahead"),
        ):
            told = words[id(node_of(chain._node, label))]
            assert told.endswith((expected, "many at once"))
            check_calls(told, notings[kind + where].calls())


# --- sources -------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [OneByOne, AtOnce])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (with_threads(3), ("record by record, on up to 3 threads, ahead", "on a thread, ahead")),
        (with_threads(1), ("record by record, on a thread, ahead", "on a thread, ahead")),
        (with_threads(0), ("record by record, when asked for", "when asked for")),
    ],
    ids=["threads", "one thread", "no threads"],
)
def test_somebody_elses_source(
    tmp_path: Path, source: Any, options: ReadOptions, words: tuple[str, str]
) -> None:
    noting = Noting(tmp_path / "calls")
    chain = MapDataset.source(source(noting)).repeat().batch(8).map(_first)
    dataset = chain.to_iter_dataset(options)
    told = runs_of(dataset, "source")
    assert told == (words[0] if source is OneByOne else "many records in one call")
    calls = run(dataset, noting, threads=2 if " up to " in told else 1)
    check_place(words[source is AtOnce], calls)
    check_calls(told, calls)


class Alone(PiecedSource):
    """A source whose single rows cost no more than their bytes."""

    @property
    def parts(self) -> list[Any]:
        return [dataclasses.replace(part, alone=True) for part in super().parts[:1]] + list(
            super().parts[1:]
        )


def read(source: PiecedSource, options: ReadOptions) -> str:
    """The words for a source, once an epoch of it has been read."""
    dataset = MapDataset.source(source).shuffle(seed=1).batch(8).to_iter_dataset(options)
    for _ in dataset:
        pass
    return runs_of(dataset, "source")


def test_how_chunks_are_read() -> None:
    rows = np.arange(80).reshape(40, 2)
    one = {"x": rows}
    ahead = PiecedSource(one, {"x": 5})
    assert read(ahead, with_threads(3)) == "whole chunks, by prefetcher"
    assert (len(ahead.readers["x"].started), ahead.readers["x"].alone) == (8, 0)
    in_turn = PiecedSource(one, {"x": 5})
    assert read(in_turn, with_threads(0)) == "whole chunks, batch by batch"
    assert (ahead.readers["x"].started == [], in_turn.readers["x"].alone) == (False, 40)
    assert in_turn.readers["x"].started == []
    alone = Alone(one, {"x": 5})
    assert read(alone, with_threads(3)) == "records read alone"
    assert (alone.readers["x"].started, alone.readers["x"].alone) == ([], 40)


# --- how elements come ---------------------------------------------------------------------------


def _same(element: Any) -> Any:
    return element


def test_a_node_that_stands_in_two_places_has_both_words() -> None:
    mapped = MapDataset.range(10).map(_same)
    dataset = IterDataset.mix(
        [mapped.to_iter_dataset(with_threads(0)), mapped.to_iter_dataset().mp_prefetch(1)]
    )
    told = runs_of(dataset, "map")
    assert told == "one by one, on a thread, ahead; one by one, in 1 worker process"
