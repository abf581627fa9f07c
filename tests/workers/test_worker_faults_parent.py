"""Faults of the process that iterates: however it ends, its workers end too and nothing is left."""

from __future__ import annotations

import random
import signal
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import Program, until

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform == "win32", reason="workers need POSIX"),
]

# The stream never ends; elements take a moment.
SETTING = """
import os, sys, time
import numpy as np
import windrow

def work(x):
    time.sleep(0.0005)
    return x * 2

def stream(function=work, workers=2):
    numbers = windrow.MapDataset.source(np.arange(1000))
    return numbers.shuffle(seed=1).map(function).batch(8).repeat().mp_prefetch(workers)

def say(text):
    os.write(1, f"{text}\\n".encode())
"""

LOOP = """
dataset = stream()  # imports TensorStore, which makes an ImportError of an interrupt
say("made")
for number, batch in enumerate(dataset):
    if number == 0:
        say("first")
"""


def program(folder: Path, text: str) -> Program:
    return Program(folder, ["-c", SETTING + textwrap.dedent(text)])


def pause(moments: random.Random, most_s: float) -> None:
    time.sleep(moments.uniform(0, most_s))


# --- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["starting", "working"])
def test_workers_end_with_a_parent_that_is_killed(
    tmp_path: Path, moments: random.Random, stage: str
) -> None:
    with program(tmp_path, LOOP) as run:
        run.says("made" if stage == "starting" else "first")
        if stage == "working":
            assert len(run.processes()) == 3
        pause(moments, 0.3)
        run.send(signal.SIGKILL)
        run.ends(-signal.SIGKILL)
        # That nothing is left after 2 s is checked at the end.
    assert run.errors == ""


LOOPS = {
    "python": "while True: pass",
    # One call that never lets another thread run.
    "native": "sum(range(10**12))",
}


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_workers_that_never_pause_end_with_their_parent(
    tmp_path: Path, moments: random.Random, loop: str
) -> None:
    if loop == "native" and sys.platform != "linux":
        pytest.skip("only Linux can kill a process when a pipe closes")
    text = f"""
    def busy(x):
        say("busy")
        {LOOPS[loop]}
    next(iter(stream(busy)))
    """
    with program(tmp_path, text) as run:
        run.says("busy\nbusy")
        assert len(run.processes()) == 3
        pause(moments, 0.1)
        run.send(signal.SIGKILL)
        run.ends(-signal.SIGKILL)
    assert run.errors == ""


def test_workers_end_though_a_forked_child_holds_what_the_parent_had(
    tmp_path: Path, moments: random.Random
) -> None:
    text = """
    import signal
    iterator = iter(stream())
    next(iterator)
    child = os.fork()
    if not child:
        signal.pause()
    say(f"child {child}.")
    for _ in iterator:
        pass
    """
    with program(tmp_path, text) as run:
        run.says(".")
        child = psutil.Process(int(run.out.split()[1].rstrip(".")))
        assert len(run.processes()) == 4
        pause(moments, 0.1)
        run.send(signal.SIGKILL)
        run.ends(-signal.SIGKILL)
        assert until(lambda: run.processes() == [child], 2.0)
        child.kill()


# --- the end of the interpreter ------------------------------------------------------------------

ENDS = {
    "last line": "",
    "exit": "sys.exit(0)",
    "second iterator": "more = iter(stream()); next(more); print(time.monotonic(), flush=True)",
    "never waited for": "more = iter(stream()); more.start_prefetch()",
}


@pytest.mark.parametrize("end", sorted(ENDS))
@pytest.mark.parametrize("place", ["module", "function"])
def test_a_program_ends_in_the_middle_of_a_loop(
    tmp_path: Path, moments: random.Random, end: str, place: str
) -> None:
    text = f"""
    def main():
        for number, batch in enumerate(stream()):
            if number == {moments.randrange(40)}:
                break
        print(time.monotonic(), flush=True)
        {ENDS[end]}
    """
    text = textwrap.dedent(text)
    if place == "module":
        text = textwrap.dedent(text.split("\n", 2)[2])
    else:
        text += "\nmain()"
    with program(tmp_path, text) as run:
        run.ends()
        ended_s = time.monotonic()
        assert run.errors == ""
        assert ended_s - float(run.out.split()[-1]) < 1.0


# --- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["starting", "working"])
def test_an_interrupt_ends_everything_at_once(
    tmp_path: Path, moments: random.Random, stage: str
) -> None:
    with program(tmp_path, LOOP) as run:
        run.says("made" if stage == "starting" else "first")
        pause(moments, 0.3)
        sent_s = time.monotonic()
        run.send_all(signal.SIGINT)
        run.ends(-signal.SIGINT)
        assert time.monotonic() - sent_s < 1.0
        assert run.errors.startswith("Traceback")
        assert run.errors.count("Traceback") == 1
        assert run.errors.endswith("KeyboardInterrupt\n")


def test_an_interrupted_notebook_goes_on(tmp_path: Path, moments: random.Random) -> None:
    # An interrupt between `next` and `append` loses that batch: the loop is the user's.
    text = """
    expected = [batch.tolist() for batch, _ in zip(stream(workers=0), range(401))]
    iterator, got, interrupts = iter(stream()), [], 0
    while len(got) < 400:
        try:
            for batch in iterator:
                got.append(batch.tolist())
                if len(got) == 5:
                    say("first")
                if len(got) == 400:
                    break
        except KeyboardInterrupt:
            interrupts += 1
    lost = next((i for i in range(400) if got[i] != expected[i]), 400)
    same = got == expected[:lost] + expected[lost + 1:]
    say("same" if same and interrupts == 1 else f"{interrupts} {len(got)} {lost}")
    """
    with program(tmp_path, text) as run:
        run.says("first")
        pause(moments, 0.3)
        run.send_all(signal.SIGINT)
        run.ends()
        assert (run.out, run.errors) == ("first\nsame\n", "")


# --- fork ----------------------------------------------------------------------------------------


def test_a_forked_child_gets_an_error_and_the_parent_goes_on(
    tmp_path: Path, moments: random.Random
) -> None:
    text = f"""
    iterator = iter(stream())
    got = [next(iterator).tolist() for _ in range({moments.randrange(1, 60)})]
    child = os.fork()
    if not child:
        try:
            next(iterator)
        except windrow.errors.WorkerError as error:
            say(f"child: {{error}}")
        sys.exit(0)
    got += [next(iterator).tolist() for _ in range(100)]
    say(f"exit code {{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}}")
    got += [next(iterator).tolist() for _ in range(20)]
    expected = [batch.tolist() for batch, _ in zip(stream(workers=0), got)]
    say("same" if got == expected else "different")
    """
    with program(tmp_path, text) as run:
        run.ends()
        assert run.errors == ""
        assert "forked" in run.out
        assert "spawn" in run.out
        assert run.out.endswith("exit code 0\nsame\n")


def test_a_forked_child_has_iterators_of_its_own(tmp_path: Path, moments: random.Random) -> None:
    text = f"""
    dataset = stream()
    iterator = iter(dataset)
    for _ in range({moments.randrange(1, 60)}):
        next(iterator)
    child = os.fork()
    own = iter(dataset)
    first = [next(own).tolist() for _ in range(10)]
    assert first == [batch.tolist() for batch, _ in zip(stream(workers=0), range(10))]
    if child:
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    with program(tmp_path, text) as run:
        run.ends()
        assert (run.out, run.errors) == ("0\n", "")
