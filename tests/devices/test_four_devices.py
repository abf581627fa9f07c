"""Processes for tests of devices: one with four virtual ones, in which tests run, and some without JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import windrow
from windrow.errors import MissingExtraError

ROOT = Path(__file__).resolve().parents[2]
FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}


ALONE = """
import warnings
import jax, numpy as np, windrow
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
warnings.simplefilter("error")
rows = {"n": 2**40 + np.arange(4), "x": np.linspace(0, 1, 4)}
(batch,) = windrow.MapDataset.source(rows).batch(4).to_jax(SingleDeviceSharding(jax.devices()[0]))
print({name: str(leaf.dtype) for name, leaf in batch.items()})
print(all(np.array_equal(batch[name], rows[name]) for name in rows))
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
rows = windrow.MapDataset.source(np.zeros((64, 4096), np.float32)).repeat().batch(32)
left = [iter(rows.to_jax(sharding)) for _ in range(3)]
print(sum(next(batches).shape[0] for batches in left))
"""


def test_a_program_has_leaves_of_64_bits_and_ends_while_batches_are_on_their_way() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=ROOT,
        env={**os.environ, **FOUR, "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "{'n': 'int64', 'x': 'float64'}\nTrue\n96\n"


def run_on_four_devices(*options: str, **environment: str) -> str:
    """What pytest says about the tests of several devices."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/devices/on_four_devices.py", *options],
        cwd=ROOT,
        env={**os.environ, **FOUR, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_that_needs_four_devices() -> None:
    run_on_four_devices()


@pytest.mark.jobs
def test_nothing_remains_of_a_thousand_iterators() -> None:
    said = run_on_four_devices("-s", "-k", "nothing_remains", WINDROW_REBUILDS="1000")
    assert "1000 rebuilds" in said


# --- without JAX -----------------------------------------------------------------------------------


def test_without_jax_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("windrow.devices")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "windrow.jax_dataset", raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(
        MissingExtraError, match=r"to_jax needs the packages of windrow-data\[jax\]"
    ):
        windrow.MapDataset.range(8).batch(4).to_jax(None)


def test_other_iterators_do_not_import_jax() -> None:
    program = (
        "import sys, windrow; list(windrow.MapDataset.range(9).batch(2));"
        "assert not {'jax', 'windrow.devices'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
