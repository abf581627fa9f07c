"""`windrow records`: what it lists of a history, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from windrow import MapDataset
from windrow.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; exit code, stdout and stderr."""

    def ran(*argv: object) -> tuple[int, str, str]:
        code = main(["records", *map(str, argv)])
        return code, *capfd.readouterr()

    return ran


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A run of 6 steps, of which 4 and 5 were run again with other batches."""
    rows = MapDataset.source(np.arange(100)).shuffle(seed=1)
    with iter(rows.batch(2)) as iterator:
        iterator.keep_history(tmp_path / "log")
        for _ in range(6):
            next(iterator)
        iterator.seek(4)
        state = iterator.get_state()
    with iter(rows.batch(4)) as iterator:
        iterator.keep_history(tmp_path / "log")
        iterator.set_state(state)
        next(iterator)
    return tmp_path / "log"


def test_a_step_is_listed(run: Run, log: Path) -> None:
    records = MapDataset.source(np.arange(100)).shuffle(seed=1)
    code, out, err = run(log, "--step", 3)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["step", "3:", "rows", "6", "to", "7"],
        [],
        [str(log)],
        ["source", "0:", "ArrayDataSource(int64", "[100])"],
        [],
        ["source", "record"],
        ["--------", "--------"],
        *[["0", str(records[row])] for row in (6, 7)],
    ]
    code, out, _ = run(log, "--row", 10)
    assert out.splitlines()[0] == (
        "step 4: rows 8 to 11; it was run 2 times, and this is the last time"
    )


def test_packed_rows_are_listed_row_by_row(run: Run, tmp_path: Path) -> None:
    lengths = np.array([3, 2, 4, 1])
    documents = MapDataset.source([{"x": np.ones(n)} for n in lengths.tolist()])
    with iter(documents.pack(5, lengths=[lengths]).batch(2)) as iterator:
        iterator.keep_history(tmp_path / "log")
        next(iterator)
        rows = [[record for _, record in row] for row in iterator.records_of_last()]  # type: ignore[misc]
    _, out, _ = run(tmp_path / "log", "--step", 0)
    table = [line.split() for line in out.splitlines()[7:]]
    assert table == [[str(n), "0", str(record)] for n, row in enumerate(rows) for record in row]


def test_json(run: Run, log: Path) -> None:
    _, out, _ = run(log, "--step", 0, "--json")
    found = json.loads(out)
    assert (found["step"], found["rows"], found["times"]) == (0, [0, 2], 1)
    (part,) = found["parts"]
    assert len(part["records"]) == 2
    assert part["sources"] == [["arrays(int64 [100])", "ArrayDataSource(int64 [100])"]]
    found = json.loads(run(log, "--json")[1])
    assert found["steps"] == [0, 5]
    assert [start["rows"] for start in found["starts"]] == [[0, 12], [8, 12]]


def test_without_a_step_the_starts_are_listed(run: Run, log: Path) -> None:
    code, out, err = run(log)
    assert (code, err) == (0, "")
    assert out.startswith("5 steps\n")
    assert [cell.strip() for cell in out.splitlines()[3].split("  ") if cell][1:3] == [
        "0 to 11",
        "0 to 3",
    ]
    assert "4 to 4" in out.splitlines()[4]


def test_a_torn_frame_is_reported(run: Run, log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-1])
    code, _, err = run(log, "--step", 0)
    assert code == 0
    assert "are not whole, and were passed over" in err
    assert run(log, "--step", 0, "--quiet")[2] == ""


def test_errors(run: Run, log: Path) -> None:
    code, out, err = run(log, "--step", 5)
    assert (code, out) == (1, "")
    assert (
        err
        == "windrow records: step 5 is not in the history, which has steps 0 to 4 (rows 0 to 11)\n"
    )
    assert run(log, "--step", 5, "--row", 5)[0] == 2
    assert run()[0] == 2
    code, _, err = run(log.parent / "absent", "--step", 5)
    assert code == 2
    assert "absent is not a file; give files that keep_history wrote" in err
