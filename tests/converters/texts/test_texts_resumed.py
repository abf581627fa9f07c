"""Tokens of conversions that were killed, resumed, or are asked for with another tokenizer."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.conversion_cases import moments_of, tree
from tests.processes import Program
from tests.texts import END, rows_of, saved, texts, tokens_of, trained, write_lines
from windrow import converters
from windrow.cli.main import main
from windrow.converters.job.job import describe
from windrow.converters.job.manifest import UNFINISHED
from windrow.errors import ConversionError, ReadError

FUNCTIONS = ["json_lines_to_zarr", "json_lines_to_array_record"]

# Kills itself before the call on the output that has this number; without it, counts the calls.
PROGRAM = """
import os, sys, threading
name, source, output, tokenizer, moment = sys.argv[1:]
from windrow import converters
from windrow.converters.zarr import records_work
from windrow.converters.texts import to_records
records_work._PIECE_BYTES = 1 << 10
to_records.FILE_BYTES = 1 << 11
count, lock = 0, threading.Lock()
def hook(event, arguments):
    global count
    if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(arguments[0]).startswith(output):
        with lock:
            count += 1
            if count == int(moment):
                os.kill(os.getpid(), 9)
sys.addaudithook(hook)
getattr(converters, name)(
    source, output, field="text", tokenizer=tokenizer, end_token="<|endoftext|>", progress=False
)
print("moments", count)
"""


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "a.jsonl", texts(100))
    write_lines(folder / "b.jsonl.gz", texts(40))
    saved(tmp_path / "tokenizer.json")
    return folder


def run(name: str, there: Path, output: Path, moment: int, work: Path) -> tuple[int, Program]:
    """Run the program to its end, or until it is killed; its exit code."""
    work.mkdir(exist_ok=True)
    tokenizer = str(there.parent / "tokenizer.json")
    command = ["-c", PROGRAM, name, str(there), str(output), tokenizer, str(moment)]
    root = str(Path(__file__).resolve().parents[3])
    with Program(work, command, environment={"PYTHONPATH": root}) as program:
        return program.code(), program


@pytest.mark.jobs
@pytest.mark.parametrize("name", FUNCTIONS)
def test_killed_at_any_moment_and_resumed(name: str, there: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    code, program = run(name, there, whole, 0, tmp_path / "work")
    assert code == 0, program.errors
    moments = moments_of(program)
    assert moments > 20
    unfinished = 0
    for moment in range(3, moments, moments // 5):
        out = tmp_path / f"out{moment}"
        code, _ = run(name, there, out, moment, tmp_path / "work")
        assert code == -9
        unfinished += (out / UNFINISHED).exists()
        code, program = run(name, there, out, 0, tmp_path / "work")
        assert code == 0, program.errors
        assert tree(out) == tree(whole)
    assert unfinished >= 3
    if name.endswith("zarr"):
        end = [trained().token_to_id(END)]
        assert rows_of(whole) == tokens_of([*texts(100), *texts(40)], end)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_another_tokenizer_of_the_same_path_is_refused(
    name: str, there: Path, tmp_path: Path
) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    out = tmp_path / "out"
    (there / "c.jsonl").write_text('{"text": 3}\n')
    convert = functools.partial(
        getattr(converters, name), there, out, field="text", progress=False, tokenizer=tokenizer
    )
    with pytest.raises(ReadError, match=r"c\.jsonl: record 0 at byte 0"):
        convert()
    saved(tokenizer, 270)
    message = (
        r"(?s)was begun with other.*tokenizer: .*'sha256': '\w+'} there, .* asked for.*overwrite"
    )
    with pytest.raises(ConversionError, match=message):
        convert()
    # The same content at another place is the same tokenizer.
    (tmp_path / "elsewhere").mkdir()
    again = saved(tmp_path / "elsewhere" / "tokenizer.json")
    assert convert(max_bad_records=1, tokenizer=again).records == 140
    with pytest.raises(ConversionError, match=r"(?s)was written with other.*tokenizer: "):
        convert()


def test_the_command(there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, out = str(tmp_path / "tokenizer.json"), tmp_path / "out"
    argv = ["convert", str(there), str(out), "--to", "zarr", "--field", "text"]
    argv += ["--tokenizer", tokenizer, "--end-token", END]
    assert main([*argv, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "json_lines_to_zarr" in said
    assert "tokens: uint16 (None,)" in said
    assert not out.exists()
    assert main(argv) == 0
    assert "tokens/values: uint16" in capsys.readouterr().err
    assert rows_of(out)[:100] == tokens_of(texts(100), [trained().token_to_id(END)])
    assert main([*argv[:-1], "<|endoftex|>"]) == 2
    assert "near it are '<|endoftext|>'" in capsys.readouterr().err
    assert main([*argv, "--encode", "os:getcwd"]) == 2
    planned = converters.json_lines_to_zarr.conversion(
        str(there), field="text", tokenizer=tokenizer, end_token=0
    )
    assert planned.resume("out").endswith(
        f"out --to zarr --field text --tokenizer {tokenizer} --end-token 0"
    )
    assert describe(planned, str(tmp_path / "new"))["state"] == "new"
