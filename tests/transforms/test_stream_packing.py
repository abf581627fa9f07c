"""Packing of streams: Grain's rows, bit for bit, and restored from every step."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import grain
import numpy as np
import pytest
from grain import experimental
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.hypothesis_profiles import examples
from windrow.errors import ArgumentError, ElementError, PlanError
from windrow.sources import ArraySpec

GRAINS: dict[str, Any] = {
    "first_fit": experimental.FirstFitPackIterDataset,
    "best_fit": experimental.BestFitPackIterDataset,
    "concat_then_split": experimental.ConcatThenSplitIterDataset,
}


def element(lengths: tuple[int, int, int]) -> dict[str, Any]:
    """Sequences of some lengths, a scalar and a name, which say where they come from."""
    x, y, number = lengths
    return {
        "x": np.arange(x) + 100 * number + 1,
        "y": np.full((y, 2), number + 1, np.int16),
        "label": number,
        "name": f"element {number}",
    }


@dataclasses.dataclass(frozen=True)
class Case:
    """Lengths of `x` and `y` of each element, and how they are packed."""

    lengths: tuple[tuple[int, int], ...]
    length_struct: Mapping[str, Any]
    method: str
    options: Mapping[str, Any]

    def elements(self) -> list[dict[str, Any]]:
        """The elements, with the features of `length_struct` and the meta features."""
        keys = {*self.length_struct, *self.options.get("meta_features", ())}
        made = (element((x, y, k)) for k, (x, y) in enumerate(self.lengths))
        return [{key: value for key, value in each.items() if key in keys} for each in made]

    def ours(self) -> windrow.IterDataset[Any]:
        """The rows."""
        stream = windrow.MapDataset.source(self.elements()).to_iter_dataset()
        return stream.pack(self.length_struct, self.method, **self.options)  # type: ignore[arg-type]

    def grains(self) -> list[Any]:
        """Grain's rows."""
        options = dict(self.options)
        if "bos_token_id" in options:
            options["bos_handling"] = experimental.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS
        stream = grain.MapDataset.source(self.elements()).to_iter_dataset()
        return list(GRAINS[self.method](stream, length_struct=self.length_struct, **options))


@st.composite
def fits(draw: st.DrawFn) -> Case:
    struct = {"x": draw(st.integers(4, 20))}
    if draw(st.booleans()):
        struct["y"] = draw(st.integers(4, 20))
    if draw(st.booleans()):
        struct["label"] = draw(st.integers(1, 6))
    size = st.tuples(st.integers(0, struct["x"]), st.integers(0, struct.get("y", 9)))
    options: dict[str, Any] = {
        "num_packing_bins": draw(st.integers(1, 5)),
        "seed": draw(st.integers(0, 99)),
        "shuffle_bins": draw(st.booleans()),
        "max_sequences_per_bin": draw(st.none() | st.integers(1, 4)),
        "meta_features": draw(st.sampled_from([(), ("name",), ("label",)])),
    }
    if draw(st.booleans()):
        options["pack_alignment_struct"] = {key: draw(st.integers(1, 4)) for key in struct}
    if draw(st.booleans()):
        options["padding_struct"] = {key: draw(st.integers(-3, 3)) for key in struct}
    if draw(st.booleans()):
        options["shuffle_bins_group_by_feature"] = "x"
    method = draw(st.sampled_from(["first_fit", "best_fit"]))
    return Case(tuple(draw(st.lists(size, max_size=40))), struct, method, options)


@st.composite
def splits(draw: st.DrawFn) -> Case:
    size = st.tuples(st.integers(0, 30), st.just(0))
    struct = {"x": draw(st.integers(1, 12))}
    options: dict[str, Any] = {"split_full_length_features": draw(st.booleans())}
    if draw(st.booleans()):
        struct["label"] = draw(st.integers(1, 5))
        options["meta_features"] = ("label",)
    if draw(st.booleans()):
        options |= {"bos_token_id": 7, "bos_features": ("x",)}
        size = st.tuples(st.integers(1, 30), st.just(0))
    return Case(tuple(draw(st.lists(size, max_size=25))), struct, "concat_then_split", options)


