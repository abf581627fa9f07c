"""`from_grain`: what Grain built gives the same elements here, also from a place in it."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import grain
import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet
import pytest
from absl import flags
from grain import experimental as more
from grain._src.python.dataset.transformations import process_prefetch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.array_record_bytes import written
from tests.hypothesis_profiles import examples
from tests.strategies import Drawn
from windrow import experimental as ours
from windrow.converters import write_records
from windrow.errors import ArgumentError, MissingExtraError, PlanError, StateError
from windrow.grain_api import grain_nodes, grain_states
from windrow.grain_api.loader_state import resume
from windrow.transforms.nodes import parents_first, source_of

# Makes a dataset of a library and its experimental classes, by default of Grain's.
Make: TypeAlias = Callable[..., Any]

MOST = 2000
NOT_BELOW_ZERO = {"random_map", "window_shuffle"}


_OPEN: list[Any] = []


def begun(dataset: Any) -> Any:
    """An iterator that is closed after the test: Grain's threads keep a process alive."""
    _OPEN.append(iter(dataset))
    return _OPEN[-1]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test has begun."""
    yield
    while _OPEN:
        _OPEN.pop().close()


# --- random graphs -------------------------------------------------------------------------------


@given(drawn=make.chains(), data=st.data())
@settings(max_examples=examples(40))
def test_random_access_is_grains(drawn: Drawn, data: st.DataObject) -> None:
    assume("window_shuffle" not in make.names_of(drawn.recipe) or not make.is_endless(drawn.recipe))
    theirs = make.build(drawn.recipe, "grain")
    ours = windrow.from_grain(theirs)
    assert isinstance(ours, windrow.MapDataset)
    assert len(ours) == len(theirs)
    if not len(ours):
        return
    negative = not make.names_of(drawn.recipe) & NOT_BELOW_ZERO
    places = make.places(drawn, negative=negative, epochs=not make.is_endless(drawn.recipe))
    indices = [*data.draw(places), 0, min(len(ours), 10**9) - 1]
    assert make.differences(ours.__getitems__(indices), [theirs[i] for i in indices]) == []


@given(drawn=make.streams(), taken=st.integers(0, 30))
@settings(max_examples=examples(40))
def test_streams_are_grains_from_each_place(drawn: Drawn, taken: int) -> None:
    theirs = make.build(drawn.recipe, "grain")
    expected = list(itertools.islice(theirs, MOST))
    assert make.differences(windrow.from_grain(theirs), expected) == []
    check_places(theirs, expected, min(taken, len(expected)))


def check_places(theirs: Any, expected: list[Any], at: int) -> None:
    """Windrow continues at a place of Grain's iterator."""
    iterator = begun(theirs)
    for _ in range(at):
        next(iterator)
    assert make.differences(windrow.from_grain(iterator), expected[at:]) == []


# --- every other node ----------------------------------------------------------------------------


class Spread(grain.experimental.FlatMapTransform):  # type: ignore[misc]
    max_fan_out = 3

    def flat_map(self, element: int) -> list[int]:
        return [element * 10 + each for each in range(element % 4)]


class OurSpread(ours.FlatMapTransform):
    max_fan_out = 3
    flat_map = Spread.flat_map


def spread(lib: Any) -> Any:
    return Spread() if lib is grain else OurSpread()


def numbers(count: int = 17, lib: Any = grain) -> Any:
    return lib.MapDataset.range(count).shuffle(seed=3)


def sequence(number: int) -> dict[str, npt.NDArray[np.int64]]:
    size = 1 + number * 5 % 7
    return {"tokens": np.arange(1, 1 + size), "kind": np.full(size, number)}


def sequences(lib: Any = grain) -> Any:
    return numbers(23, lib).map(sequence).to_iter_dataset()


def by_name(lib: Any = grain) -> dict[str, Any]:
    return {"z": numbers(12, lib).to_iter_dataset(), "a": numbers(17, lib).to_iter_dataset()}


def packed(kind: str, **options: Any) -> Make:
    def made(lib: Any = grain, ex: Any = more) -> Any:
        maker = getattr(ex, f"{kind}FitPackIterDataset")
        return maker(sequences(lib), length_struct={"tokens": 9}, num_packing_bins=3, **options)

    return made


