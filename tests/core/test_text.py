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
