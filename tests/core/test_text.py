"""Text for people: sizes, counts, lists and what is cut off."""

from __future__ import annotations

import pytest

from windrow.core.text import (
    ABSENT,
    bad_lines,
    counted,
    in_range,
    in_units,
    listing,
    shortened,
    with_article,
)


@pytest.mark.parametrize(
    ("size", "shown", "with_decimals"),
    [
        (0, "0 bytes", "0 bytes"),
        (999, "999 bytes", "999 bytes"),
        (1000, "1 KB", "1.0 KB"),
        (1_234_567, "1.23 MB", "1.2 MB"),
        (999_499, "999 KB", "999.5 KB"),
        (999_500, "1 MB", "999.5 KB"),
        (999_960, "1 MB", "1.0 MB"),
        (5 * 10**18, "5e+03 PB", "5000.0 PB"),
    ],
)
def test_sizes(size: int, shown: str, with_decimals: str) -> None:
    assert in_units(size) == shown
    assert in_units(size, decimals=1) == with_decimals


def test_counts_and_ranges() -> None:
    assert [counted(n, "record") for n in (0, 1, 2000)] == [
        "0 records",
        "1 record",
        "2,000 records",
    ]
    assert counted(2, "batch") == "2 batches"
    assert (in_range("1", "1"), in_range("1", "2")) == ("1", "1 to 2")
    assert in_units(None) == ABSENT


def test_what_is_cut_off() -> None:
    assert shortened("a\n b  c") == "a b c"
    assert shortened("x" * 80) == "x" * 69 + "..."
    assert (listing([]), listing(["a", "b"])) == ("nothing", "a, b")
    assert listing(list("abcd"), 2) == "a, b and 2 more"
    assert list(bad_lines([], "3 files", joint=": ")) == ["3 files"]
    assert list(bad_lines(["x", "y", "z"], "3 files", joint=" of ", most=2)) == [
        "3 bad of 3 files",
        "  x",
        "  y",
        "  and 1 more, see `bad` of the report",
    ]


@pytest.mark.parametrize(
    ("noun", "expected"),
    [
        ("int", "an int"),
        ("IterDataset", "an IterDataset"),
        ("str", "a str"),
        ("uint8", "a uint8"),
        ("ndarray", "an ndarray"),
        ("xarray.Variable", "an xarray.Variable"),
    ],
)
def test_the_article_suits_the_noun(noun: str, expected: str) -> None:
    assert with_article(noun) == expected
