"""Logs: one tree of loggers, few messages of each kind, and nothing secret."""

from __future__ import annotations

import ast
import logging
import os
import types
from pathlib import Path

import pytest

import windrow
from tests.laid_out import pieced
from windrow import MapDataset, ReadOptions
from windrow.core import debug_log

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _all_messages(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.DEBUG, "windrow")
    monkeypatch.setattr(debug_log, "_seen", {})


def texts(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == name]


def test_all_loggers_are_of_one_tree() -> None:
    names: set[str] = set()
    for folder in ("loader", "sources", "transforms", "converters"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if "getLogger(" in text else ():
                if isinstance(node, ast.Assign) and "getLogger(" in ast.unparse(node):
                    names |= {
                        each.value
                        for each in ast.walk(node)
                        if isinstance(each, ast.Constant) and isinstance(each.value, str)
                    }
    documented = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    assert {"windrow.plan", "windrow.bad_records"} <= names
    for name in names:
        assert name.startswith("windrow.")
        assert f"`{name}`" in documented


def test_few_messages_of_a_kind_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(debug_log, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    log = logging.getLogger("windrow.probe")
    for _ in range(debug_log.MOST + 7):
        debug_log.debug(log, "one of %d", 3)
    debug_log.debug(log, "another")
    assert texts(caplog, "windrow.probe") == [*["one of 3"] * debug_log.MOST, "another"]
    now[0] += debug_log.EVERY_S
    for _ in range(2):
        debug_log.debug(log, "one of %d", 3)
    assert texts(caplog, "windrow.probe")[-2:] == [
        "one of 3 (7 such messages were left out before)",
        "one of 3",
    ]


def test_plans_and_evictions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    source = pieced(640, 4, width=512)
    options = ReadOptions(memory_bytes=1_000_000)
    assert len(list(MapDataset.source(source).shuffle(seed=1).to_iter_dataset(options))) == 640
    found = "\n".join(texts(caplog, "windrow.plan"))
    assert "read batch 0 is planned: " in found
    assert "read batch 0 takes " in found
    assert " is evicted, and read batches still want it" in found


def _ends_once(path: Path, element: int) -> int:
    if not path.exists():
        path.touch()
        os._exit(3)
    return element


@pytest.mark.jobs
@pytest.mark.filterwarnings("ignore:worker 0")
def test_starts_and_ends_of_workers_are_logged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    stream = MapDataset.range(2).map(lambda n: _ends_once(mark, n)).to_iter_dataset()
    workers = windrow.MultiprocessingOptions(num_workers=1)
    assert list(stream.mp_prefetch(workers)) == [0, 1]
    found = texts(caplog, "windrow.workers")
    kinds = ["starts" if " starts as process " in text else "ended" for text in found]
    assert kinds[:3] == ["starts", "ended", "starts"]
    assert found[1].endswith("ended: exit code 3")
