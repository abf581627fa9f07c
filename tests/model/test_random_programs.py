"""Random programs against the model: values, random access, states, batch sizes, workers and shards."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from tests.model import programs
from tests.model.methods import MAKE_STREAMS, MAP, MAPS, STREAM, STREAMS, filled, over
from tests.model.programs import Outcome, outcome, product

SOURCES = ("numbers", "columns", "words", "ragged", "stored", "stored_ragged", "packed")
ENDLESS = r"repeat\(\)|at_end='repeat'"
SEEDS = st.integers(0, 9)
PAIR = "MapDataset.zip([MapDataset.source(stored(3)).repeat(2), MapDataset.source(stored(3)).repeat(2)])"
ZIPPED = f"MapDataset.zip([{PAIR}, {PAIR}])"


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@st.composite
def leaves(draw: st.DrawFn) -> str:
    """A source of any kind and length."""
    name = draw(st.sampled_from(("range", *SOURCES)))
    length = draw(st.integers(0, 20))
    return (
        f"MapDataset.range({length})" if name == "range" else f"MapDataset.source({name}({length}))"
    )


def is_built(text: str) -> bool:
    """Whether Windrow takes a program; one that fails from inside is kept, to be reported."""
    if re.search("stored|packed", text) and "shuffle" in text and re.search(ENDLESS, text):
        return False  # thousands of epochs of a few records are planned ahead, 1 ms each
    found = outcome(lambda: product(text), lambda dataset: ())
    return found.error is None or not programs.is_documented(found.error)


@st.composite
def grown(draw: st.DrawFn, text: str, *, stream: bool, most: int) -> str:
    """A program with more methods; those that are refused are left out again."""
    methods, several = (STREAM, STREAMS) if stream else (MAP, MAPS)
    names = [n for n in (*methods, *several) if n not in MAKE_STREAMS and n != "shard"]
    for _ in range(draw(st.integers(0, most))):
        name = draw(st.sampled_from(names))
        if name in several:
            other = draw(leaves())
            other += ".to_iter_dataset()" if stream else ""
            longer = over(several[name], text, other)
        else:
            longer = text + filled(methods[name], draw(st.integers(1, 6)), draw(SEEDS))
        text = longer if is_built(longer) else text
    return text


@st.composite
def map_programs(draw: st.DrawFn, most: int = 4) -> str:
    return draw(grown(draw(leaves()), stream=False, most=most))


@st.composite
def stream_programs(draw: st.DrawFn, most: int = 3) -> str:
    text = draw(map_programs(most=2))
    maker = draw(st.sampled_from(sorted(MAKE_STREAMS, reverse=True)))
    lanes = draw(st.sampled_from([1, 2, 4])) if maker == "to_iter lanes" else 1
    made = f".to_iter_dataset(lanes={lanes})" if maker == "to_iter lanes" else filled(MAP[maker])
    text += made if is_built(text + made) else ".to_iter_dataset()"
    return draw(grown(text, stream=True, most=most))


ALL = map_programs() | stream_programs()


def fail(text: str, how: str) -> None:
    pytest.fail(f"{programs.pasted(text)}\n{text}\n  {how}", pytrace=False)


def agree(text: str, how: str | None) -> None:
    if how:
        fail(text, how)


def expected_of(text: str) -> Outcome:
    """What the model gives, or Windrow itself where the pages leave it open."""
    found = programs.modelled(text)
    return outcome(lambda: product(text)) if found is None else found


@hypothesis.settings(max_examples=examples(200))
@hypothesis.given(text=ALL)
def test_elements_are_those_of_the_model(text: str) -> None:
    agree(text, programs.checked(text))
    agree(text, programs.misdescribed(text))


@hypothesis.settings(max_examples=examples(150))
@hypothesis.given(text=map_programs(), indices=st.lists(st.integers(-30, 60), max_size=5))
def test_random_access_is_that_of_the_model(text: str, indices: list[int]) -> None:
    agree(text, programs.accessed(text, indices))


@hypothesis.settings(max_examples=examples(100))
@hypothesis.given(text=ALL, ahead=st.integers(0, 3))
def test_states_skip_and_seek_resume_at_every_step(text: str, ahead: int) -> None:
    agree(text, programs.resumed(text, ahead))


@hypothesis.settings(max_examples=examples(100))
@hypothesis.given(text=ALL)
def test_records_are_those_of_the_model(text: str) -> None:
    agree(text, programs.recorded(text))


@hypothesis.settings(max_examples=examples(100))
@hypothesis.given(
    text=ALL,
    sizes=st.tuples(st.sampled_from([4, 8, 12]), st.sampled_from([4, 8, 12])),
    end=st.sampled_from(["", ", drop_remainder=True", ", remainder='pad'"]),
)
@hypothesis.example("MapDataset.source(words(11)).map(bad)", (4, 4), ", drop_remainder=True")
def test_a_state_resumes_under_another_size_of_the_last_batch(
    text: str, sizes: tuple[int, int], end: str
) -> None:
    hypothesis.assume(is_built(f"{text}.batch({sizes[0]}{end})"))
    agree(text, programs.resized(text, sizes, end))


@hypothesis.settings(max_examples=examples(150))
@hypothesis.given(
    text=ALL,
    size=st.sampled_from([4, 8]),
    end=st.sampled_from(["", ", drop_remainder=True", ", remainder='pad'"]),
    more=st.data(),
)
def test_shards_put_together_are_the_whole(
    text: str, size: int, end: str, more: st.DataObject
) -> None:
    text += f".batch({size}{end})"
    text += ".shard(index, count)"
    hypothesis.assume(is_built(text))
    stream = ".batch" in text and hasattr(product(text), "rebatch")
    text = more.draw(grown(text, stream=stream, most=2), label="program")
    agree(text, programs.checked(text))
    agree(text, programs.merged(text))


@hypothesis.settings(max_examples=examples(4))
@hypothesis.given(text=ALL, workers=st.integers(1, 2))
def test_workers_give_the_same_stream(text: str, workers: int) -> None:
    agree(
        text,
        programs.difference(expected_of(text), outcome(lambda: product(text).mp_prefetch(workers))),
    )


@pytest.mark.filterwarnings("error::RuntimeWarning")
@hypothesis.settings(max_examples=examples(10))
@hypothesis.given(text=ALL)
@hypothesis.example(text="MapDataset.source(packed(0))")
@hypothesis.example(text="MapDataset.source(stored(1)).repeat(2, reseed_each_epoch=False)")
@hypothesis.example(text=ZIPPED)
def test_explain_returns_and_counts(text: str) -> None:
    agree(text, programs.explained(text))


# Rows that are tuples and numbers, which no function of NumPy joins.
MIXED = (
    "MapDataset.concatenate([MapDataset.range(1).random_map(noisy, seed=0), MapDataset.range(1)])"
    ".to_iter_dataset().random_map(noisy, seed=0).map(plus, batched=True)"
)


# What hunts found: a batch of lists, of which a shard may have no rows; the last batch of an endless
# dataset; rows of which the last is shorter; streams that are empty, or shorter, since a function
# gives None; padding after batches of two trees; a last batch of a shorter list; packed items of two
# shapes; packed tuples of values of several shapes, and values of two dtypes; and an empty sequence after
# a row that is full.
@pytest.mark.parametrize(
    "text",
    [
        "MapDataset.range(1).batch(1, batch_fn=list).batch(4).shard(index, count)",
        "MapDataset.range(1).repeat().batch(4).shard(index, count)[::-1]",
        "MapDataset.range(17).to_iter_dataset().batch(2).batch(4).shard(index, count)",
        "MapDataset.range(1).map(gone).to_iter_dataset().batch(4).shard(index, count)",
        "MapDataset.range(5).map(gone).to_iter_dataset().batch(4).shard(index, count)",
        "MapDataset.range(9).map(gone).to_iter_dataset(lanes=2).batch(4).shard(index, count)",
        "IterDataset.mix([MapDataset.range(4).to_iter_dataset(),"
        " MapDataset.source(columns(1)).to_iter_dataset()], Schedule([(0, [1, 0]), (3, [1, 2])]))"
        ".batch(4, remainder='pad').shard(index, count)",
        "MapDataset.range(17).batch(2, batch_fn=list).to_iter_dataset().batch(4).shard(index, count)",
        "MapDataset.range(17).batch(2).to_iter_dataset().batch(4, remainder='pad').shard(index, count)",
        "MapDataset.range(17).batch(2, batch_fn=list).to_iter_dataset().batch(4, remainder='pad')"
        ".shard(index, count)",
        "MapDataset.range(3).batch(2).batch(1).to_iter_dataset().map(as_x)"
        ".pack({'x': 8}, 'concat_then_split')",
        "IterDataset.zip([MapDataset.source(ragged(1)).to_iter_dataset(allow_nones=True),"
        " MapDataset.range(1).to_iter_dataset()], strict=False).map(as_x)"
        ".pack({'x': 8}, 'concat_then_split').batch(4).shard(index, count)",
        "MapDataset.zip([MapDataset.source(packed(3)), MapDataset.source(stored(3))])"
        ".batch(2, batch_fn=list).to_iter_dataset().map(as_x)"
        ".pack({'x': 8}, 'first_fit', num_packing_bins=2, shuffle_bins=False)",
        "MapDataset.mix([MapDataset.source(stored(3)), MapDataset.source(columns(3))]).map(gone)"
        ".to_iter_dataset().map(as_x)"
        ".pack({'x': 8}, 'first_fit', num_packing_bins=2, shuffle_bins=False)",
        "MapDataset.mix([MapDataset.source(ragged(3)), MapDataset.source(ragged(3))])"
        ".to_iter_dataset().map(as_x).pack({'x': 8}, 'concat_then_split').batch(4)",
        "MapDataset.range(17).batch(1, batch_fn=list).apply([Declared(), transforms.Batch(2)])"
        ".to_iter_dataset(allow_nones=True).batch(4, remainder='pad').shard(index, count)",
        "MapDataset.range(3).map(gone).repeat(2).batch(1, batch_fn=list).batch(4).shard(index, count)",
        "MapDataset.range(6).map(gone).to_iter_dataset(lanes=2).limit(4)",
        "MapDataset.source(stored(18)).repeat().to_iter_dataset().repeat().flat_map(several).batch(4)"
        ".shard(index, count).repeat().filter(keep)",
        "MapDataset.range(17).repeat().batch(3).to_iter_dataset().batch(8, drop_remainder=True)"
        ".shard(index, count).filter(keep)",
        MIXED + ".batch(4).shard(index, count)",
        MIXED + ".batch(4, remainder='pad').shard(index, count)",
        "MapDataset.mix([MapDataset.range(4).random_map(noisy, seed=0), MapDataset.range(1)],"
        " at_end='drop').to_iter_dataset().random_map(noisy, seed=0).map(plus, batched=True)"
        ".batch(4).shard(index, count)",
        "MapDataset.mix([MapDataset.range(4).random_map(noisy, seed=0), MapDataset.range(1)],"
        " Schedule([(0, [1, 0]), (3, [1, 2])])).to_iter_dataset().random_map(noisy, seed=0)"
        ".map(plus, batched=True).batch(4).shard(index, count)",
        MIXED + ".batch(2).rebatch(3).shard(index, count)",
    ],
)
def test_programs_that_hunts_found(text: str) -> None:
    agree(text, programs.checked(text))
    agree(text, programs.merged(text))


# A zip of groups that end in the middle of a block; a skip that ends before an element that fails; and rows
# of batches of batches.
@pytest.mark.parametrize(
    "text",
    [
        "IterDataset.zip([MapDataset.source(numbers(1)).to_iter_dataset().repeat(2)"
        ".map(plus, batched=True)])",
        "MapDataset.concatenate([MapDataset.source(stored(3)), MapDataset.source(numbers(17))])"
        ".to_iter_dataset().rebatch(6, drop_remainder=True).rebatch(2, drop_remainder=True)",
        "MapDataset.range(4).to_iter_dataset().batch(2).map(plus).batch(2).rebatch(1)",
        "MapDataset.range(4).batch(2).batch(2).to_iter_dataset().rebatch(1)",
        "MapDataset.range(4).batch(2).to_iter_dataset().batch(2).batch(1)",
        "MapDataset.range(3).batch(2, remainder='pad').batch(1).to_iter_dataset().batch(2).batch(1)",
        "MapDataset.range(20).batch(3).seed(4).to_iter_dataset().rebatch(4)",
        "MapDataset.source(stored(5)).repeat(3).batch(3).batch(4).to_iter_dataset().rebatch(4)",
        "MapDataset.concatenate([MapDataset.range(8).batch(2).batch(2), MapDataset.range(4).batch(2)"
        ".batch(1)]).to_iter_dataset().rebatch(3)",
        "MapDataset.range(3).batch(4).map(total).repeat(2).batch(3).to_iter_dataset().rebatch(2)",
        "IterDataset.zip([MapDataset.range(4).to_iter_dataset().batch(2), MapDataset.range(4).batch(2)"
        ".to_iter_dataset()]).rebatch(1)",
        "MapDataset.zip([MapDataset.source(numbers(8)), MapDataset.range(16).batch(2)])"
        ".to_iter_dataset().rebatch(1)",
        "IterDataset.zip([MapDataset.source(stored(3)).batch(3).to_iter_dataset(),"
        " MapDataset.range(3).batch(3).to_iter_dataset()]).batch(3, remainder='pad').rebatch(1)",
    ],
)
def test_records_and_states_of_programs_that_hunts_found(text: str) -> None:
    agree(text, programs.recorded(text))
    agree(text, programs.resumed(text, 1))
