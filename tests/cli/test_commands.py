"""The command line's frame: what is printed where, and the exit codes."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import zarr

import windrow
from tests.processes import LIMIT_S, until
from tests.range_server import RangeServer, stall
from windrow import errors
from windrow.cli import main as commands
from windrow.cli.main import (
    echo_json,
    exit_code,
    json_option,
    key_value_option,
    main,
    quiet_option,
    storage_option,
)
from windrow.core.native import native

NAMES = ("convert", "inspect", "verify", "bench")


def run(*argv: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """`python -m windrow` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "windrow", *argv],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        **settings,
    )


@pytest.fixture
def command() -> Iterator[Callable[[Callable[..., Any]], None]]:
    """Adds a command `probe`, which does what a function does, for one test."""

    def add(function: Callable[..., Any]) -> None:
        commands.windrow.add_command(click.command("probe")(function))

    yield add
    commands.windrow.commands.pop("probe", None)


@pytest.fixture
def array(tmp_path: Path) -> str:
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), data=np.arange(12).reshape(4, 3), chunks=(2, 3))
    return str(path)


# --- help


def test_help_lists_the_commands_and_imports_none_of_them() -> None:
    program = (
        "import sys; from windrow.cli.main import main; code = main(['--help']);"
        "print([n for n in sys.modules if n.startswith('windrow.cli.') and n != 'windrow.cli.main'"
        " or n in ('tabulate', 'matplotlib', 'fsspec', 'apache_beam')]);"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert done.stderr == ""
    assert lines[-1] == "[]"
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line.split()]
    assert [name for name in listed if name in NAMES] == list(NAMES)
    assert "  windrow verify digits" in "\n".join(lines)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    there = "no" if native() is None else "yes"
    expected = f"windrow {windrow.__version__}\nnative core: {there}\n"
    assert capsys.readouterr() == (expected, "")


# --- bad arguments


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["inspekt"], "No such command 'inspekt'"),
        (["inspect"], "Missing argument 'URL'"),
        (["inspect", "x", "--jason"], "No such option.*--jason"),
        (["inspect", "x", "--storage-option", "secret-without-equals"], "write KEY=VALUE"),
        ([], "Usage: windrow"),
    ],
    ids=str,
)
def test_bad_arguments_are_2_and_told_on_stderr(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(message, shown.err)
    assert "secret" not in shown.err


# --- errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ArgumentError("x"), 2),
        (errors.NotFoundError("x"), 2),
        (errors.MissingExtraError("x"), 2),
        (errors.PlanError("x"), 2),
        (FileNotFoundError("x"), 2),
        (errors.SourceError("x"), 1),
        (errors.ReadError("x"), 1),
        (errors.ConversionError("x"), 1),
        (errors.WorkerError("x"), 1),
        (PermissionError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_the_exit_code_of_an_error(
    error: Exception,
    code: int,
    command: Callable[[Callable[..., Any]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        click.echo("some data")
        raise error

    command(fail)
    assert exit_code(error) == code
    assert main(["probe"]) == code
    assert capsys.readouterr() == ("some data\n", "windrow probe: x\n")


def test_a_bug_is_no_exit_code(command: Callable[[Callable[..., Any]], None]) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a bug")

    command(fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main(["probe"])


def test_ctrl_c_is_130(
    command: Callable[[Callable[..., Any]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    command(stop)
    assert main(["probe"]) == 130
    assert capsys.readouterr() == ("", "windrow probe: stopped\n")


@pytest.mark.jobs
def test_ctrl_c_ends_a_process_that_waits_for_a_network() -> None:
    with RangeServer({"a.tfrecord": b""}) as server:
        server.plan([stall()] * 10)
        process = subprocess.Popen(
            [sys.executable, "-m", "windrow", "inspect", server.url("a.tfrecord")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert until(lambda: server.counts().requests > 0)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, err) == (130, "", "windrow inspect: stopped\n")


def test_a_real_process_keeps_data_and_words_apart(array: str, tmp_path: Path) -> None:
    done = run("inspect", array, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["records"] == 4
    done = run("inspect", str(tmp_path / "b.zarr"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("windrow inspect: ")
    assert "exists and holds a.zarr" in done.stderr


@pytest.mark.jobs
def test_a_closed_pipe_is_silent(array: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "windrow", "inspect", array],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


# --- what commands share


def test_options(
    command: Callable[[Callable[..., Any]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    @json_option
    @quiet_option
    @storage_option
    @key_value_option("--output-option", "output_options", "An option of the output.")
    def show(**given: Any) -> None:
        echo_json(given)

    command(show)
    argv = ["probe", "--json", "-q", "--storage-option", "anon=true", "--storage-option", "key=a=b"]
    argv += ["--storage-option", 'client_kwargs={"region_name": "x"}', "--output-option", "n=1"]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out) == {
        "as_json": True,
        "quiet": True,
        "storage_options": {"anon": True, "key": "a=b", "client_kwargs": {"region_name": "x"}},
        "output_options": {"n": 1},
    }
    assert main(["probe"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "as_json": False,
        "quiet": False,
        "storage_options": {},
        "output_options": {},
    }


def test_log_lines_go_to_stderr_unless_quiet(
    command: Callable[[Callable[..., Any]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("windrow.probe")

    @quiet_option
    def tell(quiet: bool) -> None:
        log.info("%d of %d", 1, 2)
        log.warning("careful")

    command(tell)
    before = logging.getLogger("windrow").handlers[:], logging.getLogger("windrow").level
    assert main(["probe"]) == 0
    assert capsys.readouterr() == ("", "1 of 2\ncareful\n")
    assert main(["probe", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "careful\n")
    after = logging.getLogger("windrow").handlers, logging.getLogger("windrow").level
    assert after == before


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    echo_json({"a": [1.5, float("nan")], "b": {"c": float("-inf")}, "d": ("é",)})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": [1.5, None], "b": {"c": None}, "d": ["é"]}
    assert "é" in text


@pytest.mark.jobs
@pytest.mark.parametrize("closed", ["1>&-", "2>&-"], ids=["stdout", "stderr"])
def test_a_closed_stream_is_no_error(closed: str, array: str) -> None:
    # As a program finds it that another one starts without streams.
    command = f'"{sys.executable}" -m windrow verify "{array}" {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert ("good" in done.stdout) == (closed == "2>&-")
