"""Bad records: left out or replaced, counted, and the same in any run."""

from __future__ import annotations

import errno
import functools
import io
import json
import logging
import pickle
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.array_record_bytes import index_of
from windrow import IterDataset, MapDataset, ReadOptions, merge_states
from windrow.engine import bad_records
from windrow.errors import (
    ArgumentError,
    ElementError,
    PlanError,
    ReadError,
    SourceError,
    StateError,
)
from windrow.sources import ArrayRecordDataSource, ZarrDataSource

# Two records of three batches of 4, none of one, the first and the last record.
BAD = frozenset({0, 3, 5, 9, 17, 18, 40})
COUNT = 41


def checked(number: int) -> int:
    if number in BAD:
        raise ValueError(f"number {number} is bad")
    return number


def checked_columns(numbers: Any) -> Any:
    for number in numbers:
        checked(int(number))
    return np.asarray(numbers)


def numbers() -> MapDataset[int]:
    return MapDataset.source(np.arange(COUNT))


def flat(elements: Any) -> list[int]:
    return [int(n) for element in elements for n in np.ravel(element)]


def run(dataset: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """The elements of a stream as lists, and the state before each of them and at the end."""
    with iter(dataset) as iterator:
        states, elements = [iterator.get_state()], []
        for element in iterator:
            elements.append(np.asarray(element).tolist())
            states.append(iterator.get_state())
    return elements, states


def check_restored(dataset: Any, elements: Sequence[Any], states: Sequence[Any], at: int) -> None:
    """A run from the state before element `at` has the rest, and the states of the whole run."""
    with iter(dataset) as iterator:
        iterator.set_state(json.loads(json.dumps(states[at])))
        assert iterator.get_state() == states[at]
        for number in range(at, len(elements)):
            assert np.asarray(next(iterator)).tolist() == elements[number]
            assert iterator.get_state() == states[number + 1]
        assert next(iterator, None) is None


def until_error(iterator: Any, kind: type[Exception], message: str) -> tuple[list[Any], Exception]:
    """The elements before an error, and the error."""
    found = list[Any]()
    with pytest.raises(kind, match=message) as caught:
        found.extend(np.asarray(element).tolist() for element in iterator)
    return found, caught.value


# --- elements -------------------------------------------------------------------------------------


def test_skipped_records_are_absent_and_a_stream_drops_them() -> None:
    dataset = numbers().map(checked).on_bad("skip")
    good = [n for n in range(COUNT) if n not in BAD]
    assert len(dataset) == COUNT
    assert [dataset[n] for n in range(COUNT)] == [n if n in good else None for n in range(COUNT)]
    assert dataset.read([2, 3, 4]) == [2, None, 4]
    assert list(dataset) == good
    assert flat(dataset.to_iter_dataset().batch(4)) == good
    assert list(dataset.to_iter_dataset(allow_nones=True)) == [
        n if n in good else None for n in range(COUNT)
    ]


def test_skip_is_refused_before_a_batch_as_a_filter_is() -> None:
    with pytest.raises(PlanError, match=r"leaves gaps that random access cannot close"):
        numbers().map(checked).on_bad("skip").batch(4)


def test_raise_changes_nothing() -> None:
    dataset = numbers().map(checked)
    same = dataset.on_bad("raise")
    assert iter(same).get_state() == iter(dataset).get_state()
    with pytest.raises(ValueError, match="number 0 is bad"):
        list(same)


@pytest.mark.parametrize("batched", [False, True])
def test_replaced_records_are_others_of_the_dataset(batched: bool) -> None:
    dataset = numbers().map(checked_columns if batched else checked, batched=batched)
    replaced = dataset.on_bad("replace")
    found = flat(replaced.batch(4))
    assert len(found) == COUNT
    assert not BAD & set(found)
    assert all(found[n] == n for n in range(COUNT) if n not in BAD)
    assert found == [replaced[n] for n in range(COUNT)] == flat([replaced.read(range(COUNT))])
    # Another record in each epoch, and by each seed.
    later = [int(replaced[n + COUNT]) for n in BAD]  # type: ignore[arg-type]
    other = dataset.seed(1).on_bad("replace")
    assert later != [found[n] for n in BAD] != [other[n] for n in BAD]


def test_replacements_are_frozen() -> None:
    # They are part of streams that are resumed years later.
    found = numbers().map(checked).on_bad("replace")
    assert [found[n] for n in sorted(BAD)] == FROZEN


FROZEN = [38, 27, 16, 28, 32, 6, 8]


def test_a_dataset_without_good_records_cannot_be_replaced() -> None:
    dataset = MapDataset.source(np.zeros(5, np.int64)).map(checked).on_bad("replace")
    with pytest.raises(
        ReadError, match=r"element 2 is bad, and so are 16 others .*number 0 is bad"
    ):
        dataset[2]


def test_each_kind_of_node_may_come_before() -> None:
    whole = numbers().map(checked)
    good = [n for n in range(COUNT) if n not in BAD]
    pairs = MapDataset.zip([whole, numbers().map(lambda n: -n)]).on_bad("skip")
    assert list(pairs) == [(n, -n) for n in good]
    batches = whole.batch(4).on_bad("skip")
    assert [batch.tolist() for batch in batches] == [
        list(range(n, min(n + 4, COUNT)))
        for n in range(0, COUNT, 4)
        if not BAD & {*range(n, n + 4)}
    ]
    both = MapDataset.concatenate([whole, numbers()]).on_bad("skip")
    assert list(both) == good + list(range(COUNT))
    pieces = whole.map(lambda n: np.full(3, n)).chunks_of(2, lengths=[np.full(COUNT, 3)])
    assert flat(pieces.on_bad("skip")) == [n for n in good for _ in range(3)]
    odd = whole.filter(lambda n: n % 2).on_bad("skip")
    assert list(odd) == [n for n in good if n % 2]
    filtered = whole.filter(lambda n: checked(int(n)) % 2).map(lambda n: n + 1).on_bad("skip")
    assert list(filtered) == [n + 1 for n in good if n % 2]


def test_functions_after_the_node_still_raise() -> None:
    dataset = numbers().on_bad("skip").map(checked)
    with pytest.raises(ValueError, match="number 0 is bad"):
        list(dataset)
    nested = numbers().map(checked).on_bad("skip").map(bad_when_even).on_bad("replace")
    with iter(nested) as iterator:
        assert not any(n % 2 == 0 for n in iterator)
        assert {*(iterator.stats().bad_records or ())} == {
            "on_bad(skip, errors=[ReadError, ValueError])",
            "on_bad(replace, errors=[ReadError, ValueError], seed=0)",
        }


def bad_when_even(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


def test_nodes_that_see_their_index_keep_it() -> None:
    dataset = numbers().map(checked).map_with_index(lambda k, n: (k, int(n))).on_bad("skip")
    assert list(dataset) == [(n, n) for n in range(COUNT) if n not in BAD]


# --- errors ---------------------------------------------------------------------------------------


def raising(error: Callable[[], BaseException]) -> Callable[[int], int]:
    def function(number: int) -> int:
        if number == 3:
            raise error()
        return number

    return function


@pytest.mark.parametrize(
    "error",
    [
        functools.partial(PlanError, "wrong"),
        functools.partial(ArgumentError, "wrong"),
        functools.partial(SourceError, "wrong"),
        functools.partial(MemoryError, "wrong"),
        functools.partial(KeyError, "wrong"),
        functools.partial(ReadError, "wrong", is_unanswered=True),
    ],
)
@pytest.mark.parametrize("errors", [(ReadError, ValueError), Exception])
def test_some_errors_are_always_raised(error: Callable[[], Exception], errors: Any) -> None:
    if errors is Exception and isinstance(error(), KeyError):
        assert len(list(numbers().map(raising(error)).on_bad("skip", errors))) == COUNT - 1
        return
    with pytest.raises(type(error()), match="wrong"):
        list(numbers().map(raising(error)).on_bad("skip", errors))


def test_an_unanswered_read_keeps_its_mark_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ReadError("no answer", is_unanswered=True)))
    assert error.is_unanswered


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("ignore",), PlanError, "action must be one of raise, skip, replace, got 'ignore'"),
        (("skip", ()), ArgumentError, r"errors must be a class of exceptions.*got \(\)"),
        (("skip", "ValueError"), ArgumentError, "errors must be a class of exceptions"),
        (("skip", (MemoryError,)), PlanError, "MemoryError concerns the chain or the machine"),
        (("skip", ValueError, -1), PlanError, "max_bad must be at least 0, got -1"),
        (("skip", ValueError, 1.0), PlanError, "max_bad must be an integer from 0 on, a share"),
        (("skip", ValueError, "1"), ArgumentError, "max_bad must be an integer, got '1'"),
    ],
)
def test_wrong_arguments(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        numbers().on_bad(*arguments)


def test_planned_rows_are_refused() -> None:
    tokens = MapDataset.source([np.arange(3), np.arange(2)])
    with pytest.raises(PlanError, match="plans rows from lengths"):
        tokens.pack(4, lengths=[np.array([3, 2])], read_options=ReadOptions(on_bad="skip"))
    with pytest.raises(PlanError, match="on_bad decides by reading"):
        tokens.on_bad("replace").chunks_of(2, lengths=[np.array([3, 2])])


# --- the chain ------------------------------------------------------------------------------------


def test_the_fingerprint_has_what_decides_the_stream() -> None:
    def named(*arguments: Any, **more: Any) -> Any:
        return iter(numbers().on_bad(*arguments, **more)).get_state()["fingerprint"]

    assert named("skip") == named("skip", max_bad=3, log="bad.jsonl")
    others = {named("raise"), named("skip"), named("skip", KeyError), named("replace")}
    assert len(others) == 4
    read = numbers().to_iter_dataset(ReadOptions(on_bad="skip", max_bad=3))
    assert iter(read).get_state() == iter(numbers().on_bad("skip")).get_state()


def test_later_nodes_derive_the_seeds_that_they_had() -> None:
    dataset = numbers().seed(1)
    assert list(dataset.on_bad("skip").shuffle()) == list(dataset.shuffle())


def test_explain_predicts_as_if_all_were_good() -> None:
    dataset = numbers().shuffle(seed=1).map(checked)
    plain, found = dataset.explain(), dataset.on_bad("skip").explain()
    assert (found.length, found.epoch) == (plain.length, plain.epoch)
    assert "predicted as if all were good" in found.details()


# --- counts ---------------------------------------------------------------------------------------


def shuffled() -> MapDataset[int]:
    return numbers().shuffle(seed=1).map(checked)


STREAMS: dict[str, Callable[[], Any]] = {
    "skip": lambda: shuffled().on_bad("skip"),
    "skip, batch": lambda: shuffled().on_bad("skip").to_iter_dataset().batch(4),
    "replace, batch": lambda: shuffled().on_bad("replace").batch(4),
    "bad batches": lambda: shuffled().batch(2).on_bad("skip").repeat(2),
    "epochs": lambda: shuffled().on_bad("skip").repeat(3).to_iter_dataset().batch(5),
    "passes": lambda: (
        shuffled().on_bad("skip").to_iter_dataset().window_shuffle(8, seed=1).repeat(3).batch(5)
    ),
    "lanes": lambda: shuffled().on_bad("skip").to_iter_dataset(lanes=2).batch(4),
    "lanes, passes": lambda: (
        shuffled().on_bad("skip").to_iter_dataset(lanes=3).filter(lambda n: n != 7).repeat(2)
    ),
    "two nodes": lambda: IterDataset.mix(
        [shuffled().on_bad("skip").to_iter_dataset(), numbers().on_bad("skip").to_iter_dataset()]
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_restored_run_has_the_same_stream_and_counts(name: str) -> None:
    dataset = STREAMS[name]()
    elements, states = run(dataset)
    for at in range(len(states)):
        check_restored(dataset, elements, states, at)
    lanes = states[-1]["bad"]["0"]
    assert 0 < sum(lanes) <= len(BAD) * (3 if name == "epochs" else 2)


@given(st.sets(st.integers(0, 20)), st.integers(0, 20), st.sampled_from([1, 2]), st.booleans())
@settings(max_examples=30)
def test_any_records_may_be_bad(bad: set[int], at: int, lanes: int, repeated: bool) -> None:
    def function(number: int) -> int:
        if number in bad:
            raise ValueError("bad")
        return number

    source = MapDataset.source(np.arange(21)).shuffle(seed=2).map(function).on_bad("skip")
    dataset: Any = source.to_iter_dataset(lanes=lanes)
    if repeated and len(bad) < 10:
        dataset = dataset.repeat(2)
    elements, states = run(dataset)
    assert sorted(set(elements)) == [n for n in range(21) if n not in bad]
    check_restored(dataset, elements, states, min(at, len(elements)))
    with iter(dataset) as iterator:
        assert list(iterator) == elements
        assert sum(iterator.stats().bad_records.values()) == len(bad)


def test_a_count_is_at_the_element_that_was_given() -> None:
    with iter(numbers().map(checked).on_bad("skip")) as iterator:
        found = [(next(iterator), *iterator.get_state()["bad"]["0"]) for _ in range(5)]
        assert found == [(1, 1), (2, 1), (4, 2), (6, 3), (7, 3)]
        assert [*(iterator.stats().bad_records or {}).values()] == [3]
        assert "bad records" in str(iterator.stats())
        assert json.dumps(iterator.stats().to_json()["bad_records"])
        assert len(list(iterator)) == COUNT - len(BAD) - 5
        # The last record is bad: nothing comes after it, so no state is past it.
        assert iterator.get_state()["bad"] == {"0": [len(BAD) - 1]}
        assert [*(iterator.stats().bad_records or {}).values()] == [len(BAD)]


def test_a_chain_without_the_node_has_no_counts() -> None:
    with iter(numbers()) as iterator:
        next(iterator)
        assert "bad" not in iterator.get_state()
        assert "bad_records" not in iterator.stats().to_json()


def test_skip_counts_what_it_reads() -> None:
    dataset = shuffled().on_bad("skip").to_iter_dataset().batch(4)
    _, states = run(dataset)
    for at in range(len(states)):
        iterator = iter(dataset)
        assert iterator.skip(at) == at
        assert iterator.get_state() == states[at]
        iterator.seek(at)
        assert iterator.get_state() == states[at]


def test_states_of_shards_are_merged() -> None:
    stream = shuffled().repeat().on_bad("skip").to_iter_dataset(lanes=4)
    whole, shards = iter(stream.batch(4)), [iter(stream.batch(4).shard(n, 2)) for n in range(2)]
    for _ in range(6):
        parts = [next(shard) for shard in shards]
        assert np.concatenate(parts).tolist() == next(whole).tolist()
    states = [shard.get_state() for shard in shards]
    assert [count is None for count in states[0]["bad"]["0"]] == [False, False, True, True]
    assert merge_states(states) == whole.get_state()
    again = iter(stream.batch(4))
    again.set_state(merge_states(states))
    assert next(again).tolist() == next(whole).tolist()
    assert again.get_state() == whole.get_state()


def test_a_state_with_wrong_counts_is_refused() -> None:
    iterator = iter(shuffled().on_bad("skip"))
    for bad in ([1], {"0": [1, 2]}, {"0": ["x"]}):
        with pytest.raises(StateError, match="damaged"):
            iterator.set_state({**iterator.get_state(), "bad": bad})


# --- limits and reports ---------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
def test_too_many_bad_records_raise_at_their_place(lanes: int) -> None:
    dataset = shuffled().on_bad("skip", max_bad=2).to_iter_dataset(lanes=lanes)
    elements, states = run(shuffled().on_bad("skip").to_iter_dataset(lanes=lanes))
    allowed = [n for n, state in enumerate(states) if max(state["bad"]["0"]) <= 2]
    many = "more than max_bad=2 records"
    with iter(dataset) as iterator:
        found, error = until_error(iterator, ReadError, many)
        assert found == elements[: allowed[-1]]
        assert str(error).count("is bad") == 3
        with pytest.raises(ReadError, match=many):  # at the same place
            next(iterator)
    for at in allowed:
        with iter(dataset) as iterator:
            iterator.set_state(states[at])
            assert until_error(iterator, ReadError, many)[0] == elements[at : allowed[-1]]


def test_data_that_are_all_bad_end_at_the_limit() -> None:
    dataset = iter(numbers().map(checked).slice([3]).repeat().on_bad("skip", max_bad=5))
    with pytest.raises(ReadError, match=r"max_bad=5 records are bad.*\n.*element 0, record 3 of"):
        list(dataset)


def test_a_share_is_judged_in_each_thousand() -> None:
    def function(number: int) -> int:
        if 1990 <= number < 2008 or number in (2100, 2101, 3990) or number >= 4000:
            raise ValueError("bad")
        return number

    dataset = MapDataset.range(5000).map(function).on_bad("skip", max_bad=0.01)
    with iter(dataset) as iterator:
        first = [next(iterator) for _ in range(1990)]
        assert (first[-1], iterator.get_state()["bad"]) == (1989, {"0": [0], "0w": [0]})
        assert next(iterator) == 2008
        state = iterator.get_state()
        assert state["bad"] == {"0": [18], "0w": [8]}
        # Ten of each thousand are allowed.
        rest, _ = until_error(iterator, ReadError, r"more than max_bad=0.01 of 1,000 elements")
        assert rest[-1] == 3999
        iterator.set_state(state)
        assert iterator.get_state() == state
        assert until_error(iterator, ReadError, "more than max_bad")[0] == rest


def test_bad_records_are_appended_to_a_file(tmp_path: Path, caplog: Any) -> None:
    log = tmp_path / "bad.jsonl"
    dataset = numbers().map(checked).on_bad("skip", log=log)
    with caplog.at_level(logging.WARNING, "windrow"), iter(dataset) as iterator:
        assert len(list(iterator)) == COUNT - len(BAD)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["element"] for line in lines] == sorted(BAD)
    assert lines[1] == {
        "node": "on_bad(skip, errors=[ReadError, ValueError])",
        "lane": 0,
        "element": 3,
        "rows": lines[1]["rows"],
        "sources": [{"source": repr(windrow.sources.as_source(np.arange(COUNT))), "records": [3]}],
        "file": None,
        "error": "ValueError",
        "reason": "number 3 is bad",
    }
    assert "1 bad record so far, the last record 0 of" in caplog.text
    with iter(dataset) as iterator:  # only what the loop has passed
        assert [next(iterator) for _ in range(3)] == [1, 2, 4]
        iterator.get_state()
    lines = [json.loads(line) for line in log.read_text().splitlines()[len(BAD) :]]
    assert [line["element"] for line in lines] == [0, 3]
    assert all(line["element"] < line["rows"] <= 5 for line in lines)


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: Any) -> None:
    stream = numbers().map(checked).on_bad("skip", log=tmp_path).to_iter_dataset(ReadOptions(0, 0))
    assert len(list(stream)) == COUNT - len(BAD)
    assert caplog.text.count("cannot append to log=") == 1


def test_lines_are_appended_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So lines of several processes do not mix.
    written = list[bytes]()

    class Log(io.FileIO):
        def write(self, data: Any) -> int:
            written.append(bytes(data))
            return super().write(data)

    def opened(path: str, mode: str, buffering: int) -> Any:
        assert (mode, buffering) == ("ab", 0)
        return Log(path, "a")

    monkeypatch.setattr(bad_records, "open", opened, raising=False)
    log = tmp_path / "bad.jsonl"
    dataset = numbers().map(lambda n: checked(40)).on_bad("skip", log=log)
    assert list(dataset) == []
    (lines,) = written
    assert len(lines) > io.DEFAULT_BUFFER_SIZE
    assert log.read_bytes() == lines


def test_a_disk_that_takes_a_part_of_a_line_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    written = list[int]()

    class Log(io.FileIO):
        def write(self, data: Any) -> int:
            written.append(len(data))
            if len(written) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[:10] if len(written) == 1 else data)

    monkeypatch.setattr(bad_records, "open", lambda path, *_, **__: Log(path, "a"), raising=False)
    log = tmp_path / "bad.jsonl"
    with iter(numbers().map(checked).on_bad("skip", log=log)) as iterator:
        for _ in iterator:
            iterator.get_state()  # what was passed is appended
    assert caplog.text.count("cannot append to log=") == 1
    first, *lines = log.read_text().splitlines()
    assert len(first) == 10
    assert [json.loads(line)["element"] for line in lines] == sorted(BAD)[1:]


