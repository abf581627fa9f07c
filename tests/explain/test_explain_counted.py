"""What `explain` predicts against what is counted: reads, bytes and buffers, over every kind of chain."""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import inspect
import io
import os
import pkgutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import zarr

from tests.explained_chains import (
    CASES,
    SHORT,
    SMALL,
    Dataset,
    Foreign,
    ForeignOfMany,
    Stores,
    nodes_of,
    served_stores,
)
from tests.full_queues import counted
from windrow import Explanation, MapDataset, ReadOptions, sources
from windrow.core import native
from windrow.errors import ReadError
from windrow.sources import BatchedSource, ForeignDataSource, LaidOutSource, ZarrDataSource
from windrow.stats.costs import Amount, SourceCosts, known
from windrow.transforms import nodes
from windrow.transforms.nodes import (
    SourceNode,
    block_shuffle,
    index,
    leaves,
    regroup,
    routing,
    streams,
    values,
)

# Runs are compared with predictions, which takes long. A part of `make test-brief`.
pytestmark = pytest.mark.jobs

# Reads of a chunk, a record, or a call, as they can be noticed: by a name in CASES.
NOTICED = {
    "chunks by blocks, little room": "opened",
    "shards of single records, shuffled": "opened",
    "patches with a target, by blocks": "opened",
    "chunks that zarr-python reads, by blocks": "opened",
    "ArrayRecord remote, by blocks": "requests",
    "single remote records, shuffled": "requests",
    "remote chunks, by blocks": "requests",
    "a source of somebody else's, many in one call": "calls",
}
COLUMNS = ("records", "chunks", "reads", "stored_bytes", "decoded_bytes", "delivered_bytes", "hits")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with served_stores(tmp_path_factory.mktemp("stores")) as found:
        yield found


def short_queue(dataset: Dataset) -> Dataset:
    if isinstance(dataset, MapDataset):
        return dataset.to_iter_dataset(SHORT)
    return dataset


def misses(predicted: SourceCosts, found: SourceCosts, explanation: Explanation) -> list[str]:
    """The columns in which the counted number is outside the predicted one."""
    wrong = []
    for name in COLUMNS:
        told, was = getattr(predicted, name), getattr(found, name)
        size = f"bytes of the records of {predicted.source}"
        if told is None and name in ("delivered_bytes", "decoded_bytes"):
            assert any(line.startswith(size) for line in explanation.unknown)
            continue
        if (told is None) != (was is None) or (told is not None and was.low not in told):
            wrong.append(f"{name}: told {told}, counted {was}")
    return wrong


class Watch:
    """Counts of files that Python opened, of requests, and of calls of a source that is not Windrow's."""

    def __init__(
        self, stores: Stores, chains: Iterable[Dataset], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._server, self._folder = stores.server, str(stores.folder)
        nodes = [node for chain in chains for node in nodes_of(chain)]
        sources = [node.source for node in nodes if isinstance(node, SourceNode)]
        self._foreign = [s.source for s in sources if isinstance(s, ForeignDataSource)]
        self._opened = 0
        for module in (os, builtins, io):
            monkeypatch.setattr(module, "open", self._noting(module.open))

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **more: Any) -> Any:
            # What the server opens is counted as requests.
            here = threading.current_thread().name != "range-server"
            if here and str(path).startswith(self._folder):
                self._opened += 1
            return function(path, *args, **more)

        return call

    def counts(self) -> dict[str, int]:
        """So far."""
        core = native.native()
        return {
            "opened": self._opened + (0 if core is None else core.tasks_begun()),
            "requests": self._server.counts().requests,
            "calls": sum(source.calls for source in self._foreign),
        }


def test_explaining_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served_stores(tmp_path) as stores:
        chains = {name: case.make(stores) for name, case in CASES.items()}
        watch = Watch(stores, chains.values(), monkeypatch)
        before = watch.counts()
        for dataset in chains.values():
            dataset.explain()
        assert watch.counts() == before
        assert before["calls"] == 0
        for name, kind in NOTICED.items():
            if kind == "opened" and native.native() is None:
                continue  # TensorStore opens files by itself
            before = watch.counts()
            assert len(list(chains[name])) > 1  # to the end, so that nothing is under way
            assert watch.counts()[kind] > before[kind], name


@pytest.mark.parametrize("kind", [Foreign, ForeignOfMany])
def test_somebody_elses_source_is_asked_as_often_as_told(kind: type[Foreign]) -> None:
    source = kind(300)
    dataset = MapDataset.source(source).shuffle(seed=1).batch(8)
    (costs,) = dataset.explain().epoch
    assert source.calls == 0
    assert costs.reads == Amount.exactly(300)
    assert len(list(dataset)) == 38
    assert source.calls == 300


