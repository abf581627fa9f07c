"""Runs the tests of several devices in a process that has four virtual ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}


def test_all_that_needs_four_devices() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/devices/on_four_devices.py",
        ],
        cwd=ROOT,
        env={**os.environ, **FOUR},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
