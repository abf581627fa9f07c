"""Contact sheets: what is drawn, as PNG and as HTML, of pictures, fields, lines and what is damaged."""

from __future__ import annotations

import base64
import html.parser
import io
import json
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
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import windrow
from tests.processes import LIMIT_S
from tests.range_server import RangeServer
from windrow.cli.main import main
from windrow.converters import encode_example, write_records
from windrow.converters.job.manifest import MANIFEST_NAME, InputFile, Manifest, OutputFile
from windrow.inspection.contact_sheet import png_of
from windrow.inspection.contact_sheet_cells import (
    Sheet,
    SheetRequest,
    cell_of,
    limits_of,
    read_sheet,
)
from windrow.sources.location import location_of

AnyArray = npt.NDArray[Any]
ERA5 = Path(__file__).parents[2] / "examples" / "data" / "era5_uk_t2m_2019_03.zarr"

# Far apart from each other, from white, and from everything else on a sheet.
COLOURS = [(250, 20, 20 + 9 * i) for i in range(24)]


def solid(number: int, shape: tuple[int, int] = (12, 12)) -> AnyArray:
    """A picture of one colour, the colour of a record."""
    return np.full((*shape, 3), COLOURS[number], np.uint8)


def encoded(picture: AnyArray, format: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, format)
    return out.getvalue()


def write_array_record(path: Path, records: Sequence[bytes]) -> Path:
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """24 records, each a picture of a colour of its own and a label."""
    group = zarr.create_group(tmp_path / "g")
    data = np.stack([solid(i) for i in range(24)])
    group.create_array("image", data=data, chunks=(1, 12, 12, 3))
    group.create_array("label", data=np.arange(24) * 10, chunks=(24,))
    return tmp_path / "g"


def draw(url: str | Path, sheet: Path, *options: str, code: int = 0) -> None:
    assert main(["inspect", str(url), "--sheet", str(sheet), *options]) == code


def colours_in(png: bytes | Path) -> dict[tuple[int, ...], int]:
    """How many pixels a picture has of each of the colours of records."""
    image = Image.open(io.BytesIO(png) if isinstance(png, bytes) else png).convert("RGB")
    found, counts = np.unique(np.asarray(image).reshape(-1, 3), axis=0, return_counts=True)
    named = {tuple(int(v) for v in c): int(n) for c, n in zip(found, counts, strict=True)}
    return {colour: named[colour] for colour in COLOURS if colour in named}


def sheet_of(url: str | Path, *, count: int = 16, **chosen: Any) -> Sheet:
    found = windrow.inspect(url)
    location = location_of(url, None, caller="inspect")
    return read_sheet(found, location, SheetRequest(count=count, **chosen))


