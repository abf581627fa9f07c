"""The pictures of shuffling: a tiny run trains, reports and draws."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import shuffling
from tests.pictures import ROOT, check_that_the_extra_is_named, width_and_height

pytestmark = pytest.mark.jobs

PICTURES = {"shuffle_orders": (1380, 420), "shuffle_quality": (1380, 600), "shuffle_losses": (1380, 600)}  # fmt: skip


def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pictures"
    assert shuffling.main(["--small", "--folder", str(folder)]) == 0
    told = capsys.readouterr().out
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", told, re.MULTILINE)
    assert [name for name, *_ in rows] == list(shuffling.SMALL.orders())
    shuffled, windows, plain = (float(ratio) for _, _, ratio, _ in rows)
    assert shuffled < windows < plain
    assert {path.stem: width_and_height(path) for path in folder.iterdir()} == PICTURES


def test_the_digits_are_sorted_and_those_of_the_test_are_others() -> None:
    train, test = shuffling.digits()
    assert train["image"].shape == (13_500, 64)
    assert (np.diff(train["label"]) >= 0).all()
    assert (test["image"].shape, len(test["label"])) == ((297, 64), 297)
    shown = {image.tobytes() for image in train["image"]}
    assert sum(image.tobytes() in shown for image in test["image"]) < 10


def test_the_network_steps_down_the_gradient() -> None:
    _, test = shuffling.digits()
    images, labels = test["image"][:64], test["label"][:64]
    network = shuffling.Network(1)
    losses = []
    for _ in range(60):
        losses.append(network.loss(images, labels))
        network.learn(images, labels, 0.3)
    assert losses[0] == pytest.approx(np.log(10), rel=0.2)
    assert losses[-1] < 0.5
    # The first step is as long as the gradient says: half the rate, half the way.
    drops = []
    for rate in (1e-3, 2e-3):
        fresh = shuffling.Network(1)
        before = fresh.loss(images, labels)
        fresh.learn(images, labels, rate)
        drops.append(before - fresh.loss(images, labels))
    assert drops[1] == pytest.approx(2 * drops[0], rel=0.05)


def test_the_page_has_the_pictures_and_a_row_for_each_order() -> None:
    page = (ROOT / "docs" / "shuffling.md").read_text(encoding="utf-8")
    for name, size in PICTURES.items():
        assert width_and_height(ROOT / "docs" / "images" / f"{name}.png") == size
        assert f"](images/{name}.png)" in page
    table = page.partition("<!-- losses -->")[2].partition("<!-- end of losses -->")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines()[3:]]
    assert rows == [f"| {name}" for name in shuffling.Sizes().orders()]


def test_the_losses_of_a_run() -> None:
    found = shuffling.losses_of(shuffling.Sizes(seeds=1, epochs=1, test_every=100, windows=()))
    assert {name: [len(curve) for curve in each] for name, each in found["curves"].items()} == {
        name: [3] for name in ("global shuffle", "no shuffle")
    }
    assert found["steps"] == [0, 100, 200]


def test_without_matplotlib_the_extra_is_named() -> None:
    check_that_the_extra_is_named("benchmarks.shuffling")
