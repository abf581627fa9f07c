"""Redaction of URLs, and of messages of libraries."""

from __future__ import annotations

import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.redaction import Redaction, shown_url
from windrow.errors import ArgumentError
from windrow.sources.remote.options import as_remote_options


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/a.array_record", "s3://bucket/a.array_record"),
        ("s3://bucket/at@home", "s3://bucket/at@home"),
        ("http://user:p@ss@host/a?sig=1", "http://***@host/a?***"),
        ("http://host/a?sig=x@y/z", "http://host/a?***"),
        ("https://host/a?sig=a'b)c|d", "https://host/a?***"),
        ("https://host?sig=a@b", "https://***"),
        ("ftp://user:p?w@host/x", "ftp://***"),
        ("ftp://user:p/w@host/x", "ftp://***"),
        ("http://[::1]:80/x@y?z=1", "http://[::1]:80/x@y?***"),
        ("http://user:p w@host/a b?sig=1 2", "http://***@host/a b?***"),
        ("zip://in::https://u:p%40@h/z.zip?tok=1", "zip://in::https://***@h/z.zip?***"),
        ("/data/what?.array_record", "/data/what?.array_record"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert shown_url(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at 'http://u:p@host/a?b=c': no", "at 'http://***@host/a?***': no"),
        ("<http://host/a?b=c@d> and s3://k:s@b", "<http://host/a?***> and s3://***@b"),
        ("http://host?b=c@d was", "http://*** was"),
        ("nothing? here@all", "nothing? here@all"),
    ],
)
def test_texts_with_urls(text: str, shown: str) -> None:
    assert Redaction(None).hide(text) == shown


CHUNKS = st.text("abcXYZ019+/=%:@?&' ", min_size=6, max_size=20).filter(lambda t: t.strip() == t)


@given(secret=CHUNKS)
def test_settings_are_hidden_as_they_are_and_as_they_are_in_urls(secret: str) -> None:
    hidden = Redaction({"deep": [{"key": secret}], "endpoint_url": "http://host"})
    for form in (secret, urllib.parse.quote(secret, ""), urllib.parse.quote(secret)):
        assert hidden.hide(f"no {form} here") == "no *** here"


def test_harmless_settings_stay() -> None:
    hidden = Redaction({"endpoint_url": "http://user:word@host:1", "region_name": "eu-1"})
    assert hidden.hide("http://user:word@host:1 in eu-1") == "http://***@host:1 in eu-1"


def test_storage_options_in_the_wrong_place_are_not_shown() -> None:
    with pytest.raises(ArgumentError, match="RemoteOptions, got a dict") as caught:
        as_remote_options({"secret": "sesame"}, "Tests")
    assert "sesame" not in str(caught.value)
