"""Offsets in time: as cells where times are evenly spaced, else matched by the times themselves."""

from __future__ import annotations

import datetime
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas  # type: ignore[import-untyped]
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow import MapDataset
from windrow.errors import ArgumentError, MissingExtraError, SourceError
from windrow.sources import Field, WindowDataSource
from windrow.sources.windows.coordinates import Coordinates
from windrow.sources.windows.selection import position_of
from windrow.sources.zarr.source import ArrayTree

AnyArray = npt.NDArray[Any]
HOUR = np.timedelta64(1, "h")
START = np.datetime64("2019-03-01", "ns")


def stored(folder: Path, hours: AnyArray, *, chunk: int = 5, **encoding: Any) -> xarray.Dataset:
    """A store whose value at an hour is the hour, times 10, plus the place."""
    values = np.asarray(hours)[:, None] * 10 + np.arange(3)
    weather = xarray.Dataset(
        {"t": (("time", "lat"), values.astype("f4"))},
        {"time": START + np.asarray(hours) * HOUR, "lat": np.arange(3)},
    )
    coding = {"t": {"chunks": (chunk, 3)}, **({"time": encoding} if encoding else {})}
    weather.to_zarr(folder, encoding=coding, consolidated=False)
    return weather


def gaps(*missing: int) -> AnyArray:
    return np.array([hour for hour in range(40) if hour not in missing])


def source(path: Path, offsets: Any, **more: Any) -> WindowDataSource:
    return WindowDataSource(path, fields={"x": Field("t", {"time": offsets})}, **more)


@pytest.mark.parametrize(
    "offsets",
    [
        ["-12h", "-6h", "0h"],
        ["-12 hours", "-360min", "0h"],
        np.array([-12, -6, 0], "m8[h]"),
        [np.timedelta64(-720, "m"), np.timedelta64(-6, "h"), np.timedelta64(0, "s")],
        [datetime.timedelta(hours=-12), "-6h", pandas.Timedelta(0)],
        pandas.to_timedelta(["-12h", "-6h", "0h"]),
    ],
)
def test_durations_are_the_cells_of_an_even_axis(tmp_path: Path, offsets: Any) -> None:
    stored(tmp_path / "w", np.arange(40))
    cells = source(tmp_path / "w", [-12, -6, 0])
    timed = source(tmp_path / "w", offsets)
    assert timed.fingerprint == cells.fingerprint
    assert len(timed) == 28
    assert timed[3]["x"][:, 0].tolist() == [30, 90, 150]


def test_a_descending_axis_and_times_stored_as_floats(tmp_path: Path) -> None:
    stored(tmp_path / "down", np.arange(40)[::-1])
    assert source(tmp_path / "down", ["-12h", "0h"])[0]["x"][:, 0].tolist() == [270, 390]
    hours = np.arange(40) + 1_000_000
    stored(tmp_path / "days", hours, units="days since 1850-01-01", dtype="f8")
    assert len(source(tmp_path / "days", ["-12h", "0h"])) == 28


def test_even_times_within_a_selection_are_enough(tmp_path: Path) -> None:
    stored(tmp_path / "w", gaps(30))
    first = {"time": slice("2019-03-01", "2019-03-02T05")}
    assert len(source(tmp_path / "w", ["-6h", "0h"], select=first)) == 24
    with pytest.raises(SourceError, match="evenly spaced"):
        source(tmp_path / "w", ["-6h", "0h"])


def test_m_is_minutes_in_a_tolerance(tmp_path: Path) -> None:
    stored(tmp_path / "w", np.arange(40))
    assert source(tmp_path / "w", ["-6h", "90min"], tolerance="30m")[0]["x"].shape[0] == 2


