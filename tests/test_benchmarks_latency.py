"""The picture of latency: a tiny run measures, tells and draws; its figures can be drawn again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import data, latency, process
from benchmarks.job import Job
from tests.pictures import ROOT, check_that_the_extra_is_named, width_and_height

pytestmark = pytest.mark.jobs

FIGURES: latency.Figures = {
    way.name: {
        ms: {"records_per_s": rate / (1 + ms), "requests_per_batch": 3.4, "received_per_byte": 2.0}
        for ms in (0.0, 5.0, 19.0)
    }
    for way, rate in zip(latency.WAYS, (80_000, 20_000, 200), strict=True)
}


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.latency", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)


def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, kept = tmp_path / "picture.png", tmp_path / "figures.json"
    arguments = ["--small", "--picture", str(picture), "--json", str(kept)]
    assert latency.main(arguments) == 0
    told = capsys.readouterr().out
    rows: list[Any] = re.findall(
        r"^\| (\d+) \| (.+?) \| ([\d,]+) \| ([\d.]+) \|", told, re.MULTILINE
    )
    assert [(float(ms), name) for ms, name, *_ in rows] == [
        (ms, way.name) for way in latency.WAYS for ms in latency.SMALL_MS
    ]
    requests = {name: float(text) for ms, name, _, text in rows if ms == "2"}
    # Neighbours share requests: a batch has 32 records.
    assert requests["a request per record"] == 32
    assert requests["block_shuffle"] < 8
    assert "At 2 ms: " in told
    assert width_and_height(picture) == (1380, 540)

    again = tmp_path / "again.png"
    assert latency.main(["--small", "--picture", str(again), "--from-json", str(kept)]) == 0
    assert capsys.readouterr().out == told
    assert again.read_bytes() == picture.read_bytes()


def test_the_latency_next_to_20_ms_is_shown(tmp_path: Path) -> None:
    assert latency.shown(FIGURES) == 19
    assert latency.caption(FIGURES) == (
        "At 19 ms: 10 records per second with a request per record, 1,000 with a global shuffle"
        " (100 times), 4,000 with `block_shuffle` (4.0 times that)."
    )
    assert latency.loaded(json.dumps(FIGURES)) == FIGURES
    latency.draw(tmp_path / "picture.png", FIGURES, data.small(""))
    assert width_and_height(tmp_path / "picture.png") == (1380, 540)


def test_an_epoch_ends_at_the_limit_of_its_job(tmp_path: Path) -> None:
    sizes = data.small(str(tmp_path))
    data.write(sizes, "far_records")
    way = latency.WAYS[-1]
    rows = {
        limit_s: process.ask(
            "measure",
            Job(sizes, "far_records", way.order, way.module, small=True, limit_s=limit_s),
        )["delivered"]
        for limit_s in (0.0, 30.0)
    }
    assert rows == {0.0: 1, 30.0: sizes.far.records}


def test_the_picture_of_the_page_is_one_of_these() -> None:
    assert width_and_height(ROOT / "docs" / "images" / "remote.png") == (1380, 540)
    assert "](images/remote.png)" in (ROOT / "docs" / "remote.md").read_text(encoding="utf-8")


def test_no_repeats_are_refused() -> None:
    done = run("--repeats", "0")
    assert (done.returncode, "--repeats must be at least 1, got 0" in done.stderr) == (2, True)


def test_without_matplotlib_the_extra_is_named() -> None:
    check_that_the_extra_is_named("benchmarks.latency")
