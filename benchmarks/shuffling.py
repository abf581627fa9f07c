"""`python -m benchmarks.shuffling`: what orders look like, what their numbers are, what they cost a model.

Three pictures for docs/shuffling.md, in docs/images: which record comes at which position; the two
numbers of `windrow.shuffle_quality` over window sizes; and the losses of a small network that is
trained on digits that are sorted by class, in several orders, of several seeds each. The figures go to
stdout as a table. Nothing is timed, so that any machine will do; it takes a minute or two.

The network is of NumPy alone: 64 inputs, 64 hidden units, 10 classes, plain gradient descent. The
digits come from scikit-learn, 1,500 to train on and 297 to test on. The first come with
their neighbours of one pixel in eight directions, which makes 13,500, sorted by class.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

import windrow
from windrow.errors import missing_extra

try:
    from sklearn.datasets import load_digits

    from benchmarks import shuffling_pictures
except ImportError as error:
    raise missing_extra("benchmarks.shuffling", "bench") from error

Array: TypeAlias = npt.NDArray[Any]
Chain: TypeAlias = windrow.MapDataset[Any]

_PICTURES = Path(__file__).parents[1] / "docs" / "images"
_TRAINED_ON = 1_500
_SHIFTS = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
_HIDDEN = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """How much is trained, and in which orders.

    Args:
        seeds: Runs of each order.
        epochs: Of each run.
        test_every: Training steps between two looks at the test data.
        batch_size: Digits in a batch.
        block: Digits of a block, as of a chunk of a store.
        windows: Blocks of a window of the block shuffles, from the largest.
        rate: Of the gradient descent.
    """

    seeds: int = 8
    epochs: int = 12
    test_every: int = 20
    batch_size: int = 64
    block: int = 100
    windows: tuple[int, ...] = (64, 16, 4, 1)
    rate: float = 0.3

    def orders(self) -> dict[str, Callable[[Chain, int], Chain]]:
        """The orders that are compared, from the best shuffled to the one that is not."""
        blocks = {
            f"block_shuffle, windows of {window} block{'s' if window > 1 else ''}": functools.partial(
                _in_blocks, block=self.block, window=window
            )
            for window in self.windows
        }
        return {
            "global shuffle": lambda data, seed: data.shuffle(seed),
            **blocks,
            "no shuffle": lambda data, seed: data,
        }


def _in_blocks(data: Chain, seed: int, *, block: int, window: int) -> Chain:
    return data.block_shuffle(seed, block=block, window_blocks=window)


SMALL: Final = Sizes(seeds=2, epochs=1, test_every=60, windows=(16,))


# --- the data ------------------------------------------------------------------------------------


def digits() -> tuple[dict[str, Array], dict[str, Array]]:
    """Digits to train on, sorted by class, and digits to test on: float32 images and labels."""
    told = load_digits()
    images, labels = (told.images / 16).astype(np.float32), told.target.astype(np.int64)
    drawn = np.random.default_rng(0).permutation(len(labels))
    train, test = drawn[:_TRAINED_ON], drawn[_TRAINED_ON:]
    padded = np.pad(images[train], ((0, 0), (1, 1), (1, 1)))
    moved = [padded[:, 1 + y : 9 + y, 1 + x : 9 + x] for y, x in _SHIFTS]
    every = np.concatenate(moved).reshape(-1, 64)
    classes = np.tile(labels[train], len(_SHIFTS))
    sorted_by_class = np.lexsort((np.random.default_rng(1).random(len(classes)), classes))
    return (
        {"image": every[sorted_by_class], "label": classes[sorted_by_class]},
        {"image": images[test].reshape(-1, 64), "label": labels[test]},
    )


# --- the network ---------------------------------------------------------------------------------


class Network:
    """Two layers, trained by plain gradient descent on the cross-entropy of the classes."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._first = random.normal(0, 64**-0.5, (64, _HIDDEN)).astype(np.float32)
        self._second = random.normal(0, _HIDDEN**-0.5, (_HIDDEN, 10)).astype(np.float32)
        self._biases = np.zeros(_HIDDEN, np.float32), np.zeros(10, np.float32)

    def _forward(self, images: Array) -> tuple[Array, Array]:
        hidden = np.maximum(0, images @ self._first + self._biases[0])
        scores = hidden @ self._second + self._biases[1]
        scores -= scores.max(axis=1, keepdims=True)
        logs: Array = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return hidden, logs

    def loss(self, images: Array, labels: Array) -> float:
        """The mean cross-entropy."""
        _, logs = self._forward(images)
        return float(-logs[np.arange(len(labels)), labels].mean())

    def learn(self, images: Array, labels: Array, rate: float) -> None:
        """One step down the gradient of the loss of a batch."""
        hidden, logs = self._forward(images)
        wrong = np.exp(logs)
        wrong[np.arange(len(labels)), labels] -= 1
        wrong *= rate / len(labels)
        below = (wrong @ self._second.T) * (hidden > 0)
        self._second -= hidden.T @ wrong
        self._first -= images.T @ below
        for bias, change in zip(self._biases, (below, wrong), strict=True):
            bias -= change.sum(axis=0)


def trained(batches: Chain, test: dict[str, Array], sizes: Sizes, seed: int) -> list[float]:
    """The losses on the test data while a network is trained on batches."""
    network = Network(seed)
    losses = [network.loss(test["image"], test["label"])]
    for step, batch in enumerate(batches, 1):
        network.learn(batch["image"], batch["label"], sizes.rate)
        if step % sizes.test_every == 0:
            losses.append(network.loss(test["image"], test["label"]))
    return losses


# --- the figures ---------------------------------------------------------------------------------


def losses_of(sizes: Sizes) -> shuffling_pictures.Losses:
    """The losses of every order and seed, with the quality of the order."""
    train, test = digits()
    data = windrow.MapDataset.source(train)
    curves: dict[str, list[list[float]]] = {}
    quality: dict[str, dict[str, Any]] = {}
    turns = [(*order, seed) for order in sizes.orders().items() for seed in range(sizes.seeds)]
    for name, order, seed in (bar := tqdm(turns, unit="run", disable=None)):
        bar.set_description(name)
        batches = order(data, 1_000 * seed).batch(sizes.batch_size, drop_remainder=True)
        if not seed:
            quality[name] = windrow.shuffle_quality(batches, block=sizes.block).to_json()
        losses = trained(batches.repeat(sizes.epochs), test, sizes, seed)
        curves.setdefault(name, []).append(losses)
    steps = [sizes.test_every * k for k in range(len(losses))]
    return {"steps": steps, "curves": curves, "quality": quality}


def table(found: shuffling_pictures.Losses) -> str:
    """The figures as lines of Markdown."""
    lines = [
        "| order | blocks in a batch | variance ratio | loss at the end | worst of the seeds |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, curves in found["curves"].items():
        quality = found["quality"][name]
        blocks, ratio = quality["blocks_per_batch"], quality["variance_ratio"]
        ends = shuffling_pictures.at_the_end(curves)
        lines.append(
            f"| {name} | {blocks:.1f} | {ratio:.2f} | {np.median(ends):.3f} | {max(ends):.3f} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shuffling")
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument(
        "--folder", type=Path, default=_PICTURES, help="where PNG files go [docs/images]"
    )
    args = parser.parse_args(argv)
    found = losses_of(SMALL if args.small else Sizes())
    print(table(found))
    windows = (1, 256) if args.small else shuffling_pictures.WINDOWS
    shuffling_pictures.draw(args.folder, found, windows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
