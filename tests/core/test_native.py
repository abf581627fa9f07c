"""The native core: there where cargo is, of the sources as they are, and never a panic in Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zarr

from tests.array_record_bytes import needs_core, write
from tools.build_native import sources_hash
from windrow.core import native


def printed_by(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo builds the native core")
def test_core_is_there_and_of_these_sources() -> None:
    program = "from windrow.core import native; print(native.native().SOURCES)"
    assert printed_by(program, WINDROW_NATIVE="").strip() == sources_hash()


def test_environment_switches_the_core_off_silently() -> None:
    program = "from windrow.core import native; print(native.native())"
    assert printed_by(program, WINDROW_NATIVE="0") == "None\n"


def test_missing_core_is_one_warning() -> None:
    program = (
        "import sys; sys.modules['windrow.core._native'] = None\n"
        "from windrow.core import native; print(native.native(), native.native())"
    )
    printed = printed_by(program, WINDROW_NATIVE="", PYTHONWARNINGS="always")
    assert printed.startswith("None None\n")
    assert printed.count("native core cannot be imported") == 1
    assert "rustup.rs" in printed
    assert "WINDROW_NATIVE=0" in printed


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Zarr array and an ArrayRecord file."""
    folder = tmp_path_factory.mktemp("stores")
    zarr.create_array(folder / "a", shape=(4, 2), chunks=(2, 2), dtype="u1")
    write(folder / "b.array_record", [b"a record"])
    return folder


WITHOUT_CORE = "import sys; sys.modules['windrow.core._native'] = None\n"


@pytest.mark.jobs
@pytest.mark.parametrize("setting", ["", "0"])
def test_missing_core_is_named_in_the_repr(stores: Path, setting: str) -> None:
    program = (
        f"{WITHOUT_CORE}from windrow.sources import ArrayRecordDataSource, ZarrDataSource\n"
        f"print(ZarrDataSource({str(stores / 'a')!r}))\n"
        f"print(ArrayRecordDataSource({str(stores / 'b.array_record')!r}))"
    )
    printed = printed_by(program, WINDROW_NATIVE=setting)
    assert "read by TensorStore (without the native core))" in printed
    assert f"in {stores}, read without the native core)" in printed


@pytest.mark.jobs
def test_missing_core_is_named_by_inspect(stores: Path) -> None:
    said = "without Windrow's native core, so local data is read more slowly"
    commands = [["inspect", str(stores / name)] for name in ("a", "b.array_record")]
    program = "from windrow.cli.main import main\n"
    each = "".join(f"main({command!r})\n" for command in commands)
    assert printed_by(WITHOUT_CORE + program + each).count(said) == 2
    quiet = "".join(f"main({[*command, '--quiet']!r})\n" for command in commands)
    assert said not in printed_by(WITHOUT_CORE + program + quiet)


@needs_core
def test_panic_is_an_exception() -> None:
    core = native.native()
    assert core is not None
    with pytest.raises(RuntimeError, match="a bug in Windrow's native core: asked for"):
        core.panic_for_test()