@pytest.mark.parametrize("name", CASES)
def test_what_is_told_happens(stores: Stores, name: str) -> None:
    case = CASES[name]
    dataset = short_queue(case.make(stores))
    explanation, stats = dataset.explain(), counted(dataset)
    assert len(explanation.epoch) == len(stats.sources)
    for predicted, found in zip(explanation.epoch, stats.sources, strict=True):
        assert predicted.source == found.source
        assert misses(predicted, found, explanation) == []
        assert found.held_bytes.low <= predicted.held_bytes.high
    are_exact = [p.reads.is_exact and known(p.decoded_bytes).is_exact for p in explanation.epoch]
    assert all(are_exact) == case.exact
    assert stats.elements in explanation.batches
    assert stats.peak_buffers_bytes <= explanation.buffers.high
    for kind, size in stats.peak_by.items():
        assert size <= explanation.buffers_by[kind].high, kind
    lines = str(explanation).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("options", [SHORT, SMALL], ids=["room for all", "little room"])
@pytest.mark.parametrize("order", ["in order", "shuffled", "by blocks"])
def test_later_epochs_are_as_told(stores: Stores, order: str, options: ReadOptions) -> None:
    chain = MapDataset.source(ZarrDataSource(stores / "chunks"))
    if order == "shuffled":
        chain = chain.shuffle(seed=1)
    elif order == "by blocks":
        chain = chain.block_shuffle(seed=1, window_blocks=2)
    told = chain.repeat().batch(50).to_iter_dataset(options).explain()
    (found,) = counted(chain.repeat(3).batch(50).to_iter_dataset(options)).sources
    (first,), (later,) = told.epoch, told.later_epoch
    for name in ("records", "reads", "stored_bytes", "decoded_bytes", "delivered_bytes"):
        whole = getattr(first, name) + getattr(later, name).times(2)
        assert getattr(found, name).low in whole, (name, whole, getattr(found, name))


def test_an_epoch_in_batches(stores: Stores) -> None:
    explanation = CASES["chunks by blocks, little room"].make(stores).explain()
    (epoch,), (batch,) = explanation.epoch, explanation.batch
    assert explanation.batches == Amount.exactly(250)
    assert batch.reads.low == pytest.approx(epoch.reads.low / 250)
    assert batch == dataclasses.replace(epoch.times(1 / 250))


def _public(base: type, modules: Iterable[ModuleType]) -> set[type]:
    """The public classes of a kind that are written in modules, but for abstract ones."""
    return {
        value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and not inspect.isabstract(value)
        and not getattr(value, "_is_protocol", False)
    }


@pytest.fixture(scope="module")
def met(stores: Stores) -> list[Any]:
    """The nodes of all chains."""
    return [node for case in CASES.values() for node in nodes_of(case.make(stores))]


def test_every_node_is_in_a_chain(met: list[Any]) -> None:
    known = _public(nodes.Node, (leaves, index, routing, regroup, values, streams, block_shuffle))
    assert len(known) > 20
    assert known - {type(node) for node in met} == set()


def test_every_source_and_way_of_reading_is_in_a_chain(met: list[Any]) -> None:
    found = {id(node.source): node.source for node in met if isinstance(node, SourceNode)}.values()
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(sources.__path__, "windrow.sources.")
        if module.name != "windrow.sources.zarr.python_store"
    ]
    known = {k for k in _public(BatchedSource, modules) if hasattr(sources, k.__name__)}
    assert ZarrDataSource in known
    assert known - set(map(type, found)) == set()
    readers = {kind for kind in _public(object, modules) if kind.__name__.endswith("Reader")}
    assert len(readers) > 5
    parts: list[Any] = [part for s in found if isinstance(s, LaidOutSource) for part in s.parts]
    used = [getattr(part, "reader", None) or part._reader for part in parts]
    unused = ("Native", "Core") if native.native() is None else ("PlainStore",)
    unused = (*unused, "Stored")  # it asks another reader, and knows nothing that is predicted
    readers = {kind for kind in readers if not kind.__name__.startswith(unused)}
    assert readers - set(map(type, used)) == set()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 100,000 chunks and 10 million records; reading any of them is an error."""
    path = tmp_path_factory.mktemp("large") / "store"
    zarr.create_array(str(path), shape=(10_000_000, 8), chunks=(100, 8), dtype="f4")
    (path / "c").symlink_to("c")  # the folder of the chunks leads nowhere
    return path


# Decoded directly, or read by TensorStore.
@pytest.mark.parametrize("direct", [None, False])
def test_no_record_of_the_large_store_can_be_read(large: Path, direct: bool | None) -> None:
    chain = MapDataset.source(ZarrDataSource(large, direct=direct)).batch(100)
    assert len(chain) == 100_000
    with pytest.raises(ReadError, match="records 0 to 99 cannot be read"):
        chain[0]


@pytest.mark.parametrize(
    ("order", "direct"),
    [("in order", None), ("blocks", None), ("shuffled", None), ("blocks", False)],
)
def test_a_large_store_is_explained_from_its_metadata_alone(
    large: Path, order: str, direct: bool | None
) -> None:
    chain = MapDataset.source(ZarrDataSource(large, direct=direct))
    if order != "in order":
        chain = chain.shuffle(seed=1) if order == "shuffled" else chain.block_shuffle(seed=1)
    (costs,) = chain.batch(100).explain().epoch
    assert costs.records == Amount.exactly(10_000_000)
    assert costs.chunks == Amount.exactly(100_000)
    assert costs.reads.middle == pytest.approx(100_000)
    assert costs.reads.is_exact or order == "shuffled"
