"""Specs: what a chain declares of its elements, before it reads any, agrees with each of them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
import xarray
import zarr
from grain import python as grain
from hypothesis import example, given, settings

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from windrow.errors import ArgumentError, PlanError
from windrow.sources import ArraySpec, BatchedSource, ZarrDataSource
from windrow.transforms import specs

AnyArray = npt.NDArray[Any]
M = windrow.MapDataset
INT = ArraySpec((), np.int64)
STRUCT: Any = jax.ShapeDtypeStruct  # it has no types


def agrees(element: Any, spec: Any) -> bool:
    """Whether an element is what a spec says."""
    if isinstance(spec, dict):
        return (
            isinstance(element, dict)
            and list(element) == list(spec)
            and all(agrees(element[key], spec[key]) for key in spec)
        )
    if isinstance(spec, (list, tuple)):
        return (
            type(element) is type(spec)
            and len(element) == len(spec)
            # What is absent in a dataset that was zipped.
            and all(one is None or agrees(one, its) for one, its in zip(element, spec, strict=True))
        )
    if isinstance(spec, type):
        return isinstance(element, spec)
    array = np.asarray(element)
    return (
        isinstance(element, (np.ndarray, np.generic, int, float))
        # A single number has the byte order of the machine always.
        and (array.dtype if array.ndim else array.dtype.newbyteorder(spec.dtype.byteorder))
        == spec.dtype
        and array.ndim == len(spec.shape)
        and all(b in (a, None) for a, b in zip(array.shape, spec.shape, strict=True))
    )


# --- any chain -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Halved(windrow.transforms.Map):
    """Each array in half precision, which it declares."""

    def map(self, element: Any) -> Any:
        return make.on_leaves(lambda leaf: np.asarray(leaf, np.float16), element)

    def output_spec(self, input_spec: Any) -> Any:
        """As `map` makes it; leaves have a shape."""
        return specs.mapped(lambda leaf: ArraySpec(leaf.shape, np.float16, leaf.dims), input_spec)


def first_of(dataset: Any, count: int) -> list[Any]:
    """Some elements, those at the end of the first epoch too."""
    if isinstance(dataset, windrow.IterDataset):
        return list(itertools.islice(dataset, 2 * count))
    length = len(dataset)
    at = {*range(min(length, count)), *range(max(0, length - count), length)}
    return [element for element in map(dataset.__getitem__, sorted(at)) if element is not None]


# A filter that drops every element, and an endless repeat: iterating never gives one.
NOTHING = ("repeat", (("filter", (("range", (), (1,)),), (2,)),), (None, True))


@example(drawn=make.Drawn(NOTHING, sys.maxsize, "leaf", filtered=True))
@given(drawn=make.chains(lengths=make.FEW) | make.streams())
@settings(max_examples=examples(50), deadline=None)
def test_the_spec_that_is_read_is_that_of_the_first_element(drawn: make.Drawn) -> None:
    if "filter" in make.names_of(drawn.recipe):
        return
    dataset = make.build(drawn.recipe)
    elements = (e for e in itertools.islice(dataset, 64) if e is not None)
    first = next(elements, None)
    if first is None:
        return
    assert agrees(first, dataset.read_spec())


# --- leaves and trees ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (np.zeros((4, 2, 3), np.float32), ArraySpec((2, 3), np.float32)),
        (np.zeros(4, np.int8), ArraySpec((), np.int8)),
        (np.zeros((4, 0), "<f8"), ArraySpec((0,), "<f8")),
        (np.zeros(4, ">i2"), ArraySpec((), ">i2")),
        (np.zeros(0), ArraySpec((), float)),
        ({"x": np.zeros((4, 2)), "t": {"y": np.arange(4)}},
         {"x": ArraySpec((2,), float), "t": {"y": INT}}),
        (np.array(["a", "b"]), str),
        (np.array([b"a", b"b"]), bytes),
        (np.array([["a", "b"]]), ArraySpec((2,), "<U1")),
        (np.zeros((4, 2), object), ArraySpec((2,), object)),
        (windrow.sources.RangeDataSource(5), INT),
        (windrow.sources.RangeDataSource(2**70, 2**70 + 3), int),
    ],
    ids=lambda value: "" if isinstance(value, ArraySpec) else None,
)  # fmt: skip
def test_sources_in_memory(records: Any, expected: Any) -> None:
    dataset = M.source(records)
    assert dataset.element_spec == expected
    assert all(agrees(element, expected) for element in dataset)
    batches = dataset.batch(3)
    assert all(agrees(batch, batches.element_spec) for batch in batches)


def test_a_range() -> None:
    assert M.range(10).element_spec == M.range(10).read_spec() == INT
    assert M.range(10).mp_prefetch(1).read_spec() == INT  # without a worker


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        (True, ArraySpec((), bool)),
        (2, INT),
        (2**63, int),
        (2.5, ArraySpec((), float)),
        (2j, ArraySpec((), complex)),
        (np.float16(1), ArraySpec((), np.float16)),
        (np.zeros((2, 0), np.uint8), ArraySpec((2, 0), np.uint8)),
        (np.str_("a"), str),
        (b"a", bytes),
        ([b"a", b"b"], list),
        ([], list),
        ([b"a", np.zeros(2)], [bytes, ArraySpec((2,), float)]),
        ((1, "a"), (INT, str)),
        (Pair(1, {"x": np.zeros(3)}), Pair(INT, {"x": ArraySpec((3,), float)})),
        (threading.Event(), threading.Event),
        (jnp.zeros((2, 3), jnp.bfloat16), ArraySpec((2, 3), jnp.bfloat16)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_spec_of_an_element(element: Any, expected: Any) -> None:
    assert specs.spec_of(element) == expected
    assert M.source([element]).read_spec() == expected


def test_an_array_spec_checks_its_names() -> None:
    spec = ArraySpec([2, None], "f4", ["x", None])
    assert (spec.shape, spec.dtype, spec.dims) == ((2, None), np.dtype(np.float32), ("x", None))
    assert spec == ArraySpec((2, None), np.dtype("f4"), ("x", None))
    assert len({spec, ArraySpec((2, None), np.dtype("f4"), ("x", None))}) == 1
    with pytest.raises(ArgumentError, match=r"dims=\('x',\) must have a name, or None, for each"):
        ArraySpec((2, 3), np.dtype("f4"), ("x",))


# --- stores --------------------------------------------------------------------------------------


def test_zarr_rows_have_the_names_of_their_dimensions(tmp_path: Path) -> None:
    values = xarray.DataArray(np.zeros((6, 3, 4), np.float32), dims=("time", "lat", "lon"))
    both = xarray.Dataset({"t": values, "n": values[:, 0, 0].astype(np.int16)})
    both.to_zarr(tmp_path / "a", consolidated=False)
    dataset = M.source(ZarrDataSource(tmp_path / "a"))
    assert dataset.element_spec == {
        "t": ArraySpec((3, 4), np.float32, ("lat", "lon")),
        "n": ArraySpec((), np.int16),
    }
    batch = dataset.batch(4, drop_remainder=True)
    assert batch.element_spec["t"] == ArraySpec((4, 3, 4), np.float32, (None, "lat", "lon"))
    assert agrees(batch[0], batch.element_spec)
    plain = zarr.create_array(str(tmp_path / "b"), data=np.zeros((5, 2)), chunks=(2, 2))
    assert M.source(ZarrDataSource(str(tmp_path / "b"))).element_spec == ArraySpec((2,), float)
    assert plain.shape == (5, 2)


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "size", "drop", "rows"),
    [
        (10, 5, False, 5),
        (10, 4, False, None),
        (10, 4, True, 4),
        (10, 10, False, 10),
        (10, 11, False, 10),
        (10, 10**30, False, 10),
        (10, 11, True, 11),
        (10, 1, False, 1),
        (0, 4, False, 4),
    ],
)
def test_rows_of_batches(length: int, size: int, drop: bool, rows: int | None) -> None:
    dataset = M.range(length).batch(size, drop_remainder=drop)
    assert dataset.element_spec == ArraySpec((rows,), np.int64)
    assert all(agrees(batch, dataset.element_spec) for batch in dataset)
    last = rows if drop or size == 1 else None
    stream = M.range(length).to_iter_dataset().batch(size, drop_remainder=drop)
    assert stream.element_spec == ArraySpec((last,), np.int64)


def test_streams_that_never_end_have_whole_batches() -> None:
    endless = M.range(7).repeat()
    stream = endless.to_iter_dataset()
    finite = M.range(7).to_iter_dataset()
    assert endless.batch(4).element_spec.shape == (4,)
    assert stream.seed(1).window_shuffle(3).filter(bool).batch(4).element_spec.shape == (4,)
    assert finite.repeat().batch(4).element_spec.shape == (4,)
    assert windrow.IterDataset.mix([stream, stream]).batch(4).element_spec.shape == (4,)
    assert stream.mp_prefetch(0).batch(4).element_spec.shape == (4,)
    assert finite.repeat(2).batch(4).element_spec.shape == (None,)
    assert stream.limit(9).batch(4).element_spec.shape == (None,)
    assert windrow.IterDataset.mix([stream, finite]).batch(4).element_spec.shape == (None,)
    assert M.range(0).repeat().to_iter_dataset().batch(4).element_spec.shape == (None,)


class Padded:
    """A batch_fn that declares its spec, as Grain's do."""

    def __call__(self, elements: Sequence[Any]) -> AnyArray:
        return np.pad(np.array(elements), (0, 8 - len(elements)))

    def output_spec(self, input_spec: Any, batch_size: int, drop_remainder: bool) -> Any:
        """Always eight rows."""
        assert (batch_size, drop_remainder) == (3, False)
        return STRUCT((8, *input_spec.shape), input_spec.dtype)


