"""The elements of a dict of arrays are dicts."""

import numpy as np

from windrow import MapDataset


def mean(image: np.ndarray) -> float:
    return float(image.mean())


MapDataset.source({"image": np.zeros((3, 8, 8))}).map(mean)  # error: arg-type, reportArgumentType
