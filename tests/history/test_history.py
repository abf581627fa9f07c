"""Histories: that each step of a run has its records, however the run was started and stopped."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.chain.test_records_of import named_chains
from windrow import MapDataset, RecordOf
from windrow.errors import (
    EmptyPathsError,
    NotFoundError,
    PlanError,
    ReadError,
    RecordIndexError,
    SourceError,
)
from windrow.history import frames, keeping
from windrow.transforms.nodes import tail_of

M = MapDataset


def run(dataset: Any, path: Path, steps: int | None, state: Any = None) -> tuple[list[Any], Any]:
    """The records of some steps, whose history is kept, and the state after them."""
    with iter(dataset) as iterator:
        iterator.keep_history(path)
        if state is not None:
            iterator.set_state(state)
        steps_taken = itertools.islice(iterator, steps)
        found = [iterator.records_of_last() for _ in steps_taken]
        return found, iterator.get_state()


def check(path: Any, expected: list[Any]) -> None:
    with windrow.history.read(path) as history:
        assert history.steps == range(len(expected))
        assert [history.step(k).records for k in history.steps] == expected
        assert [history.row(history.step(k).rows[0]).step for k in history.steps] == [
            *history.steps
        ]
        assert not history.gaps
        assert not history.torn


# --- what is in it --------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    stream=named_chains(filters=True),
    restarts=st.lists(st.tuples(*[st.integers(0, 7)] * 2), max_size=3),
)
def test_steps_have_the_records_that_the_iterator_named(stream: Any, restarts: list[Any]) -> None:
    stream = stream.repeat(2)
    with tempfile.TemporaryDirectory() as folder:
        path, found, state = Path(folder) / "h", [], None
        for steps, back in restarts:
            more, _ = run(stream, path, steps, state)
            found += more
            # Some steps are run again.
            found = found[: max(0, len(found) - back)]
            with iter(stream) as iterator:
                for _ in range(len(found)):
                    next(iterator)
                state = iterator.get_state()
        more, _ = run(stream, path, None, state)
        check(path, found + more) if found or more else None


@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 8, 100]), min_size=1, max_size=5),
    length=st.integers(1, 40),
    is_stream=st.booleans(),
    drop=st.booleans(),
)
def test_steps_go_on_with_another_batch_size(
    sizes: list[int], length: int, is_stream: bool, drop: bool
) -> None:
    rows: Any = M.range(length).shuffle(seed=2).repeat(2)
    rows = rows.to_iter_dataset().filter(lambda n: n % 3 != 0) if is_stream else rows
    with tempfile.TemporaryDirectory() as folder:
        path, found, state = Path(folder) / "h", [], None
        for size in sizes:
            more, state = run(rows.batch(size, drop_remainder=drop), path, 2, state)
            found += more
        if found:
            check(path, found)


@given(
    size=st.integers(1, 12), lead=st.integers(0, 11), length=st.integers(1, 40), n=st.integers(1, 9)
)
def test_rows_of_many_marks_are_those_of_each(size: int, lead: int, length: int, n: int) -> None:
    for dataset in (M.range(length).batch(size), M.range(length)):
        tail = tail_of(dataset.to_iter_dataset()._node)
        marks = np.arange(n)[:, None]
        given_lead = lead % size if tail.batch is not None else 0
        rows = [tail.rows_of(mark, given_lead).rows for mark in marks.tolist()]
        assert tail.row_counts(marks, given_lead).tolist() == rows


@pytest.mark.parametrize("kind", ["planned", "first_fit"])
def test_packed_rows_have_lists(tmp_path: Path, kind: str) -> None:
    lengths = np.array([5, 2, 3, 1, 4, 3, 3, 6])
    documents: Any = M.source([{"x": np.arange(n)} for n in lengths.tolist()]).shuffle(seed=1)
    if kind == "planned":
        packed = documents.pack(8, lengths=[lengths])
    else:
        packed = documents.to_iter_dataset().pack({"x": 8}, method=kind, num_packing_bins=3)
    for dataset in (packed, packed.batch(2)):
        path = tmp_path / str(dataset is packed)
        found, _ = run(dataset, path, None)
        assert isinstance(found[0][0], list)
        assert any(len(row) > 1 for element in found for row in element)
        check(path, found)


def test_several_sources_are_named(tmp_path: Path) -> None:
    one, two = M.source(np.arange(7)), M.source([f"{n}" for n in range(5)])
    found, _ = run(M.zip([one.shuffle(seed=1)[:5], two]).batch(2), tmp_path / "h", None)
    check(tmp_path / "h", found)
    with windrow.history.read(tmp_path / "h") as history:
        part = history.step(0).parts[0]
        assert {name.source for name in part.records if isinstance(name, RecordOf)} == {0, 1}
        names = [(source.fingerprint, source.text) for source in part.sources]
        assert names == [
            ("arrays(int64 [7])", "ArrayDataSource(int64 [7])"),
            ("sequence(5 records of str)", "SequenceDataSource(list of 5 records)"),
        ]


@pytest.mark.parametrize("lanes", [1, 4])
def test_processes_of_a_run_are_read_together(tmp_path: Path, lanes: int) -> None:
    stream = M.range(64).shuffle(seed=1).to_iter_dataset(lanes=lanes).repeat().batch(8)
    whole, _ = run(stream, tmp_path / "whole", 10)
    states = [run(stream.shard(k, 4), tmp_path / f"p{k}", 7)[1] for k in range(4)]
    assert windrow.merge_states(states)["rows"] == 56
    with iter(stream) as iterator:
        iterator.skip(5)
        state = iterator.get_state()
    # Fewer processes resume two steps before the end.
    for k in range(2):
        run(stream.shard(k, 2), tmp_path / f"p{k}", 5, state)
    with windrow.history.read(str(tmp_path / "p*")) as history:
        assert history.steps == range(10)
        for number, records in enumerate(whole):
            step = history.step(number)
            assert step.records == records
            assert len(step.parts) == (4 if number < 5 else 2)
            assert step.rows == (8 * number, 8 * number + 8)
            assert step.times == (2 if number in (5, 6) else 1)
            assert not step.missing
        assert [start.steps for start in history.starts] == [(0, 5), (5, 10)]
        assert history.step(0).parts[1].shard == "shard(1, 4)"
    with windrow.history.read([tmp_path / "p3"]) as history:
        assert history.steps == range(7)


def test_a_process_that_has_no_such_step_is_named(tmp_path: Path) -> None:
    stream = M.range(64).to_iter_dataset().repeat().batch(8)
    run(stream.shard(0, 2), tmp_path / "a", 5)
    run(stream.shard(1, 2), tmp_path / "b", 3)
    with windrow.history.read([tmp_path / "a", tmp_path / "b"]) as history:
        assert history.step(2).missing == ()
        assert history.step(4).missing == (str(tmp_path / "b"),)


def test_it_may_begin_and_move_in_the_middle(tmp_path: Path) -> None:
    with iter(M.range(100).shuffle(seed=1).batch(5)) as iterator:
        found = {}
        for _ in range(3):
            next(iterator)
        iterator.keep_history(tmp_path / "h")
        for number in (3, 4):
            next(iterator)
            found[number] = iterator.records_of_last()
        assert iterator.skip(2) == 2
        next(iterator)
        found[7] = iterator.records_of_last()
        iterator.keep_history(None)
        next(iterator)
    with windrow.history.read(tmp_path / "h") as history:
        assert history.steps == range(3, 8)
        assert {k: history.step(k).records for k in found} == found
        for missing in (2, 5, 8):
            with pytest.raises(RecordIndexError, match=f"step {missing} is"):
                history.step(missing)
        with pytest.raises(
            RecordIndexError, match="row 26 is not in the history, which has steps 3"
        ):
            history.row(26)


# --- when it is written ---------------------------------------------------------------------------


def test_a_step_of_a_checkpoint_is_in_it(tmp_path: Path) -> None:
    iterator = iter(M.range(100).batch(5))
    iterator.keep_history(tmp_path / "h")
    for steps in range(1, 5):
        next(iterator)
        iterator.get_state()
        with windrow.history.read(tmp_path / "h") as history:
            assert history.steps == range(steps)
    iterator.close()


def test_a_thread_writes_what_the_loop_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "FLUSH_S", 0.005)
    iterator = iter(M.range(100).batch(5))
    iterator.keep_history(tmp_path / "h")
    next(iterator), next(iterator)
    written = threading.Event()
    keeper: Any = iterator._keeper
    flush = keeper.flush

    def flushed() -> None:
        flush()
        written.set()

    keeper.flush = flushed
    assert written.wait(20)
    with windrow.history.read(tmp_path / "h") as history:
        assert history.steps == range(2)
    iterator.close()


def test_many_rows_are_cut_to_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "FRAME_ROWS", 16)
    options = windrow.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    found, _ = run(M.range(100).batch(4).to_iter_dataset(options), tmp_path / "h", None)
    check(tmp_path / "h", found)
    with windrow.history.read(tmp_path / "h") as history:
        assert len(history._files[0].frames) > 2


def test_it_ends_with_the_iterator(tmp_path: Path) -> None:
    iterator = iter(M.range(100).batch(5))
    iterator.keep_history(tmp_path / "h")
    next(iterator)
    keeping_it: Any = iterator._keeping
    keeper, thread = iterator._keeper, keeping_it._ticker._thread
    del keeping_it
    del iterator
    thread.join(20)
    assert not thread.is_alive()
    assert keeper is not None
    assert keeper._file.closed
    run(M.range(100).batch(5), tmp_path / "h", 1)  # the file is free


def test_a_program_that_ends_or_forks_leaves_a_whole_history(tmp_path: Path) -> None:
    program = """
