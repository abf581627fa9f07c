"""The benchmark of tfds: a tiny run measures both cases and judges them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import tfds as benchmark


@pytest.mark.tfds
def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--share", "0.01", "--rounds", "1", "--folder", str(tmp_path)]) == 0
    out, _ = capsys.readouterr()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [[one.case, one.what] for one in benchmark.FIGURES]
    for (_, _, wanted, measured, met), figure in zip(rows, benchmark.FIGURES, strict=True):
        median = float(measured.split()[0])
        assert median > 0
        judged = "-" if figure.bound is None else "yes" if figure.is_met(median) else "**no**"
        assert met == judged
        assert (wanted == "-") == (figure.bound is None)
    # What both cases built was removed, what is read is kept for another round.
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*"))
    assert left == ["reading/array_record-512", "reading/tfrecord-512"]


@pytest.mark.tfds
def test_a_build_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    tfds = ("tensorflow_datasets.scripts.cli.main", "build")
    with pytest.raises(RuntimeError, match=r"code [12]\n(.|\n)*no_such_flag"):
        benchmark.build(tmp_path / "new", 16, tfds, "--no_such_flag")


def test_an_unknown_case(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["nothing"])
    assert "no such case: nothing" in capsys.readouterr().err
