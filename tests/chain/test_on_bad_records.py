"""Records that came in place of bad ones, in the file of bad records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chain.test_on_bad import BAD, checked, numbers
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