import os, sys, windrow
iterator = iter(windrow.MapDataset.range(100).shuffle(seed=1).batch(5))
iterator.keep_history(sys.argv[1])
for _ in range(3):
    next(iterator)
child = os.fork()
if not child:
    assert iterator._keeper is None
    sys.exit()
os.waitpid(child, 0)
for _ in range(4):
    next(iterator)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, tmp_path / "h"], check=True)
    check(tmp_path / "h", run(M.range(100).shuffle(seed=1).batch(5), tmp_path / "again", 7)[0])


# --- damage ---------------------------------------------------------------------------------------


def cut_off(path: Path, size: int) -> bytes:
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    return whole


def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_frame(tmp_path: Path) -> None:
    path, dataset = tmp_path / "h", M.range(60).shuffle(seed=1).batch(2)
    found, ends = [], [0]
    state = None
    for _ in range(2):
        more, state = run(dataset, path, 2, state)
        found += more
        ends.append(path.stat().st_size)
    rest, _ = run(dataset, tmp_path / "other", 3, state)
    whole = path.read_bytes()
    for size in range(ends[1], ends[2]):
        path.write_bytes(whole[:size])
        kept = 2 * sum(end <= size for end in ends[1:])
        with windrow.history.read(path) as history:
            assert history.steps == range(kept)
            assert [history.step(k).records for k in history.steps] == found[:kept]
    # What a restart appends is found after the torn frame.
    path.write_bytes(whole[: ends[2] - 3])
    run(dataset, path, 3, state)
    with windrow.history.read(path) as history:
        assert [history.step(k).records for k in (4, 5, 6)] == rest
        assert history.torn
        with pytest.raises(RecordIndexError, match="step 3 is in a gap"):
            history.step(3)


