"""Reports: what a page has for which chains, what it never has, and that it is whole or not there."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.processes import LIMIT_S
from tests.report_pages import (
    HOSTILE,
    Counting,
    Odd,
    Page,
    Told,
    chain_of_pictures,
    chain_of_tokens,
    measured,
)
from windrow import MapDataset
from windrow.core.text import TextTable, in_units
from windrow.errors import ArgumentError, ConversionError, NotFoundError, PlanError
from windrow.reporting.charts import Chart
from windrow.reporting.elements import sample_of
from windrow.reporting.page import filled
from windrow.reporting.values import values_of

pytestmark = pytest.mark.jobs


def page_of(given: Any, folder: Path, **asked: Any) -> Page:
    return Page(windrow.report(given, folder / "report.html", **asked))


# --- the page ------------------------------------------------------------------------------------


def test_a_page_has_the_plan_the_costs_the_order_and_the_elements(tmp_path: Path) -> None:
    dataset = chain_of_pictures(tmp_path)
    found = page_of(dataset, tmp_path)
    assert found.open == []
    assert len(set(found.ids)) == len(found.ids)
    headings = [attrs["id"] for tag, attrs in found.tags if tag == "h2"]
    assert headings == [f"{name}-title" for name in ("plan", "costs", "order", "elements")]
    for line in dataset.explain().nodes[1:]:
        assert line.label in found.said
    assert "600" in found.words
    assert set(found.charts()) == {"bytes"}


def test_an_iterator_has_its_time_and_what_was_measured(tmp_path: Path) -> None:
    dataset = chain_of_pictures(tmp_path)
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
    at = iterator.get_state()
    found = page_of(iterator, tmp_path)
    assert iterator.get_state() == at
    assert "time" in found.ids
    assert set(found.charts()) == {"bytes", "timeline"}
    assert "Measured" in found.words
    assert "which was given 5 batches" in found.said
    read_for = re.search(r"Measured covers the (\d+) batches", found.said)
    assert read_for is not None
    assert 5 <= int(read_for[1]) <= 75  # those ahead of the loop too
    records = found.words.index("records")
    # An epoch and a batch, predicted.
    assert found.words[records + 1 : records + 3] == ["600", "8"]
    assert f"{8 * int(read_for[1]):,}" in found.words[found.words.index("Measured") :]
    next(iterator)


def test_an_iterator_that_gave_nothing_has_predictions_alone(tmp_path: Path) -> None:
    found = page_of(iter(chain_of_pictures(tmp_path)), tmp_path)
    assert "time" not in found.ids
    assert "Measured" not in found.words
    assert "Predicted" in found.words


def test_predicted_and_measured_stand_side_by_side(tmp_path: Path) -> None:
    dataset = chain_of_pictures(tmp_path)
    iterator = Told(dataset._node, measured(dataset, 30))
    found = page_of(iterator, tmp_path)
    bars = {bar["name"]: bar for bar in found.charts()["bytes"]["data"]}
    assert list(bars) == ["predicted", "measured"]
    assert bars["predicted"]["text"] == bars["measured"]["text"]
    assert "The loop waits for data 20% of the time; 70% of that is reading." in found.said


def test_the_timeline_has_a_step_for_each_block(tmp_path: Path) -> None:
    dataset = chain_of_pictures(tmp_path)
    found = page_of(Told(dataset._node, measured(dataset, 30)), tmp_path)
    lanes = {lane["name"]: lane for lane in found.charts()["timeline"]["data"]}
    assert list(lanes) == ["reading", "mapping", "the loop waits"]
    waits = numbers(lanes["the loop waits"]["y"])
    # Milliseconds per element, of blocks of two.
    assert waits[:4].tolist() == [3.0, 0.0, 0.0, 3.0]
    assert numbers(lanes["reading"]["y"]).tolist() == [2.0] * 31
    assert numbers(lanes["reading"]["x"]).tolist() == list(range(0, 61, 2))


def test_bytes_that_were_measured_stand_for_unknown_ones(tmp_path: Path) -> None:
    dataset = chain_of_pictures(tmp_path).map(lambda element: element)
    stats = measured(chain_of_pictures(tmp_path / "again"), 4)
    found = page_of(Told(dataset._node, stats), tmp_path)
    assert found.words[found.words.index("bytes per batch") + 1 :][:2] == ["1 KB", "measured"]


def test_a_run_that_is_not_whole_is_told_under_its_bars(tmp_path: Path) -> None:
    dataset = chain_of_pictures(tmp_path)
    said = page_of(Told(dataset._node, measured(dataset, 3)), tmp_path, elements=0).said
    assert "Predicted is the mean of an epoch of 75 batches." in said
    assert "Measured covers the 6 batches that were read for so far; the loop was given 6" in said


FIGURES = {
    "records": "records",
    "chunks": "chunks",
    "reads": "reads",
    "stored, about": "stored_bytes",
    "decoded": "decoded_bytes",
    "delivered": "delivered_bytes",
}


def as_number(cell: str) -> float:
    """The number in a cell, in bytes if it has a unit."""
    number, _, unit = cell.replace(",", "").partition(" ")
    return float(number) * {"": 1, "bytes": 1, "KB": 1e3, "MB": 1e6}[unit]


def test_a_page_of_a_run_has_what_was_told_and_what_was_counted(tmp_path: Path) -> None:
    stream = chain_of_pictures(tmp_path).to_iter_dataset()
    iterator = iter(stream)
    list(iterator)
    page, stats = page_of(iterator, tmp_path), iterator.stats()
    (told,), (counted,) = stream.explain().epoch, stats.sources
    heads, *rows = page.table("source 0: ")
    assert heads == ["", "epoch", "batch"]
    cells = {head: list(map(as_number, others)) for head, *others in rows if head in FIGURES}
    found = dict(zip(*page.table("sources"), strict=True))
    for head, name in FIGURES.items():
        before, after = getattr(told, name), getattr(counted, name)
        # A whole epoch, in blocks: the prediction is exact.
        assert before.is_exact
        assert before == after
        # Three figures are shown.
        shown = [before.low, after.low / stats.elements]
        assert cells[head] == pytest.approx(shown, rel=0.005), head
        assert as_number(found[name.replace("_", " ")]) == pytest.approx(after.low, rel=0.005)
    memory = dict(page.table("memory"))
    for kind, size in stats.peak_by.items():
        assert memory[f"{kind} at most"] == in_units(size)
    assert memory["buffers at most"] == in_units(stats.peak_buffers_bytes)
    times = {name: spent for name, spent, _ in page.table("time")}
    spent_s = {"the loop's own": stats.loop_s, "reading": stats.reading_s, **stats.mapping_s}
    spent_s |= {f"waited for {name}": waited_s for name, waited_s in stats.waited_for.items()}
    assert {name: times[name] for name in spent_s} == {
        name: f"{value:.3f} s" for name, value in spent_s.items()
    }
    assert f"{stats.sentence[0].upper()}{stats.sentence[1:]}." in page.said


def numbers(values: Any) -> Any:
    """An array as Plotly writes it."""
    import base64

    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
    return np.array(values)


# --- what it never has ---------------------------------------------------------------------------


def test_a_page_names_no_place_outside_itself(tmp_path: Path) -> None:
    found = page_of(Told((d := chain_of_pictures(tmp_path))._node, measured(d, 9)), tmp_path)
    loaded = [
        value
        for _, attrs in found.tags
        for name, value in attrs.items()
        if name in ("src", "href", "srcset", "action", "data", "poster")
    ]
    assert loaded
    assert {str(value)[:1] for value in loaded} == {"#", "d"}
    assert all(str(value).startswith(("#", "data:image/png;base64,")) for value in loaded)
    own = re.sub(r"base64,[\w+/=]+", "", found.without_library)
    assert not re.findall(r"https?:|//[a-z]|@import|url\(", own)
    policy = next(a for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none'")


def test_names_and_texts_of_others_are_never_code(tmp_path: Path) -> None:
    found = page_of(chain_of_tokens(), tmp_path, title=HOSTILE)
    assert found.open == []
    assert HOSTILE in found.said
    assert {tag for tag, _ in found.tags} & {"iframe", "object", "embed", "link"} == set()
    assert [attrs for tag, attrs in found.tags if tag == "img"] == []
    assert len([a for a, _ in found.scripts if "type" not in a]) == 2


@given(words=st.text(max_size=40), more=st.text(max_size=40))
def test_any_words_come_back_as_they_are(tmp_path_factory: Any, words: str, more: str) -> None:
    values = plain_values() | {
        "tables": [TextTable(words, ["", more], [[more, words]])],
        "facts": [(words, more, words)],
        "advice": [words],
        "unknown": [more],
        "bytes_chart": Chart("c", {"data": [{"name": words}], "layout": {}}, 90, more, words),
    }
    path = tmp_path_factory.mktemp("words") / "page.html"
    path.write_text(filled(words, values), encoding="utf-8", errors="replace")
    found = Page(path)
    assert found.open == []
    table = next(at for at, (tag, _) in enumerate(found.tags) if tag == "caption")
    assert [tag for tag, _ in found.tags[table:]].count("td") == 1
    if words.isprintable():
        assert found.charts()["c"]["data"][0]["name"] == words
        assert "".join(words.split()) in "".join("".join(found.words).split())


@functools.cache
def plain_values() -> dict[str, Any]:
    """The values of a small page."""
    dataset = MapDataset.range(3)
    return values_of(dataset.explain(), None, dataset._node, None)


# --- all kinds of chains -------------------------------------------------------------------------


def _bad(value: Any) -> Any:
    raise ValueError(f"no {value} <b>today</b>")


TIMES = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "datetime64[D]")

CHAINS: dict[str, tuple[Callable[[], Any], str]] = {
    "empty": (lambda: MapDataset.source([]), "There is no element."),
    "one record": (lambda: MapDataset.source([np.zeros((4, 4))]), "4 x 4 float64"),
    "endless": (lambda: MapDataset.range(9).shuffle(seed=0).repeat(), "for ever"),
    "endless batches": (lambda: MapDataset.range(9).repeat().batch(4), "for ever"),
    "numbers": (lambda: MapDataset.range(5), "element 4"),
    "strings": (lambda: MapDataset.source(["a string that is long enough to be seen"] * 3), "a string that"),
    "bytes": (lambda: MapDataset.source([b"\x00\xff\x01" * 9, b""]), "value"),
    "tokens": (chain_of_tokens, "the text of"),
    "objects": (lambda: MapDataset.source([Odd("x"), Odd("y")]), "Odd"),
    "nothing": (lambda: MapDataset.source([None, None]), "There is no element."),
    "all dropped": (lambda: MapDataset.range(9).filter(lambda n: n > 9), "There is no element."),
    "half dropped": (lambda: MapDataset.range(9).filter(lambda n: n % 2), "element 2"),
    "failing": (lambda: MapDataset.range(9).map(_bad), "ValueError: no 0 <b>today</b>"),
    "deep": (lambda: _deep(), "7 x 3 float32"),
    "stream": (lambda: MapDataset.range(40).to_iter_dataset().window_shuffle(8, seed=1), "element 7"),
    "zipped": (lambda: MapDataset.zip([MapDataset.range(6), chain_of_tokens()[:6]]), "element 5"),
    "lines": (lambda: MapDataset.source(np.random.default_rng(0).random((5, 60))), "60 float64"),
    "ragged": (lambda: MapDataset.source([np.zeros(3), np.zeros((0,)), np.ones((2, 2))]), "3 float64, 24 bytes"),
    "times": (lambda: MapDataset.source({"at": TIMES, "x": np.zeros((3, 9))}), "2020-01-03"),
    "many": (lambda: _many(), "And 24 more sources."),
}  # fmt: skip


def _deep() -> Any:
    record = {"a": {"b": (np.zeros((7, 3), np.float32), 1), "c": [1.5, 2.5]}, "d": "short"}
    return MapDataset.source([record] * 4)


def _many() -> Any:
    return MapDataset.concatenate([MapDataset.source(np.arange(n + 2.0)) for n in range(40)])


@pytest.mark.parametrize("name", CHAINS)
def test_every_chain_has_a_page(name: str, tmp_path: Path) -> None:
    make, words = CHAINS[name]
    found = page_of(make(), tmp_path, elements=8 if words.startswith("element") else 3)
    assert found.open == []
    assert words in found.said
    assert "your loop" in found.said


def test_functions_run_here_and_no_worker_is_started(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(element: int) -> int:
        seen.append(os.getpid())
        return element

    page_of(MapDataset.range(9).map(note).mp_prefetch(2), tmp_path, elements=3)
    assert seen == [os.getpid()] * 3


def test_without_elements_nothing_is_read(tmp_path: Path) -> None:
    source = Counting(200)
    dataset = MapDataset.source(source).shuffle(seed=1).batch(4)
    page_of(dataset, tmp_path, elements=0)
    assert source.read == []


def shuffled(source: Counting) -> Any:
    return MapDataset.source(source).shuffle(seed=1)


# Chains, and how many of the first records of their order make three elements.
READ: dict[str, tuple[Callable[[Any], Any], int]] = {
    "elements": (lambda ds: ds.map(abs), 3),
    "rows of a batch": (lambda ds: ds.batch(5), 5),
    "rows of a batch of a stream": (lambda ds: ds.to_iter_dataset().map(abs).batch(5), 5),
    "several batches": (lambda ds: ds.batch(2), 4),
    "a stream that is limited": (lambda ds: ds.to_iter_dataset().limit(2), 2),
    "a stream of workers": (lambda ds: ds.to_iter_dataset().mp_prefetch(), 3),
}


@pytest.mark.parametrize("name", READ)
def test_no_record_is_read_but_those_of_the_elements_shown(name: str) -> None:
    made, records = READ[name]
    source = Counting(2_000)
    sample_of(made(shuffled(source))._node, 3)
    expected = [value // 10 for value in shuffled(Counting(2_000)).read(range(records))]
    assert source.read == expected


# --- wrong arguments and faults ------------------------------------------------------------------


def test_what_is_no_chain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"needs a windrow\.MapDataset.*got \[1, 2\]"):
        windrow.report([1, 2], tmp_path / "a.html")  # type: ignore[arg-type]


def test_what_is_no_path_of_a_page_is_refused(tmp_path: Path) -> None:
    dataset = MapDataset.range(3)
    with pytest.raises(ArgumentError, match=r"must be the path of a file, got 5"):
        windrow.report(dataset, 5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"a\.pdf must end in \.html"):
        windrow.report(dataset, tmp_path / "a.pdf")
    with pytest.raises(NotFoundError, match=r"there is no folder .*none; make it first"):
        windrow.report(dataset, tmp_path / "none" / "a.html")
    with pytest.raises(PlanError, match="elements must be at least 0, got -1"):
        windrow.report(dataset, tmp_path / "a.html", elements=-1)
    with pytest.raises(ArgumentError, match="elements"):
        windrow.report(dataset, tmp_path / "a.html", elements=1.5)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_replaced_as_a_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text("before")
    with pytest.raises(ConversionError, match=r"a\.html cannot be written"):
        windrow.report(MapDataset.range(3), _blocked(tmp_path))
    assert path.read_text() == "before"
    assert windrow.report(MapDataset.range(3), str(path)) == path
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "blocked"]


def _blocked(folder: Path) -> Path:
    """A path whose place a folder has."""
    (folder / "blocked" / "a.html" / "x").mkdir(parents=True)
    return folder / "blocked" / "a.html"


def test_without_plotly_the_error_names_the_extra(tmp_path: Path) -> None:
    program = (
        "import sys, windrow\n"
        "sys.modules[sys.argv[2]] = None\n"
        "try:\n"
        "    windrow.report(windrow.MapDataset.range(3), sys.argv[1])\n"
        "except windrow.errors.MissingExtraError as error:\n"
        "    print(error)\n"
    )
    for package in ("jinja2", "plotly", "matplotlib"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "a.html"), package],
            capture_output=True, text=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
        assert "windrow.report needs the packages of windrow-data[report]" in done.stdout, done
    assert list(tmp_path.iterdir()) == []


# --- small parts ---------------------------------------------------------------------------------


def test_the_plan_has_every_node_once_and_its_advice(tmp_path: Path) -> None:
    dataset = MapDataset.range(600).batch(8).shuffle(seed=1)
    found = page_of(dataset, tmp_path)
    nodes = dataset.explain().nodes
    assert [tag for tag, _ in found.tags].count("code") >= len(nodes)
    assert {"#advice-1"} <= {attrs.get("href") for tag, attrs in found.tags if tag == "a"}
    assert "advice-1" in found.ids


def test_a_field_with_a_hostile_name_is_only_words(tmp_path: Path) -> None:
    rows = [{HOSTILE: np.zeros((4, 4)), "a&b": n} for n in range(4)]
    found = page_of(MapDataset.source(rows), tmp_path)
    assert found.open == []
    assert HOSTILE in found.said
    assert len([a for a, _ in found.scripts if "type" not in a]) == 2
    assert all(str(a["src"]).startswith("data:") for tag, a in found.tags if tag == "img")


def test_of_a_long_chain_the_last_nodes_are_shown(tmp_path: Path) -> None:
    dataset: Any = MapDataset.source(np.arange(8))
    for _ in range(120):
        dataset = dataset.map(abs)
    found = page_of(dataset, tmp_path, elements=0)
    assert "The first 22 nodes are left out." in found.said
