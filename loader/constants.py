"""Keys of an element's metadata in dicts, under the name that Grain has for them.

Windrow itself puts none of them into elements.
"""

from typing import Final

DATASET_INDEX: Final = "_dataset_index"
EPOCH: Final = "_epoch"
INDEX: Final = "_index"
RECORD: Final = "_record"
RECORD_KEY: Final = "_record_key"
SEED: Final = "_seed"
META_FEATURES: Final = frozenset({DATASET_INDEX, EPOCH, INDEX, RECORD, RECORD_KEY, SEED})

__all__ = ["DATASET_INDEX", "EPOCH", "INDEX", "META_FEATURES", "RECORD", "RECORD_KEY", "SEED"]
