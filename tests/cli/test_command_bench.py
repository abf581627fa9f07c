"""`windrow bench`: that it measures what it says, for every kind of source; not how much that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.converted_folders import RECORDS, record_folder, unfinished
from windrow import converters
from windrow.cli.bench import measured
from windrow.cli.main import main
from windrow.sources import ZarrDataSource

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; exit code, stdout and stderr."""

    def ran(*argv: object) -> tuple[int, str, str]:
        code = main(["bench", *map(str, argv)])
        return code, *capfd.readouterr()

    return ran


def rows(folder: Path, count: int, *, chunk: int = 4) -> Path:
    array = zarr.create_array(str(folder), shape=(count, 10), dtype="int32", chunks=(chunk, 10))
    array[...] = np.arange(count * 10, dtype=np.int32).reshape(count, 10)
    return folder


def checked(found: dict[str, Any], *, records: int, each_bytes: int) -> None:
    """What holds for every source that is read whole."""
    assert found["records"] == records
    assert [order["order"] for order in found["orders"]] == ["in_order", "block", "global"]
    for order in found["orders"]:
        assert (order["records"], order["is_whole"]) == (records, True)
        assert order["batches"] == -(-records // found["batch_records"])
        assert order["delivered_bytes"] == records * each_bytes
        assert order["took_s"] >= 0
        if records:
            assert order["records_per_s"] == pytest.approx(records / order["took_s"])
            assert order["mb_per_s"] == pytest.approx(records * each_bytes / 1e6 / order["took_s"])
            assert 0 < order["first_batch_s"] <= order["took_s"]
            first = found["orders"][0]["records_per_s"]
            assert order["of_in_order"] == pytest.approx(order["records_per_s"] / first)
            decoding = found["decoding_mb_per_s"]
            assert order["of_decoding"] == pytest.approx(order["mb_per_s"] / decoding)


@pytest.mark.parametrize(("count", "batch"), [(0, None), (1, 7), (50, 7)])
def test_rows_of_zarr(run: Run, tmp_path: Path, count: int, batch: int | None) -> None:
    folder = rows(tmp_path / "a", count)
    code, out, err = run(folder, "--json", "-q", *(["--batch", batch] if batch else []))
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["url"] == str(folder)
    assert found["batch_records"] == (batch or 256)
    checked(found, records=count, each_bytes=40)
    if not count:
        assert found["decoding_mb_per_s"] is None
        assert {order["first_batch_s"] for order in found["orders"]} == {None}
        assert {order["of_in_order"] for order in found["orders"]} == {None}


def test_records_of_a_converted_folder(run: Run, tmp_path: Path) -> None:
    record_folder(tmp_path / "a")
    code, out, _ = run(tmp_path / "a", "--json", "-q", "--batch", 8)
    assert code == 0
    found = json.loads(out)
    checked(found, records=RECORDS, each_bytes=40)
    # The package reads by calls, which the system counts: here more than the records have.
    assert all(order["stored_bytes_read"] is None or order["stored_bytes_read"] > RECORDS * 40
               for order in found["orders"])  # fmt: skip


def test_a_table(run: Run, tmp_path: Path) -> None:
    folder = rows(tmp_path / "a", 50)
    code, out, err = run(folder)
    assert code == 0
    head, empty, names, rule, *lines = out.splitlines()
    assert head.startswith(f"{folder}: 50 records, batches of 256; reading and decoding alone: ")
    assert empty == ""
    assert names.split()[0] == "order"
    assert set(rule) == {"-", " "}
    assert [line[:10].strip() for line in lines] == ["in order", "block", "global"]
    assert all(line.endswith("50") for line in lines)
    assert [line.removeprefix("windrow bench: ") for line in err.splitlines()][:4] == [
        "reading 50 records in order, for up to 3 s",
        "reading 50 records block-shuffled, for up to 3 s",
        "reading 50 records globally shuffled, for up to 3 s",
        "decoding alone, for up to 3 s",
    ]


def test_orders_that_are_asked_for(run: Run, tmp_path: Path) -> None:
    folder = rows(tmp_path / "a", 50)
    argv = ["--order", "global", "--order", "block", "--batch", 5, "--batches", 3, "--block", 10]
    code, out, _ = run(folder, *argv, "--json", "-q")
    assert code == 0
    orders = json.loads(out)["orders"]
    assert [order["order"] for order in orders] == ["global", "block"]
    for order in orders:
        assert (order["batches"], order["records"], order["is_whole"]) == (3, 15, False)
        assert order["of_in_order"] is None
    assert "15 of them" in run(folder, *argv, "-q")[1]


def test_an_order_ends_when_its_time_is_over(tmp_path: Path) -> None:
    source = ZarrDataSource(rows(tmp_path / "a", 50))
    found = measured(source, ["in_order", "block"], batch_records=5, seconds=1e-9)
    # The batch that came when it was over still counts.
    assert [order["batches"] for order in found["orders"]] == [1, 1]
    assert found["decoding_mb_per_s"] == 0


@pytest.mark.parametrize(
    ("argv", "code", "why"),
    [
        (["nowhere"], 2, "nowhere does not exist"),
        (["a", "--batch", "0"], 2, "0 is not in the range x>=1"),
        (["a", "--seconds", "0"], 2, "0.0 is not in the range x>0"),
        (["a", "--order", "random"], 2, "'random' is not one of"),
        (["a", "--split", "train"], 2, "--split is for folders that tfds wrote"),
        (["a", "--array", "b"], 2, "names"),
        (["t.tfrecord"], 2, "windrow convert SRC DST --to array_record"),
        (["records", "--array", "b"], 2, "--array is for Zarr groups"),
        (["begun"], 1, "windrow convert x begun"),
    ],
    ids=str,
)
def test_wrong_arguments(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    code: int,
    why: str,
) -> None:
    rows(tmp_path / "a", 5)
    converters.write_records(tmp_path / "t.tfrecord", [b"x"])
    record_folder(tmp_path / "records")
    record_folder(tmp_path / "begun")
    unfinished(tmp_path / "begun", "windrow convert x begun --to array_record")
    monkeypatch.chdir(tmp_path)
    found, out, err = run(*argv, "-q")
    assert (found, out) == (code, "")
    assert why in err
