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
from windrow.sources import Field, Window, WindowDataSource

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


def source(path: Path, offsets: Any, **time: Any) -> WindowDataSource:
    return WindowDataSource(
        path, {"time": Window(**time)}, fields={"x": Field("t", {"time": offsets})}
    )


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
    first = slice("2019-03-01", "2019-03-02T05")
    assert len(source(tmp_path / "w", ["-6h", "0h"], select=first)) == 24
    with pytest.raises(SourceError, match="evenly spaced"):
        source(tmp_path / "w", ["-6h", "0h"])


def test_sizes_in_time_are_cells(tmp_path: Path) -> None:
    stored(tmp_path / "w", 6 * np.arange(40))
    cells = WindowDataSource(tmp_path / "w", {"time": Window(4, 1), "lat": 2})
    for day in ("1D", "24h", np.timedelta64(24, "h")):
        timed = WindowDataSource(tmp_path / "w", {"time": Window(day, "6h"), "lat": 2})
        assert timed.fingerprint == cells.fingerprint
    field = Field("t", {"time": ["-6h", "6h"]}, {"time": "12h"})
    record = WindowDataSource(
        tmp_path / "w", {"lat": 2}, fields={"x": field}, coordinates=["time"]
    )[0]
    assert ((record["time"] - START) / HOUR).tolist() == [0, 6, 12, 18]
    for size, error, message in (
        ("7h", SourceError, "are 6h apart, and the size 7h lies between two of them"),
        ("0h", SourceError, "must be above 0, got '0h'"),
    ):
        with pytest.raises(error, match=message):
            WindowDataSource(tmp_path / "w", {"time": size})


def test_matched_times_within_years_with_holes(tmp_path: Path) -> None:
    stored(tmp_path / "w", gaps(20))
    holes = [slice("2019-03-01", "2019-03-01T05"), slice("2019-03-01T08", "2019-03-02T12")]
    windows = source(tmp_path / "w", ["-2h", "0h"], select=holes, tolerance="0h")
    hours = [hour for hour in range(37) if hour not in (6, 7, 20)]
    wanted = [[hour - 2, hour] for hour in hours if hour - 2 in hours]
    assert (windows.read(np.arange(len(windows)))["x"][:, :, 0] / 10).tolist() == wanted


def test_errors_say_where(tmp_path: Path) -> None:
    stored(tmp_path / "w", gaps(20, 21, 30))
    stored(tmp_path / "even", np.arange(40))
    stored(tmp_path / "one", np.arange(1))
    for place, offsets, time, error, message in (
        ("even", ["0h", "90min"], {}, SourceError, "1h apart, and the offset 90min lies between"),
        ("one", "1h", {}, SourceError, "the times along time are not evenly spaced: there are 1"),
        ("w", "1h", {}, SourceError, r"2019-03-01T19:00 \(cell 19\) and 2019-03-01T22:00 are 3h"),
        (
            "w",
            "1h",
            {"size": 2, "tolerance": "0h"},
            ArgumentError,
            "matched by time, one cell each",
        ),
        ("w", "1h", {"pad": "edge", "tolerance": "0h"}, ArgumentError, "there are not padded"),
        ("w", "50h", {"tolerance": "0h"}, SourceError, "none of the 37 origins along time has"),
    ):
        with pytest.raises(error, match=message):
            source(tmp_path / place, offsets, **time)
    with pytest.raises(ArgumentError, match="holds int64 without a unit of time"):
        WindowDataSource(tmp_path / "w", fields={"x": Field("t", {"lat": "1h"})})


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
                {"time": Window(stride=stride, tolerance=f"{most}h")},
                fields=fields,
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


def chosen_days(path: Path, label: Any) -> list[int]:
    windows = WindowDataSource(path, {"time": Window(1, select=label)})
    return [int(row[0]) for row in windows.read(np.arange(len(windows)))["x"]]


# The year 1500 is a leap year before the reform of the standard calendar.
@pytest.mark.parametrize(
    ("calendar", "year"),
    [
        *((calendar, 1850) for calendar in ("noleap", "365_day", "all_leap", "366_day", "360_day")),
        *((calendar, 1500) for calendar in ("julian", "standard", "proleptic_gregorian")),
        ("gregorian", 1582),
    ],
)
@pytest.mark.parametrize("dtype", ["i4", "f8"])
def test_dates_of_every_calendar_select_as_in_xarray(
    tmp_path: Path, calendar: str, year: int, dtype: str
) -> None:
    cftime = pytest.importorskip("cftime")
    hours = np.arange(0, 24 * 400, 6).astype(dtype)
    path = of_calendar(tmp_path / "h", f"hours since {year}-01-01", calendar, hours)
    coder = xarray.coders.CFDatetimeCoder(use_cftime=True)
    expected = xarray.open_zarr(path, decode_times=coder, consolidated=False)["x"]
    own = cftime.datetime(year, 10, 3, 5, calendar=calendar)
    for label in (
        f"{year}-02",
        f"{year}-10-04",
        slice(f"{year}-02-28T12", f"{year}-03-01"),
        slice(own, None),
        slice(f"{year}-10", own),
    ):
        assert chosen_days(path, label) == expected.sel(time=label).values.tolist()
    february = chosen_days(path, slice(np.datetime64(f"{year}-02-01"), f"{year}-02-28"))
    assert february == expected.sel(time=slice(f"{year}-02-01", f"{year}-02-28")).values.tolist()
    noon = datetime.datetime(year, 1, 2, 12)
    assert chosen_days(path, slice(f"{year}-01-02T06", noon)) == [5, 6]
    for wrong in (f"{year}-02-31", datetime.datetime.now(datetime.UTC)):
        with pytest.raises((ArgumentError, SourceError), match=r"does not have|has no label"):
            chosen_days(path, wrong)


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
    for time in (Window(1, cells=slice(7, None)), Window(1, select=np.arange(40) > 6)):
        assert WindowDataSource(tmp_path / "w", {"time": time}, names=["t"])[0]["t"][0, 0] == 70
    for wrong in (
        lambda: source(tmp_path / "w", "6h"),
        lambda: chosen_days(tmp_path / "w", "2019"),
    ):
        with pytest.raises(MissingExtraError, match=r"windrow-data\[xarray\]"):
            wrong()
