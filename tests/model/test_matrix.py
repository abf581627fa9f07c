"""Every method after every method: what the model gives, or a refusal, and never an error from inside.

Of both datasets, in streams with lanes and without, over and under mixtures, zips and interleavings, and
after a shard.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import hypothesis
import pytest

from tests.hypothesis_profiles import HUNT
from tests.model import programs
from tests.model.methods import (
    ALIKE,
    MAKE_STREAMS,
    MAP,
    MAPS,
    OF_LENGTHS,
    STREAM,
    STREAMS,
    filled,
    over,
)

NUMBERS = ("MapDataset.source(numbers(13))", "MapDataset.source(numbers(6))")
ROWS = ("MapDataset.source(ragged(9))", "MapDataset.source(ragged(4))")
# The last size of a batch is divided among 2, 4 and 8 processes.
SHARDED = ".batch(8).shard(index, count)"


def after(parts: tuple[str, str], name: str, *, stream: bool) -> tuple[str, str]:
    """Two datasets with one more method, or the two of which each is made."""
    one, other = parts
    methods, several = (STREAM, STREAMS) if stream else (MAP, MAPS)
    if name in methods:
        return one + filled(methods[name]), other + filled(methods[name])
    return over(several[name], one, other), over(several[name], other, one)


def seconds(parts: tuple[str, str], *, stream: bool) -> Iterator[str]:
    """All methods after a dataset; in a hunt those too that differ from another in little."""
    is_hunt = hypothesis.settings.default is hypothesis.settings.get_profile(HUNT)
    for name in (*STREAM, *STREAMS) if stream else (*MAP, *MAPS):
        if name in ALIKE and not is_hunt:
            continue
        yield after(parts, name, stream=stream)[0]


def source_for(name: str) -> tuple[str, str]:
    return ROWS if name in OF_LENGTHS else NUMBERS


def compare(texts: Iterator[str]) -> None:
    """Fails with the programs that differ from the model."""
    logging.disable(logging.WARNING)
    try:
        found = [(text, programs.checked(text)) for text in texts]
    finally:
        logging.disable(logging.NOTSET)
    wrong = [f"{text}\n  {how}" for text, how in found if how]
    if wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)


@pytest.mark.parametrize("name", [*MAP, *MAPS])
def test_every_method_after_a_map_dataset(name: str) -> None:
    made = after(source_for(name), name, stream=False)
    compare(seconds(made, stream=name in MAKE_STREAMS))


@pytest.mark.parametrize("opening", ["", "lanes=2"])
@pytest.mark.parametrize("name", [*STREAM, *STREAMS])
def test_every_method_after_a_stream(name: str, opening: str) -> None:
    one, other = source_for(name)
    parts = (f"{one}.to_iter_dataset({opening})", f"{other}.to_iter_dataset({opening})")
    compare(seconds(after(parts, name, stream=True), stream=True))


@pytest.mark.parametrize("name", [*MAP, *MAPS])
def test_every_method_of_a_map_dataset_after_a_shard(name: str) -> None:
    one, other = source_for(name)
    text = after((one + SHARDED, other + SHARDED), name, stream=False)[0]
    compare(iter([text]))


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", [*STREAM, *STREAMS])
def test_every_method_of_a_stream_after_a_shard(name: str, lanes: int) -> None:
    one, other = source_for(name)
    end = f".to_iter_dataset(lanes={lanes}){SHARDED}"
    text = after((one + end, other + end), name, stream=True)[0]
    compare(iter([text]))