def same(found: Any, expected: Any) -> None:
    """Rows are equal to the bit."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[key].dtype == value.dtype, key
            np.testing.assert_array_equal(found[key], value, key)
        else:
            assert found[key] == value, key


@settings(max_examples=examples(80), deadline=None)
@given(case=fits() | splits())
def test_rows_are_grains(case: Case) -> None:
    found, expected = list(case.ours()), case.grains()
    assert len(found) == len(expected)
    for ours, grains in zip(found, expected, strict=True):
        same(ours, grains)


@settings(max_examples=examples(40), deadline=None)
@given(case=fits() | splits(), step=st.integers(0, 30), repeats=st.booleans())
def test_rows_after_a_restore_are_the_rest(case: Case, step: int, repeats: bool) -> None:
    dataset = case.ours()
    dataset = dataset.repeat(2).filter(lambda row: True) if repeats else dataset
    expected = list(dataset)
    iterator = iter(dataset)
    for _ in range(min(step, len(expected))):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    again = iter(dataset)
    again.set_state(state)
    rest = list(again)
    assert len(rest) == len(expected[step:])
    for found, wanted in zip(rest, expected[step:], strict=True):
        same(found, wanted)


@pytest.mark.parametrize("method", ["first_fit", "best_fit"])
def test_a_meta_feature_may_be_a_dict(method: Any) -> None:
    elements = [
        {"x": np.arange(n), "about": {"source": n, "spans": {"at": np.arange(n % 3)}}}
        for n in range(1, 9)
    ]
    struct: Any = {"x": 10, "about": {"source": 4, "spans": {"at": 6}}}
    arguments: dict[str, Any] = {
        "meta_features": ("about",),
        "num_packing_bins": 2,
        "padding_struct": {"x": 0, "about": {"source": -1, "spans": {"at": -2}}},
    }
    stream = windrow.MapDataset.source(elements).to_iter_dataset()
    ours = stream.pack(struct, method, **arguments)
    theirs = grain.MapDataset.source(elements).to_iter_dataset()
    grains = GRAINS[method](theirs, length_struct=struct, **arguments)
    np.testing.assert_equal(list(ours), list(grains))
    assert "{x: 10, padding=0, about/source: 4, meta, padding=-1, about/spans/at: 6" in str(ours)
    made = windrow.MapDataset.source({"x": np.zeros((4, 3)), "about": {"at": np.zeros(4, np.int8)}})
    packed = made.to_iter_dataset().pack(
        {"x": 8, "about": {"at": 5}}, num_packing_bins=2, meta_features=("about",)
    )
    assert packed.element_spec["about"] == {"at": ArraySpec((5,), np.int8)}


def test_every_token_of_two_features_comes_once() -> None:
    # Grain repeats tokens of a feature where an element is cut twice by another one.
    case = Case(((25, 5), (3, 9), (14, 2)), {"x": 6, "y": 7}, "concat_then_split", {})
    rows = list(case.ours())
    for key in ("x", "y"):
        tokens = [row[key][row[f"{key}_segment_ids"] > 0] for row in rows]
        expected = [each[key] for each in case.elements()]
        np.testing.assert_array_equal(np.concatenate(tokens), np.concatenate(expected))


@pytest.mark.parametrize(
    ("struct", "method", "options", "error"),
    [
        ({"x": 4}, "worst_fit", {}, PlanError),
        ({"x": 4}, "first_fit", {}, PlanError),
        ({"x": 4}, "concat_then_split", {"seed": 1}, PlanError),
        ({"x": 0}, "concat_then_split", {}, PlanError),
        ({}, "concat_then_split", {}, ArgumentError),
        ({"x": 4}, "concat_then_split", {"bos_token_id": 1}, PlanError),
        ({"x": 4}, "best_fit", {"num_packing_bins": 0}, PlanError),
        ({"x": {"y": 4}}, "best_fit", {"num_packing_bins": 1}, PlanError),
        ({"x": {"y": 4}}, "concat_then_split", {"meta_features": ("x",)}, PlanError),
        (
            {"x": {"y": 4}, "z": 4},
            "best_fit",
            {
                "num_packing_bins": 1,
                "meta_features": ("x",),
                "shuffle_bins_group_by_feature": "x",
            },
            PlanError,
        ),
        ({"x": 4}, "best_fit", {"num_packing_bins": 1, "padding_struct": {"z": 1}}, PlanError),
    ],
)
def test_wrong_arguments(struct: Any, method: str, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Case((), struct, method, options).ours()


@pytest.mark.parametrize(
    ("struct", "message"),
    [
        ({"x": 4}, "'x' of an element has length 5, and a row has 4 cells"),
        ({"z": 4}, r"lacks \['z'\]"),
    ],
)
def test_elements_that_do_not_fit(struct: Any, message: str) -> None:
    source = [{"x": np.zeros(5)}]
    stream = windrow.MapDataset.source(source).to_iter_dataset()
    with pytest.raises(ElementError, match=message):
        list(stream.pack(struct, num_packing_bins=2))


def test_concat_then_split_loses_no_key() -> None:
    source = [{"x": np.zeros(5), "y": np.zeros(5)}]
    stream = windrow.MapDataset.source(source).to_iter_dataset()
    message = r"has the keys \['x', 'y'\], and length_struct lacks \['y'\]; give their cells there"
    with pytest.raises(ElementError, match=message):
        list(stream.pack({"x": 4}, "concat_then_split"))
    assert len(list(stream.pack({"x": 4, "y": 4}, "concat_then_split"))) == 2


def test_an_element_that_lacks_a_part_of_a_dict() -> None:
    stream = windrow.MapDataset.source([{"x": {"y": 1}}]).to_iter_dataset()
    packed = stream.pack({"x": {"z": 4}}, num_packing_bins=2, meta_features=("x",))
    with pytest.raises(ElementError, match="an element lacks 'x/z'; map it to a dict that has it"):
        list(packed)


FIT = {"num_packing_bins": 2, "shuffle_bins": False}
METHODS = pytest.mark.parametrize("method", ["first_fit", "best_fit", "concat_then_split"])


def packed(method: str, elements: list[Any], struct: dict[str, int], **options: Any) -> Any:
    """The first row of elements that fit into one."""
    more = {} if method == "concat_then_split" else FIT
    stream = windrow.MapDataset.source(elements).to_iter_dataset()
    return next(iter(stream.pack(struct, method, **more, **options)))  # type: ignore[arg-type]


@METHODS
@pytest.mark.parametrize(
    "given",
    [
        [np.array([1, 2, 3], np.uint16), np.array([70_000, 128_001], np.uint32)],
        [np.array([70_000], np.uint32), np.array([1], np.uint16)],
        [np.arange(3, dtype=np.int32), np.array([2**40])],
        [np.ones(3, int), np.array([0.5, 0.25])],
        [np.zeros(0), np.array([2**60 + 1])],  # what is empty has no dtype
        [[], [2**60 + 1], [3]],
        [["a"], ["abc"]],
    ],
)
def test_values_of_several_dtypes_keep_their_values(method: str, given: list[Any]) -> None:
    row = packed(method, [{"x": each} for each in given], {"x": 8})["x"]
    assert row.tolist()[: sum(map(len, given))] == [item for each in given for item in each]


@METHODS
def test_values_of_a_meta_feature_keep_their_values(method: str) -> None:
    elements = [{"x": np.arange(2), "w": w} for w in (np.int32(1), np.float32(0.5))]
    row = packed(method, elements, {"x": 8, "w": 4}, meta_features=["w"])
    assert row["w"].tolist() == [1, 0.5, 0, 0]


@METHODS
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([np.arange(2), np.arange(2, dtype=np.uint64)], "int64 and uint64 would become float64"),
        ([[1], ["abc"]], "have no dtype together"),
        ([np.zeros((2, 1)), np.zeros((2, 3))], r"items of shape \(1,\) and \(3,\)"),
    ],
)
def test_values_that_would_be_changed_are_refused(
    method: str, given: list[Any], message: str
) -> None:
    with pytest.raises(ElementError, match=rf"pack: values of 'x' .*{message}.* in a map before"):
        packed(method, [{"x": each} for each in given], {"x": 8})


@pytest.mark.parametrize("padding", [-1, 0.5, 70_000])
def test_a_padding_that_the_dtype_does_not_hold_is_refused(padding: Any) -> None:
    elements = [{"x": np.arange(3, dtype=np.uint16)}]
    with pytest.raises(ElementError, match=r"not a value of its dtype uint16"):
        packed("first_fit", elements, {"x": 8}, padding_struct={"x": padding})
    token = {"bos_token_id": 70_000, "bos_features": ["x"]}
    with pytest.raises(ElementError, match=r"bos_token_id=70000 is not a value of dtype uint16"):
        packed("concat_then_split", elements, {"x": 8}, **token)