def cut(bos: str | None = None, **options: Any) -> Make:
    struct = {"tokens": 5, "kind": 5 if options.get("meta_features") is None else 7}

    def made(lib: Any = grain, ex: Any = more) -> Any:
        given: dict[str, Any] = {} if bos is None else {"bos_handling": ex.BOSHandling[bos]}
        return ex.ConcatThenSplitIterDataset(
            sequences(lib), length_struct=struct, **given, **options
        )

    return made


def in_threads(dataset: Any, count: int = 3, ex: Any = more) -> Any:
    return ex.multithread_prefetch(dataset, count, 2)


# Made by Grain's classes, and by those of Windrow that have their names.
STREAMS: dict[str, Make] = {
    "flat map": lambda lib=grain, ex=more: ex.FlatMapIterDataset(
        numbers(7, lib).to_iter_dataset(), spread(lib)
    ),
    "flat map with random access": lambda lib=grain, ex=more: ex.FlatMapMapDataset(
        numbers(7, lib).map(lambda n: n % 4), spread(lib)
    ).to_iter_dataset(),
    "rebatch": lambda lib=grain, ex=more: ex.RebatchIterDataset(
        numbers(lib=lib).batch(5).to_iter_dataset(), 3
    ),
    "rebatch, whole": lambda lib=grain, ex=more: ex.RebatchIterDataset(
        numbers(31, lib).batch(2).to_iter_dataset(), 5, drop_remainder=True
    ),
    "interleave": lambda lib=grain, ex=more: ex.InterleaveIterDataset(
        [numbers(n, lib).map(make.Bump(n)).to_iter_dataset() for n in (2, 5, 1, 4)], cycle_length=2
    ),
    "interleave of datasets with random access": lambda lib=grain, ex=more: (
        ex.InterleaveIterDataset(
            [numbers(n, lib) for n in (3, 1, 4, 5)]
            if lib is windrow
            else grain.MapDataset.source([3, 1, 4, 5]).map(numbers),
            cycle_length=5,
        ).batch(2)
    ),
    "mixture by name": lambda lib=grain, ex=more: lib.IterDataset.mix(
        by_name(lib), {"z": 0.25, "a": 0.75}
    ),
    "mixture of one element": lambda lib=grain, ex=more: lib.IterDataset.mix(
        [numbers(lib=lib).to_iter_dataset()], [3]
    ),
    "first fit": packed("First"),
    "first fit, not shuffled": packed("First", shuffle_bins=False, max_sequences_per_bin=2),
    "best fit": packed("Best", seed=5, meta_features=("kind",)),
    "best fit, padded": packed("Best", padding_struct={"tokens": -1}),
    "concat": cut(),
    "concat, meta": cut(meta_features=("kind",), split_full_length_features=False),
    "concat, first tokens": cut(
        "REPLACE_FIRST_TOKEN_WITH_BOS", bos_features=("tokens",), bos_token_id=99
    ),
    "options": lambda lib=grain, ex=more: ex.WithOptionsIterDataset(
        numbers(lib=lib).to_iter_dataset().filter(lambda n: n % 2),
        ex.DatasetOptions(filter_raise_threshold_ratio=0.99),
    ),
    "prefetch in a thread": lambda lib=grain, ex=more: ex.ThreadPrefetchIterDataset(
        numbers(lib=lib).to_iter_dataset().map(make.Bump(1)), prefetch_buffer_size=2
    ),
    "strict zip": lambda lib=grain, ex=more: ex.ZipIterDataset(
        [numbers(lib=lib).to_iter_dataset()] * 2
    ),
    "zip": lambda lib=grain, ex=more: ex.ZipIterDataset(
        [numbers(n, lib).to_iter_dataset() for n in (9, 23)], strict=False
    ),
    "limit": lambda lib=grain, ex=more: ex.LimitIterDataset(numbers(lib=lib).to_iter_dataset(), 7),
    "repeat": lambda lib=grain, ex=more: ex.RepeatIterDataset(
        numbers(lib=lib).to_iter_dataset(), 2
    ),
    "window shuffle": lambda lib=grain, ex=more: ex.WindowShuffleIterDataset(
        numbers(lib=lib).to_iter_dataset(), window_size=5, seed=3
    ),
    "applied": lambda lib=grain, ex=more: ex.apply_transformations(
        numbers(31, lib).to_iter_dataset(), [lib.transforms.Batch(4, drop_remainder=True)]
    ),
    "in two threads": lambda lib=grain, ex=more: in_threads(
        numbers(lib=lib).to_iter_dataset(), 2, ex
    ),
    "in threads": lambda lib=grain, ex=more: in_threads(
        numbers(lib=lib)
        .to_iter_dataset()
        .filter(lambda n: n % 5)
        .random_map(make.add_noise, seed=1),
        ex=ex,
    ),
    "absent elements in threads": lambda lib=grain, ex=more: in_threads(
        numbers(lib=lib).map(lambda n: n if n % 3 else None).to_iter_dataset().batch(2), ex=ex
    ),
}


