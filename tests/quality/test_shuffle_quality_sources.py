"""Shuffle quality of each source's own records: by hand, by closed forms, and where it is shown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.report_pages import Page
from windrow import MapDataset
from windrow.quality.batch_sample import MOST_SOURCES
from windrow.quality.shuffle_quality import SourceQuality
from windrow.stats.costs import Amount


def own(dataset: Any, batch_size: int | None = None, **asked: Any) -> tuple[SourceQuality, ...]:
    return windrow.shuffle_quality(dataset, batch_size, **asked).sources


def known(amount: Amount | None) -> Amount:
    assert amount is not None
    return amount


def in_order(records: int, batch: int) -> float:
    """The ratio of records that come in order, where batches part them evenly."""
    return batch * (records + batch) / (records + 1)


# --- by hand -------------------------------------------------------------------------------------


def by_hand(batches: list[list[int]], block: int) -> tuple[float | None, float, float, float]:
    """Return ratio, blocks, blocks if shuffled, and records of one source's records in batches."""
    parts = [rows for rows in batches if rows]
    records = sorted(rank for rows in parts for rank in rows)
    count, mean = len(records), sum(records) / len(records)
    variance = sum((rank - mean) ** 2 for rank in records) / count
    sizes = [sum(rank // block == at for rank in records) for at in {r // block for r in records}]
    ratios, different, expected = [], [], []
    for rows in parts:
        size = len(rows)
        allowed = variance / size * (count - size) / max(1, count - 1)
        ratios.append((sum(rows) / size - mean) ** 2 / allowed if allowed else None)
        different.append(len({rank // block for rank in rows}))
        none = [math.comb(count - n, size) / math.comb(count, size) for n in sizes]
        expected.append(sum(1 - p for p in none))
    ratio = None if None in ratios else sum(r or 0.0 for r in ratios) / len(parts)
    return ratio, *(sum(each) / len(parts) for each in (different, expected, map(len, parts)))  # type: ignore[return-value]


@given(data=st.data(), first=st.integers(1, 30), second=st.integers(1, 30))
def test_any_order_is_what_counting_by_hand_gives(
    data: st.DataObject, first: int, second: int
) -> None:
    order = data.draw(st.permutations(range(first + second)))
    taken = order[: data.draw(st.integers(2, len(order)))]
    size, block = data.draw(st.integers(1, len(taken))), data.draw(st.integers(1, 12))
    both = MapDataset.concatenate([MapDataset.range(first), MapDataset.range(second)])
    found = own(both.slice(taken).batch(size), block=block)
    batches = [taken[at : at + size] for at in range(0, len(taken), size)]
    parts = [
        [[rank for rank in rows if rank < first] for rows in batches],
        [[rank - first for rank in rows if rank >= first] for rows in batches],
    ]
    parts = [part for part in parts if any(part)]
    assert len(found) == len(parts)
    for one, part in zip(found, parts, strict=True):
        ratio, different, expected, each = by_hand(part, block)
        assert one.records == sum(map(len, part))
        assert one.per_batch.low == pytest.approx(each)
        assert known(one.blocks_per_batch).low == pytest.approx(different)
        assert known(one.blocks_per_batch_shuffled).low == pytest.approx(expected)
        if ratio is None:
            assert one.variance_ratio is None
        else:
            assert known(one.variance_ratio).is_exact
            assert known(one.variance_ratio).low == pytest.approx(ratio, abs=1e-9)


def test_a_batch_that_has_all_records_of_a_source_has_no_ratio() -> None:
    both = MapDataset.concatenate([MapDataset.range(14), MapDataset.range(11)])
    found = own(both.batch(14), block=1)
    assert [one.records for one in found] == [14, 11]
    assert [one.variance_ratio for one in found] == [None, None]


# --- closed forms --------------------------------------------------------------------------------


def test_sources_of_a_mixture_have_their_own_orders() -> None:
    one, other = MapDataset.range(2_000), MapDataset.range(2_000).shuffle(4)
    ordered, shuffled = own(MapDataset.mix([one, other]).batch(40), block=50)
    # Half of each batch: 20 records of each.
    assert (ordered.per_batch, shuffled.per_batch) == (Amount(20, 20), Amount(20, 20))
    assert known(ordered.variance_ratio).low == pytest.approx(in_order(2_000, 20), rel=0.02)
    assert 1.0 in known(shuffled.variance_ratio)
    assert known(shuffled.variance_ratio).high < 1.2
    drawn = 40 * (1 - math.comb(1_950, 20) / math.comb(2_000, 20))
    for found in (ordered, shuffled):
        assert known(found.blocks_per_batch_shuffled).low == pytest.approx(drawn)
    assert known(ordered.blocks_per_batch).high < 1.5
    assert drawn in known(shuffled.blocks_per_batch)


def test_sources_one_after_the_other_are_told_each_by_its_batches() -> None:
    both = MapDataset.concatenate([MapDataset.range(640), MapDataset.range(960)])
    found = own(both.batch(32), block=32)
    for one, records in zip(found, (640, 960), strict=True):
        assert (one.records, one.per_batch) == (records, Amount.exactly(32))
        assert known(one.variance_ratio) == Amount.exactly(known(one.variance_ratio).low)
        assert known(one.variance_ratio).low == pytest.approx(in_order(records, 32))
        assert one.blocks_per_batch == Amount.exactly(1)
        assert one.blocks == records // 32


def test_a_zip_tells_each_of_its_datasets() -> None:
    images = MapDataset.source(np.zeros((640, 2)))
    labels = MapDataset.source(np.zeros(640)).shuffle(1)
    ordered, shuffled = own(MapDataset.zip([images, labels]).batch(32))
    assert ordered.per_batch == Amount(32, 32)
    assert known(ordered.variance_ratio).middle == pytest.approx(in_order(640, 32))
    assert 1.0 in known(shuffled.variance_ratio)


def test_a_long_mixture_is_looked_at_here_and_there() -> None:
    one, other = MapDataset.range(30_000_000), MapDataset.range(30_000_000)
    mixed = MapDataset.mix([one.block_shuffle(1, block=100, window_blocks=16), other]).batch(64)
    blocks, ordered = own(mixed, block=100)
    # A batch has 32 records of a window of 16 blocks: about 1 + 31 / 16.
    assert known(blocks.variance_ratio).low < 1 + 31 / 16 < known(blocks.variance_ratio).high
    assert in_order(30_000_000, 32) == pytest.approx(known(ordered.variance_ratio).middle, rel=0.2)
    assert known(ordered.blocks_per_batch_shuffled).low == pytest.approx(32, rel=0.01)
    assert blocks.records == pytest.approx(30_000_000, rel=0.01)


# --- when there is nothing to distinguish --------------------------------------------------------


def test_one_source_is_told_once() -> None:
    data = MapDataset.source(np.zeros(100))
    assert own(data.batch(10)) == ()
    assert own(MapDataset.mix([data.shuffle(1), data.shuffle(2)]).batch(10)) == ()
    assert own(list(range(100)), 10) == ()


def test_very_many_sources_are_told_as_a_whole() -> None:
    many = [MapDataset.range(10) for _ in range(MOST_SOURCES + 1)]
    assert own(MapDataset.concatenate(many).batch(10)) == ()
    assert len(own(MapDataset.concatenate(many[1:]).batch(10))) == MOST_SOURCES


# --- where it is shown ---------------------------------------------------------------------------


def test_each_source_has_a_line_and_its_figures_in_json(tmp_path: Path) -> None:
    both = MapDataset.concatenate([MapDataset.range(640), MapDataset.range(320)]).batch(32)
    found = windrow.shuffle_quality(both, block=32)
    shuffled = 20 * (1 - math.comb(608, 32) / math.comb(640, 32))
    assert (
        f"  range(0, 640, 1): 32 of a batch's records, of 1 of 20 blocks, under a global shuffle of it"
        f" {shuffled:.1f}, variance ratio {in_order(640, 32):.1f}"
    ) in str(found).splitlines()
    plain = json.loads(json.dumps(found.to_json()))["sources"]
    assert [each["source"] for each in plain] == ["range(0, 640, 1)", "range(0, 320, 1)"]
    assert plain[0]["blocks_per_batch"] == {"low": 1, "high": 1}
    assert plain[0]["variance_ratio"]["low"] == pytest.approx(in_order(640, 32))
    lines = [line.strip() for line in str(windrow.shuffle_quality(both)).splitlines()]
    assert sum(line.startswith("range(0, ") for line in lines) == 2
    printed = both.explain().details()
    assert all(f"  - {line}" in printed for line in lines)
    page = Page(windrow.report(both, tmp_path / "page.html", elements=0))
    assert set(lines[1:]) <= set(page.words)
