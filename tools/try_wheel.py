"""Builds the sdist and the wheel into `dist/` and tries them as a new user meets them.

1. The wheel is built from the sdist, so the sdist is complete enough to build from.
2. The wheel holds the modules of the four folders, the stubs of facades, `DATA`, the native core
   where cargo can build it, and nothing else.
3. The sdist holds every file of the examples, tests, benchmarks and tools, and of the crate.
4. In a clean environment with no extras, and from a directory outside the checkout, the wheel
   imports, runs a chain, and names the extra to install where one is missing. It is the same chain
   with and without the native core.
5. In another clean environment, where Rust cannot be found, the sdist is installed without the native
   core. It warns about that once, and runs the same chain.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.forward_types import ROOT, modules, package_folders

CRATE = ROOT / "loader" / "core" / "native"
DATA = ("py.typed", "reporting/report.html")  # files of packages that are not modules
CORE = "windrow/core/_native.abi3.so"
# PYTHONPATH could offer the checkout's modules in place of what was installed.
ENVIRONMENT = {
    key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "WINDROW_NATIVE")
}
# What the crate needs was compiled for the checkout's own environment.
ENVIRONMENT["CARGO_TARGET_DIR"] = str(CRATE / "target")
SOURCE_FOLDERS = ("benchmarks", "examples", "tests", "tools")

# Runs in the clean environment: it may use the standard library and windrow alone.
TRIAL = """
import importlib, pathlib, sys, warnings

packages, modules, checkout = sys.argv[1].split(","), sys.argv[2].split(","), sys.argv[3]
wanted_core, wanted_warnings = sys.argv[4], int(sys.argv[5])
warned = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, *args, **kwargs: warned.append(str(message))
for name in packages:
    file = pathlib.Path(importlib.import_module(name).__file__).resolve()
    assert not file.is_relative_to(checkout), f"{name} comes from the checkout: {file}"

from windrow.errors import MissingExtraError

without_extra = []
for name in modules:
    try:
        importlib.import_module(name)
    except MissingExtraError as error:
        assert "pip install" in str(error), f"{name}: {error}"
        without_extra.append(name)

import numpy as np
import windrow

dataset = windrow.MapDataset.source(np.arange(10)).shuffle(seed=1).map(lambda x: x + 1).batch(4)
batches = [batch.tolist() for batch in dataset]
assert [len(batch) for batch in batches] == [4, 4, 2], batches
assert sorted(sum(batches, [])) == list(range(1, 11)), batches
from windrow.core.native import native

