"""Progress: a bar on a terminal, lines in the log elsewhere, a function, or nothing."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.conversion_cases import BY_NAME, CASES, Case, StoppedError, reference, state, tree
from windrow.core import progress
from windrow.core.progress import Progress, ProgressMeter

ROOT = Path(__file__).resolve().parents[2]
CASE = BY_NAME["tfrecord_to_array_record"]
_PROGRAM = """
import logging, sys
from tests.conversion_cases import BY_NAME
import windrow.core.progress
logging.basicConfig(level=logging.INFO, format="logged: %(message)s")
windrow.core.progress.LOGGED_EVERY_S = 0.0
case = BY_NAME["tfrecord_to_array_record"]
case.convert(sys.argv[1], sys.argv[2], progress=sys.argv[3] == "yes")
"""


def _converted(out: Path, show: str, *, terminal: bool) -> str:
    """What a conversion writes to stderr."""
    command = [sys.executable, "-c", _PROGRAM, reference(CASE).inputs, str(out), show]
    if not terminal:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == ""
        return done.stderr
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                more = os.read(ours, 1 << 16)
            except OSError:  # Linux says so at the end
                break
            if not more:
                break
            text += more
        assert process.stdout is not None
        assert process.stdout.read() == b""
    os.close(ours)
    assert process.returncode == 0
    return text.decode()


@pytest.mark.jobs
def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    shown = _converted(tmp_path / "out", "yes", terminal=True)
    assert "convert: 100%|" in shown
    assert "17 records" in shown
    assert "B/s" in shown
    assert "logged:" not in shown


@pytest.mark.jobs
def test_lines_in_the_log_elsewhere(tmp_path: Path) -> None:
    shown = _converted(tmp_path / "out", "yes", terminal=False)
    lines = shown.splitlines()
    assert all(line.startswith("logged: convert: ") for line in lines), shown
    assert "17 records" in lines[-1]
    assert "\r" not in shown


# One of them in each run of the tests.
EACH = [pytest.param(case, marks=[] if case == CASE else [pytest.mark.jobs]) for case in CASES]


@pytest.mark.parametrize("case", EACH, ids=str)
def test_a_function_is_told_all_of_it(case: Case, tmp_path: Path) -> None:
    steps: list[Progress] = []
    case.convert(reference(case).inputs, tmp_path / "out", progress=steps.append)
    _check(steps, case)


def _check(steps: list[Progress], case: Case) -> None:
    stages = list(dict.fromkeys(step.stage for step in steps))
    for stage in stages:
        of = [step for step in steps if step.stage == stage]
        assert of[-1].done_bytes == of[-1].total_bytes, (case, stage)
        assert len({step.total_bytes for step in of}) == 1
        for before, after in itertools.pairwise(of):
            assert before.records <= after.records
            assert before.done_bytes <= after.done_bytes
    # Stages come one after the other.
    assert [step.stage for step in steps] == sorted(
        (step.stage for step in steps), key=stages.index
    )
    assert 17 in {step.records for step in steps}, case


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.jobs)])
def test_what_a_function_raises_ends_the_conversion(processes: int, tmp_path: Path) -> None:
    def fails(now: Progress) -> None:
        raise StoppedError(f"at {now.records}")

    out = tmp_path / "out"
    with pytest.raises(StoppedError, match=r"at \d+"):
        CASE.convert(reference(CASE).inputs, out, progress=fails, processes=processes)
    assert state(CASE, out) == "unfinished"
    CASE.convert(reference(CASE).inputs, out)
    assert tree(out) == reference(CASE).whole


def test_kept_parts_count_as_done(tmp_path: Path) -> None:
    out = tmp_path / "out"
    steps: list[Progress] = []

    def fails_late(now: Progress) -> None:
        if now.records > 5:
            raise StoppedError

    with pytest.raises(StoppedError):
        CASE.convert(reference(CASE).inputs, out, progress=fails_late)
    CASE.convert(reference(CASE).inputs, out, progress=steps.append)
    _check(steps, CASE)


# The meter by itself


def test_lines_come_now_and_then_and_once_at_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="windrow")
    with ProgressMeter("quick", 10, True) as meter:
        for _ in range(10):
            meter.add(1, 1)
    assert caplog.messages == []  # what takes no time needs no words
    monkeypatch.setattr(progress, "LOGGED_EVERY_S", 0.0)
    with ProgressMeter("slow", 3, True) as meter:
        meter.add(1, 1)
        meter.add(1, 1)
        meter.add(1, 1)
    assert [message.partition(":")[0] for message in caplog.messages] == ["slow"] * len(
        caplog.messages
    )
    assert len(caplog.messages) >= 4
    assert "3 records" in caplog.messages[-1]
