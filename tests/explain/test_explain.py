"""Tests explanations of chains as values, text, HTML and JSON, and that explaining reads nothing."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.array_record_bytes import written as write_array_record
from tests.laid_out import PiecedSource
from tests.strategies import Drawn, build, chains, streams
from windrow import Explanation, IterDataset, MapDataset
from windrow.core.native import native
from windrow.explain.explanation import spec_text
from windrow.sources import ArrayRecordDataSource, ArraySpec
from windrow.stats.costs import Amount

Dataset = MapDataset[Any] | IterDataset[Any]
RANGE = MapDataset.range


def no(*given: Any) -> Any:
    raise AssertionError("explaining calls no function")


class Laid(PiecedSource):
    """Records in chunks of ten, of four integers each, which the source declares."""

    spec = ArraySpec((4,), "i8")


def laid(records: int) -> MapDataset[Any]:
    rows = np.repeat(np.arange(records)[:, None], 4, axis=1)
    return MapDataset.source(Laid({"": rows}, {"": 10}))


def test_the_nodes_as_written_and_as_run() -> None:
    chain = laid(95).shuffle(seed=1).map(no).batch(10).mp_prefetch(2)
    nodes = chain.explain().nodes
    assert [node.number for node in nodes] == [0, 1, 2, 3, 4, 5]
    assert [node.parents for node in nodes] == [(), (0,), (1,), (2,), (3,), (4,)]
    assert [node.label for node in nodes] == [
        "source(pieced(95))",
        "shuffle(seed=1)",
        "map(no)",
        "batch(10)",
        "to_iter_dataset()",
        "mp_prefetch(2)",
    ]
    assert nodes[0].runs == "whole chunks, by prefetcher"
    assert nodes[1].runs == "indices only"
    assert nodes[2].runs == "one by one, in 2 worker processes"
    assert [node.length for node in nodes] == [95, 95, 95, 10, 10, 10]
    assert nodes[0].source == 0
    assert {node.source for node in nodes[1:]} == {None}
    assert nodes[1].element_bytes == Amount.exactly(32)
    assert nodes[2].element_bytes is None
    assert nodes[1].spec == Laid.spec


def test_a_node_of_two_parents_stands_once() -> None:
    one = laid(20)
    nodes = MapDataset.zip([one, one[::-1]]).explain().nodes
    assert [node.label for node in nodes].count("source(pieced(20))") == 1
    assert nodes[2].parents == (0, 1)
    assert nodes[2].element_bytes == Amount.exactly(64)


def test_costs_of_an_epoch_in_order() -> None:
    explanation = laid(95).batch(10).explain()
    (costs,) = explanation.epoch
    exactly = Amount.exactly
    assert (costs.records, costs.chunks, costs.reads) == (exactly(95), exactly(10), exactly(10))
    assert (costs.stored_bytes, costs.decoded_bytes) == (exactly(1000), exactly(95 * 32))
    assert costs.delivered_bytes == exactly(95 * 32)
    assert costs.decoded_per_delivered == exactly(1)
    assert explanation.length == 10
    assert explanation.batches == exactly(10)
    assert explanation.batch_bytes == exactly(320)
    assert explanation.later_epoch == explanation.epoch


def test_what_is_unknown_is_said() -> None:
    explanation = laid(50).filter(no).to_iter_dataset().batch(8).map(no).explain()
    assert explanation.batches == Amount(0, 7)
    assert explanation.length is None
    assert explanation.spec is None
    said = "\n".join(explanation.unknown)
    assert "filter(no) drops an unknown part of its elements" in said
    assert "what map(no) makes" in said
    assert explanation.epoch[0].reads == Amount.exactly(5)  # all of them are read all the same


def test_another_shard_may_end_the_run_at_any_batch() -> None:
    stream = laid(96).to_iter_dataset(lanes=4).filter(no).batch(8, remainder="drop")
    alone = stream.explain()
    (costs,) = stream.shard(0, 4, agree=bool).explain().epoch
    assert alone.epoch[0].records == Amount.exactly(96)
    assert costs.records == Amount(0, 24)
    assert costs.reads.low == 0 < costs.reads.high
    said = "\n".join(stream.shard(0, 4, agree=bool).explain().unknown)
    assert "at which batch another shard ends, and with it all of them" in said
    assert "another shard" not in "\n".join(alone.unknown)


def test_unknown_records_of_somebody_elses_source() -> None:
    explanation = MapDataset.source([object()] * 5).explain()
    assert any("bytes of the records of SequenceDataSource" in line for line in explanation.unknown)
    assert explanation.batch_bytes is None
    (costs,) = explanation.epoch
    assert (costs.records, costs.decoded_bytes) == (
        Amount.exactly(5),
        Amount.exactly(0),
    )  # in memory
    assert costs.delivered_bytes is None
    assert costs.decoded_per_delivered is None
    assert explanation.to_json()["epoch"][0]["delivered_bytes"] is None


def test_unknown_bytes_of_what_somebody_else_reads() -> None:
    explanation = MapDataset.source(Single()).batch(8).explain()
    for costs in (*explanation.epoch, *explanation.later_epoch, *explanation.batch):
        assert (costs.stored_bytes, costs.decoded_bytes, costs.delivered_bytes) == (None,) * 3
    assert explanation.epoch[0].reads == Amount.exactly(100)
    text = explanation.details()
    assert [line.split() for line in text.splitlines() if line.strip().startswith("delivered")] == [
        ["delivered", "unknown", "unknown"]
    ]


@pytest.mark.parametrize(
    ("make", "count", "endless"),
    [
        (lambda: RANGE(0), 0, False),
        (lambda: RANGE(1).batch(4), 1, False),
        (lambda: RANGE(10).repeat().batch(4), 3, True),
        (lambda: RANGE(10).repeat(3), 30, False),
        (lambda: RANGE(10).to_iter_dataset().repeat(3).batch(4), 8, False),
        (lambda: RANGE(10).to_iter_dataset().repeat().limit(25), 25, False),
        (lambda: MapDataset.mix([RANGE(10).repeat(), RANGE(4).repeat()], [1, 1]), 8, True),
        (lambda: RANGE(10).repeat()[::3], 4, True),
        (lambda: RANGE(10).to_iter_dataset().window_shuffle(3, seed=1), 10, False),
    ],
)
def test_elements_of_an_epoch(
    make: Callable[[], MapDataset[Any] | IterDataset[Any]], count: int, endless: bool
) -> None:
    explanation = make().explain()
    assert explanation.batches == Amount.exactly(count)
    assert explanation.is_endless == endless
    assert explanation.length == (None if endless else count)
    if not endless:
        assert len(list(make())) == count


def test_text_html_json_and_pickle() -> None:
    name = "<b>&</b>"
    explanation = laid(30).map(type(name, (), {"__call__": no})()).batch(4).explain()
    text = explanation.details()
    for word in ("as written", "decoded per delivered", "buffers at most", "not known"):
        assert word in text
    page = explanation._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "http" not in page
    told = json.loads(json.dumps(explanation.to_json(), allow_nan=False))
    assert told["epoch"][0]["reads"] == {"low": 3, "high": 3}
    assert told["nodes"][0]["spec"] == "int64 (4,)"
    again: Explanation = pickle.loads(pickle.dumps(explanation))
    assert again == explanation


def test_specs_in_words() -> None:
    spec = {"x": ArraySpec((None, 3), "f4"), "y": (bytes, [ArraySpec((), "i8")]), "z": list}
    assert spec_text(spec) == "{x: float32 (?, 3), y: (bytes, [int64]), z: list}"


class Raises:
    """A function whose `output_spec` does not take what it is given."""

    def __call__(self, element: Any) -> Any:
        return element

    def output_spec(self, spec: Any) -> Any:
        raise KeyError("image")


def test_a_spec_that_raises_is_unknown() -> None:
    chain = MapDataset.source(np.arange(20)).map(Raises()).batch(5)
    explanation = chain.explain()
    assert explanation.spec is None
    assert any("what map(" in line for line in explanation.unknown)
    assert len(list(chain)) == 4


@settings(max_examples=25)
@given(drawn=st.one_of(chains(lengths=(0, 1, 5, 31)), streams(lengths=(0, 1, 5), most=3)))
def test_any_chain_is_explained(drawn: Drawn) -> None:
    dataset = build(drawn.recipe)
    explanation = dataset.explain()
    assert str(explanation)
    assert explanation._repr_html_()
    assert json.dumps(explanation.to_json(), allow_nan=False)
    if explanation.is_endless or explanation.batches.high > 500:
        return
    with iter(dataset) as iterator:
        count = sum(1 for _ in iterator)
        stats = iterator.stats()
    assert count in explanation.batches
    if isinstance(dataset, IterDataset):
        return  # reads of a stream that another one ends are predicted roughly
    for told, found in zip(explanation.epoch, stats.sources, strict=True):
        assert found.records.low in told.records
        assert found.reads.low in told.reads


# --- advice --------------------------------------------------------------------------------------


class Single:
    """A user's source."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.skipif(native() is None, reason="the core reads the sizes of records in the index")
@pytest.mark.parametrize("size", [4, 3076])
def test_records_of_bytes_are_counted_without_their_objects(size: int, tmp_path: Path) -> None:
    write_array_record(
        tmp_path / "a.array_record", [bytes(size)] * 200, "group_size:1,uncompressed"
    )
    dataset = MapDataset.source(ArrayRecordDataSource(tmp_path / "a.array_record")).batch(10)
    (predicted,) = dataset.explain().epoch
    assert predicted.delivered_bytes == Amount.exactly(200 * size)
    iterator = iter(dataset)
    assert len(list(iterator)) == 20
    (counted,) = iterator.stats().sources
    assert counted.delivered_bytes == predicted.delivered_bytes
    assert counted.decoded_bytes == predicted.decoded_bytes
    assert predicted.decoded_per_delivered == Amount.exactly(1.0)