# Of Windrow's classes: by name as the dict has it, and the order of the stream whatever the threads.
OWN_ORDER = {"mixture by name", "in threads", "absent elements in threads"}


@pytest.mark.parametrize("name", [*STREAMS])
def test_each_node_is_grains_at_each_step(name: str) -> None:
    theirs = STREAMS[name]()
    expected = list(begun(theirs))
    assert len(expected) > 4
    assert same_elements(windrow.from_grain(theirs), expected)
    if name not in OWN_ORDER:
        assert same_elements(STREAMS[name](windrow, ours), expected)
    for at in some_of(expected):
        iterator = begun(theirs)
        for _ in range(at):
            next(iterator)
        assert same_elements(windrow.from_grain(iterator), expected[at:])


def some_of(expected: list[Any]) -> list[int]:
    """Steps at which a run is left: the first ones, the last ones, and some between."""
    count = len(expected)
    return sorted({0, 1, 2, 3, count // 2, count - 1, count})


def moved(dataset: Any, at: int) -> Any:
    iterator = begun(dataset)
    for _ in range(at):
        next(iterator)
    return iterator


def same_elements(ours: Any, theirs: Any) -> bool:
    """Equal values; a packer of Grain's may give other keys order and scalars."""
    mine, others = [plain(each) for each in ours], [plain(each) for each in theirs]
    return mine == others


def plain(element: Any) -> Any:
    if isinstance(element, dict):
        return {key: plain(element[key]) for key in sorted(element)}
    if isinstance(element, (list, tuple)):
        return [plain(each) for each in element]
    return element.tolist() if isinstance(element, (np.ndarray, np.generic)) else element


def test_all_of_grains_nodes_are_in_the_table_or_named_here() -> None:
    # What a user cannot hold: markers of a loader's own chain, and what Grain puts around a chain.
    inner = {"_DataLoaderPipelineMarkerIterDataset", "_DataLoaderStateIterDataset"}
    inner |= {
        "_OutputIterDataset",
        "_OperationIterDataset",
        "_SamplerMapDataset",
        "PackIterDataset",
    }
    inner |= {"_ShardMapDataset", "_ElementSpecFromTransformMapDatasetMixin"}
    inner |= {"_ElementSpecFromTransformIterDatasetMixin"}
    found = {each.__name__ for each in [*kinds_of(grain.MapDataset), *kinds_of(grain.IterDataset)]}
    missing = found - set(grain_nodes.NODES) - inner
    assert missing == {"ElasticIterator"}


def kinds_of(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("grain."):
            yield each
        yield from kinds_of(each)


# --- mixtures whose integers Grain rounds ---------------------------------------------------------


@given(weights=st.lists(st.floats(0.001, 5), min_size=2, max_size=4))
@settings(max_examples=examples(40))
def test_mixtures_of_any_weights_are_grains(weights: list[float]) -> None:
    theirs = grain.MapDataset.mix(
        [grain.MapDataset.range(n * 1000, n * 1000 + 50) for n in range(len(weights))], weights
    )
    assert list(windrow.from_grain(theirs)) == list(theirs)


# --- sources -------------------------------------------------------------------------------------


def test_array_records_are_read_by_windrow(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.array_record" for n in range(2)]
    for number, path in enumerate(paths):
        written(path, [f"{number}:{n}".encode() for n in range(9)], "group_size:2")
    for files in (paths, [f"{paths[0]}[0:4]", f"{paths[1]}[3:9]"]):
        theirs = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files))
        ours = windrow.from_grain(theirs)
        assert list(ours) == list(theirs)
        assert "array_record" in repr(ours)


@pytest.mark.parametrize(
    "source",
    [
        [3, None, 5],
        np.arange(6).reshape(3, 2),
        {0: "a", 1: "b"},
        "word",
        range(3, 9, 2),
        grain.sources.RangeDataSource(2, 9, 3),
        make.Squares(4),
        grain.MapDataset.range(5).seed(1).shuffle(),
        windrow.sources.RangeDataSource(0, 4, 1),
    ],
)
def test_sources_are_grains_in_two_epochs(source: Any) -> None:
    theirs = grain.MapDataset.source(source).repeat(2)
    assert plain(list(windrow.from_grain(theirs))) == plain(list(theirs))


def test_one_source_in_two_places_is_one_source(tmp_path: Path) -> None:
    path = tmp_path / "a.array_record"
    written(path, [b"1", b"2", b"3"], "group_size:1")
    source = grain.sources.ArrayRecordDataSource(path)
    both = [grain.MapDataset.source(source).shuffle(seed=n) for n in (1, 2)]
    theirs = grain.MapDataset.concatenate(both)
    ours = windrow.from_grain(theirs)
    first, second = (source_of(parents_first(part._node)[0]) for part in ours.parents)
    assert first is not None
    assert first is second
    assert list(ours) == list(theirs)


# --- workers -------------------------------------------------------------------------------------


def with_workers(dataset: Any, count: int) -> Any:
    return dataset.mp_prefetch(grain.MultiprocessingOptions(count))


def in_turn(dataset: Any, count: int) -> Any:
    """The elements that Grain's workers give, made in this process."""
    return list(begun(more.multithread_prefetch(dataset, count, 1)) if count > 1 else dataset)


WORKED: dict[str, Callable[[], Any]] = {
    "batch of a stream": lambda: numbers().to_iter_dataset().batch(3),
    "filter": lambda: numbers().filter(lambda n: n % 3).to_iter_dataset(),
    "random": lambda: numbers().to_iter_dataset().random_map(make.add_noise, seed=4),
    "random after filter": lambda: (
        numbers().to_iter_dataset().filter(lambda n: n % 4).random_map(make.add_noise, seed=4)
    ),
    "counted": lambda: numbers().to_iter_dataset().map_with_index(make.add_index),
    "batch with random access": lambda: numbers().batch(3).to_iter_dataset(),
    "interleave": lambda: more.InterleaveIterDataset(
        [numbers(n).to_iter_dataset() for n in (4, 6, 5, 2, 3)], cycle_length=2
    ),
    "packed": packed("Best"),
    "mixed": lambda: grain.IterDataset.mix(by_name()).batch(2),
}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", [*WORKED])
def test_order_of_workers_is_grains(name: str, count: int) -> None:
    expected = in_turn(WORKED[name](), count)
    ours = windrow.from_grain(with_workers(WORKED[name](), count))
    assert ours._node.workers.options.num_workers == count
    with_none: Any = windrow.IterDataset(
        ours._node.parent
    )  # the order does not depend on our workers
    assert same_elements(with_none, expected)


def test_a_chain_whose_order_does_not_depend_on_workers_is_read_once() -> None:
    batches = numbers().map(make.Bump(1)).batch(3).to_iter_dataset().map(make.Bump(2))
    assert "interleave" not in repr(windrow.from_grain(with_workers(batches, 2)))
    other = numbers().map(make.Bump(1)).to_iter_dataset()
    assert "interleave" in repr(windrow.from_grain(with_workers(other, 2)))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", [*WORKED])
def test_places_among_workers_are_found(name: str, count: int) -> None:
    # Threads of Grain have the states of its workers, and start at once.
    theirs, threads = with_workers(WORKED[name](), count), in_threads(WORKED[name](), count)
    expected = in_turn(WORKED[name](), count)
    ours: Any = windrow.IterDataset(windrow.from_grain(theirs)._node.parent)
    for at in some_of(expected)[1::2]:
        state = moved(threads, at).get_state()
        again = iter(ours)
        resume(again, grain_states.position_of(grain_nodes.conversion(strict=True), theirs, state))
        assert same_elements(again, expected[at:]), at


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["batch of a stream", "batch with random access"])
def test_places_of_processes_are_found(name: str) -> None:
    flags.FLAGS(["test"])  # Grain's workers ask for them
    theirs = with_workers(WORKED[name](), 2)
    expected = list(theirs)
    assert same_elements(windrow.from_grain(theirs), expected)
    iterator = begun(theirs)
    next(iterator)
    with windrow.from_grain(iterator) as ours:
        assert same_elements(ours, expected[1:])


def test_parts_of_the_data_in_one_piece_are_refused() -> None:
    theirs = numbers().to_iter_dataset().batch(2)
    theirs = process_prefetch.multiprocess_prefetch(theirs, 2, sequential_slice=True)
    with pytest.raises(
        PlanError, match=r"mp_prefetch\(sequential_slice=True\).* has no counterpart"
    ):
        windrow.from_grain(theirs)


# --- what has no counterpart -------------------------------------------------------------------------


class Doubled(grain.MapDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 2 * len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self._parent[index // 2]


class PairsIterator(grain.DatasetIterator):  # type: ignore[misc]
    def __next__(self) -> tuple[Any, Any]:
        return next(self._parent), next(self._parent)

    def get_state(self) -> Any:
        return {"inside": self._parent.get_state()}

    def set_state(self, state: Any) -> None:
        self._parent.set_state(state["inside"])


class Pairs(grain.IterDataset):  # type: ignore[misc]
    def __iter__(self) -> PairsIterator:
        return PairsIterator(iter(self._parent))


def own_nodes() -> Any:
    doubled = Doubled(numbers(9)).map(make.Bump(1)).to_iter_dataset()
    return Pairs(doubled.filter(lambda n: n % 7)).map(sum).batch(2)


def test_node_without_counterpart_is_named() -> None:
    with pytest.raises(PlanError, match=r"test_from_grain.Pairs has no counterpart.*strict=False"):
        windrow.from_grain(own_nodes())


def test_node_without_counterpart_runs_as_it_is() -> None:
    expected = [each.tolist() for each in own_nodes()]
    ours = windrow.from_grain(own_nodes(), strict=False)
    assert "GrainStreamNode" in repr(ours)
    for at in range(len(expected) + 1):
        iterator = iter(ours)
        taken = [next(iterator).tolist() for _ in range(at)]
        again = iter(ours)
        again.set_state(json.loads(json.dumps(iterator.get_state())))
        assert taken + [each.tolist() for each in again] == expected


def test_node_without_counterpart_runs_in_the_order_of_workers() -> None:
    expected = [each.tolist() for each in in_turn(own_nodes(), 2)]
    ours = windrow.from_grain(with_workers(own_nodes(), 2), strict=False)
    alone: Any = windrow.IterDataset(ours._node.parent)
    assert [each.tolist() for each in alone] == expected


@pytest.mark.parametrize(
    "theirs",
    [
        grain.MapDataset.range(65537).shuffle(seed=7),
        more.WindowShuffleMapDataset(grain.MapDataset.range(10), window_size=4, seed=0),
    ],
)
def test_elements_that_grain_loses_are_there_with_a_warning(theirs: Any) -> None:
    with pytest.warns(UserWarning, match="twice and others never.*here each comes once"):
        ours = windrow.from_grain(theirs)
    assert sorted(ours.read(range(len(ours)))) == list(range(len(theirs)))


def test_what_is_not_of_grain_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"needs a MapDataset, IterDataset.* got a builtins.list"
    ):
        windrow.from_grain([1, 2])
    with pytest.raises(ArgumentError, match=r"got a windrow.map_dataset.MapDataset"):
        windrow.from_grain(windrow.MapDataset.range(3))


@pytest.mark.parametrize("given", [0, 1])
@pytest.mark.parametrize("strict", [True, False])
def test_files_convert_and_their_iterators_have_no_place(
    tmp_path: Path, given: int, strict: bool
) -> None:
    table = pyarrow.table({"a": np.arange(10)})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=4)
    write_records(tmp_path / "records", [b"a", b"bc", b"def"])
    files: list[Any] = [
        more.ParquetIterDataset(str(tmp_path / "rows.parquet")),
        more.TFRecordIterDataset(str(tmp_path / "records")),
    ]
    for dataset in files:
        for theirs in (dataset, dataset.map(len), dataset.batch(2)):
            assert same_elements(windrow.from_grain(theirs, strict=strict), theirs)
            iterator = iter(theirs)
            for _ in range(given):
                next(iterator)
            with pytest.raises(
                StateError, match=r"over a Parquet or TFRecord file.*pass the dataset"
            ):
                windrow.from_grain(iterator, strict=strict)


def test_places_that_have_no_counterpart_are_refused() -> None:
    cached = more.RepeatIterDataset(more.CacheIterDataset(numbers(4).to_iter_dataset()), 2)
    iterator = iter(cached)
    for _ in range(6):
        next(iterator)
    with pytest.raises(StateError, match="cache of this iterator is filled"):
        windrow.from_grain(iterator)


def test_without_grain_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grain", None)
    with pytest.raises(
        MissingExtraError, match=r"^windrow.from_grain needs .* windrow-data\[grain\]"
    ):
        windrow.from_grain([])
