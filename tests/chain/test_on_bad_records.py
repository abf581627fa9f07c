"""Records that came in place of bad ones, in the file of bad records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chain.test_on_bad import BAD, COUNT, checked, numbers
from windrow import MapDataset


def replaced(**more: Any) -> MapDataset[int]:
    return numbers().shuffle(seed=1).map(checked).on_bad("replace", **more)


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_file_of_bad_records_names_what_came_instead(tmp_path: Path, lanes: int) -> None:
    log = tmp_path / "bad.jsonl"
    dataset = replaced(log=log)
    list(replaced(log=tmp_path / "other").block_shuffle(seed=2, block=4, window_blocks=2))
    found = [int(number) for number in dataset]
    log.unlink()
    list(dataset.to_iter_dataset(lanes=lanes))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == len(BAD)
    for line in lines:
        assert line["instead"][0]["records"] == [found[line["element"]]]
        assert line["sources"][0]["records"][0] in BAD


class CountingReads:
    """Numbers, with the indices of each read."""

    def __init__(self) -> None:
        self.reads: list[list[int]] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        self.reads.append(list(indices))
        return list(indices)


def test_all_replacements_of_a_read_are_one_read() -> None:
    source = CountingReads()
    dataset = MapDataset.source(source).map(checked).on_bad("replace")
    found = dataset.read(range(COUNT))
    assert not BAD & set(found)
    bad = [sum(n in BAD for n in read) for read in source.reads]
    assert bad[0] == len(BAD)
    assert bad[-1] == 0
    # Each later read is one call, for all records that were still bad.
    assert [len(read) for read in source.reads[1:]] == bad[:-1]
