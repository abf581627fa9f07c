"""Folders of TensorFlow Datasets as a source."""

from windrow.sources.tfds.source import TFDSDataSource
from windrow.sources.tfds.splits import even_splits

__all__ = ["TFDSDataSource", "even_splits"]
