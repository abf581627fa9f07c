"""Rows and batches that are planned from lengths: each token once, the same by any way of reading."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from windrow.core import native
from windrow.errors import ArgumentError, ElementError, PlanError, StateError
from windrow.sources import RaggedDataSource
from windrow.transforms.nodes import packing

IntArray = npt.NDArray[np.int64]
M = windrow.MapDataset


def documents_of(lengths: Sequence[int]) -> list[IntArray]:
    """Documents whose tokens are all different, and not 0."""
    ends = np.cumsum(lengths)
    pairs = zip(ends.tolist(), lengths, strict=True)
    return [np.arange(end - length, end) + 1 for end, length in pairs]


def tokens_in(rows: Sequence[Any]) -> list[int]:
    """All tokens of rows, sorted, after checking their ids and positions."""
    found: list[int] = []
    for row in rows:
        tokens, ids, places = (row[f"tokens{part}"] for part in ("", "_segment_ids", "_positions"))
        assert ids.dtype == places.dtype == np.int32
        pieces = int(ids.max())
        runs = [np.flatnonzero(ids == number) for number in range(1, pieces + 1)]
        cells = np.concatenate(runs)
        assert cells.tolist() == list(range(len(cells)))  # in order, and padding comes last
        for run in runs:
            assert places[run].tolist() == list(range(len(run)))
            assert (np.diff(tokens[run]) == 1).all()  # of one document, without a gap
        for padded in (tokens, ids, places):
            assert not padded[len(cells) :].any()
        found += tokens[cells].tolist()
    return sorted(found)


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return make.differences(one, other) == []


@pytest.fixture(autouse=True)
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few documents make several plans."""
    monkeypatch.setattr(packing, "ENOUGH", 50)


few_lengths = st.lists(st.integers(0, 30), max_size=40)


