"""Checks of the pictures that benchmarks draw, and of the extra that draws them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def width_and_height(picture: Path) -> tuple[int, int]:
    """Return the size of a PNG file in pixels."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def check_that_the_extra_is_named(module: str) -> None:
    """Check that `module`, imported without matplotlib, ends and names the extra to install."""
    hide = f"import sys; sys.modules['matplotlib'] = None; import {module}"
    command = [sys.executable, "-c", hide]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 1
    assert "pip install '.[bench]'" in done.stderr
