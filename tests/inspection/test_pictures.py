"""Grids of pictures: what is drawn of pictures, fields, lines and what is damaged."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from PIL import Image

import windrow
from tests.array_record_bytes import write
from tests.processes import LIMIT_S
from windrow.cli.main import main
from windrow.converters import encode_example, write_records
from windrow.inspection.pictures import drawable, grid
from windrow.inspection.shown_records import ShownRecords, read_records
from windrow.sources.location import location_of

AnyArray = npt.NDArray[Any]
ERA5 = Path(__file__).parents[2] / "examples" / "data" / "era5_uk_t2m_2019_03.zarr"

# Far apart from each other, from white, and from everything else on a grid.
COLOURS = [(250, 20, 20 + 9 * i) for i in range(24)]


def solid(number: int, shape: tuple[int, int] = (12, 12)) -> AnyArray:
    """A picture of one colour, the colour of a record."""
    return np.full((*shape, 3), COLOURS[number], np.uint8)


def encoded(picture: AnyArray, format: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, format)
    return out.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """24 records, each a picture of a colour of its own and a label."""
    group = zarr.create_group(tmp_path / "g")
    data = np.stack([solid(i) for i in range(24)])
    group.create_array("image", data=data, chunks=(1, 12, 12, 3))
    group.create_array("label", data=np.arange(24) * 10, chunks=(24,))
    return tmp_path / "g"


def draw(url: str | Path, picture: Path, *options: str, code: int = 0) -> None:
    assert main(["inspect", str(url), "--picture", str(picture), *options]) == code


def colours_in(png: bytes | Path) -> dict[tuple[int, ...], int]:
    """How many pixels a picture has of each of the colours of records."""
    image = Image.open(io.BytesIO(png) if isinstance(png, bytes) else png).convert("RGB")
    found, counts = np.unique(np.asarray(image).reshape(-1, 3), axis=0, return_counts=True)
    named = {tuple(int(v) for v in c): int(n) for c, n in zip(found, counts, strict=True)}
    return {colour: named[colour] for colour in COLOURS if colour in named}


def shown(url: str | Path, records: str | None = None, field: str | None = None) -> ShownRecords:
    """The records that are drawn of a data set."""
    location = location_of(str(url), None, caller="inspect")
    return read_records(windrow.inspect(url), location, records, field)


def kinds(url: str | Path, *given: Any) -> list[str]:
    """How each of the records is drawn."""
    return [kind(drawable(value)) for value in shown(url, *given).values]


def kind(drawn: Any) -> str:
    if isinstance(drawn, str):
        return "note"
    return "picture" if drawn.dtype == np.uint8 else ["line", "field"][drawn.ndim - 1]


# --- the file


def test_a_png_has_the_pictures_of_sixteen_records(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(pictures, tmp_path / "s.png")
    captured = capsys.readouterr()
    assert "Zarr v3 group, 24 records" in captured.out
    assert captured.err == f"windrow inspect: 16 records of g: image drawn in {tmp_path}/s.png\n"
    drawn = colours_in(tmp_path / "s.png")
    evenly = [int(number) for number in np.linspace(0, 23, 16)]
    assert list(drawn) == [COLOURS[number] for number in evenly]
    # Each is a cell of the grid, not a stray pixel.
    assert min(drawn.values()) > 5_000


@pytest.mark.parametrize("records", ["3", "0,23", "5,1,4,9,7"])
def test_a_png_has_the_records_asked_for(records: str, pictures: Path, tmp_path: Path) -> None:
    draw(pictures, tmp_path / "s.png", "--records", records, "--field", "image")
    wanted = sorted(int(number) for number in records.split(","))
    assert list(colours_in(tmp_path / "s.png")) == [COLOURS[number] for number in wanted]


# --- arrays


def test_nan_constant_and_diverse_fields_are_drawn() -> None:
    fields = np.linspace(-1, 1, 8 * 6 * 5).reshape(8, 6, 5).astype("f8")
    fields[0] = np.nan
    fields[1] = 0.25
    fields[2, 0, 0] = np.inf
    fields[3, 0, 0] = 1e308
    fields[4] = 0
    fields[5, :3] = np.nan
    fields[6] = 1e-300
    for only in ([*fields], *([field] for field in fields)):
        assert Image.open(io.BytesIO(grid(only, ["x"] * len(only)))).size[0] > 100


@pytest.mark.parametrize(
    ("value", "expected", "shape"),
    [
        (np.zeros((9, 8, 3), "u1"), "picture", (9, 8, 3)),
        (np.zeros((9, 8, 4), "u1"), "picture", (9, 8, 4)),
        (np.zeros((9, 8), "u1"), "picture", (9, 8)),
        (np.zeros((9, 8, 1), "u1"), "picture", (9, 8)),
        (np.zeros((1, 9, 8), "u1"), "picture", (9, 8)),
        (np.linspace(-1, 1, 216).reshape(9, 8, 3), "picture", (9, 8, 3)),
        (np.zeros((9, 8), bool), "field", (9, 8)),
        (np.zeros((9, 8), "f4"), "field", (9, 8)),
        (np.zeros((9, 8), "i8"), "field", (9, 8)),
        (np.zeros((9, 8), ml_dtypes.bfloat16), "field", (9, 8)),
        (np.zeros((9, 8), "c8"), "field", (9, 8)),
        (np.zeros((5, 9, 8), "f4"), "field", (9, 8)),
        (np.zeros((2, 5, 9, 8), "u1"), "picture", (9, 8)),
        (np.zeros(40, "f4"), "line", (40,)),
        (np.zeros((1, 40), "f4"), "line", (40,)),
        (np.zeros(1, "u1"), "line", (1,)),
        (np.zeros((0, 8), "f4"), "note", None),
        (np.array(["a"]), "note", None),
        ("a $string$", "note", None),
    ],
    ids=lambda value: (
        f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else str(value)
    ),
)
def test_how_values_are_drawn(value: Any, expected: str, shape: tuple[int, ...] | None) -> None:
    found = drawable(value)
    assert kind(found) == expected
    assert (None if isinstance(found, str) else found.shape) == shape
    assert Image.open(io.BytesIO(grid([value], ["$x"], "$t"))).size[0] > 100


# --- files of records


def examples(pictures: Sequence[bytes]) -> list[bytes]:
    return [
        encode_example({"a_list": np.arange(4), "image": picture, "label": i, "name": f"n{i}"})
        for i, picture in enumerate(pictures)
    ]


@pytest.mark.parametrize("form", ["array_record", "tfrecord"])
def test_encoded_pictures_of_examples(form: str, tmp_path: Path) -> None:
    records = examples([encoded(solid(i)) for i in range(20)])
    path = tmp_path / f"x.{form}"
    if form == "tfrecord":
        write_records(path, records)
    else:
        write(path, records)
    draw(path, tmp_path / "s.png", "--records", "1,4,6")
    assert list(colours_in(tmp_path / "s.png")) == [COLOURS[number] for number in (1, 4, 6)]
    assert shown(path).name == "image"
    assert kinds(path, "3", "a_list") == ["line"]


def test_jpeg_and_damaged_pictures(tmp_path: Path) -> None:
    whole = encoded(solid(3, (32, 32)), "JPEG")
    wide = encoded(np.arange(60, dtype=np.uint8).reshape(3, 20))
    deep = io.BytesIO()
    Image.fromarray(np.arange(100, dtype=np.uint16).reshape(10, 10)).save(deep, "PNG")
    records = [
        whole,
        whole[:-200],
        b"\xff\xd8\xff no more",
        wide,
        b"no picture",
        b"",
        deep.getvalue(),
    ]
    path = write(tmp_path / "x.array_record", records)
    drawn = [drawable(value) for value in shown(path).values]
    expected = ["picture", "note", "note", "picture", "note", "note", "field"]
    assert [kind(each) for each in drawn] == expected
    assert str(drawn[1]).startswith("damaged picture: ")
    assert drawn[4] == "10 bytes, not a picture"
    assert not isinstance(drawn[0], str)
    assert np.abs(drawn[0].astype(int) - COLOURS[3]).max() < 12
    draw(path, tmp_path / "s.png")


def test_a_picture_that_claims_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    bomb = bytearray(encoded(solid(0)))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    path = write(tmp_path / "x.array_record", [bytes(bomb)])
    (value,) = shown(path).values
    assert "damaged picture" in str(drawable(value))


# --- what is refused


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["--picture", "s.gif"], "ends in .png", 2),
        (["--picture", "no/such/s.png"], "there is no folder", 2),
        (["--picture", "s.png", "--records", "1,x"], "give numbers of records", 2),
        (["--picture", "s.png", "--records", "-1"], "give numbers of records", 2),
        (["--picture", "s.png", "--records", ",".join("0" * 500)], "at most 400", 2),
        (
            ["--picture", "s.png", "--records", "24"],
            "there is no record 24; choose from 0 to 23",
            2,
        ),
        (["--picture", "s.png", "--field", "label"], "cannot be drawn; choose one of: image", 2),
        (["--picture", "s.png", "--field", "none"], "cannot be drawn; choose one of: image", 2),
        (["--records", "1"], "give --picture FILE", 2),
        (["--field", "image"], "give --picture FILE", 2),
        (["--picture", "folder.png"], "cannot be written", 1),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_requests_that_can_not_be_meant(
    options: list[str],
    message: str,
    code: int,
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    assert main(["inspect", str(pictures), *options]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "s.png").exists()


def test_data_without_anything_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zarr.create_array(str(tmp_path / "empty"), shape=(0, 5, 5), dtype="f4")
    zarr.create_array(str(tmp_path / "flat"), data=np.arange(5))
    write(tmp_path / "none.array_record", [])
    words = [encode_example({"name": "n", "label": 1})]
    write(tmp_path / "words.array_record", words)
    for name, message in (
        ("empty", "there are no records to draw"),
        ("flat", "no array of records to draw"),
        ("none.array_record", "there are no records to draw"),
        ("words.array_record", "neither encoded pictures nor lists of numbers to draw"),
    ):
        draw(tmp_path / name, tmp_path / "s.png", code=1)
        assert message in capsys.readouterr().err
    draw(tmp_path / "words.array_record", tmp_path / "s.png", "--field", "x", code=2)
    assert "no such feature" in capsys.readouterr().err


def test_without_matplotlib_the_extra_is_named_before_anything_is_read(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None; from windrow.cli.main import main;"
        f"sys.exit(main(['inspect', {str(ERA5)!r}, '--picture', {str(tmp_path / 's.png')!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "windrow-data[pictures]" in done.stderr
