"""The program on the page about converters runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import zarr

from windrow.converters import Manifest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "converters.md"


def test_the_program_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "program"}
    exec(program, names)
    assert capsys.readouterr().out.startswith("1000 ['digits.array_record-00000-of-00004', ")
    assert Manifest.read("digits_array_record").records == 1000
    images = zarr.open_array("digits_zarr/image", mode="r")[...]
    assert np.array_equal(np.asarray(images), np.asarray(names["images"]))