class Page(html.parser.HTMLParser):
    """What a page refers to, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.captions: list[str] = []
        self.words: list[str] = []
        self._caption = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [str(value) for name, value in attrs if name in ("src", "href")]
        self._caption = tag == "figcaption"

    def handle_endtag(self, tag: str) -> None:
        self._caption = False

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._caption:
            self.captions.append(data)


# --- the two kinds of sheets


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
    # Each is a cell of the sheet, not a stray pixel.
    assert min(drawn.values()) > 5_000


@pytest.mark.parametrize("records", ["3", "0,23", "5,1,4,9,7"])
def test_a_png_has_the_records_asked_for(records: str, pictures: Path, tmp_path: Path) -> None:
    draw(pictures, tmp_path / "s.png", "--records", records, "--field", "image")
    wanted = sorted(int(number) for number in records.split(","))
    assert list(colours_in(tmp_path / "s.png")) == [COLOURS[number] for number in wanted]


def test_a_page_needs_no_other_file(pictures: Path, tmp_path: Path) -> None:
    attributes = {"title": "<script>alert(1)</script>", "path": "a & b"}
    zarr.open_group(pictures, mode="r+").attrs.update(attributes)
    draw(pictures, tmp_path / "s.html", "--records", "2,0,7", "--json", "--quiet")
    text = (tmp_path / "s.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags.count("figure") == 3
    assert page.captions == ["2  label 20", "0  label 0", "7  label 70"]
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in " ".join(page.words)
    assert "link" not in page.tags
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    drawn = [colours_in(base64.b64decode(source.partition(",")[2])) for source in page.sources]
    assert [list(colours) for colours in drawn] == [[COLOURS[2]], [COLOURS[0]], [COLOURS[7]]]
    assert page.tags.count("table") == 2
    assert any("12 x 12 x 3" in word for word in page.words)


def test_equal_sheets_are_equal_files(pictures: Path, tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "a.html", "b.html"):
        draw(pictures, tmp_path / name, "--records", "1,2")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


# --- arrays


@pytest.mark.jobs
def test_a_weather_field_has_times_and_a_scale(tmp_path: Path) -> None:
    sheet = sheet_of(ERA5)
    assert [cell.kind for cell in sheet.cells] == ["field"] * 16
    assert sheet.cells[0].caption == "0  2019-03-01 00:00"
    assert sheet.cells[-1].caption == "743  2019-03-31 23:00"
    assert (sheet.unit, sheet.has_scale) == ("2 metre temperature [K]", True)
    assert 250 < sheet.limits[0] < sheet.limits[1] < 300
    assert not sheet.upwards
    draw(ERA5, tmp_path / "s.png")
    image = np.asarray(Image.open(tmp_path / "s.png").convert("RGB"))
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 200
    draw(ERA5, tmp_path / "s.html", "--records", "0,1")
    page = Page((tmp_path / "s.html").read_text(encoding="utf-8"))
    assert len(page.sources) == 3  # two fields and the scale


def test_latitudes_that_ascend_are_drawn_upwards_and_values_decoded(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    data = np.arange(40, dtype="i2").reshape(2, 5, 4)
    names = ("time", "lat", "lon")
    packed = group.create_array("t", data=data, chunks=(1, 5, 4), dimension_names=names)
    packed.attrs.update({"scale_factor": 0.5, "add_offset": 100.0, "units": "K"})
    group.create_array("lat", data=np.arange(5.0), dimension_names=("lat",))
    sheet = sheet_of(tmp_path / "g")
    assert sheet.upwards
    assert sheet.unit == "t [K]"
    values = sheet.cells[1].values
    assert values is not None
    np.testing.assert_array_equal(values, data[1] * 0.5 + 100)


def test_nan_constant_and_diverse_fields_are_drawn(tmp_path: Path) -> None:
    fields = np.linspace(-1, 1, 8 * 6 * 5).reshape(8, 6, 5).astype("f8")
    fields[0] = np.nan
    fields[1] = 0.25
    fields[2, 0, 0] = np.inf
    fields[3, 0, 0] = 1e308
    fields[4] = 0
    fields[5, :3] = np.nan
    fields[6] = 1e-300
    zarr.create_array(str(tmp_path / "a"), data=fields, chunks=(1, 6, 5))
    draw(tmp_path / "a", tmp_path / "s.png")
    draw(tmp_path / "a", tmp_path / "s.html")
    for only in range(8):  # each alone too: what is not drawn cannot lend it a range
        sheet = sheet_of(tmp_path / "a", records=(only,))
        low, high = sheet.limits
        assert -1.1e300 <= low < high <= 1.1e300
        assert len(png_of(sheet)) > 1000


def test_rows_are_lines(tmp_path: Path) -> None:
    data = np.cumsum(np.ones((3, 50)), 1)
    data[1, 10:20] = np.nan
    data[2] = np.nan
    zarr.create_array(str(tmp_path / "a"), data=data, chunks=(1, 50))
    sheet = sheet_of(tmp_path / "a")
    assert [cell.kind for cell in sheet.cells] == ["lines"] * 3
    assert sheet.limits == (1.0, 50.0)
    assert not sheet.has_scale
    assert "from 1 to 50" in sheet.subtitle
    draw(tmp_path / "a", tmp_path / "s.png")
    draw(tmp_path / "a", tmp_path / "s.html")
    assert len(Page((tmp_path / "s.html").read_text()).sources) == 3


def test_pictures_come_before_rows_unless_a_field_is_named(pictures: Path) -> None:
    group = zarr.open_group(pictures, mode="r+")
    group.create_array("a_row", data=np.zeros((24, 9)), chunks=(24, 9))
    assert sheet_of(pictures).title == "g: image"
    assert sheet_of(pictures, field="a_row").cells[0].kind == "lines"


@pytest.mark.parametrize(
    ("value", "kind", "shape"),
    [
        (np.zeros((9, 8, 3), "u1"), "picture", (9, 8, 3)),
        (np.zeros((3, 9, 8), "u1"), "picture", (9, 8, 3)),
        (np.zeros((9, 8, 4), "u1"), "picture", (9, 8, 4)),
        (np.zeros((9, 8), "u1"), "picture", (9, 8)),
        (np.zeros((9, 8, 1), "u1"), "picture", (9, 8)),
        (np.zeros((1, 9, 8), "u1"), "picture", (9, 8)),
        (np.zeros((9, 8), bool), "picture", (9, 8)),
        (np.linspace(-1, 1, 216).reshape(9, 8, 3), "picture", (9, 8, 3)),
        (np.zeros((9, 8), "f4"), "field", (9, 8)),
        (np.zeros((9, 8), "i8"), "field", (9, 8)),
        (np.zeros((9, 8), "u2"), "field", (9, 8)),
        (np.zeros((9, 8), ml_dtypes.bfloat16), "field", (9, 8)),
        (np.zeros((9, 8), "c8"), "field", (9, 8)),
        (np.zeros((5, 9, 8), "f4"), "field", (9, 8)),
        (np.zeros((2, 5, 9, 8), "u1"), "picture", (9, 8)),
        (np.zeros((3000, 2500), "f4"), "field", (1000, 834)),
        (np.zeros(40, "f4"), "lines", (40,)),
        (np.zeros((1, 40), "f4"), "lines", (40,)),
        (np.zeros((40, 2), "f4"), "lines", (40, 2)),
        (np.zeros(1, "f4"), "lines", (1,)),
        (np.zeros((0, 8), "f4"), "note", None),
        ("words", "note", None),
    ],
    ids=lambda value: (
        f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else str(value)
    ),
)
def test_how_values_are_drawn(value: Any, kind: str, shape: tuple[int, ...] | None) -> None:
    cell = cell_of("0", value)
    assert cell.kind == kind
    assert (None if cell.values is None else cell.values.shape) == shape
    sheet = Sheet("t", "s", (cell,), "u", limits_of([]), False, 1.0)
    assert Image.open(io.BytesIO(png_of(sheet))).size[0] > 100


def test_floats_of_pictures_keep_their_order() -> None:
    for low, high in ((0, 1), (-1, 1), (0, 255), (-3, 7)):
        ramp = np.linspace(low, high, 108).reshape(6, 6, 3)
        values = cell_of("0", ramp).values
        assert values is not None
        assert (values.min(), values.max()) == (0, 255)
        assert (np.diff(values.ravel().astype(int)) >= 0).all()


@given(hnp.arrays(np.float64, st.integers(0, 30), elements=st.floats(width=64)))
def test_a_scale_is_never_empty(values: AnyArray) -> None:
    low, high = limits_of([values])
    assert np.isfinite(high - low)
    assert low < high
    finite = values[np.isfinite(values)]
    if finite.size:
        middle = float(np.median(finite.clip(-1e300, 1e300)))
        assert low <= middle <= high


# --- files of records


def examples(pictures: Sequence[bytes]) -> list[bytes]:
    return [
        encode_example({"a_list": np.arange(4), "image": picture, "label": i, "name": f"n{i}"})
        for i, picture in enumerate(pictures)
    ]


@pytest.mark.parametrize("kind", ["array_record", "tfrecord"])
def test_encoded_pictures_of_examples(kind: str, tmp_path: Path) -> None:
    records = examples([encoded(solid(i)) for i in range(20)])
    path = tmp_path / f"x.{kind}"
    if kind == "tfrecord":
        write_records(path, records)
    else:
        write_array_record(path, records)
    draw(path, tmp_path / "s.png", "--records", "1,4,6")
    assert list(colours_in(tmp_path / "s.png")) == [COLOURS[number] for number in (1, 4, 6)]
    sheet = sheet_of(path, count=2)
    assert [cell.caption for cell in sheet.cells] == ["0  label 0", "19  label 19"]
    assert sheet.title == f"x.{kind}: image"
    assert sheet_of(path, field="a_list").cells[0].kind == "lines"


def test_a_folder_of_tfds_and_a_folder_of_tfrecord(tmp_path: Path) -> None:
    for folder, name in (("tfds", "d-train.tfrecord-00000-of-00001"), ("plain", "x.tfrecord")):
        (tmp_path / folder).mkdir()
        write_records(tmp_path / folder / name, examples([encoded(solid(i)) for i in range(3)]))
    (tmp_path / "tfds" / "dataset_info.json").write_text("{}")
    for folder in ("tfds", "plain"):
        assert len(sheet_of(tmp_path / folder).cells) == 3


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
    path = write_array_record(tmp_path / "x.array_record", records)
    sheet = sheet_of(path)
    kinds = ["picture", "note", "note", "picture", "note", "note", "field"]
    assert [cell.kind for cell in sheet.cells] == kinds
    assert sheet.cells[1].note.startswith("damaged picture: ")
    assert sheet.cells[4].note == "10 bytes, not a picture"
    values = sheet.cells[0].values
    assert values is not None
    assert np.abs(values.astype(int) - COLOURS[3]).max() < 12
    draw(path, tmp_path / "s.png")


def test_a_picture_that_claims_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    bomb = bytearray(encoded(solid(0)))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    path = write_array_record(tmp_path / "x.array_record", [bytes(bomb)])
    (cell,) = sheet_of(path).cells
    assert cell.kind == "note"
    assert "damaged picture" in cell.note


def test_raw_features_are_drawn_by_the_manifest(tmp_path: Path) -> None:
    rows = [np.full((4, 5), i, "<f4") for i in range(3)]
    number = np.float64(0.5).tobytes()
    records = [encode_example({"f": row.tobytes(), "x": number}) for row in rows]
    records.append(encode_example({"f": b"too short", "x": b"too"}))
    (tmp_path / "d").mkdir()
    path = write_array_record(tmp_path / "d" / "x.array_record", records)
    features = {
        "f": {"dtype": "float32", "shape": [4, 5], "raw": True},
        "x": {"dtype": "float64", "shape": [], "raw": True},
    }
    files = (OutputFile(path.name, path.stat().st_size, 4, "0"),)
    manifest = Manifest("array_record", (InputFile("i", 1, 4),), {"features": features}, files)
    (tmp_path / "d" / MANIFEST_NAME).write_text(json.dumps(manifest.to_json()))
    sheet = sheet_of(tmp_path / "d")
    assert [cell.kind for cell in sheet.cells] == ["field", "field", "field", "note"]
    assert [cell.caption for cell in sheet.cells] == ["0  x 0.5", "1  x 0.5", "2  x 0.5", "3"]
    values = sheet.cells[2].values
    assert values is not None
    np.testing.assert_array_equal(values, rows[2])


# --- remote


def test_of_an_array_far_away_the_chunks_drawn_are_read() -> None:
    files = {
        str(path.relative_to(ERA5.parent)): path.read_bytes()
        for path in ERA5.rglob("*")
        if path.is_file()
    }
    with RangeServer(files) as server:
        found = windrow.inspect(server.url(ERA5.name))
        before = server.counts().body_bytes
        sheet = read_sheet(
            found,
            location_of(server.url(ERA5.name), None, caller="inspect"),
            SheetRequest(records=(0, 743)),
        )
        taken = server.counts().body_bytes - before
    near = sheet_of(ERA5, records=(0, 743))
    for cell, other in zip(sheet.cells, near.cells, strict=True):
        assert cell.values is not None
        assert other.values is not None
        np.testing.assert_array_equal(cell.values, other.values)
        assert cell.caption == other.caption
    # Two of the 31 chunks, their index, coordinates and metadata.
    assert taken < len(files[f"{ERA5.name}/t2m/c/0/0/0"]) / 6


# --- what is refused


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["--sheet", "s.gif"], "ends in .png or .html", 2),
        (["--sheet", "no/such/s.png"], "there is no folder", 2),
        (["--sheet", "s.png", "--records", "1,x"], "give numbers of records", 2),
        (["--sheet", "s.png", "--records", "-1"], "give numbers of records", 2),
        (["--sheet", "s.png", "--records", ",".join("0" * 500)], "at most 400", 2),
        (["--sheet", "s.png", "--records", "24"], "there is no record 24; choose from 0 to 23", 2),
        (["--sheet", "s.png", "--field", "label"], "cannot be drawn; choose one of: image", 2),
        (["--sheet", "s.png", "--field", "none"], "cannot be drawn; choose one of: image", 2),
        (["--records", "1"], "give --sheet FILE", 2),
        (["--field", "image"], "give --sheet FILE", 2),
        (["--sheet", "folder.png"], "cannot be written", 1),
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
    write_array_record(tmp_path / "none.array_record", [])
    words = [encode_example({"name": "n", "label": 1})]
    write_array_record(tmp_path / "words.array_record", words)
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
        f"sys.exit(main(['inspect', {str(ERA5)!r}, '--sheet', {str(tmp_path / 's.png')!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "windrow-data[pictures]" in done.stderr


def test_without_a_sheet_matplotlib_is_not_imported() -> None:
    program = (
        "import sys; from windrow.cli.main import main;"
        f"code = main(['inspect', {str(ERA5)!r}]); print('matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout.splitlines()[-1] == "False"
