"""What `make wheel` checks of what it has built."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from tools import try_wheel
from tools.forward_types import ROOT

PACKAGES = ["windrow", "windrow.core,windrow.core.native", "/elsewhere"]


def trial(state: str, warnings: int, environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", try_wheel.TRIAL, *PACKAGES, state, str(warnings)]
    return try_wheel.run(command, "trial", ROOT, environment)


@pytest.mark.skipif(os.name == "nt", reason="programs have a suffix there")
@pytest.mark.parametrize("program", ["cargo", "rustc"])
def test_no_rust_is_found_where_the_sdist_is_tried(program: str, tmp_path: Path) -> None:
    rust, other, home = (tmp_path / name for name in ("rust", "other", "home"))
    for folder in (rust, other, home):
        folder.mkdir()
    for file in (rust / program, other / "tool"):
        file.touch(0o755)
    given = {
        "PATH": f"{rust}{os.pathsep}{other}",
        "HOME": "/me",
        "CARGO_HOME": str(rust),
        "RUSTUP_HOME": str(rust),
        "PIP_CERT": "cert",
    }
    assert shutil.which(program, path=given["PATH"])
    found = try_wheel.without_rust(given, home)
    assert found["PATH"] == str(other)
    assert found["HOME"] == str(home)
    assert found["PIP_CERT"] == "cert"
    assert not {"CARGO_HOME", "RUSTUP_HOME"} & set(found)


@pytest.mark.jobs
def test_the_trial_counts_the_warnings_about_the_core(tmp_path: Path) -> None:
    # Python imports this first, and then never imports the core.
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        textwrap.dedent("""
            import sys

            sys.modules["windrow.core._native"] = None
        """)
    )
    without = {**try_wheel.ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    assert "1 packages and 2 modules without the native core" in trial("without", 1, without)
    with pytest.raises(try_wheel.TrialError, match="not 0 warnings"):
        trial("without", 0, without)
    with pytest.raises(try_wheel.TrialError, match="the native core: without it"):
        trial("with", 1, without)
    off = {**try_wheel.ENVIRONMENT, "WINDROW_NATIVE": "0"}
    assert "without the native core" in trial("without", 0, off)