def test_errors_say_where(tmp_path: Path) -> None:
    stored(tmp_path / "w", gaps(20, 21, 30))
    stored(tmp_path / "even", np.arange(40))
    stored(tmp_path / "one", np.arange(1))
    with pytest.raises(
        SourceError, match="1h apart, and the offset 90min lies between two of them"
    ):
        source(tmp_path / "even", ["0h", "90min"])
    with pytest.raises(SourceError, match="time has 1 times, so that there is no step"):
        source(tmp_path / "one", "1h")
    with pytest.raises(ArgumentError, match="holds int64 without a unit of time"):
        WindowDataSource(tmp_path / "w", fields={"x": Field("t", {"lat": "1h"})})
    with pytest.raises(ArgumentError, match="matched by time, one cell each"):
        source(tmp_path / "w", "1h", sizes={"time": 2}, tolerance="0h")
    with pytest.raises(ArgumentError, match="windows there are not padded"):
        source(tmp_path / "w", "1h", pad="edge", tolerance="0h")
    with pytest.raises(ArgumentError, match="tolerance must be a duration"):
        source(tmp_path / "w", "1h", tolerance="-3h")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (
            "six hours",
            r"offsets\['time'\] is 'six hours', which is not a duration .*; write it as '-12h'",
        ),
        ("6", "is '6', which is not a duration"),  # pandas takes it for nanoseconds
        ("1,5h", "is '1,5h', which is not a duration"),  # and this for 15 hours
        ("6 parsecs", "parsecs"),
        ("1M", "do not represent unambiguous timedelta values"),
        (np.timedelta64("NaT"), "is NaT"),
        ("99999999D", "cannot convert"),
        (["-6h", 0], "has cells and durations, .*; give one kind, such as '0h' in place of 0"),
        ([], "is empty"),
    ],
)
def test_what_is_not_a_duration(offsets: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Field("t", {"time": offsets})


@settings(deadline=None, max_examples=examples(50))
@given(direct=st.booleans(), data=st.data())
def test_matching_is_what_a_search_by_hand_finds(direct: bool, data: st.DataObject) -> None:
    hours = np.array(data.draw(st.lists(st.integers(0, 60), min_size=2, max_size=25, unique=True)))
    if data.draw(st.booleans(), "sorted"):
        hours = np.sort(hours)
    offsets = data.draw(st.lists(st.integers(-9, 9), min_size=1, max_size=3), "offsets")
    most = data.draw(st.integers(0, 2), "tolerance")
    stride = data.draw(st.integers(1, 2), "stride")

    def nearest(wanted: int) -> int | None:
        by = sorted(hours.tolist(), key=lambda hour: (abs(hour - wanted), -hour))
        return by[0] if abs(by[0] - wanted) <= most else None

    steps = np.diff(hours)
    even = (steps == steps[0]).all() and all(o % steps[0] == 0 for o in offsets)
    wanted = [
        [nearest(hour + offset) for offset in offsets] + [hour] for hour in hours.tolist()[::stride]
    ]
    wanted = [row for row in wanted if None not in row]
    fields = {
        "x": Field("t", {"time": [f"{offset}h" for offset in offsets]}),
        "y": Field("t", {"time": "0h"}),
    }
    with tempfile.TemporaryDirectory() as folder:
        stored(Path(folder) / "w", hours, chunk=data.draw(st.integers(1, 6), "chunk"))
        try:
            windows = WindowDataSource(
                Path(folder) / "w",
                strides={"time": stride},
                fields=fields,
                tolerance=f"{most}h",
                direct=direct,
            )
        except SourceError:
            assert even or not wanted
            return
        if even:  # origins begin where all cells of a window lie in the array
            return
        found = list(MapDataset.source(windows).block_shuffle(seed=0).batch(4))
        rows = [
            [*row[:, 0].tolist(), own[0]]
            for batch in found
            for row, own in zip(batch["x"], batch["y"], strict=True)
        ]
    assert sorted(rows) == sorted([hour * 10 for hour in row] for row in wanted)


# --- dates of calendars that NumPy has not -------------------------------------------------------

CALENDARS = pytest.mark.parametrize(
    ("calendar", "days", "leap"),
    [("noleap", 28, False), ("360_day", 30, True), ("all_leap", 29, True), ("julian", 28, False)],
)


def of_calendar(folder: Path, units: str, calendar: str, values: AnyArray) -> Path:
    group = zarr.create_group(folder)
    group.create_array(
        "x", data=np.arange(len(values)), chunks=(len(values),), dimension_names=("time",)
    )
    group.create_array(
        "time",
        data=values,
        chunks=(len(values),),
        dimension_names=("time",),
        attributes={"units": units, "calendar": calendar},
    )
    return folder


def chosen_days(path: Path, label: Any, **more: Any) -> list[int]:
    windows = WindowDataSource(path, {"time": 1}, select={"time": label}, **more)
    return [int(row[0]) for row in windows.read(np.arange(len(windows)))["x"]]


@CALENDARS
@pytest.mark.parametrize("dtype", ["i4", "f8"])
def test_dates_of_other_calendars(
    tmp_path: Path, calendar: str, days: int, leap: bool, dtype: str
) -> None:
    cftime = pytest.importorskip("cftime")
    hours = np.arange(0, 24 * 90, 6)
    path = of_calendar(tmp_path / "h", "hours since 1850-01-01", calendar, hours.astype(dtype))
    january = 30 if calendar == "360_day" else 31
    first, stop = 4 * january, 4 * (january + days)
    assert chosen_days(path, "1850-02") == list(range(first, stop))
    assert chosen_days(path, slice("1850-02-28T12", "1850-03-01"))[-1] == stop + 3
    assert chosen_days(path, slice("1850-01-02T06", datetime.datetime(1850, 1, 2, 12))) == [5, 6]
    assert chosen_days(path, slice(np.datetime64("1850-02-01"), "1850-02-01")) == [
        *range(first, first + 4)
    ]
    own = cftime.datetime(1850, 1, 3, 5, calendar=calendar)
    assert chosen_days(path, slice(None, own))[-1] == 8
    labels = Coordinates().of(ArrayTree("s", path, names=["x"]).open()[0].found, "time")
    assert labels is not None
    assert position_of(labels, own, method="nearest") == 9
    if leap:
        assert len(chosen_days(path, "1850-02-29")) == 4
    else:
        with pytest.raises(ArgumentError, match=rf"calendar {calendar!r}, which does not have"):
            chosen_days(path, "1850-02-29")
    with pytest.raises(ArgumentError, match="it is a date of the calendar"):
        chosen_days(path, slice(cftime.datetime(1850, 1, 2, calendar="proleptic_gregorian"), None))


def test_dates_without_cftime_show_units_and_calendar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cftime", None)
    path = of_calendar(tmp_path / "d", "days since 1850-01-01", "noleap", np.arange(24))
    for label in (slice("1850-01-05", "1850-01-10"), datetime.date(1850, 1, 5)):
        with pytest.raises(
            MissingExtraError,
            match=r"among the numbers of 'time' \(in 'days since 1850-01-01' of the calendar 'noleap'; labels"
            r" may be such numbers\) needs .*windrow-data\[xarray\]",
        ):
            chosen_days(path, label)
    assert chosen_days(path, slice(4, 9)) == [4, 5, 6, 7, 8, 9]


def test_months_have_no_fixed_length(tmp_path: Path) -> None:
    path = of_calendar(tmp_path / "m", "months since 2000-01-01", "standard", np.arange(24))
    with pytest.raises(
        ArgumentError, match=r"'months since 2000-01-01' .* cftime does not count these"
    ):
        chosen_days(path, slice("2000-03", "2000-05"))
    assert chosen_days(path, slice(2, 4)) == [2, 3, 4]


def test_windows_by_cells_need_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path / "w", np.arange(40))
    for module in ("xarray", "pandas", "cftime"):
        monkeypatch.setitem(sys.modules, module, None)
    fields = {"x": Field("t", {"time": [-6, 0]}), "y": Field("t", {"time": 3})}
    windows = WindowDataSource(tmp_path / "w", fields=fields, decode=True)
    assert windows[0]["x"][:, 0].tolist() == [0, 60]
    for wrong in (
        lambda: source(tmp_path / "w", "6h"),
        lambda: chosen_days(tmp_path / "w", "2019"),
    ):
        with pytest.raises(MissingExtraError, match=r"windrow-data\[xarray\]"):
            wrong()
