"""Tables in the width of a terminal, and the HTML that notebooks show."""

from __future__ import annotations

import dataclasses
import html.parser
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import windrow
from windrow import MapDataset
from windrow.cli.main import main
from windrow.core.text import TextTable, tables_within
from windrow.transforms import Map

EVIL = "<script>alert('a & b')</script>"
TABLE = TextTable("", ("name", "what it is"), [("a", "word " * 30), ("b", "x" * 90)])


class Kept(Map):
    """Declares what it makes."""

    def map(self, element: Any) -> Any:
        return element

    def output_spec(self, spec: Any) -> Any:
        return spec


class _Reader(html.parser.HTMLParser):
    """Collects the names of elements and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: Any) -> _Reader:
    found = _Reader(page._repr_html_())
    assert not found.open
    assert found.tags <= {"div", "p", "b", "h4", "table", "tr", "th", "td", "ul", "li"}
    return found


@pytest.mark.parametrize("columns", [30, 60, 80])
def test_tables_fit_the_width(columns: int) -> None:
    with tables_within(columns):
        text = TABLE.to_text()
    assert max(map(len, text.splitlines())) <= columns
    assert text.count("word") == 30
    assert text.count("x") == 90
    assert max(map(len, TABLE.to_text().splitlines())) > 100


def test_the_command_line_takes_the_width_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "group.zarr"
    zarr.open_group(folder, mode="w").create_array("variable" * 6, shape=(3, 4), dtype="f8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["inspect", "group.zarr"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[2:])) <= 70
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert main(["inspect", "group.zarr"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[2:])) > 100


def test_notebooks_show_datasets_with_length_spec_and_functions() -> None:
    dataset = MapDataset.source({EVIL: np.zeros((7, 2), "f4")}).shuffle(seed=1).map(Kept())
    assert repr(dataset).endswith(f"map(Kept.map), 7 elements of {{{EVIL}: float32 (2,)}})")
    page = read(dataset)
    assert page.text.startswith(f"MapDataset: 7 elements of {{{EVIL}: float32 (2,)}}")
    assert "shuffle(seed=1)" in page.text
    assert "map(Kept.map)" in page.text
    assert repr(dataset.repeat()).count("endless elements of {") == 1
    assert "stream of {" in read(dataset.to_iter_dataset()).text


def test_notebooks_show_iterators_and_stats() -> None:
    with iter(MapDataset.range(7).map(abs)) as iterator:
        assert "nothing was asked for yet" in read(iterator).text
        list(iterator)
        assert "map(abs)" in read(iterator).text
        stats = iterator.stats()
    assert read(stats).text.startswith(stats.sentence)
    assert "the loop waited" in read(stats).text


def test_notebooks_show_quality_inspection_verification_and_explanation(tmp_path: Path) -> None:
    dataset = MapDataset.range(64).shuffle(seed=1).batch(4)
    quality = windrow.shuffle_quality(dataset)
    assert "batches of 4 of 64 records" in read(quality).text
    noted = dataclasses.replace(quality, notes=(EVIL,))
    assert EVIL in read(noted).text
    path = tmp_path / "a&b.array_record"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without the native core
        windrow.converters.write_records(tmp_path / "a.tfrecord", [b"1", b"2"])
        windrow.converters.tfrecord_to_array_record(tmp_path / "a.tfrecord", path)
        assert "a&b.array_record" in read(windrow.inspect(path)).text
        files = sorted(path.glob("*array_record*"))
        found = windrow.verify(windrow.sources.ArrayRecordDataSource(files))
    assert "2 records" in read(found).text
    assert "range(0, 64, 1)" in read(dataset.explain()).text
