"""The language of tfds' splits: the records of a string, parts of equal size, and what is refused."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.errors import NotFoundError, PlanError, WindrowError
from windrow.sources.tfds.splits import Split, SplitRange, even_splits, split_ranges

SHARDS = {"train": (60, 40), "test": (7,), "empty": ()}


def ranges(split: Split, shards: Any = SHARDS) -> list[tuple[str, int, int]]:
    return [(found.split, found.start, found.stop) for found in split_ranges(split, shards)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train", [("train", 0, 100)]),
        ("empty", [("empty", 0, 0)]),
        ("train[:80%]", [("train", 0, 80)]),
        ("train[12.5%:]", [("train", 12, 100)]),
        ("test[:50%]", [("test", 0, 4)]),
        ("test[50%:]", [("test", 4, 7)]),
        ("train[-25%:]", [("train", 75, 100)]),
        ("train[10:20%]", [("train", 10, 20)]),
        ("train[1_0:-1_0]", [("train", 10, 90)]),
        ("train[100:]", [("train", 100, 100)]),
        ("train[:0]", [("train", 0, 0)]),
        ("train[0shard]", [("train", 0, 60)]),
        ("train[-1shard]", [("train", 60, 100)]),
        ("train[:1shard]", [("train", 0, 60)]),
        ("train[1shard:]", [("train", 60, 100)]),
        ("train[:-1shard]", [("train", 0, 60)]),
        ("train[10%:20%] +test", [("train", 10, 20), ("test", 0, 7)]),
        ("test+test", [("test", 0, 7)] * 2),
        ("all", [("train", 0, 100), ("test", 0, 7), ("empty", 0, 0)]),
    ],
)
def test_what_a_text_names(text: str, expected: list[tuple[str, int, int]]) -> None:
    assert ranges(text) == expected


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("valid", NotFoundError, "there is no split 'valid'; there is train, test, empty"),
        ("", PlanError, "'' is not a split; write a split"),
        (" train", PlanError, "' train' is not a split"),
        ("train[1:2", PlanError, r"'train\[1:2' is not a split"),
        ("train[:]", PlanError, r"\[:\] names no records"),
        ("train[1:2:3]", PlanError, r"\[1:2:3\] names no records"),
        ("train[5]", PlanError, r"\[5\] is one number, which counts shards only"),
        ("train[5%]", PlanError, r"\[5%\] is one number"),
        ("train[1.5:]", PlanError, "is not a whole number, or a share"),
        ("train[1.5.5%:]", PlanError, "is not a number"),
        ("train[:101]", PlanError, "is not of 100 records"),
        ("train[-101:]", PlanError, "is not of 100 records"),
        ("train[:101%]", PlanError, "is not between -100% and 100%"),
        ("train[:3shard]", PlanError, "is not of 2 shards"),
        ("train[2shard]", PlanError, "is not of 2 shards"),
        ("train[:0shard]", PlanError, "ends at shard 0, where tfds takes every shard"),
        ("train[10%:1shard]", PlanError, "has two units"),
        ("train[80%:20%]", PlanError, "ends at record 20, before it begins at 80"),
        ("test[-1%:]", PlanError, "less than half a record from the end, of 7 records"),
        ("all[:50%]", PlanError, r"write the part of each: train\[:50%\]\+test\[:50%\]"),
    ],
)
def test_what_is_refused(text: str, error: type[WindrowError], match: str) -> None:
    with pytest.raises(error, match=match):
        ranges(text)


def test_a_name_goes_before_what_it_could_be_read_as() -> None:
    shards = {"a+b": (3,), "a": (1,), "b": (2,), "all": (5,)}
    assert ranges("a+b", shards) == [("a+b", 0, 3)]
    assert ranges("all", shards) == [("all", 0, 5)]
    assert ranges("b+a", shards) == [("b", 0, 2), ("a", 0, 1)]


def test_even_splits_of_several_and_of_parts() -> None:
    first, second = even_splits("train[:10]+test", 2)
    assert ranges(first) == [("train", 0, 5), ("test", 0, 4)]
    assert ranges(second) == [("train", 5, 10), ("test", 4, 7)]
    assert ranges(even_splits(second, 3)[2]) == [("train", 9, 10), ("test", 6, 7)]
    assert ranges(first + "test") == [*ranges(first), ("test", 0, 7)]
    assert ranges("test" + second + first) == [("test", 0, 7), *ranges(second), *ranges(first)]
    assert pickle.loads(pickle.dumps(first + "test")) == first + "test"
    assert str(first + "test") == "part 0 of 2 of train[:10]+test + test"
    assert len({first, second, *even_splits("train[:10]+test", 2)}) == 2


# ---- next to tfds

_BOUNDS = st.one_of(
    st.just(""),
    st.integers(-120, 120).map(str),
    st.floats(-101, 101).map(lambda number: f"{number:.1f}"),
    st.sampled_from(["1_0", "5.", "."]),
).flatmap(lambda value: st.sampled_from([value, f"{value}%", f"{value}shard"]))
_TERMS = st.one_of(
    st.sampled_from(["train", "test", "all", "none", " train", "train[:", "train[ :2]"]),
    st.builds("{}[{}:{}]".format, st.sampled_from(["train", "test"]), _BOUNDS, _BOUNDS),
    st.builds("{}[{}]".format, st.sampled_from(["train", "all"]), _BOUNDS),
)
_TEXTS = st.lists(_TERMS, min_size=1, max_size=3).flatmap(
    lambda terms: st.sampled_from(["+", " + "]).map(lambda mark: mark.join(terms))
)
_LENGTHS = st.lists(st.integers(0, 100), min_size=1, max_size=4)
# What tfds takes and is refused here on purpose.
_REFUSED = re.compile(
    "before it begins|two units|ends at shard 0|is not of [0-9,]+ shards|less than half a record"
)


@pytest.mark.tfds
@settings(max_examples=2000)
@given(
    text=_TEXTS,
    train=_LENGTHS,
    test=_LENGTHS,
    part=st.none() | st.tuples(st.integers(1, 5), st.booleans()),
)
def test_texts_are_those_of_tfds(
    text: str, train: list[int], test: list[int], part: tuple[int, bool] | None
) -> None:
    import tensorflow_datasets as tfds

    shards = {"train": train, "test": test}
    infos = tfds.core.splits.SplitDict(
        tfds.core.SplitInfo(name=name, shard_lengths=lengths, num_bytes=0)
        for name, lengths in shards.items()
    )
    ours: list[Split] = [text]
    theirs: list[Any] = [text]
    if part is not None:
        count, drop = part
        ours = [*even_splits(text, count, drop_remainder=drop)]
        theirs = tfds.even_splits(text, count, drop_remainder=drop)
    for one, other in zip(ours, theirs, strict=True):
        try:
            found = split_ranges(one, shards)
        except WindrowError as error:
            refused = str(error)
        else:
            assert found == _of_tfds(other, infos)
            continue
        if _REFUSED.search(refused):
            continue
        try:
            _of_tfds(other, infos)
        except (ValueError, KeyError, NotImplementedError, AssertionError):
            continue
        pytest.fail(f"tfds takes {text!r}, and here it is refused: {refused}")


def _of_tfds(split: Any, infos: Any) -> list[SplitRange]:
    import tensorflow_datasets as tfds

    found = tfds.core.splits._make_absolute_instructions(infos.values(), split)
    return [
        SplitRange(
            one.splitname,
            one.from_ or 0,
            infos[one.splitname].num_examples if one.to is None else one.to,
        )
        for one in found
    ]
