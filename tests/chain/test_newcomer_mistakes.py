"""Forty mistakes that newcomers make: each message names the mistake and what to do.

Two messages are Python's own, and do not say what to do: 28 and 31.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import re
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import windrow
from windrow import MapDataset, MultiprocessingOptions
from windrow.errors import (
    ArgumentError,
    ElementError,
    NotFoundError,
    PlanError,
    ReadError,
    SourceError,
    StateError,
    missing_extra,
)
from windrow.sources import ArrayRecordDataSource, Field, Window, WindowDataSource, ZarrDataSource
from windrow.transforms import Batch

NUMBERS = MapDataset.range(10)
STREAM: Any = NUMBERS.to_iter_dataset()
GRID = np.zeros((3, 4), "f4")
NAMES = ("latitude", "longitude")


class _Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, number: int) -> int:
        return number


def _sent(function: Any) -> Any:
    return next(
        iter(NUMBERS.map(function).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1)))
    )


def _fields(path: str) -> ZarrDataSource:
    dtype = np.dtype([("a", "i4"), ("b", "f4")])
    zarr.create_array(path, shape=(4,), dtype=dtype)[:] = np.zeros(4, dtype)
    return ZarrDataSource(path)


class _Subclass(MapDataset[int]):
    pass


def _strings(path: str) -> ZarrDataSource:
    zarr.create_array(path, shape=(3,), dtype="str")
    return ZarrDataSource(path)


def _falling() -> xarray.Dataset:
    return xarray.Dataset({"t": ("y", np.zeros(3))}, coords={"y": [60.0, 55.0, 50.0]})


def _write_files() -> None:
    """What the mistakes meet in the working folder."""
    os.mkdir("folder")
    zarr.create_array("good.zarr", data=np.arange(4), chunks=(2,))
    damaged = Path("good.zarr/c/1")
    damaged.write_bytes(damaged.read_bytes()[:-3])
    zarr.open_group("folder/inner.zarr", mode="w").create_array("numbers", data=np.arange(3))
    Path("garbage").write_bytes(b"hellohello" * 5000)
    Path("empty").touch()


# By the number of the mistake, which may have several forms.
MISTAKES: dict[
    str, tuple[Callable[[], Any], type[BaseException] | tuple[type[BaseException], ...], str]
] = {
    "1 a mistyped path": (
        lambda: ZarrDataSource("goood.zarr"),
        NotFoundError,
        r"goood.zarr does not exist; did you mean \S+/good.zarr\?",
    ),
    "1 a path that resembles none": (
        lambda: ZarrDataSource("nope.zarr"),
        NotFoundError,
        r"nope.zarr does not exist; \S+ exists and holds empty, folder, garbage, good.zarr$",
    ),
    "2 the folder around a store": (
        lambda: ZarrDataSource("folder"),
        NotFoundError,
        r"is not a Zarr array or group, and holds inner.zarr; did you mean \S+/folder/inner.zarr\?",
    ),
    "3 a path in place of a source": (
        lambda: MapDataset.source("good.zarr"),
        ArgumentError,
        r"the string 'good.zarr'; .*name its source: .*windrow.sources.ZarrDataSource\('good.zarr'\)",
    ),
    "4 a pattern that matches nothing": (
        lambda: ArrayRecordDataSource("nope-*"),
        NotFoundError,
        r"no file matches 'nope-\*'; \S+ exists and holds empty, folder",
    ),
    "5 a file of another format": (
        lambda: ArrayRecordDataSource("garbage"),
        SourceError,
        r"garbage is not an ArrayRecord file: it begins with b'hellohel'; name ArrayRecord files",
    ),
    "6 an empty file": (
        lambda: ArrayRecordDataSource("empty"),
        SourceError,
        r"is empty \(0 bytes\): its writer was not closed, or a copy failed; write or copy it again",
    ),
    "7 an unknown protocol": (
        lambda: ZarrDataSource("s4://bucket/a.zarr"),
        ArgumentError,
        r"neither TensorStore nor fsspec knows the protocol 's4'; they know file, memory, http",
    ),
    "7 an unknown protocol of records": (
        lambda: ArrayRecordDataSource("s4://bucket/a"),
        ArgumentError,
        r"fsspec does not know the protocol 's4'; it knows file, memory, http",
    ),
    "8 an unknown storage option": (
        lambda: ZarrDataSource("http://localhost:1/a.zarr", storage_options={"foo": 1}),
        ArgumentError,
        r"storage_options\['foo'\] is not an option of the file system of http://localhost:1/a.zarr"
        r".*; it takes .*client_kwargs",
    ),
    "9 a useless storage option": (
        lambda: ZarrDataSource("good.zarr", storage_options={"anon": True}),
        ArgumentError,
        r"storage_options has anon, and only URLs are opened with such options; leave",
    ),
    "10 a batch of no elements": (
        lambda: NUMBERS.batch(0),
        PlanError,
        r"batch: batch_size must be at least 1, got 0",
    ),
    "12 a shuffle without a seed": (
        lambda: NUMBERS.shuffle()[0],
        PlanError,
        r"shuffle: has no seed; pass seed=..., or call .seed\(...\) earlier in the chain",
    ),
    "13 a shuffle of a stream": (
        lambda: STREAM.shuffle(seed=1),
        AttributeError,
        r"no attribute 'shuffle': a stream has no global shuffle; shuffle before to_iter_dataset",
    ),
    "13 a read of a stream": (
        lambda: STREAM.read([1]),
        AttributeError,
        r"no attribute 'read': a stream has no random access; read before to_iter_dataset",
    ),
    "13 an index of a stream": (
        lambda: STREAM[0],
        TypeError,
        r"a stream has no random access: index or slice .* before to_iter_dataset\(\); .*"
        r"next\(iter\(stream\)\) is the first element, and stream.limit\(n\)",
    ),
    "13 the length of a stream": (
        lambda: len(STREAM),
        TypeError,
        r"a stream has no length .*: take len\(\) of the MapDataset before to_iter_dataset\(\);"
        r" stream.explain\(\).length",
    ),
    "14 a batch of different shapes": (
        lambda: MapDataset.source([np.zeros(2), np.zeros(3)]).batch(2)[0],
        ElementError,
        r"element 0 has shape \(2,\) and element 1 has shape \(3,\); .*: pad them in a map before",
    ),
    "15 a batch of different keys": (
        lambda: MapDataset.source([{"a": 1}, {"b": 1}]).batch(2)[0],
        ElementError,
        r"(?s)elements differ in structure.*0: {'a': int}.*1: {'b': int}.*Make them alike in a map",
    ),
    "18 a function of two elements": (
        lambda: NUMBERS.map(lambda one, other: one + other),  # type: ignore[arg-type, misc]
        ArgumentError,
        r"map: the function is called with \(element\), and \S*<lambda> takes \(one, other\); give",
    ),
    "19 a batch after a filter": (
        lambda: NUMBERS.filter(bool).batch(2),
        PlanError,
        r"a filter before it leaves gaps .*; write .filter\(f\).to_iter_dataset\(\).batch\(n\)",
    ),
    "20 a list as an index": (
        lambda: NUMBERS[[1, 2]],  # type: ignore[call-overload]
        ArgumentError,
        r"index must be an integer, got a list; for several .* use ds.read\(\[...\]\)",
    ),
    "22 a record that does not exist": (
        lambda: NUMBERS.slice([99]),
        PlanError,
        r"slice: index 99 at place 0 is out of range for 10 elements; choose -10 <= index < 10",
    ),
    "23 arrays of different lengths": (
        lambda: MapDataset.source({"a": np.zeros(3), "b": np.zeros(4)}),
        SourceError,
        r"(?s)the arrays differ in length\s+a: 3\s+b: 4\s.*cut the arrays to one length",
    ),
    "24 a mistyped array": (
        lambda: ZarrDataSource("folder/inner.zarr", names=["numberz"]),
        SourceError,
        r"names has 'numberz', which is not there; did you mean 'numbers'\? There are numbers",
    ),
    "25 a damaged chunk": (
        lambda: MapDataset.source(ZarrDataSource("good.zarr"))[2],
        ReadError,
        r"good.zarr: the chunk that holds records 2 to 3 cannot be read: .*copy it again or write"
        r' these records again; a chain leaves them out by .on_bad\("skip"\)',
    ),
    "26 the start of a dimension's name": (
        lambda: WindowDataSource(GRID, {"lat": 1}, dims=NAMES),
        ArgumentError,
        r"no array has the dimension 'lat', .*did you mean 'latitude'\?",
    ),
    "26 a window that is too large": (
        lambda: WindowDataSource(GRID, {"latitude": 4}, dims=NAMES),
        SourceError,
        r"a window of 4 cells along latitude does not fit into 3; choose at most 3, or pad=...",
    ),
    "26 offsets that are too far": (
        lambda: WindowDataSource(
            {"t": GRID}, dims=NAMES, fields={"t": Field("t", {"latitude": [-9, 0]})}
        ),
        SourceError,
        r"a window of 10 cells \(offsets -9 to 0\) along latitude does not fit into 3; choose",
    ),
    "27 labels that fall": (
        lambda: WindowDataSource(_falling(), {"y": Window(1, select=slice(50, 55))}),
        SourceError,
        r"holds none of the 3 coordinates: it goes from 60.0 to 50.0 .* write slice\(55, 50, None\)",
    ),
    "28 an unknown argument": (  # Python's own message
        lambda: ZarrDataSource("good.zarr", threads=3),  # type: ignore[call-arg]
        TypeError,
        r"unexpected keyword argument 'threads'",
    ),
    "29 a state of another chain": (
        lambda: iter(NUMBERS).set_state(iter(NUMBERS.shuffle(seed=1)).get_state()),
        StateError,
        r"(?s)over another chain or other data.*state: .*shuffle\(seed=1\).*this run: .*Restore with",
    ),
    "31 a pickle of a function that has no name": (  # Python's own message
        lambda: pickle.dumps(NUMBERS.map(lambda number: number)),
        (AttributeError, pickle.PicklingError),  # the latter since Python 3.14
        r"Can't (pickle|get) local object .*<lambda>",
    ),
    "32 a class in apply": (
        lambda: NUMBERS.apply(Batch),  # type: ignore[arg-type]
        ArgumentError,
        r"apply: Batch is a class; pass an instance: Batch\(...\)",
    ),
    "32 a function in apply": (
        lambda: NUMBERS.apply(lambda number: number),  # type: ignore[arg-type]
        ArgumentError,
        r"apply: \S*<lambda> is a function; use map or filter, or an instance of a class",
    ),
    "33 a name of Grain that is not there": (
        lambda: windrow.config,  # type: ignore[attr-defined]
        AttributeError,
        r"windrow has no config, which Grain has: pass options to ReadOptions, Multiprocessing",
    ),
    "34 a subclass without methods": (
        lambda: _Subclass(NUMBERS),
        ArgumentError,
        r"_Subclass: a subclass of windrow.MapDataset needs its own __len__ and __getitem__; define",
    ),
    "35 an array that is computed": (
        lambda: MapDataset.source(_falling().chunk({"y": 1})["t"]),
        ArgumentError,
        r"the xarray.DataArray 't' is not an array of a Zarr store .* Write it with .to_zarr\(\)",
    ),
    "36 a record that is None": (
        lambda: MapDataset.source(np.array([1, None], object)).batch(2)[0],
        ElementError,
        r"element 1 of the batch is absent \(its record is None\)",
    ),
    "37 records with fields": (
        lambda: _fields("fields.zarr"),
        SourceError,
        r"have the fields a, b, and such arrays are not read: write each field to an array",
    ),
    "38 strings in Zarr": (
        lambda: _strings("strings.zarr"),
        SourceError,
        r"its values are strings, bytes or objects .* Arrays of bool, int4 to int64, .* are",
    ),
    "40 a page in a folder that is not there": (
        lambda: windrow.report(NUMBERS, "absent/page.html"),
        NotFoundError,
        r"report: there is no folder \S+absent; make it first",
    ),
    "40 inputs that are not there": (
        lambda: windrow.converters.tfrecord_to_zarr("absent-*", "out"),
        NotFoundError,
        r"inputs: absent-\* matches no file; check the pattern",
    ),
}
TESTED_BELOW = frozenset({11, 16, 17, 21, 30, 39})


def test_these_are_forty_mistakes() -> None:
    assert {int(name.split()[0]) for name in MISTAKES} | TESTED_BELOW == set(range(1, 41))


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
def test_the_message_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _write_files()
    make, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        make()


# --- mistakes that are not one error with one message ---------------------------------------------


def test_11_a_shuffle_of_batches_is_advised_against() -> None:
    (advice,) = NUMBERS.batch(2).shuffle(seed=1).explain().advice
    assert advice.now.startswith("shuffle(seed=1) shuffles whole batches, and each holds 2 neighb")
    assert advice.do == "shuffle before batch(2)"


def test_17_an_absent_key_shows_the_keys_of_the_element() -> None:
    with pytest.raises(KeyError) as caught:
        MapDataset.source([{"a": 1}]).map(lambda element: element["b"])[0]
    assert "windrow: the element has the keys ['a']" in caught.value.__notes__


def test_21_an_index_behind_the_end_is_in_the_next_epoch_as_the_docstring_says() -> None:
    assert NUMBERS[25] == 5
    assert "is element 0 of the next epoch" in str(MapDataset.__getitem__.__doc__)


def _closure() -> Callable[[int], Any]:
    lock = threading.Lock()
    return lambda number: (lock, number)


@pytest.mark.parametrize(
    ("make", "node"),
    [(_Locked, r"map\(_Locked\)"), (_closure, r"map\(_closure.<locals>.<lambda>\)")],
)
def test_30_a_function_that_cannot_travel_is_named(make: Callable[[], Any], node: str) -> None:
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object") as caught:
        _sent(make())
    why, which = (note for note in caught.value.__notes__ if note.startswith("windrow:"))
    assert re.fullmatch(
        r".* cannot be sent to worker processes: .*\n"
        r"Make values that cannot be pickled .* within the function at its first call, or in"
        r" worker_init_fn.",
        why,
    )
    assert re.fullmatch(f"windrow: what cannot be pickled belongs to {node}", which)


def test_39_every_missing_extra_names_its_packages() -> None:
    extras = importlib.metadata.metadata("windrow-data").get_all("Provides-Extra") or []
    assert {"zarr", "jax", "report"} <= set(extras)
    for extra in extras:
        assert re.search(r"; run: pip install [a-z].*; or in", str(missing_extra("it", extra))), (
            extra
        )


@pytest.mark.parametrize("full", [False, True])
def test_16_a_traceback_goes_from_the_call_to_the_function(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if full:
        monkeypatch.setenv("WINDROW_FULL_TRACEBACKS", "1")

    def broken(number: int) -> int:
        return 1 // number

    dataset = NUMBERS.map(broken)
    for call in (lambda: dataset[0], lambda: list(dataset), lambda: dataset.read([0])):
        with pytest.raises(
            ZeroDivisionError, match=r"(?s)by zero.*raised in map\(.*broken\)"
        ) as caught:
            call()
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names[-1] == "broken"
        assert (len(names) <= 6) != full


def test_16_a_traceback_without_a_function_of_the_user_is_whole() -> None:
    with pytest.raises(ElementError, match="shape") as caught:
        list(MapDataset.source([np.zeros(2), np.zeros(3)]).batch(2))
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 6
