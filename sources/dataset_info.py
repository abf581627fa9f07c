"""Splits in `dataset_info.json`, the file that tfds writes into the folder of a dataset.

Invariant: nothing is read here. Content in any other form than tfds writes raises an error.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, Final

INFO: Final = "dataset_info.json"
_TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@dataclasses.dataclass(frozen=True, slots=True)
class TfdsSplit:
    """One split, with the lengths of its shards and the pattern of their names."""

    name: str
    shard_lengths: tuple[int, ...]
    template: str = _TEMPLATE

    @property
    def records(self) -> int:
        """Number of records in the split."""
        return sum(self.shard_lengths)


def splits_of(info: object) -> Iterator[TfdsSplit]:
    """Yields the splits in `info`, the content of the file. Some splits may have no lengths.

    Raises:
        ValueError, KeyError, TypeError: If the content is not in the form that tfds writes.
    """
    if not isinstance(info, dict):
        raise TypeError("it is not a JSON object")
    for split in info.get("splits", ()):
        lengths = tuple(map(int, split.get("shardLengths", ())))
        if not isinstance(split["name"], str) or min(lengths, default=0) < 0:
            raise ValueError(f"split {split['name']!r:.80} is not a split of tfds")
        template = split.get("filepathTemplate") or _TEMPLATE
        if not isinstance(template, str):
            raise TypeError(f"filepathTemplate {template!r:.80} is not a string")
        yield TfdsSplit(split["name"], lengths, template)


def json_object(raw: bytes | None) -> dict[str, Any]:
    """The JSON object in `raw`; empty if it contains no JSON object."""
    try:
        value = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
