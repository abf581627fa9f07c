"""Tokens of a tokenizer that has changed, and by the command line."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.texts import END, rows_of, saved, texts, tokens_of, trained, write_lines
from windrow import converters
from windrow.cli.main import main
from windrow.converters.job.job import describe
from windrow.errors import ConversionError, ReadError

FUNCTIONS = ["json_lines_to_zarr", "json_lines_to_array_record"]


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "a.jsonl", texts(100))
    write_lines(folder / "b.jsonl.gz", texts(40))
    saved(tmp_path / "tokenizer.json")
    return folder


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
