"""Streams of workers whose blocks, budgets, ends and forks could show, and must not."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import traceback
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import windrow
from tests.teams import ask, script, workers
from windrow.errors import WorkerError

pytestmark = pytest.mark.jobs

M = windrow.MapDataset


def kinds(columns: dict[str, Any]) -> list[str]:
    """Per row, what a batched function was given."""
    text = ", ".join(f"{key}: {type(column).__name__}" for key, column in columns.items())
    return [text] * len(next(iter(columns.values())))


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_batched_functions_get_the_same_columns_from_workers(batch: int) -> None:
    def made(number: int) -> dict[str, Any]:
        return {
            "x": np.full(3, number),
            "int": number,
            "float": number / 2,
            "text": str(number),
            "ragged": np.zeros(1 + number // 10),
        }

    stream = M.range(20).map(made).to_iter_dataset()
    expected = list(stream.map(kinds, batched=True).batch(batch))
    assert "int: ndarray, float: ndarray, text: list" in expected[0][0]
    assert list(stream.map(kinds, batched=True).batch(batch).mp_prefetch(2)) == expected
    assert list(stream.mp_prefetch(2).map(kinds, batched=True).batch(batch)) == expected


class Large:
    """Records of 1 MiB, read many at a time."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        return np.full(1 << 20, index, np.uint8)

    def __getitems__(self, indices: Any) -> list[npt.NDArray[np.uint8]]:
        return [self[index] for index in indices]


class Alone:
    """Records of 1 MiB, read one by one, so that the worker does it; counts how many are waiting."""

    def __init__(self) -> None:
        self._waiting = 0

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        self._waiting += 1
        return np.full(1 << 20, index, np.uint8)

    def taken(self, record: npt.NDArray[np.uint8]) -> int:
        self._waiting -= 1
        return self._waiting + 1


def test_rounds_are_bounded_by_what_is_read_in_workers() -> None:
    source = Alone()
    waiting = list(M.source(source).map(source.taken).mp_prefetch(1))
    assert len(waiting) == 120
    assert max(waiting) <= 16


def fail_at_77(number: int) -> int:
    if number == 77:
        raise LookupError("no such number")
    return number


@pytest.mark.parametrize("count", [0, 1])
def test_an_error_tells_of_no_other_errors(count: int) -> None:
    with pytest.raises(LookupError) as caught:
        list(M.source(list(range(200))).map(fail_at_77).mp_prefetch(count))
    text = "".join(traceback.format_exception(caught.value))
    assert "During handling of the above exception" not in text


def test_a_closed_iterator_keeps_no_source() -> None:
    source = Large()
    kept = weakref.ref(source)
    gc.disable()
    try:
        with iter(M.source(source).map(lambda record: record[0]).mp_prefetch(1)) as iterator:
            assert next(iterator) == 0
        del iterator, source
        assert kept() is None
    finally:
        gc.enable()


KEPT: list[npt.NDArray[np.uint8]] = []


def keep(request: npt.NDArray[np.uint8], room: Any) -> Any:
    if request[0]:
        KEPT.append(request)
        return os.getpid()
    return request


def lies_in_shared_memory(array: npt.NDArray[Any]) -> bool:
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base is not None


def test_what_a_worker_kept_is_used_again_when_it_is_dead() -> None:
    rows = np.ones(300_000, np.uint8)
    with workers(keep, count=1, shared_bytes=1 << 20) as team:
        for _ in range(3):
            os.kill(ask(team, rows), signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="SIGKILL"):
                reply = ask(team, np.zeros(300_000, np.uint8))
            assert lies_in_shared_memory(reply)


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory in Linux's way")
def test_an_answer_too_large_for_this_process_is_an_error_of_its_own_request() -> None:
    code, out, errors = script(
        "import pathlib, resource\n"
        "options = MultiprocessingOptions(1, 3, shared_bytes=0)\n"
        "team = WorkerPool(lambda size, room: bytes(size), options)\n"
        "print(len(team.wait(team.submit(1))))\n"
        "pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])\n"
        "limit = pages * resource.getpagesize() + (50 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "tickets = [team.submit(size, 1) for size in (2, 100 << 20, 3)]\n"
        "for ticket in tickets:\n"
        "    try:\n"
        "        print(len(team.wait(ticket)))\n"
        "    except Exception as error:\n"
        "        print(error)\n"
    )
    assert (code, out.splitlines()) == (
        0,
        [
            *("1", "2"),
            "a worker ended over its work (its answer did not fit into memory here)",
            "3",
        ],
    ), errors


def test_a_group_that_ends_its_workers_names_its_records() -> None:
    def batch(elements: Sequence[int]) -> int:
        if 9 in elements:
            os.kill(os.getpid(), signal.SIGKILL)
        return sum(elements)

    source = M.source(list(range(100, 120))).map(lambda n: n - 100)
    stream = source[::-1].to_iter_dataset().batch(4, batch_fn=batch).mp_prefetch(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(WorkerError, match="3 workers ended over the same work") as caught:
            list(stream)
    assert caught.value.__notes__ == [
        "windrow: raised for 4 elements, the first is element 8, made of records"
        " 11, 10, 9, 8 of SequenceDataSource(list of 20 records)"
    ]


# As daemons are.
WITHOUT_STREAMS = """
import os, sys
import numpy as np, windrow

def printing(n):
    for stream in (1, 2):
        os.write(stream, b"of a library " * 100)
    return np.full(50_000, n)

dataset = windrow.MapDataset.range(6).map(printing).mp_prefetch(1)
found = [(int(each.min()), int(each.max())) for each in dataset]
open(sys.argv[1], "w").write(str(found == [(n, n) for n in range(6)]))
"""


@pytest.mark.parametrize("closing", ["<&-", "<&- >&- 2>&-"])
def test_workers_start_without_standard_streams(tmp_path: Path, closing: str) -> None:
    command = f'exec "$1" -c "$2" "$3" {closing}'
    result = tmp_path / "result"
    subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, WITHOUT_STREAMS, result], timeout=100
    )
    assert result.read_text() == "True"
