"""Bad records: left out or replaced, the same in any run, and counted by the process that meets them."""

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

import windrow
from tests.array_record_bytes import write
from windrow import MapDataset, ReadOptions
from windrow.engine import bad_records
from windrow.errors import (
    ArgumentError,
    PlanError,
    ReadError,
    SourceError,
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


def test_a_dataset_without_good_records_cannot_be_replaced() -> None:
    dataset = MapDataset.source(np.zeros(5, np.int64)).map(checked).on_bad("replace")
    with pytest.raises(
        ReadError, match=r"element 2 is bad, and so are 16 others .*number 0 is bad"
    ):
        dataset[2]


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
    ("arguments", "kind"),
    [
        (("ignore",), PlanError),
        (("skip", ()), ArgumentError),
        (("skip", "ValueError"), ArgumentError),
        (("skip", (MemoryError,)), PlanError),
        (("skip", ValueError, -1), PlanError),
        (("skip", ValueError, 1.0), PlanError),
        (("skip", ValueError, "1"), ArgumentError),
    ],
)
def test_wrong_arguments(arguments: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
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


def shuffled() -> MapDataset[int]:
    return numbers().shuffle(seed=1).map(checked)


def test_a_state_of_an_earlier_version_has_counts_that_are_not_used() -> None:
    dataset = shuffled().on_bad("skip", max_bad=3).to_iter_dataset()
    elements, states = run(shuffled().on_bad("skip"))
    iterator = iter(dataset)
    iterator.set_state({**states[3], "bad": {"0": [3]}})
    assert next(iterator) == elements[3]
    assert "bad" not in iterator.get_state()


# --- counts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [ReadOptions(), ReadOptions(0, 0)])
def test_what_a_process_met_is_counted(options: ReadOptions) -> None:
    stream = shuffled().on_bad("skip").to_iter_dataset(options)
    with iter(stream) as iterator:
        assert [*(iterator.stats().bad_records or {}).values()] == [0]
        assert len(list(iterator)) == COUNT - len(BAD)
        assert [*(iterator.stats().bad_records or {}).values()] == [len(BAD)]
        assert "bad records" in str(iterator.stats())
        assert json.dumps(iterator.stats().to_json()["bad_records"])
        assert "bad" not in iterator.get_state()


@pytest.mark.parametrize("action", ["skip", "replace"])
def test_counts_begin_anew_where_an_iterator_is_moved(action: Any) -> None:
    dataset = shuffled().on_bad(action, max_bad=len(BAD))
    with iter(dataset) as iterator:
        start = iterator.get_state()
        for _ in range(3):
            list(iterator)
            iterator.set_state(start)
            assert [*(iterator.stats().bad_records or {}).values()] == [0]
        iterator.seek(20)
        list(iterator)
        assert sum((iterator.stats().bad_records or {}).values()) < len(BAD)


# --- limits and reports ---------------------------------------------------------------------------


MANY = "more than max_bad=2 records"


@pytest.mark.parametrize("options", [ReadOptions(), ReadOptions(0, 0)])
def test_too_many_bad_records_raise_at_their_place(options: ReadOptions) -> None:
    whole = list(shuffled().on_bad("skip"))
    order = [int(n) for n in numbers().shuffle(seed=1)]
    third = [k for k, n in enumerate(order) if n in BAD][2]
    before = [n for n in order[:third] if n not in BAD]
    dataset = shuffled().on_bad("skip", max_bad=2).to_iter_dataset(options)
    with iter(dataset) as iterator:
        found, error = until_error(iterator, ReadError, MANY)
        assert found == before
        assert str(error).count("is bad") == 3
        with pytest.raises(ReadError, match=MANY):  # at the same place
            next(iterator)
    with iter(dataset) as iterator:  # one that begins later has met fewer
        iterator.seek(len(before))
        later, _ = until_error(iterator, ReadError, MANY)
        assert later
        assert later == whole[len(before) :][: len(later)]


@pytest.mark.parametrize(
    "name", ["lanes", pytest.param("workers", marks=pytest.mark.jobs), "batches of lanes"]
)
def test_too_many_bad_records_of_all_lanes_and_workers_raise(name: str) -> None:
    streams: dict[str, Callable[[MapDataset[int]], Any]] = {
        "lanes": lambda dataset: dataset.to_iter_dataset(lanes=2),
        "workers": lambda dataset: dataset.to_iter_dataset().mp_prefetch(1),
        "batches of lanes": lambda dataset: dataset.to_iter_dataset(lanes=2).batch(4),
    }
    whole = flat(streams[name](shuffled().on_bad("skip")))
    with iter(streams[name](shuffled().on_bad("skip", max_bad=2))) as iterator:
        found, _ = until_error(iterator, ReadError, MANY)
        assert flat(found)
        assert flat(found) == whole[: len(flat(found))]


def test_data_that_are_all_bad_end_at_the_limit() -> None:
    dataset = iter(numbers().map(checked).slice([3]).repeat().on_bad("skip", max_bad=5))
    with pytest.raises(ReadError, match=r"max_bad=5 records are bad.*\n.*element 0, record 3 of"):
        list(dataset)


def test_a_share_is_judged_in_each_thousand() -> None:
    def function(number: int) -> int:
        if number % 200 == 7 or 4000 <= number < 4030:
            raise ValueError("bad")
        return number

    dataset = MapDataset.range(5000).map(function).on_bad("skip", max_bad=0.01)
    with iter(dataset.to_iter_dataset()) as iterator:
        rest, _ = until_error(iterator, ReadError, r"more than max_bad=0.01 of 1,000 elements")
        assert rest[-1] == 3999
        iterator.seek(3000)
        until_error(iterator, ReadError, "more than max_bad")


def test_bad_records_are_appended_to_a_file(tmp_path: Path, caplog: Any) -> None:
    log = tmp_path / "bad.jsonl"
    dataset = numbers().map(checked).on_bad("skip", log=log)
    with caplog.at_level(logging.WARNING, "windrow"), iter(dataset) as iterator:
        assert len(list(iterator)) == COUNT - len(BAD)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["element"] for line in lines] == sorted(BAD)
    assert lines[1] == {
        "node": "on_bad(skip, errors=[ReadError, ValueError])",
        "element": 3,
        "sources": [{"source": repr(windrow.sources.as_source(np.arange(COUNT))), "records": [3]}],
        "file": None,
        "error": "ValueError",
        "reason": "number 3 is bad",
    }
    assert "1 bad record so far, the last record 0 of" in caplog.text


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: Any) -> None:
    stream = numbers().map(checked).on_bad("skip", log=tmp_path).to_iter_dataset(ReadOptions(0, 0))
    assert len(list(stream)) == COUNT - len(BAD)
    assert caplog.text.count("cannot append to log=") == 1


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
    stream = numbers().map(checked).on_bad("skip", log=log).to_iter_dataset(ReadOptions(0, 0))
    assert len(list(stream)) == COUNT - len(BAD)
    assert caplog.text.count("cannot append to log=") == 1
    first, *lines = log.read_text().splitlines()
    assert len(first) == 10
    assert [json.loads(line)["element"] for line in lines] == sorted(BAD)[1:]


