"""The dataset of `benchmarks.tfds`: raw pictures of 3 KB and labels, as many as the environment says.

A builder as one writes it for `tfds build benchmarks/tfds_pictures.py`. Making an example costs next
to nothing, so that what is measured is what tfds and Windrow do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import tensorflow_datasets as tfds

EXAMPLES_VARIABLE: Final = "WINDROW_BENCHMARK_EXAMPLES"
SHAPE: Final = (32, 32, 3)
CLASSES: Final = 10
_DIFFERENT: Final = 1000


class TfdsPictures(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc] # tfds has no types
    """Pictures that compress a little, all different, and their labels."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        image = tfds.features.Tensor(
            shape=SHAPE, dtype=np.uint8, encoding=tfds.features.Encoding.BYTES
        )
        label = tfds.features.ClassLabel(num_classes=CLASSES)
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict({"image": image, "label": label})
        )

    def _split_generators(self, dl_manager: Any) -> Mapping[str, Any]:
        return {"train": self._generate_examples(int(os.environ[EXAMPLES_VARIABLE]))}

    def _generate_examples(self, examples: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        steps = np.random.default_rng(0).integers(-2, 3, (_DIFFERENT, int(np.prod(SHAPE))))
        base = steps.cumsum(axis=1).astype(np.uint8).reshape(-1, *SHAPE)
        for number in range(examples):
            image = base[number % _DIFFERENT] + np.uint8(number // _DIFFERENT)
            yield number, {"image": image, "label": number % CLASSES}