# --- from ragged arrays ----


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    row_length=st.integers(1, 25),
    chunk=st.integers(1, 40),
    too_long=st.sampled_from(["split", "truncate", "drop"]),
    resident=st.sampled_from([1, 200, 1 << 20]),
    item=st.sampled_from([(), (2,)]),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_pieces_of_ragged_arrays_are_read_to_their_places(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    row_length: int,
    chunk: int,
    too_long: str,
    resident: int,
    item: tuple[int, ...],
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("ragged")
    group, total = zarr.create_group(path), sum(lengths)
    values = np.arange(1, total * math.prod(item) + 1, dtype=np.uint16).reshape(total, *item)
    group.create_array("values", data=values, chunks=(chunk, *item))
    group.create_array("offsets", data=np.cumsum([0, *lengths]))
    options = windrow.ReadOptions(memory_bytes=resident)
    window = data.draw(st.integers(1, 50))

    def packed(**given: Any) -> list[Any]:
        chain = M.source(RaggedDataSource(path)).shuffle(seed=3).repeat(2)
        chosen: Any = too_long
        rows = chain.pack(row_length, window=window, too_long=chosen, read_options=options, **given)
        return list(rows)

    # Where lengths are given, whole documents are read, so that these can be compared.
    assert same(packed(), packed(lengths=np.array(lengths)))


def test_of_documents_that_are_split_only_the_pieces_are_read(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    group.create_array("values", data=np.arange(100, dtype=np.uint16), chunks=(16,))
    group.create_array("offsets", data=np.array([0, 90, 100]))
    dataset = M.source(RaggedDataSource(tmp_path)).pack(10)
    iterator: Any = iter(dataset)
    assert sorted(np.concatenate([row["tokens"] for row in iterator])) == list(range(100))
    whole = 200 if native.native() is not None else 9 * 180 + 20
    (costs,) = iterator.stats().sources
    assert costs.delivered_bytes.low == costs.delivered_bytes.high == whole
    (line,) = [each for each in dataset.explain().details().splitlines() if "  delivered " in each]
    assert line.split()[1:3] == (["200", "bytes"] if whole == 200 else ["1.64", "KB"])


# --- what rows hold ------------------------------------------------------------------------------


@given(
    lengths=few_lengths,
    row_length=st.integers(1, 25),
    window=st.integers(1, 50),
    too_long=st.sampled_from(["split", "truncate", "drop"]),
)
@settings(max_examples=examples(50), deadline=None)
def test_every_token_is_in_one_row(
    lengths: list[int], row_length: int, window: int, too_long: str
) -> None:
    documents = documents_of(lengths)
    dataset = M.source(documents).shuffle(seed=3)
    rows = list(dataset.pack(row_length, window=window, too_long=too_long))
    kept = documents
    if too_long == "truncate":
        kept = [document[:row_length] for document in documents]
    elif too_long == "drop":
        kept = [document for document in documents if len(document) <= row_length]
    assert tokens_in(rows) == [token for document in kept for token in document.tolist()]


def test_windows_end_with_epochs() -> None:
    lengths = [3, 4, 5, 6, 7] * 3
    chain = M.source(documents_of(lengths)).shuffle(seed=1)
    twice = list(chain.repeat(2).pack(12, window=4))
    once = list(chain.pack(12, window=4))
    assert same(twice[: len(once)], once)
    whole = list(range(1, sum(lengths) + 1))
    assert tokens_in(twice[: len(once)]) == tokens_in(twice[len(once) :]) == whole
    endless = chain.repeat().pack(12, window=4)
    assert same(list(itertools.islice(endless, len(twice))), twice)


def test_documents_are_dicts_with_features() -> None:
    lengths = [3, 2, 6, 1]
    records = [
        {"x": tokens, "loss": tokens / 2, "label": number, "box": np.full(2, number)}
        for number, tokens in enumerate(documents_of(lengths))
    ]
    dataset = M.source(records).pack(
        8, lengths=lengths, max_segments=3, sequences=["x", "loss"], seed=0
    )
    rows = next(iter(dataset.batch(2)))
    assert {name: part.shape for name, part in rows.items()} == {
        **{f"{k}{part}": (2, 8) for k in ("x", "loss") for part in SUFFIXES},
        "label": (2, 3),
        "box": (2, 3, 2),
    }
    assert rows["loss"].tolist() == (rows["x"] / 2).tolist()
    for row in range(2):
        for number in range(1, rows["x_segment_ids"][row].max() + 1):
            first = int(rows["x"][row][rows["x_segment_ids"][row] == number][0])
            label = int(np.searchsorted(np.cumsum(lengths), first))
            assert rows["label"][row][number - 1] == label
            assert rows["box"][row][number - 1].tolist() == [label, label]


SUFFIXES = ("", "_segment_ids", "_positions")


def test_a_row_has_no_more_pieces_than_allowed() -> None:
    rows = list(M.source(documents_of([1] * 20)).pack(16, max_segments=3))
    assert len(rows) == 7
    assert max(int(row["tokens_segment_ids"].max()) for row in rows) == 3


def test_names_of_maxtext_and_targets() -> None:
    dataset = M.source(documents_of([3, 2])).pack(6, names="maxtext")
    (row,) = dataset
    assert {name: part.tolist() for name, part in row.items()} == {
        "inputs": [1, 2, 3, 4, 5, 0],
        "inputs_segmentation": [1, 1, 1, 2, 2, 0],
        "inputs_position": [0, 1, 2, 0, 1, 0],
        "targets_position": [0, 1, 2, 0, 1, 0],
        "targets": [2, 3, 0, 5, 0, 0],
        "targets_segmentation": [1, 1, 0, 2, 0, 0],
    }
    row["inputs_position"][:] = 9
    assert row["targets_position"].max() == 2
    renamed = M.source(documents_of([3])).pack(4, names={"tokens": "x"})
    assert set(next(iter(renamed))) == {"x", "tokens_segment_ids", "tokens_positions"}


# --- the same rows by any way ----------------------------------------------------------------------


def long_dataset() -> Any:
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(2, 1, 257).astype(np.int64).tolist()
    return M.source(documents_of(lengths)).shuffle(seed=5), np.array(lengths)


def add_nothing(document: Any) -> Any:
    return document


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_rows_do_not_depend_on_read_batches(most: int) -> None:
    chain, _ = long_dataset()
    dataset = chain.pack(32, window=40)
    options = windrow.ReadOptions(num_threads=0, prefetch_buffer_size=most)
    own = dataclasses.replace(dataset._node, read_options=options)
    assert same(list(windrow.IterDataset(own)), list(dataset))


def test_rows_do_not_depend_on_the_core() -> None:
    chain, _ = long_dataset()
    with_core = list(chain.pack(32, window=40))
    with mock.patch.object(native, "native", return_value=None):
        assert same(list(chain.pack(32, window=40)), with_core)


def test_rows_do_not_depend_on_workers() -> None:
    chain, lengths = long_dataset()
    mapped = chain.map(add_nothing).pack(32, window=40, lengths=lengths)
    assert same(list(mapped.mp_prefetch(1)), list(chain.pack(32, window=40)))


def test_a_batched_function_gets_the_documents_of_a_row() -> None:
    chain, lengths = long_dataset()
    seen: list[int] = []

    def note(documents: Any) -> Any:
        seen.append(len(documents))
        return documents

    rows = list(chain.map(note, batched=True, keeps_length=True).pack(32, window=40))
    assert same(rows, list(chain.pack(32, window=40)))
    assert seen == [int(row["tokens_segment_ids"].max()) for row in rows]
    assert lengths.max() > 32


def cut_and_restored(dataset: Any, step: int) -> None:
    iterator = iter(dataset)
    states, rows = [iterator.get_state()], []
    for row in iterator:
        rows.append(row)
        states.append(json.loads(json.dumps(iterator.get_state())))
    assert len(rows) > step
    for at in range(0, len(states), step):
        fresh = iter(dataset)
        fresh.set_state(states[at])
        assert fresh.get_state() == states[at]
        assert same(list(fresh), rows[at:])


def test_a_restored_stream_yields_the_rest() -> None:
    chain, _ = long_dataset()
    cut_and_restored(chain.pack(48, window=60), 3)
    cut_and_restored(chain.repeat(2).pack(100, window=100).batch(3), 5)
    cut_and_restored(chain.bucket([8, 16, 400], [8, 4, 2], window=64), 5)


class Counting:
    """Documents that count how often they are read."""

    def __init__(self, lengths: IntArray) -> None:
        self.documents, self._lengths = documents_of(lengths.tolist()), lengths
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, record: int) -> IntArray:
        self.read.append(record)
        return self.documents[record]

    def lengths(self) -> IntArray:
        return self._lengths


def test_building_explaining_and_restoring_read_nothing() -> None:
    source = Counting(np.arange(1, 60) % 9)
    dataset = M.source(source).shuffle(seed=2).pack(16, window=20)
    assert dataset.explain().batches.is_exact
    assert "planned by lengths" in dataset.explain().nodes[2].runs
    iterator = iter(dataset)
    states = [iterator.get_state() for _ in iterator]
    assert sorted(source.read) == [n for n in range(59) if source._lengths[n]]
    source.read.clear()
    fresh = iter(dataset)
    fresh.set_state(states[-2])
    assert source.read == []
    (row,) = fresh
    assert len(source.read) == row["tokens_segment_ids"].max()


def test_stats_count_what_was_planned() -> None:
    chain, lengths = long_dataset()
    iterator = iter(chain.pack(32, window=40))
    assert iterator.stats().packing is None
    assert "packing" not in iterator.stats().to_json()
    rows = list(iterator)
    found = iterator.stats().packing
    assert found is not None
    assert (found.documents, found.rows, found.tokens) == (257, len(rows), lengths.sum())
    assert found.split == np.count_nonzero(lengths > 32)
    assert iterator.stats().to_json()["packing"]["split"] == found.split
    assert found.text() in str(iterator.stats())


# --- errors --------------------------------------------------------------------------------------


def test_a_document_that_is_too_long_is_named_before_it_is_read() -> None:
    source = Counting(np.array([3, 4, 20, *[5] * 50]))
    dataset = M.source(source)[::-1].pack(8, too_long="error", window=50)
    iterator = iter(dataset)
    assert len([next(iterator) for _ in range(50)]) == 50
    message = r"element 50 \(record 2 of .*\) has 20 tokens, more than a row of 8"
    with pytest.raises(PlanError, match=message):
        next(iterator)
    assert sorted(source.read) == list(range(3, 53))


def test_a_document_of_several_sources_is_named_by_its_own() -> None:
    parts = [M.source(documents_of(lengths)) for lengths in ([3], [3, 20])]
    rows = M.concatenate(parts).pack(8, lengths=[[3], [3, 20]], too_long="error")
    with pytest.raises(PlanError, match=r"element 2 \(record 1 of .*\) has 20 tokens"):
        list(rows)


def test_a_length_that_is_wrong_is_named() -> None:
    documents = documents_of([3, 6, 2])
    dataset = M.source(documents)[::-1].pack(8, lengths=[3, 5, 2])
    message = r"'tokens' of element 1 \(record 1 of .*\) has 6 items, but its length is given as 5"
    with pytest.raises(ElementError, match=message):
        list(dataset)
    dataset = M.source(documents).bucket([8], [2], lengths=[3, 5, 2])
    with pytest.raises(ElementError, match="bucket: 'tokens' of element 1 "):
        list(dataset)


def test_rows_before_an_error_come_first() -> None:
    lengths = np.array([4] * 10)
    documents = documents_of(lengths.tolist())
    documents[7] = documents[7][:2]
    whole = list(M.source(documents_of(lengths.tolist())).pack(8, window=2))
    iterator: Iterator[Any] = iter(M.source(documents).pack(8, window=2, lengths=lengths))
    assert same([next(iterator) for _ in range(3)], whole[:3])
    with pytest.raises(ElementError, match="element 7 "):
        next(iterator)


def test_a_state_of_a_tokenizer_with_as_many_tokens_is_refused(tmp_path: Path) -> None:
    def state_of(name: str, noted: dict[str, Any]) -> Any:
        group = zarr.create_group(tmp_path / name)
        group.create_array("values", data=np.zeros(10, np.uint16), attributes=noted)
        group.create_array("offsets", data=np.array([0, 3, 10]))
        return iter(M.source(RaggedDataSource(tmp_path / name)).pack(8))

    def by(sha256: str, end: int | None) -> dict[str, Any]:
        return {"windrow_tokenizer": {"sha256": sha256, "end_token": end}}

    state = state_of("bpe", by("ab" * 32, None)).get_state()
    state_of("copy", by("ab" * 32, None)).set_state(state)
    with pytest.raises(StateError, match=r"tokenizer (ab){8}\).*\n.*tokenizer (cd){8}\)"):
        state_of("words", by("cd" * 32, None)).set_state(state)
    with pytest.raises(StateError, match=r"tokenizer (ab){8}\).*\n.*tokenizer (ab){8}, end 5\)"):
        state_of("ended", by("ab" * 32, 5)).set_state(state)
    with pytest.raises(StateError, match=r"tokenizer (ab){8}\).*\n.*this run: "):
        state_of("plain", {}).set_state(state)


def test_a_state_of_other_lengths_is_refused() -> None:
    documents = documents_of([3, 5, 2])
    state = iter(M.source(documents).pack(8, lengths=[3, 5, 2])).get_state()
    other = iter(M.source(documents).pack(8, lengths=[3, 5, 1]))
    with pytest.raises(StateError, match=r"lengths=\w{16}.*\n.*lengths=\w{16}"):
        other.set_state(state)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"row_length": 0}, PlanError),
        ({"row_length": 2**24 + 1}, PlanError),
        ({"row_length": 2.5}, ArgumentError),
        ({"window": 0}, PlanError),
        ({"method": "first_fit"}, ArgumentError),
        ({"too_long": "cut"}, ArgumentError),
        ({"max_segments": 0}, PlanError),
        ({"names": "hf"}, ArgumentError),
        ({"names": {"tokens": 3}}, ArgumentError),
        ({"seed": -1}, PlanError),
        ({"lengths": [1, 2]}, PlanError),
        ({"lengths": [1, 2, -3]}, PlanError),
        ({"lengths": [1.0, 2.0, 3.0]}, ArgumentError),
        ({"lengths": "abc"}, ArgumentError),
        ({"sequences": "tokens"}, ArgumentError),
    ],
)
def test_wrong_arguments(given: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        M.source(documents_of([1, 2, 3])).pack(**({"row_length": 8} | given))


@pytest.mark.parametrize(
    "given",
    [
        {"boundaries": []},
        {"boundaries": [8, 4]},
        {"boundaries": [0, 4]},
        {"batch_sizes": [2, 0]},
        {"too_long": "split"},
    ],
)
def test_wrong_buckets(given: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        M.source(documents_of([1, 2])).bucket(
            **({"boundaries": [4, 8], "batch_sizes": [2, 2]} | given)
        )


def test_chains_that_cannot_be_planned() -> None:
    dataset = M.source(documents_of([1, 2, 3]))
    with pytest.raises(PlanError, match="filter before it leaves gaps"):
        dataset.filter(len).pack(8)
    with pytest.raises(PlanError, match="may change them"):
        dataset.map(add_nothing).pack(8)
    with pytest.raises(PlanError, match="documents have features"):
        list(M.source([{"x": np.arange(3), "y": 1}]).pack(8, lengths=[3]))
    with pytest.raises(PlanError, match=r"names has \['x'\], but a row has \['tokens'"):
        list(dataset.pack(8, names={"x": "y"}))
    with pytest.raises(PlanError, match="two parts of a row have the name 'tokens_positions'"):
        list(dataset.pack(8, names={"tokens": "tokens_positions"}))


@pytest.mark.parametrize(
    "record",
    [
        None,
        [{"x": 1}, 2],
        7,
    ],
)
def test_elements_that_are_no_documents(record: Any) -> None:
    dataset = M.source([np.arange(3)]).map(lambda _: record).pack(8, lengths=[3])
    with pytest.raises((ElementError, PlanError)):
        list(dataset)


def test_documents_of_several_dtypes_are_refused() -> None:
    documents = [np.arange(3), np.arange(3, dtype=np.int32)]
    with pytest.raises(ElementError, match=r"arrays of one dtype .* int32 \(3,\), int64 \(3,\)"):
        list(M.source(documents).pack(8))


# --- indices and buckets -------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(0, 40), max_size=40), window=st.integers(1, 50))
@settings(max_examples=examples(40), deadline=None)
def test_buckets_have_every_element_once(lengths: list[int], window: int) -> None:
    records = [{"x": x, "n": n} for n, x in enumerate(documents_of(lengths))]
    dataset = M.source(records).shuffle(seed=1)
    given_lengths = np.array(lengths, np.int64)
    batches = list(
        dataset.bucket(
            [4, 40], [8, 3], lengths=given_lengths, window=window, pad_value=-1, sequences=["x"]
        )
    )
    seen: list[int] = []
    for batch in batches:
        boundary = batch["x"].shape[1]
        assert boundary in (4, 40)
        for row, length, number in zip(batch["x"], batch["x_lengths"], batch["n"], strict=True):
            assert row[:length].tolist() == records[number]["x"].tolist()
            assert (row[length:] == -1).all()
            seen.append(int(number))
    assert sorted(seen) == list(range(len(lengths)))


def test_buckets_cut_off_what_is_too_long() -> None:
    documents = M.source(documents_of([3, 9]))
    (batch,) = documents.bucket([4], [2], lengths=[3, 9], too_long="truncate")
    assert sorted(batch["tokens"].tolist()) == [[1, 2, 3, 0], [4, 5, 6, 7]]
    (batch,) = documents.bucket([4], [2], lengths=[3, 9], too_long="drop")
    assert batch["tokens"].tolist() == [[1, 2, 3, 0]]
