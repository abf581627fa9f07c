"""Draws the picture of a report that docs/report.md shows, in a Chromium without a window.

    CHROMIUM="$(sh tools/find_chromium.sh)" python -m tools.picture_report docs/images/report.png

The chain is one over a month of temperatures (examples/data), and its loop takes their mean.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import playwright.sync_api
from PIL import Image

import windrow
from windrow.sources import ArraySpec, ZarrDataSource

STORE: Final = Path(__file__).parent.parent / "examples" / "data" / "era5_uk_t2m_2019_03.zarr"
# From the first of these to the last.
COLUMNS: Final = (("header", "#plan"), ("#costs", "#time"), ("#order", "#elements"))
_WIDTH_PX: Final = 620
_GAP_PX: Final = 36
_EPOCHS: Final = 20


class Celsius:
    """Kelvin to degrees Celsius, with a little noise; it tells what it makes."""

    def __call__(self, element: Any, rng: np.random.Generator) -> Any:
        """One field."""
        noise = rng.normal(scale=0.1, size=element["t2m"].shape)
        return {"t2m": (element["t2m"] - 273.15 + noise).astype(np.float32)}

    def output_spec(self, spec: Any) -> Any:
        """The same shape and dtype."""
        return {"t2m": ArraySpec(spec["t2m"].shape, np.float32)}


def run(store: Path) -> windrow.DatasetIterator[Any]:
    """An iterator that a loop has taken 20 epochs of batches from."""
    source = ZarrDataSource(str(store), names=["t2m"])
    fields = windrow.MapDataset.source(source).block_shuffle(seed=1, window_blocks=4)
    dataset = fields.random_map(Celsius(), seed=2).repeat(_EPOCHS).batch(16)
    iterator: windrow.DatasetIterator[Any] = iter(dataset)
    mean = np.zeros((33, 49), np.float32)
    for batch in iterator:
        mean += 0.01 * (batch["t2m"].mean(axis=0) - mean)
    return iterator


def picture(page: Path) -> Image.Image:
    """A page in three columns."""
    with playwright.sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"]
        )
        window = chromium.new_page(viewport={"width": _WIDTH_PX, "height": 900})
        window.goto(page.resolve().as_uri())
        window.wait_for_selector("html[data-drawn]", state="attached")
        columns = [_column(window, parts) for parts in COLUMNS]
        chromium.close()
    high = max(column.height for column in columns)
    wide = sum(column.width for column in columns) + _GAP_PX * (len(columns) - 1)
    whole = Image.new("RGB", (wide, high), "white")
    left = 0
    for column in columns:
        whole.paste(column, (left, 0))
        left += column.width + _GAP_PX
    return whole


def _column(window: playwright.sync_api.Page, parts: Sequence[str]) -> Image.Image:
    """What the page shows from the top of the first part to the end of the last."""
    boxes = [box for part in parts if (box := window.locator(part).bounding_box())]
    top, low = boxes[0]["y"], boxes[-1]["y"] + boxes[-1]["height"]
    top = max(0.0, top - _GAP_PX / 2)
    area = {"x": 0, "y": top, "width": _WIDTH_PX, "height": low - top}
    shot = window.screenshot(full_page=True, clip=area)  # type: ignore[arg-type]
    return Image.open(io.BytesIO(shot)).convert("RGB")


def main(path: str) -> None:
    """Draw the picture at `path`."""
    with tempfile.TemporaryDirectory() as folder:
        # The page tells where the store is: not where this checkout is.
        store = shutil.copytree(STORE, Path(folder) / "t2m.zarr")
        page = windrow.report(run(store), Path(folder) / "r.html", title="A month of temperatures")
        # Few colours: a quarter of the bytes, and nothing that is seen is lost.
        picture(page).quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
