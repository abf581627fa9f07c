"""JAX is an extra, imported only where it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import windrow
from windrow.errors import MissingExtraError


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