core = "with" if native() else "without"
assert core == wanted_core, f"the native core: {core} it, in place of {wanted_core} it"
warned = [message for message in warned if "native core cannot be imported" in message]
assert len(warned) == wanted_warnings, f"not {wanted_warnings} warnings: {warned}"
print(f"tried {len(packages)} packages and {len(modules)} modules {core} the native core", end="")
print(f"; an extra is needed for {', '.join(without_extra)}" if without_extra else "")
"""


class TrialError(Exception):
    """What was built is not what a user needs."""


def build(out: Path) -> tuple[Path, Path]:
    """Paths of the sdist and of the wheel built from it, alone in the folder `out`."""
    shutil.rmtree(out, ignore_errors=True)
    # It remembers the files of former builds: an sdist made with it hides what a fresh one lacks.
    shutil.rmtree(ROOT / "windrow.egg-info", ignore_errors=True)
    run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], "build")
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def run(
    command: Sequence[str],
    what: str,
    cwd: Path = ROOT,
    environment: Mapping[str, str] = ENVIRONMENT,
) -> str:
    """Standard output of `command`.

    Raises:
        TrialError: If the command fails; its output is in the message.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )
    if done.returncode:
        raise TrialError(f"{what}: failed with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def compare(what: str, wanted: set[str], got: set[str]) -> None:
    """Check that two sets of file names are the same.

    Raises:
        TrialError: If they differ; the message names the files.
    """
    if wanted != got:
        raise TrialError(
            f"{what}: wrong files\n"
            f"  missing:   {', '.join(sorted(wanted - got)) or 'none'}\n"
            f"  not asked: {', '.join(sorted(got - wanted)) or 'none'}"
        )


def files_of(module: Path) -> list[Path]:
    """The file of a module, and its stub if it is a facade, which lists its names there."""
    stub = module.with_suffix(".pyi")
    return [module, stub] if (ROOT / stub).exists() else [module]


def check_wheel(wheel: Path) -> None:
    """Check that the wheel holds the modules, `DATA` and the native core, and nothing else."""
    folders = package_folders()
    wanted = {f"windrow/{path}" for path in DATA} | ({CORE} if shutil.which("cargo") else set())
    for name, path in modules().items():
        package = name if name in folders else name.rpartition(".")[0]
        for file in files_of(path):
            wanted.add(f"{package.replace('.', '/')}/{file.name}")
    with zipfile.ZipFile(wheel) as archive:
        got = {name for name in archive.namelist() if ".dist-info/" not in name}
    compare(wheel.name, wanted, got)


def check_sdist(sdist: Path) -> None:
    """Check that the sdist holds the modules, and all files beside them that a user may run."""
    wanted = {file.as_posix() for path in modules().values() for file in files_of(path)}
    wanted |= {f"loader/{path}" for path in DATA}
    for folder in (*(ROOT / name for name in SOURCE_FOLDERS), CRATE):
        wanted.update(
            path.relative_to(ROOT).as_posix()
            for path in folder.rglob("*")
            if path.is_file() and not {"__pycache__", "target", "fuzz"} & set(path.parts)
        )
    with tarfile.open(sdist) as archive:
        got = {member.name.partition("/")[2] for member in archive if member.isfile()}
    folders = (*SOURCE_FOLDERS, *package_folders().values())
    compare(sdist.name, wanted, {name for name in got if name.partition("/")[0] in folders})


def without_rust(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment in which neither the PATH nor `home`, which is empty, has cargo or rustc."""
    kept = {
        key: value for key, value in environment.items() if not key.startswith(("CARGO", "RUST"))
    }
    kept["PATH"] = os.pathsep.join(
        folder
        for folder in environment.get("PATH", os.defpath).split(os.pathsep)
        if not any(shutil.which(program, path=folder) for program in ("cargo", "rustc"))
    )
    # The user's settings of pip are kept.
    kept.setdefault("XDG_CONFIG_HOME", str(Path.home() / ".config"))
    kept["HOME"] = kept["USERPROFILE"] = str(home)
    return {**kept, "WINDROW_FETCH_RUST": "0"}


def install(package: Path, work: Path, environment: Mapping[str, str] = ENVIRONMENT) -> Path:
    """The interpreter of a clean environment under `work` that has the package without extras."""
    venv.create(work / "venv", with_pip=True)
    python = work / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [str(python), "-m", "pip", "install", "-qq", "--no-input", "--no-compile", str(package)]
    run(pip, f"install {package.name}", work, environment)
    return python


def trial(
    python: Path,
    work: Path,
    environment: Mapping[str, str] = ENVIRONMENT,
    *,
    has_core: bool,
    warnings: int = 0,
) -> str:
    """The output that the trial must have: whether the core is there, and how many warnings came."""
    core = "with" if has_core else "without"
    names = [",".join(package_folders()), ",".join(modules())]
    command = [str(python), "-c", TRIAL, *names, str(ROOT), core, str(warnings)]
    return run(command, f"trial {core} the core", work, environment)


def try_wheel(wheel: Path, work: Path) -> str:
    """What the trials of the wheel print, in a clean environment under `work`."""
    python = install(wheel, work)
    has_core = shutil.which("cargo") is not None
    switched_off = {**ENVIRONMENT, "WINDROW_NATIVE": "0"}
    return trial(python, work, has_core=has_core, warnings=0 if has_core else 1) + trial(
        python, work, switched_off, has_core=False
    )


def try_sdist(sdist: Path, work: Path) -> str:
    """What the trial of the sdist prints, in a clean environment under `work` without Rust."""
    home = work / "home"
    home.mkdir()
    environment = without_rust(ENVIRONMENT, home)
    # What it needs was downloaded for the wheel.
    cache = run([sys.executable, "-m", "pip", "cache", "dir"], "pip cache dir").strip()
    environment.setdefault("PIP_CACHE_DIR", cache)
    python = install(sdist, work, environment)
    return trial(python, work, environment, has_core=False, warnings=1)


def main(argv: Sequence[str] | None = None) -> int:
    """Build, check and try; one line per step."""
    parser = argparse.ArgumentParser(
        prog="try_wheel", description="Build and try the sdist and the wheel."
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder to build into")
    out: Path = parser.parse_args(argv).out
    try:
        print(f"Building into {out} ...", flush=True)
        sdist, wheel = build(out)
        check_wheel(wheel)
        check_sdist(sdist)
        print(f"Trying {wheel.name} in a clean environment ...", flush=True)
        with tempfile.TemporaryDirectory() as work:
            print(try_wheel(wheel, Path(work)), end="", flush=True)
        print(f"Trying {sdist.name} in a clean environment without Rust ...", flush=True)
        with tempfile.TemporaryDirectory() as work:
            print(try_sdist(sdist, Path(work)), end="")
    except TrialError as error:
        print(f"try_wheel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
