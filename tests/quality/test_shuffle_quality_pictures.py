"""The pictures of shuffling: a tiny run trains, reports and draws."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import shuffling

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).resolve().parents[2]
PICTURES = {"shuffle_orders": (1380, 420), "shuffle_quality": (1380, 600), "shuffle_losses": (1380, 600)}  # fmt: skip


def width_and_height(picture: Path) -> tuple[int, int]:
    """The size of a PNG file in pixels."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pictures"
    assert shuffling.main(["--small", "--folder", str(folder)]) == 0
    told = capsys.readouterr().out
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", told, re.MULTILINE)
    assert [name for name, *_ in rows] == list(shuffling.SMALL.orders())
    shuffled, windows, plain = (float(ratio) for _, _, ratio, _ in rows)
    assert shuffled < windows < plain
    assert {path.stem: width_and_height(path) for path in folder.iterdir()} == PICTURES


def test_the_page_has_the_pictures_and_a_row_for_each_order() -> None:
    page = (ROOT / "docs" / "shuffling.md").read_text(encoding="utf-8")
    for name, size in PICTURES.items():
        assert width_and_height(ROOT / "docs" / "images" / f"{name}.png") == size
        assert f"](images/{name}.png)" in page
    table = page.partition("<!-- losses -->")[2].partition("<!-- end of losses -->")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines()[3:]]
    assert rows == [f"| {name}" for name in shuffling.Sizes().orders()]


def test_without_matplotlib_the_extra_is_named() -> None:
    hide = "import sys; sys.modules['matplotlib'] = None; import benchmarks.shuffling"
    command = [sys.executable, "-c", hide]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 1
    assert "pip install '.[bench]'" in done.stderr
