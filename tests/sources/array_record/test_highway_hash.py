"""HighwayHash-64 of many messages: the core and Python give the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from windrow.core.native import native
from windrow.sources.array_record import highway_hash
from windrow.sources.array_record.highway_hash import hashes

pytestmark = pytest.mark.skipif(native() is None, reason="without the native core")


def test_hashes_of_any_messages_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    # Every length to four packets, and more messages than are hashed by one thread.
    lengths = [*range(130), *(draw.choice((32, 33, 40, 64)) for _ in range(2049))]
    data = draw.randbytes(9_000)
    starts = np.array([draw.randrange(9_000 - length) for length in lengths], np.int64)
    stops = starts + np.array(lengths)
    by_core = hashes(memoryview(data), starts, stops)
    alone = [int(hashes(data, starts[k : k + 1], stops[k : k + 1])[0]) for k in range(130)]
    assert by_core[:130].tolist() == alone
    assert by_core[0] == 0x72C3B1E9C0139FE1  # the hash of nothing is in every file
    monkeypatch.setattr(highway_hash, "native", lambda: None)
    assert hashes(data, starts, stops).tolist() == by_core.tolist()


@pytest.mark.parametrize("with_core", [True, False])
def test_places_outside_of_the_data(with_core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_core:
        monkeypatch.setattr(highway_hash, "native", lambda: None)
    for start, stop in ((0, 301), (-1, 5), (9, 8)):
        with pytest.raises(IndexError, match="outside of the 300 bytes"):
            hashes(bytes(300), np.array([0, start]), np.array([0, stop]))
