"""Pictures of three shapes under noise, as a dataset of TensorFlow Datasets: no network, no files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow_datasets as tfds

SIDE = 16
NAMES = ["disc", "square", "cross"]
SIZES = {"train": 2000, "test": 400}


class Shapes(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc] # tfds has no types
    """A picture, what it shows, and where its middle is."""

    VERSION = tfds.core.Version("1.0.0")
    # Zarr has the pictures decoded.
    also_zarr: ClassVar[Mapping[str, bool]] = {"images": True}

    def _info(self) -> Any:
        features = {
            "image": tfds.features.Image(shape=(SIDE, SIDE, 1), encoding_format="png"),
            "label": tfds.features.ClassLabel(names=NAMES),
            "middle": tfds.features.Tensor(shape=(2,), dtype=np.float32),
        }
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> Mapping[str, Any]:
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        rng = np.random.default_rng(list(SIZES).index(split))
        for number in range(SIZES[split]):
            label = int(rng.integers(len(NAMES)))
            middle = rng.uniform(6, SIDE - 6, 2).astype(np.float32)
            image = drawn(NAMES[label], middle, rng)
            yield f"{split}-{number}", {"image": image, "label": label, "middle": middle}


def drawn(
    name: str, middle: npt.NDArray[np.float32], rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """A picture, uint8 `(16, 16, 1)`."""
    across, down = np.abs(np.indices((SIDE, SIDE)) - middle[:, None, None])
    inside = {
        "disc": across**2 + down**2 < 18,
        "square": np.maximum(across, down) < 3.5,
        "cross": (np.minimum(across, down) < 1.2) & (np.maximum(across, down) < 5),
    }[name]
    noise = rng.integers(0, 128, (SIDE, SIDE))
    picture: npt.NDArray[np.uint8] = (noise + 127 * inside).astype(np.uint8)
    return picture[..., None]