# --- damaged files, and worker processes ----------------------------------------------------------

RECORDS = 120


def array_record(path: Path, group: int) -> tuple[Any, set[int]]:
    """A source of a file in which one group of twenty is damaged, and the records of these groups."""
    writer = ArrayRecordWriter(str(path), f"group_size:{group},uncompressed")
    for number in range(RECORDS):
        writer.write(number.to_bytes(8, "little") + bytes([number] * 200))
    writer.close()
    raw = bytearray(path.read_bytes())
    index = index_of(bytes(raw))
    starts, stops = index.spans(np.arange(index.chunks))
    bad = random.Random(group).sample(range(index.chunks), max(2, index.chunks // 20))
    for chunk in bad:
        raw[(int(starts[chunk]) + int(stops[chunk])) // 2] ^= 0xFF
    path.write_bytes(raw)
    lost = {n for chunk in bad for n in range(chunk * group, min(RECORDS, (chunk + 1) * group))}
    return ArrayRecordDataSource(str(path)), lost


def zarr_array(path: Path, rows: int) -> tuple[Any, set[int]]:
    """A source of an array in which some chunks are cut short, and their records."""
    array = zarr.create_array(str(path), shape=(RECORDS, 40), chunks=(rows, 40), dtype="i4")
    array[:] = np.arange(RECORDS)[:, None]
    bad = random.Random(rows).sample(range(RECORDS // rows), max(2, RECORDS // rows // 20))
    for chunk in bad:
        stored = path / "c" / str(chunk) / "0"
        stored.write_bytes(stored.read_bytes()[:7])
    lost = {n for chunk in bad for n in range(chunk * rows, (chunk + 1) * rows)}
    return ZarrDataSource(str(path)), lost


def without_text(state: dict[str, Any]) -> dict[str, Any]:
    """A state without the text that shows `mp_prefetch`, too."""
    return {key: value for key, value in state.items() if key != "chain"}


def number_in(record: Any) -> int:
    return int.from_bytes(record[:8], "little") if isinstance(record, bytes) else int(record[0])


def number_of(record: Any) -> int:
    number = number_in(record)
    if number % 29 == 11:
        raise ValueError(f"number {number} cannot be decoded")
    return number


DAMAGED: dict[str, Callable[[Path], tuple[Any, set[int]]]] = {
    "records": lambda folder: array_record(folder / "one.array_record", 1),
    "groups": lambda folder: array_record(folder / "four.array_record", 4),
    "rows": lambda folder: zarr_array(folder / "rows.zarr", 1),
    "chunks": lambda folder: zarr_array(folder / "chunks.zarr", 6),
}


@pytest.mark.parametrize("action", ["skip", "replace"])
@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_files_give_the_same_stream(kind: str, action: Any, tmp_path: Path) -> None:
    source, lost = DAMAGED[kind](tmp_path)
    lost |= {n for n in range(RECORDS) if n % 29 == 11}
    dataset = MapDataset.source(source).shuffle(seed=3).map(number_of).on_bad(action)
    stream = dataset.to_iter_dataset().batch(8)
    elements, states = run(stream)
    found = flat(elements)
    assert not lost & set(found)
    assert len(found) == RECORDS - (len(lost) if action == "skip" else 0)
    assert set(found) == set(range(RECORDS)) - lost
    with iter(stream) as iterator:
        assert flat(iterator) == found
        assert [*(iterator.stats().bad_records or {}).values()] == [len(lost)]
    for at in (0, 3, len(elements) - 1):
        check_restored(stream, elements, states, at)
    for options in (ReadOptions(0, 0), ReadOptions(block_bytes=999)):
        assert run(dataset.to_iter_dataset(options).batch(8)) == (elements, states)
    assert [n for n in map(dataset.__getitem__, range(RECORDS)) if n is not None] == found


@pytest.mark.parametrize(("workers", "action"), [(1, "replace"), (2, "skip")])
def test_workers_give_the_same_stream(workers: int, action: Any, tmp_path: Path) -> None:
    parts = [MapDataset.source(DAMAGED[kind](tmp_path)[0]) for kind in ("groups", "chunks")]
    mixed = MapDataset.concatenate(parts).shuffle(seed=3).map(number_of)
    dataset = (
        mixed.on_bad(action).map(lambda n: 2 * n).to_iter_dataset(ReadOptions(block_bytes=999))
    )
    elements, states = run(dataset.batch(8))
    with iter(dataset.mp_prefetch(workers).batch(8)) as iterator:
        iterator.set_state(states[0])
        assert [next(iterator).tolist() for _ in range(6)] == elements[:6]
        assert without_text(iterator.get_state()) == without_text(states[6])
        iterator.set_state(states[11])
        assert [batch.tolist() for batch in iterator] == elements[11:]
        assert without_text(iterator.get_state()) == without_text(states[-1])
    # In the worker, too, errors after the node are raised.
    raising = mixed.on_bad(action).map(bad_when_even).to_iter_dataset().mp_prefetch(workers)
    with pytest.raises(ValueError, match="is even"):
        list(raising)


def test_a_batch_with_an_absent_row_is_named() -> None:
    dataset = numbers().map(lambda n: None if n == 2 else n).batch(4).on_bad("skip", KeyError)
    with pytest.raises(ElementError, match="element 2 of the batch is absent"):
        list(dataset)