def test_a_batch_fn_may_tell() -> None:
    for own in (Padded(), functools.partial(Padded())):
        dataset = M.range(10).batch(3, batch_fn=own)
        assert dataset.element_spec == ArraySpec((8,), np.int64)
        assert all(agrees(batch, dataset.element_spec) for batch in dataset)


# --- functions -----------------------------------------------------------------------------------


class Flip(windrow.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element[:: rng.choice([-1, 1])]

    def output_spec(self, input_spec: Any) -> Any:
        """The same."""
        return input_spec


class Numbered(windrow.transforms.MapWithIndex):
    def map_with_index(self, index: int, element: Any) -> Any:
        return {"index": index, "value": element}

    def output_spec(self, input_spec: Any) -> Any:
        """With a number."""
        return {"index": INT, "value": input_spec}


class GrainsHalf(grain.MapTransform):  # type: ignore[misc]  # Grain has no types
    def map(self, element: Any) -> Any:
        return np.asarray(element, np.float16)

    def output_spec(self, input_spec: Any) -> Any:
        """A spec of Grain's type, or JAX's."""
        return STRUCT(input_spec.shape, np.float16)


class Squared:
    """A plain callable that declares its spec."""

    def __call__(self, element: Any) -> Any:
        return np.multiply.outer(element, element)

    def output_spec(self, input_spec: Any) -> Any:
        return ArraySpec(input_spec.shape * 2, input_spec.dtype)


def test_functions_that_tell() -> None:
    rows = M.source(np.arange(12.0).reshape(4, 3))
    dataset = rows.random_map(Flip(), seed=1).map(Squared())
    dataset = dataset.map(GrainsHalf()).map_with_index(Numbered()).filter(lambda e: e["index"])
    expected = {"index": INT, "value": ArraySpec((3, 3), np.float16)}
    assert dataset.element_spec == dataset.to_iter_dataset().element_spec == expected
    assert [agrees(e, expected) for e in dataset if e is not None] == [True] * 3
    assert rows.map(Halved(), batched=True).element_spec == ArraySpec((3,), np.float16)


# --- several datasets ----------------------------------------------------------------------------


def rows(*shape: int, dtype: Any = np.float32) -> Any:
    return M.source({"x": np.zeros(shape, dtype)})


SEVERAL: list[Callable[[Any], Any]] = [
    M.mix,
    M.concatenate,
    lambda parts: M.select_from_datasets(parts, make.Zigzag(len(parts), 8)),
    lambda parts: windrow.IterDataset.mix([part.to_iter_dataset() for part in parts]),
]


@pytest.mark.parametrize("combine", SEVERAL, ids=["mix", "concatenate", "select", "streams"])
def test_datasets_that_come_together(combine: Callable[[Any], Any]) -> None:
    assert combine([rows(4, 2, 3)] * 2).element_spec == {"x": ArraySpec((2, 3), np.float32)}
    ragged = combine([rows(4, 2, 3), rows(5, 2, 4), rows(6, 2, 3)])
    assert ragged.element_spec == {"x": ArraySpec((2, None), np.float32)}
    assert all(agrees(element, ragged.element_spec) for element in first_of(ragged, 6))
    for other in (
        rows(4, 2),
        rows(4, 2, 3, dtype=np.float64),
        M.source({"y": np.zeros((4, 2, 3))}),
        M.source(np.zeros((4, 2, 3), np.float32)),
        M.source({"x": np.array(["a"])}),
    ):
        both = combine([rows(4, 2, 3), rows(4, 2, 3), other])
        with pytest.raises(PlanError, match=r"different elements\n  dataset 0: .*\n  dataset 2: "):
            _ = both.element_spec
        assert both.read_spec() == {"x": ArraySpec((2, 3), np.float32)}


def test_an_empty_dataset_has_no_say() -> None:
    assert M.concatenate([M.source([]), rows(4, 2)]).element_spec == rows(4, 2).element_spec
    assert M.concatenate([rows(0, 2)]).element_spec == rows(4, 2).element_spec


# --- reading nothing -----------------------------------------------------------------------------


class Counting(BatchedSource):
    """Four records of a spec, and a count of those that were read."""

    def __init__(self, spec: Any) -> None:
        self.declared = spec
        self.records = 0

    def __len__(self) -> int:
        return 4

    def read(self, indices: npt.NDArray[np.int64]) -> AnyArray:
        self.records += len(indices)
        return np.zeros((len(indices), 2), np.float32)

    @property
    def spec(self) -> Any:
        """As given."""
        return self.declared

    @property
    def fingerprint(self) -> str:
        return "counting"


def test_nothing_is_read_until_one_element_is_asked_for() -> None:
    source = Counting(ArraySpec((2,), np.float32))
    dataset = M.source(source).shuffle(1).map(Halved()).repeat().batch(3)
    stream = dataset.to_iter_dataset().window_shuffle(2, 1)
    assert dataset.element_spec == stream.element_spec == ArraySpec((3, 2), np.float16)
    assert source.records == 0
    assert dataset.read_spec() == ArraySpec((3, 2), np.float16)
    assert source.records == 3


# --- refusals ------------------------------------------------------------------------------------


class WrongSpec(windrow.transforms.Map):
    def map(self, element: Any) -> Any:
        return element

    def output_spec(self, input_spec: Any) -> Any:
        """None, by mistake."""


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "source": (lambda: M.source([1, 2]), PlanError),
    "none": (lambda: M.source(Counting(None)), PlanError),
    "objects": (lambda: M.source(np.zeros(3, object)), PlanError),
    "foreign": (lambda: M.source(make.Squares(3)), PlanError),
    "source's": (lambda: M.source(Counting({"x": "float32"})), ArgumentError),
    "map": (lambda: M.range(3).map(make.Bump(1)), PlanError),
    "batched": (lambda: M.range(3).map(make.Bump(1), batched=True), PlanError),
    "index": (lambda: M.range(3).map_with_index(make.add_index), PlanError),
    "random": (lambda: M.range(3).random_map(make.add_noise, seed=1), PlanError),
    "another method": (lambda: M.range(3).map(Numbered().output_spec), PlanError),
    "batch_fn": (lambda: M.range(3).batch(2, batch_fn=make.total), PlanError),
    "wrong": (lambda: M.range(3).map(WrongSpec()), ArgumentError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_tell_is_named(case: str) -> None:
    make_it, kind = REFUSED[case]
    with pytest.raises(kind, match="element_spec: "):
        _ = make_it().element_spec


@pytest.mark.parametrize(
    "dataset",
    [
        M.range(0),
        M.range(3).filter(lambda n: n > 5),
        M.range(3).filter(lambda n: n > 5).to_iter_dataset(),
    ],
    ids=repr,
)
def test_where_there_is_no_element_to_read(dataset: Any) -> None:
    with pytest.raises(PlanError, match="read_spec: none of the first 64 elements is there"):
        dataset.read_spec()