# --- damaged files, and worker processes ----------------------------------------------------------

RECORDS = 120


def array_record(path: Path, group: int) -> tuple[Any, set[int]]:
    """A source of a file in which one group of twenty is damaged, and the records of these groups."""
    records = [number.to_bytes(8, "little") + bytes([number] * 200) for number in range(RECORDS)]
    raw = bytearray(write(path, records, f"group_size:{group},uncompressed").read_bytes())
    chunks = -(-RECORDS // group)
    bad = random.Random(group).sample(range(chunks), max(2, chunks // 20))
    for chunk in bad:
        raw[raw.index(records[chunk * group]) + 100] ^= 0xFF
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
    for options in (ReadOptions(0, 0), ReadOptions(memory_bytes=999)):
        assert run(dataset.to_iter_dataset(options).batch(8)) == (elements, states)
    assert [n for n in map(dataset.__getitem__, range(RECORDS)) if n is not None] == found


@pytest.mark.parametrize(
    ("workers", "action"), [(1, "replace"), pytest.param(2, "skip", marks=pytest.mark.jobs)]
)
def test_workers_give_the_same_stream(workers: int, action: Any, tmp_path: Path) -> None:
    parts = [MapDataset.source(DAMAGED[kind](tmp_path)[0]) for kind in ("groups", "chunks")]
    mixed = MapDataset.concatenate(parts).shuffle(seed=3).map(number_of)
    dataset = (
        mixed.on_bad(action).map(lambda n: 2 * n).to_iter_dataset(ReadOptions(memory_bytes=999))
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


def test_a_share_is_judged_among_the_rows_of_later_stages() -> None:
    def function(number: int) -> int:
        if number % 100 == 7:
            raise ValueError("bad")
        return number

    def stream(share: float) -> Any:
        rows = MapDataset.range(20_000).to_iter_dataset().window_shuffle(5_000, seed=1)
        return rows.map(function).on_bad("skip", max_bad=share)

    assert len(list(stream(0.03))) == 19_800
    with pytest.raises(ReadError, match=r"more than max_bad=0\.005 of 1,000 elements"):
        list(stream(0.005))


# --- records that come in place of bad ones -------------------------------------------------------


def replaced(**more: Any) -> MapDataset[int]:
    return numbers().shuffle(seed=1).map(checked).on_bad("replace", **more)


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_file_of_bad_records_names_what_came_instead(tmp_path: Path, lanes: int) -> None:
    log = tmp_path / "bad.jsonl"
    dataset = replaced(log=log)
    list(replaced(log=tmp_path / "other").block_shuffle(seed=2, block=4, window_blocks=2))
    found = [int(number) for number in dataset]
    log.unlink()
    list(dataset.to_iter_dataset(lanes=lanes))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == len(BAD)
    for line in lines:
        assert line["instead"][0]["records"] == [found[line["element"]]]
        assert line["sources"][0]["records"][0] in BAD


class CountingReads:
    """Numbers, with the indices of each read."""

    def __init__(self) -> None:
        self.reads: list[list[int]] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        self.reads.append(list(indices))
        return list(indices)


def test_all_replacements_of_a_read_are_one_read() -> None:
    source = CountingReads()
    dataset = MapDataset.source(source).map(checked).on_bad("replace")
    found = dataset.read(range(COUNT))
    assert not BAD & set(found)
    bad = [sum(n in BAD for n in read) for read in source.reads]
    assert bad[0] == len(BAD)
    assert bad[-1] == 0
    # Each later read is one call, for all records that were still bad.
    assert [len(read) for read in source.reads[1:]] == bad[:-1]
