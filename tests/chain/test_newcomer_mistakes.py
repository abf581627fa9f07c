"""Mistakes that newcomers make: each message names the mistake and what to do."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from windrow import MapDataset, MultiprocessingOptions
from windrow.errors import (
    ArgumentError,
    ElementError,
    NotFoundError,
    PlanError,
    SourceError,
    missing_extra,
)
from windrow.sources import ArrayRecordDataSource, WindowDataSource, ZarrDataSource
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


MISTAKES: dict[str, tuple[Callable[[], Any], type[BaseException], str]] = {
    "a mistyped path": (
        lambda: ZarrDataSource("goood.zarr"),
        NotFoundError,
        r"goood.zarr does not exist; did you mean \S+/good.zarr\?",
    ),
    "a path that resembles none": (
        lambda: ZarrDataSource("nope.zarr"),
        NotFoundError,
        r"nope.zarr does not exist; \S+ exists and holds folder, good.zarr$",
    ),
    "the folder around a store": (
        lambda: ZarrDataSource("folder"),
        NotFoundError,
        r"is not a Zarr array or group, and holds inner.zarr; did you mean \S+/folder/inner.zarr\?",
    ),
    "an unknown protocol": (
        lambda: ZarrDataSource("s4://bucket/a.zarr"),
        ArgumentError,
        r"neither TensorStore nor fsspec knows the protocol 's4'; they know file, memory, http",
    ),
    "an unknown protocol of records": (
        lambda: ArrayRecordDataSource("s4://bucket/a"),
        ArgumentError,
        r"fsspec does not know the protocol 's4'; it knows file, memory, http",
    ),
    "an unknown storage option": (
        lambda: ZarrDataSource("http://localhost:1/a.zarr", storage_options={"foo": 1}),
        ArgumentError,
        r"storage_options\['foo'\] is not an option of the file system of http://localhost:1/a.zarr"
        r".*; it takes .*client_kwargs",
    ),
    "a useless storage option": (
        lambda: ZarrDataSource("good.zarr", storage_options={"anon": True}),
        ArgumentError,
        r"storage_options has anon, and only URLs are opened with such options; leave",
    ),
    "a shuffle without a seed": (
        lambda: NUMBERS.shuffle()[0],
        PlanError,
        r"shuffle: has no seed; pass seed=..., or call .seed\(...\) earlier in the chain",
    ),
    "a shuffle of a stream": (
        lambda: STREAM.shuffle(seed=1),
        AttributeError,
        r"no attribute 'shuffle': a stream has no global shuffle; shuffle before to_iter_dataset",
    ),
    "a read of a stream": (
        lambda: STREAM.read([1]),
        AttributeError,
        r"no attribute 'read': a stream has no random access; read before to_iter_dataset",
    ),
    "a method of other loaders": (
        lambda: NUMBERS.take(3),  # type: ignore[attr-defined]
        AttributeError,
        r"'MapDataset' object has no attribute 'take': write ds\[:n\]",
    ),
    "a method of other loaders for streams": (
        lambda: STREAM.take(3),
        AttributeError,
        r"'IterDataset' object has no attribute 'take': write limit\(n\)",
    ),
    "a slice of floats": (
        lambda: NUMBERS[1.0:],
        ArgumentError,
        r"slice: needs integers, or None, got slice\(1.0, None, None\)",
    ),
    "a record that is None": (
        lambda: MapDataset.source([1, None]).batch(2)[0],
        ElementError,
        r"element 1 of the batch is absent \(its record is None\)",
    ),
    "a list as an index": (
        lambda: NUMBERS[[1, 2]],  # type: ignore[call-overload]
        ArgumentError,
        r"index must be an integer, got a list; for several elements use ds.read\(\[...\]\)",
    ),
    "a class in apply": (
        lambda: NUMBERS.apply(Batch),  # type: ignore[arg-type]
        ArgumentError,
        r"apply: Batch is a class; pass an instance: Batch\(...\)",
    ),
    "a function in apply": (
        lambda: NUMBERS.apply(lambda number: number),  # type: ignore[arg-type]
        ArgumentError,
        r"apply: \S*<lambda> is a function; use map or filter, or an instance of a class",
    ),
    "the start of a dimension's name": (
        lambda: WindowDataSource(GRID, {"lat": 1}, dims=NAMES),
        ArgumentError,
        r"no array has the dimension 'lat', .*did you mean 'latitude'\?",
    ),
    "records with fields": (
        lambda: _fields("fields.zarr"),
        SourceError,
        r"have the fields a, b, and such arrays are not read: write each field to an array",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
def test_the_message_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkdir(tmp_path / "folder")
    for path in ("good.zarr", "folder/inner.zarr"):
        zarr.create_array(str(tmp_path / path), data=np.arange(3))
    monkeypatch.chdir(tmp_path)
    make, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        make()


def test_an_absent_key_shows_the_keys_of_the_element() -> None:
    with pytest.raises(KeyError) as caught:
        MapDataset.source([{"a": 1}]).map(lambda element: element["b"])[0]
    assert "windrow: the element has the keys ['a']" in caught.value.__notes__


def test_a_function_that_cannot_travel_is_named_with_its_attribute() -> None:
    with pytest.raises(TypeError) as caught:
        _sent(_Locked())
    notes = "\n".join(caught.value.__notes__)
    assert "attribute 'lock' of a '_Locked' object" in notes
    assert "what cannot be pickled belongs to map(_Locked)" in notes


def test_a_missing_extra_names_the_packages() -> None:
    assert "run: pip install zarr; or in" in str(missing_extra("it", "zarr"))
    assert "orbax-checkpoint" in str(missing_extra("it", "jax"))


@pytest.mark.parametrize("full", [False, True])
def test_a_traceback_goes_from_the_call_to_the_function(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if full:
        monkeypatch.setenv("WINDROW_FULL_TRACEBACKS", "1")

    def broken(number: int) -> int:
        return 1 // number

    dataset = NUMBERS.map(broken)
    for call in (lambda: dataset[0], lambda: list(dataset), lambda: dataset.read([0])):
        with pytest.raises(ZeroDivisionError) as caught:
            call()
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names[-1] == "broken"
        assert (len(names) <= 6) != full


def test_a_traceback_without_a_function_of_the_user_is_whole() -> None:
    with pytest.raises(ElementError, match="shape") as caught:
        list(MapDataset.source([np.zeros(2), np.zeros(3)]).batch(2))
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 6