def test_no_damage_gives_other_records(tmp_path: Path) -> None:
    path = tmp_path / "h"
    found, state = run(M.range(60).shuffle(seed=1).batch(2), path, 2)
    found += run(M.range(60).shuffle(seed=1).batch(2), path, 2, state)[0]
    whole = path.read_bytes()
    errors = 0
    for at in range(4, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with windrow.history.read(path) as history:
            for number in range(4):
                try:
                    assert history.step(number).records == found[number]
                except (ReadError, RecordIndexError):
                    errors += 1
    assert errors > len(whole)


class FullDisk:
    """A file that takes half of a frame, and then nothing while it is full."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.file, self.is_full = file, False

    def write(self, data: Any) -> int:
        if not self.is_full:
            return int(self.file.write(data))
        if len(data) > 50:
            return int(self.file.write(data[:40]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self.file.close()


def test_a_full_disk_leaves_a_gap_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "windrow")
    iterator, found = iter(M.range(100).shuffle(seed=1).batch(4)), []
    iterator.keep_history(tmp_path / "h")
    keeper: Any = iterator._keeper
    disk = keeper._file = FullDisk(keeper._file)
    for number in range(8):
        disk.is_full = number in (3, 4)
        next(iterator)
        found.append(iterator.records_of_last())
        iterator.get_state()
    iterator.close()
    assert [record.name for record in caplog.records] == ["windrow.history"] * 2
    assert "No space left" in caplog.records[0].getMessage()
    assert "rows 12 to 19 are missing" in caplog.records[1].getMessage()
    with windrow.history.read(tmp_path / "h") as history:
        assert history.gaps == [(str(tmp_path / "h"), 12, 20)]
        assert history.steps == range(8)
        for number in range(8):
            if number not in (3, 4):
                assert history.step(number).records == found[number]
        with pytest.raises(RecordIndexError, match=r"step 4 is in a gap .* for rows 12 to 19 of"):
            history.step(4)
        with pytest.raises(RecordIndexError, match="row 13 is not in the history"):
            history.row(13)


# --- errors -----------------------------------------------------------------------------------------


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    first, second = iter(M.range(9)), iter(M.range(9))
    first.keep_history(tmp_path / "h")
    with pytest.raises(PlanError, match=r"another iterator writes .*h; close that one"):
        second.keep_history(tmp_path / "h")
    first.close()
    second.keep_history(tmp_path / "h")
    second.close()
    with pytest.raises(windrow.errors.ClosedError):
        second.keep_history(tmp_path / "h")


def test_other_files_are_refused_and_stay(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text")
    with pytest.raises(SourceError, match="text is not a history of Windrow"):
        iter(M.range(9)).keep_history(tmp_path / "text")
    with pytest.raises(SourceError, match="is not a history"):
        windrow.history.read(tmp_path / "text")
    assert (tmp_path / "text").read_text() == "some text"
    with pytest.raises(NotFoundError, match="absent is not a file"):
        windrow.history.read(tmp_path / "absent")
    with pytest.raises(EmptyPathsError, match="at least one path"):
        windrow.history.read([])
    with pytest.raises(FileNotFoundError):
        iter(M.range(9)).keep_history(tmp_path / "absent" / "h")
    (tmp_path / "empty").write_bytes(b"")
    with windrow.history.read(tmp_path / "empty") as history:
        assert not history.steps
        with pytest.raises(
            RecordIndexError, match="step 0 is not in the history, which has no steps"
        ):
            history.step(0)


def test_what_is_in_it_is_json(tmp_path: Path) -> None:
    run(M.range(9).batch(2), tmp_path / "h", 2)
    with windrow.history.read(tmp_path / "h") as history:
        found = json.loads(json.dumps(history.step(1).to_json()))
    assert found["rows"] == [2, 4]
    assert found["parts"][0]["records"] == [[0, 2], [0, 3]]


@given(columns=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), max_size=4))
def test_columns_come_back(columns: list[list[int]]) -> None:
    arrays = [np.array(column, np.int64) for column in columns]
    found = frames.unpacked(frames.packed(arrays))
    assert [column.tolist() for column in found] == columns
