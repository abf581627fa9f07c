"""Faults of functions: what they raise arrives as it was raised, and the iterator continues after it."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.processes import Program, workers
from windrow.errors import WorkerError

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.soak,
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.skipif(sys.platform == "win32", reason="workers need POSIX"),
]

RECORDS = 200


class BrokenRecordError(Exception):
    """An error as users write them: more arguments, and a way of its own to be pickled."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return BrokenRecordError, (str(self), self.code)


def numbers() -> windrow.MapDataset[Any]:
    return windrow.MapDataset.source(np.arange(RECORDS)).shuffle(seed=1)


ORDER = [int(record) for record in windrow.MapDataset.source(np.arange(RECORDS)).shuffle(seed=1)]


def pids() -> set[int]:
    return {worker.pid for worker in workers()}


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


# --- what arrives --------------------------------------------------------------------------------


def test_an_error_arrives_with_its_type_text_notes_traceback_and_records(
    moments: random.Random,
) -> None:
    at = moments.randrange(RECORDS)

    def check(x: Any) -> Any:
        if x == ORDER[at]:
            error = BrokenRecordError("this record is broken", 7)
            error.add_note("as the user noted")
            raise error
        return x

    with iter(numbers().map(check).mp_prefetch(2)) as iterator:
        assert [next(iterator) for _ in range(at)] == ORDER[:at]
        with pytest.raises(BrokenRecordError, match="this record is broken") as caught:
            next(iterator)
        assert str(caught.value) == "this record is broken"
        assert caught.value.code == 7
        notes = notes_of(caught.value)
        assert notes.startswith("as the user noted\nwindrow: raised in map(")
        assert f"element {at}" in notes
        assert f"record {ORDER[at]} of ArrayDataSource" in notes
        remote = str(caught.value.__cause__)
        assert "Traceback" in remote
        assert "in check" in remote
        assert Path(__file__).name in remote
        assert "raise error" in remote


# A function in each place of a chain.
PLACES: dict[str, Callable[[Callable[[Any], Any]], windrow.IterDataset[Any]]] = {
    "map": lambda f: numbers().map(f).batch(5).to_iter_dataset(),
    "filter": lambda f: numbers().filter(f).to_iter_dataset().batch(5),
    "stream map": lambda f: numbers().to_iter_dataset().map(f).batch(5),
    "stream filter": lambda f: numbers().to_iter_dataset().filter(f).batch(5),
    "batch_fn": lambda f: (
        numbers().batch(5, batch_fn=lambda xs: [f(x) for x in xs]).to_iter_dataset()
    ),
}


