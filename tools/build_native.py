"""Builds the native core in place, for work on it: only what changed is compiled.

    python -m tools.build_native            build, and put the module beside `loader/core/native.py`
    python -m tools.build_native --check    1 if the module is missing or older than its sources

Installing the package builds it too; this is quicker, and needs no environment of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CRATE: Final = ROOT / "loader" / "core" / "native"
MODULE: Final = ROOT / "loader" / "core" / "_native.abi3.so"
_BUILT: Final = "from windrow.core.native import native; print(getattr(native(), 'SOURCES', None))"
_FNV_START: Final = 0xCBF2_9CE4_8422_2325
_FNV_PRIME: Final = 0x0100_0000_01B3


def library() -> Path:
    """What cargo builds, by the name that this system gives to libraries."""
    name = {"darwin": "lib_native.dylib", "win32": "_native.dll"}.get(sys.platform, "lib_native.so")
    return CRATE / "target" / "release" / name


def build() -> int:
    """Build and put in place; the exit code of cargo."""
    environment = {**os.environ, "PYO3_PYTHON": sys.executable, "PYO3_BUILD_EXTENSION_MODULE": "1"}
    command = ["cargo", "build", "--release", "--locked"]
    done = subprocess.run(command, cwd=CRATE, env=environment, check=False)
    if done.returncode == 0:
        # A process may have the old file mapped, so it is replaced and not written to.
        beside = MODULE.with_suffix(".new")
        shutil.copy2(library(), beside)
        os.replace(beside, MODULE)
        for other in MODULE.parent.glob("_native.*"):  # which Python would import first
            if other != MODULE:
                other.unlink()
    return done.returncode


def sources_hash(crate: Path = CRATE) -> str:
    """The hash of the crate's sources, which the core has as `SOURCES` if it was built from them.

    FNV-1a with 64 bits over the name and the bytes of each file, names in order, in hexadecimal.
    """
    files = [crate / "Cargo.toml", crate / "Cargo.lock", crate / "build.rs"]
    files += (crate / "src").rglob("*.rs")
    found = _FNV_START
    for name, file in sorted((file.relative_to(crate).as_posix(), file) for file in files):
        for byte in name.encode() + file.read_bytes():
            found = ((found ^ byte) * _FNV_PRIME) & (2**64 - 1)
    return f"{found:016x}"


def main(argv: Sequence[str] | None = None) -> int:
    """Build the native core, or only say whether it is in step with its sources."""
    parser = argparse.ArgumentParser(prog="build_native", description=__doc__)
    parser.add_argument("--check", action="store_true", help="build nothing; 1 if out of step")
    if parser.parse_args(argv).check:
        command = [sys.executable, "-c", _BUILT]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return int(done.stdout.strip() != sources_hash())
    return build()


if __name__ == "__main__":
    sys.exit(main())