@pytest.mark.parametrize("place", sorted(PLACES))
def test_errors_are_those_of_no_workers(moments: random.Random, place: str) -> None:
    record = moments.randrange(RECORDS)
    kind = moments.choice([KeyError, MemoryError, OSError, ZeroDivisionError])

    def check(x: Any) -> Any:
        if x == record:
            raise kind(f"at {record}")
        return x % 7

    found = []
    for count in (0, 2):
        with iter(PLACES[place](check).mp_prefetch(count)) as iterator:
            got: list[Any] = []
            with pytest.raises(kind, match=f"at {record}") as caught:
                got.extend(iterator)
            assert "windrow: raised in" in notes_of(caught.value)
            found.append(([np.asarray(batch).tolist() for batch in got], iterator.get_state()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "error", [OSError("no network"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()]
)
def test_after_an_error_the_next_call_tries_again_with_the_same_workers(
    tmp_path: Path, moments: random.Random, error: BaseException
) -> None:
    record = ORDER[moments.randrange(RECORDS - 1)]
    flag = tmp_path / "broken"
    flag.touch()

    def check(x: Any) -> Any:
        if x == record and flag.exists():
            raise error
        return x

    with iter(numbers().map(check).mp_prefetch(2)) as iterator:
        got: list[Any] = []
        # sys.exit() would end the training program silently.
        kind = WorkerError if isinstance(error, SystemExit) else type(error)
        with pytest.raises(kind):
            got.extend(iterator)
        before, count = pids(), len(got)
        assert len(before) == 2
        with pytest.raises(kind):
            got.extend(iterator)
        # An interrupt may come before elements of its block that the next call makes alone.
        assert len(got) == count or not isinstance(error, Exception)
        flag.unlink()
        got.append(next(iterator))
        assert pids() == before
        got.extend(iterator)
    assert got == ORDER


# --- what cannot be sent -------------------------------------------------------------------------


class LockedSource:
    """A source that cannot be sent. It reads one by one: where the functions run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: Any) -> Any:
        with self._lock:
            return int(index)


class LockedBatchSource(LockedSource):
    """One that reads in batches: where it was made."""

    def __getitems__(self, indices: Any) -> Any:
        with self._lock:
            return [int(index) for index in indices]


def test_a_source_that_reads_in_batches_need_not_be_sent() -> None:
    dataset = windrow.MapDataset.source(LockedBatchSource()).map(lambda x: x + 1)
    assert list(dataset.mp_prefetch(2)) == list(range(1, 21))


def test_a_source_that_cannot_be_sent_is_an_error_before_any_process() -> None:
    dataset = windrow.MapDataset.source(LockedSource()).map(lambda x: x + 1)
    with pytest.raises(TypeError, match=r"(?s)cannot be sent.*'_thread.lock'.*belongs to source"):
        next(iter(dataset.mp_prefetch(2)))
    assert workers() == []


def test_a_result_that_cannot_be_sent_is_an_error_that_names_its_type(
    moments: random.Random,
) -> None:
    at = moments.randrange(RECORDS)

    def lock(x: Any) -> Any:
        return threading.Lock() if x == ORDER[at] else x

    with iter(numbers().map(lock).mp_prefetch(2)) as iterator:
        assert [next(iterator) for _ in range(at)] == ORDER[:at]
        with pytest.raises(TypeError, match=r"(?s)cannot pickle.*lock.*cannot be sent") as caught:
            next(iterator)
        assert any("was made by map(" in note for note in caught.value.__notes__)


# --- worker_init_fn ------------------------------------------------------------------------------


def test_each_worker_is_set_up_with_its_number() -> None:
    def set_up(index: int, count: int) -> None:
        os.environ["NUMBER"] = f"{index} of {count}"

    with iter(numbers().map(lambda x: os.environ["NUMBER"]).mp_prefetch(3, set_up)) as iterator:
        assert set(iterator) <= {"0 of 3", "1 of 3", "2 of 3"}


def test_an_error_of_the_set_up_arrives_and_no_worker_stays() -> None:
    def set_up(index: int, count: int) -> None:
        raise BrokenRecordError(f"no set-up for one of {count}", 5)

    with iter(numbers().map(lambda x: x).mp_prefetch(2, set_up)) as iterator:
        with pytest.raises(BrokenRecordError, match="no set-up for one of 2") as caught:
            next(iterator)
        assert caught.value.code == 5
        assert "in set_up" in str(caught.value.__cause__)


def test_workers_that_end_while_they_are_set_up_are_an_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def set_up(index: int, count: int) -> None:
        os.write(2, b"of the worker\n")
        os._exit(7)

    with (
        pytest.warns(RuntimeWarning, match="exit code 7"),
        iter(numbers().map(lambda x: x).mp_prefetch(2, set_up)) as iterator,
        pytest.raises(windrow.errors.WorkerError, match=r"in a row.*exit code 7"),
    ):
        next(iterator)
    assert "of the worker" in capfd.readouterr().err


# --- where functions come from -------------------------------------------------------------------

SCRIPT = """
import sys
import numpy as np
import windrow

print("run", __name__)

class Scaled:
    def __init__(self, x):
        self.x = x

factor = 3

def scale(x):
    return Scaled(x * factor)

def made(offset):
    return lambda x: Scaled(x.x + offset)

class Halve(windrow.transforms.Map):
    def map(self, x):
        return Scaled(x.x // 2)

def jax_is_there(x):
    import os
    return "jax" in sys.modules, os.environ["JAX_PLATFORMS"], os.environ["CUDA_VISIBLE_DEVICES"]

numbers = windrow.MapDataset.source(np.arange(20))
dataset = numbers.map(scale).map(made(5)).map(Halve()).mp_prefetch(2)
got = list(dataset)
assert all(type(x) is Scaled for x in got), got
assert [x.x for x in got] == [(x * 3 + 5) // 2 for x in range(20)]
assert set(numbers.map(jax_is_there).mp_prefetch(2)) == {(False, "cpu", "")}
print("done")
"""


@pytest.mark.parametrize("place", ["command", "script", "stdin"])
def test_functions_and_classes_of_a_program_without_a_guard(tmp_path: Path, place: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    command = {"command": ["-c", SCRIPT], "script": [str(script)], "stdin": ["-"]}[place]
    with Program(tmp_path, command, SCRIPT if place == "stdin" else "") as run:
        run.ends()
        assert (run.out, run.errors) == ("run __main__\ndone\n", "")
